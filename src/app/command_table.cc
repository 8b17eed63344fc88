#include "app/command_table.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <cstdint>

#include "hardware/hardware.h"

namespace orthant {
namespace {

// A validator whose message is "x must be a number at least 1".
CLI::Validator number(bool (*holds)(double), const std::string& text) {
  return CLI::Validator(
      [=](std::string& word) {
        double value = 0;
        const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
        const bool good = error == std::errc() && end == word.data() + word.size() && holds(value);
        return good ? std::string() : word + " must be a number " + text;
      },
      "");
}

// The same for whole numbers. CLI11's own parser would replace a number that is too large by the largest one.
CLI::Validator whole_number(int64_t least, int64_t most = INT64_MAX) {
  return CLI::Validator(
      [=](std::string& word) {
        int64_t value = 0;
        const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
        const bool good = error == std::errc() && end == word.data() + word.size() && value >= least && value <= most;
        return good ? std::string() : fmt::format("{} must be a whole number from {} to {}", word, least, most);
      },
      "");
}

// Rejects an empty path, because an empty variable of a script must not select the default.
CLI::Validator named(const std::string& example) {
  return CLI::Validator(
      [=](std::string& word) { return word.empty() ? "is empty; name one, such as " + example : std::string(); }, "");
}

CLI::Option* define_run_file(CLI::App& app, RunFileArguments& arguments) {
  auto* run_file = app.add_option("RUN_FILE", arguments.run_file, "the run file (TOML)")
                       ->required()
                       ->type_name("")
                       ->check(named("examples/jargon.toml"));
  app.add_flag("--print-config", arguments.print_config, "print the effective configuration and where it came from");
  return run_file;
}

void define_train(CLI::App& app, Command& command) {
  auto& arguments = command.emplace<TrainArguments>();
  define_run_file(app, arguments);
  app.add_flag("--resume", arguments.resume, "resume from the newest checkpoint, or begin a run");
  app.add_flag("--dry-run", arguments.dry_run, "print the banner and the plan without training");
  app.add_option("--restarts", arguments.restarts, "after a failure, start the ranks again at most N times")
      ->type_name("N")
      ->check(whole_number(0));
}

void define_plan(CLI::App& app, Command& command) {
  auto& arguments = command.emplace<PlanArguments>();
  define_run_file(app, arguments)->required(false);
  app.add_option("--hf", arguments.hf, "config.json or its folder; with --ranks N, --seq-len 4096, --global-batch N")
      ->type_name("PATH")
      ->check(named("model/config.json"));
  app.add_flag("--json", arguments.json, "print one JSON object");
  app.add_option("--show", arguments.show, "more: memory, communication, schedule, layouts, or all; joined by commas")
      ->type_name("NAMES")
      ->delimiter(',')
      ->allow_extra_args(false);
  app.add_option("--svg", arguments.svg, "draw the schedule into FILE")
      ->type_name("FILE")
      ->check(named("schedule.svg"));
  auto* trace = app.add_option("--trace", arguments.trace, "write the schedule to FILE as a trace for Perfetto")
                    ->type_name("FILE")
                    ->check(named("trace.json"));
  auto* search =
      app.add_flag("--search", arguments.search, "plan many layouts, and print the fastest that fit the hardware");
  app.add_option("--write", arguments.write, "write the run file of the fastest layout to FILE")
      ->type_name("FILE")
      ->check(named("best.toml"))
      ->needs(search);
  trace->excludes(search);
  // Defines a short name of a key. CLI11 passes options on in the order in which they are defined.
  const auto setting = [&](const char* option, const char* key, const char* help = "") {
    return app.add_option_function<std::string>(
        option, [&arguments, key](const std::string& value) { arguments.overrides.push_back(key + ("=" + value)); },
        help);
  };
  setting("--hardware", "run.hardware", "compute seconds for this machine: h100-8x, or a TOML file (docs/hardware.md)")
      ->type_name("NAME")
      ->check(named("h100-8x"));
  for (const auto& [option, key] : {std::pair("--ranks", "run.ranks"), std::pair("--seq-len", "training.seq_len"),
                                    std::pair("--global-batch", "training.global_batch_size")}) {
    setting(option, key)->group("");  // the help of --hf names them
  }
}

void define_verify(CLI::App& app, Command& command) {
  auto& arguments = command.emplace<VerifyArguments>();
  define_run_file(app, arguments);
  auto* steps = app.add_option("--steps", arguments.steps, "number of optimizer steps to compare; default 3")
                    ->type_name("N")
                    ->check(whole_number(1));
  app.add_flag("--json", arguments.json, "print one JSON object");
  app.add_option_function<std::string>(
         "--hf",
         [&arguments](const std::string& directory) {
           arguments.overrides.push_back("model.from=" + directory);
           arguments.overrides.push_back("training.seed_weights=false");
         },
         "begin with the model and the weights of a Hugging Face directory")
      ->type_name("DIR")
      ->check(named("Qwen2.5-0.5B"));
  app.add_option("--write-reference", arguments.write_reference,
                 "write tokens, losses and gradients for another engine")
      ->type_name("FILE")
      ->check(named("ours.safetensors"));
  app.add_option("--reference", arguments.reference, "also compare one device with the steps of another engine in FILE")
      ->type_name("FILE")
      ->check(named("theirs.safetensors"))
      ->excludes(steps);
}

void define_tokenize(CLI::App& app, Command& command) {
  auto& arguments = command.emplace<TokenizeArguments>();
  app.add_option("INPUT", arguments.inputs, "text files and globs")->required()->type_name("");
  app.add_option("--output", arguments.output, "write PREFIX.bin and PREFIX.idx")->required()->type_name("PREFIX");
  app.add_option("--format", arguments.format, "text, or jsonl: one JSON object a line; default text")->type_name("F");
  app.add_option("--text-key", arguments.text_key, "key of the text in a JSON object; default text")->type_name("KEY");
  app.add_option("--tokenizer", arguments.tokenizer, "byte, FILE.json, FILE.model or train:N; default byte")
      ->type_name("T");
}

void define_generate(CLI::App& app, Command& command) {
  auto& arguments = command.emplace<GenerateArguments>();
  app.add_option("DIRECTORY", arguments.directory, "a run folder, a checkpoint or a Hugging Face directory")
      ->required()
      ->type_name("")
      ->check(named("runs/jargon"));
  CLI::Option* prompt =
      app.add_option("--prompt", arguments.prompt, "text to continue; default: none, the model begins a new document")
          ->type_name("TEXT");
  CLI::Option* prompts = app.add_option("--prompt-file", arguments.prompt_file,
                                        "continue each line, or the \"prompt\" or \"messages\" of .jsonl; print JSON")
                             ->type_name("FILE")
                             ->check(named("prompts.txt"))
                             ->excludes(prompt);
  app.add_flag("--chat", arguments.chat, "answer each prompt as a user's message, by the model's chat template");
  app.add_option("--batch-size", arguments.batch_size, "number of prompts of the file to continue together; default 8")
      ->type_name("N")
      ->check(whole_number(1))
      ->needs(prompts);
  app.add_option("--max-new-tokens", arguments.max_new_tokens, "number of tokens to generate; default 200")
      ->type_name("N")
      ->check(whole_number(1));
  app.add_option("--temperature", arguments.temperature,
                 "sampling temperature; 0 = always the most likely token; default 0.8")
      ->type_name("T")
      ->check(number([](double t) { return t >= 0; }, "at least 0"));
  app.add_option("--top-k", arguments.top_k, "sample from the K most likely tokens; default 0 = all")
      ->type_name("K")
      ->check(whole_number(0));
  app.add_option("--stop", arguments.stops, "end before this text; may be given several times")
      ->type_name("TEXT")
      ->allow_extra_args(false)
      ->check(named("END"));
  app.add_option("--top-p", arguments.top_p,
                 "sample from the most likely tokens with this total probability; default 0.95")
      ->type_name("P")
      ->check(number([](double p) { return p > 0 && p <= 1; }, "above 0 and at most 1"));
  app.add_option("--seed", arguments.seed, "random seed of the sampling; default 1234")
      ->type_name("S")
      ->check(whole_number(0));
}

void define_convert(CLI::App& app, Command& command) {
  auto& arguments = command.emplace<ConvertArguments>();
  app.add_option("FROM", arguments.from, "a run folder, a checkpoint, or a Hugging Face directory")
      ->required()
      ->type_name("");
  app.add_option("TO", arguments.to, "the directory to write; it must not exist")
      ->required()
      ->type_name("")
      ->check(named("models/llama-bf16"));
  app.add_option("--dtype", arguments.dtype, "as_stored, float32, bfloat16 or float16; default as_stored")
      ->type_name("DTYPE");
  app.add_option("--max-shard-gb", arguments.max_shard_gb,
                 "most bytes of tensors in one file, in 10^9 bytes; default 5")
      ->type_name("N")
      ->check(number([](double gb) { return gb > 0 && gb <= 1e6; }, "above 0 and at most 1000000"));
}

void define_checkpoint(CLI::App& app, Command& command) {
  auto& arguments = command.emplace<CheckpointArguments>();
  app.add_option("ACTION", arguments.action, "list them, verify one, or diff two")->required()->type_name("");
  app.add_option("DIR", arguments.directories, "a checkpoint, a run folder (its newest), or a Hugging Face directory")
      ->required()
      ->type_name("")
      ->check(named("runs/jargon"));
  app.add_flag("--weights", arguments.weights_only, "diff: compare the model, not optimizer, step and data position");
  app.add_flag("--json", arguments.json, "print one JSON object");
}

void define_report(CLI::App& app, Command& command) {
  auto& arguments = command.emplace<ReportArguments>();
  app.add_option("RUN_DIR", arguments.dump_folder, "a run folder (job.dump_folder)")
      ->required()
      ->type_name("")
      ->check(named("runs/jargon"));
}

void define_compare(CLI::App& app, Command& command) {
  auto& arguments = command.emplace<CompareArguments>();
  app.add_option("RUN_DIR", arguments.dump_folders, "run folders (job.dump_folder); the first is the reference")
      ->required()
      ->type_name("")
      ->check(named("runs/jargon"));
  app.add_option("--output", arguments.output, "file for the page; default compare.html")
      ->type_name("FILE")
      ->check(named("compare.html"));
}

void define_doctor(CLI::App& app, Command& command) {
  auto& arguments = command.emplace<DoctorArguments>();
  app.add_flag("--json", arguments.json, "print one JSON object");
}

void define_calibrate(CLI::App& app, Command& command) {
  auto& arguments = command.emplace<CalibrateArguments>();
  app.add_option("--write", arguments.write, "file for the hardware profile; default: standard output")
      ->type_name("FILE")
      ->check(named("machine.toml"));
  app.add_option("--hardware", arguments.hardware, "under a launcher: profile that gets the links between the hosts")
      ->type_name("NAME_OR_FILE")
      ->check(named("machine.toml"));
  app.add_option("--links", arguments.links)->group("");
  app.add_option("--seconds", arguments.seconds)
      ->group("")
      ->check(number([](double seconds) { return seconds > 0 && seconds <= 3600; }, "above 0 and at most 3600"));
}

void define_completion(CLI::App& app, Command& command) {
  auto& arguments = command.emplace<CompletionArguments>();
  app.add_option("SHELL", arguments.shell, "bash, zsh or fish")->required()->type_name("");
}

}  // namespace

std::unique_ptr<CLI::App> define_options(const CommandEntry& entry, Command& command) {
  auto app = std::make_unique<CLI::App>();
  app->set_help_flag();
  app->allow_extras();
  entry.define(*app, command);
  for (const OptionChoices& choices : entry.choices) {
    if (choices.or_file) continue;  // the command checks the value
    app->get_option(choices.option)->check(CLI::Validator(CLI::IsMember(choices.words)).description(""));
  }
  return app;
}

const std::vector<CommandEntry>& commands() {
  static const std::vector<CommandEntry> entries = {
      {"train",
       "RUN_FILE [OPTIONS] [SETTINGS]",
       "train a model on text, on the ranks that the run file sets",
       {"orthant train examples/jargon.toml", "orthant train run.toml --training.steps 20 run.ranks=2",
        "torchrun --no-python --nproc-per-node 2 orthant train run.toml --resume"},
       true,
       define_train},
      {"plan",
       "RUN_FILE|--hf PATH [OPTIONS] [SETTINGS]",
       "show the plan of a run: layouts, bytes, memory, schedule",
       {"orthant plan run.toml --show memory,layouts run.ranks=64",
        "orthant plan --hf config.json --ranks 64 --hardware h100-8x --seq-len 8192 --global-batch 256"},
       true,
       define_plan,
       {{"--show", {"memory", "communication", "schedule", "layouts", "all"}},
        {"--hardware", shipped_hardware(), /*or_file=*/true}}},
      {"verify",
       "RUN_FILE [OPTIONS] [SETTINGS]",
       "compare the layout with one device, in float64",
       {"orthant verify run.toml", "orthant verify run.toml --steps 5 run.ranks=3"},
       true,
       define_verify},
      {"tokenize",
       "INPUT... --output PREFIX [OPTIONS]",
       "convert text to PREFIX.bin and PREFIX.idx",
       {"orthant tokenize 'books/*.txt' --output books", "orthant tokenize a.txt --output a --tokenizer train:8000"},
       false,
       define_tokenize,
       {{"--format", {"text", "jsonl"}}, {"--tokenizer", {"byte"}, /*or_file=*/true}}},
      {"generate",
       "DIRECTORY [OPTIONS]",
       "generate text with a trained model",
       {"orthant generate runs/jargon --prompt 'A hacker is'",
        "orthant generate Qwen2.5-0.5B-Instruct --chat --prompt 'Name three rings.'"},
       false,
       define_generate},
      {"convert",
       "FROM TO [OPTIONS]",
       "write a model as a Hugging Face directory, in another dtype",
       {"orthant convert runs/jargon jargon-bf16 --dtype bfloat16",
        "orthant convert models/llama-bf16 llama --dtype float32"},
       false,
       define_convert,
       {{"--dtype", {"as_stored", "float32", "bfloat16", "float16"}}}},
      {"checkpoint",
       "list|verify|diff DIR [DIR] [--json]",
       "list checkpoints, read all their bytes, or compare two",
       {"orthant checkpoint list runs/jargon", "orthant checkpoint verify runs/jargon/checkpoints/latest",
        "orthant checkpoint diff runs/one runs/two"},
       false,
       define_checkpoint,
       {{"ACTION", {"list", "verify", "diff"}}}},
      {"report",
       "RUN_DIR",
       "write RUN_DIR/report.html: loss, throughput, memory",
       {"orthant report runs/jargon"},
       false,
       define_report},
      {"compare",
       "RUN_DIR RUN_DIR... [--output FILE]",
       "write compare.html: the curves and settings of several runs",
       {"orthant compare runs/one runs/two", "orthant compare runs/* --output sweep.html"},
       false,
       define_compare},
      {"calibrate",
       "[--write FILE] [--hardware NAME_OR_FILE]",
       "measure this machine, or the links between several, for plan --hardware",
       {"orthant calibrate --write machine.toml", "orthant plan run.toml --hardware machine.toml",
        "srun --ntasks-per-node=4 orthant calibrate --hardware machine.toml --write cluster.toml"},
       false,
       define_calibrate},
      {"doctor", "[--json]", "check what this machine provides for training", {"orthant doctor"}, false, define_doctor},
      {"completion",
       "bash|zsh|fish",
       "print a shell script that completes commands and keys",
       {"source <(orthant completion bash)", "orthant completion fish > ~/.config/fish/completions/orthant.fish"},
       false,
       define_completion,
       {{"SHELL", {"bash", "zsh", "fish"}}}},
  };
  return entries;
}

}  // namespace orthant
