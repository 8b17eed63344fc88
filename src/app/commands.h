// The commands of the program as functions on plain structs. Each returns the exit code and throws Error on failure.
// command_line.h parses argv into these structs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace orthant {

/// Arguments of all commands that take a run file.
struct RunFileArguments {
  std::string run_file;
  std::vector<std::string> overrides;  // in the form that load_config() expects
  bool print_config = false;           // print the effective configuration and stop
};

struct TrainArguments : RunFileArguments {
  bool resume = false;
  bool dry_run = false;              // print the banner and the plan; train nothing
  int64_t restarts = 0;              // how often to start the ranks again after a failure
  std::vector<std::string> command;  // complete command line, program first, that starts each local rank
  std::string resume_command;        // the command that resumes the run; see resume_command.h
};

struct PlanArguments : RunFileArguments {
  std::string hf;  // instead of a run file: a config.json, or the directory that contains it
  bool json = false;
  std::string svg;       // file for a drawing of the schedule; empty: none
  std::string trace;     // file for the schedule as a Chrome trace; empty: none
  bool search = false;   // search the layouts instead of planning the given one
  std::string write;     // file for the run file of the best layout of the search; empty: none
  std::vector<std::string> show;  // names of sections; empty: none, with --json all
};

struct VerifyArguments : RunFileArguments {
  int64_t steps = 3;
  std::string reference;        // file with the steps of another engine, to compare
  std::string write_reference;  // file to write for another engine
  bool json = false;
};

struct TokenizeArguments {
  std::vector<std::string> inputs;  // text files and globs
  std::string format = "text";      // text | jsonl
  std::string text_key = "text";    // of JSONL
  std::string output;               // PREFIX of PREFIX.bin and PREFIX.idx
  std::string tokenizer = "byte";   // byte | FILE.json | FILE.model | train:N
};

struct GenerateArguments {
  std::string directory;  // a run folder, a checkpoint, or a Hugging Face directory
  std::string prompt;
  std::string prompt_file;  // one prompt per line, instead of `prompt`
  bool chat = false;        // prompts are messages of the user, written by the model's chat template
  int64_t batch_size = 8;   // prompts of the file that are continued together
  int64_t max_new_tokens = 200;
  double temperature = 0.8;  // 0: always the most probable token
  int64_t top_k = 0;         // 0: all tokens
  double top_p = 0.95;
  std::vector<std::string> stops;
  int64_t seed = 1234;
};

struct ConvertArguments {
  std::string from;                 // a run folder, a checkpoint, or a Hugging Face directory
  std::string to;                   // a new directory
  std::string dtype = "as_stored";  // as_stored | float32 | bfloat16 | float16
  double max_shard_gb = 5;
};

struct CheckpointArguments {
  std::string action;                    // list | verify | diff
  std::vector<std::string> directories;  // one, or two for diff
  bool weights_only = false;             // of diff: compare the model alone
  bool json = false;
};

struct ReportArguments {
  std::string dump_folder;
};

struct CompareArguments {
  std::vector<std::string> dump_folders;
  std::string output = "compare.html";
};

struct DoctorArguments {
  bool json = false;
  double measure_s = 2;  // seconds for which matrices are multiplied
};

struct CalibrateArguments {
  std::string write;  // file for the hardware profile; empty: stdout
  std::string hardware;  // under a launcher: the profile to which the links between hosts are added
  std::string links;  // of the ranks that measure messages: the file for their results
  double seconds = 55;  // time of the measurements; starting ranks and slow kernels add to it
};

struct CompletionArguments {
  std::string shell;  // bash | zsh | fish
};

/// The program's version, such as "0.1.0".
std::string version();

int train(const TrainArguments& arguments);
int plan(const PlanArguments& arguments);
int verify(const VerifyArguments& arguments);
int tokenize(const TokenizeArguments& arguments);
int generate(const GenerateArguments& arguments);
int convert(const ConvertArguments& arguments);
int checkpoint(const CheckpointArguments& arguments);
int report(const ReportArguments& arguments);
int compare(const CompareArguments& arguments);
int doctor(const DoctorArguments& arguments);
int calibrate(const CalibrateArguments& arguments);
int completion(const CompletionArguments& arguments);

}  // namespace orthant
