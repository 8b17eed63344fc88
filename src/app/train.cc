// orthant train: plans the run, starts the local ranks unless a launcher did, and trains as one of the ranks.
#include <ATen/Parallel.h>
#include <c10/util/Exception.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "advice/advised_plan.h"
#include "advice/auto_layout.h"
#include "advice/explain.h"
#include "advice/plan_json.h"
#include "advice/run_warnings.h"
#include "app/commands.h"
#include "app/report.h"
#include "app/restarts.h"
#include "app/resume_command.h"
#include "app/run_setup.h"
#include "app/streams.h"
#include "base/clock.h"
#include "base/errors.h"
#include "base/hash.h"
#include "base/text.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/files.h"
#include "launch/process.h"
#include "launch/rendezvous.h"
#include "launch/spawn.h"
#include "launch/watch.h"
#include "library/run.h"
#include "model/cuda_device.h"
#include "plan/nccl_groups.h"
#include "plan/plan.h"
#include "plan/planned_operations.h"
#include "runtime/from_plan.h"
#include "runtime/machine_memory.h"
#include "runtime/memory.h"
#include "runtime/resume_check.h"
#include "runtime/run_banner.h"
#include "runtime/stop.h"
#include "runtime/trainer.h"

namespace orthant {
namespace {

std::string sample_command(const TrainArguments& arguments, const Config& config) {
  std::vector<std::string> words = {arguments.command.empty() ? "orthant" : arguments.command.front(), "generate",
                                    config.job.dump_folder, "--prompt", "The"};
  if (config.data.format == "chat") words.push_back("--chat");
  return shell_quoted(words);
}

// The run file with all values, and with the layout that "auto" chooses.
std::string effective_config(const Config& config, int ranks) {
  if (config.parallelism.layout != "auto") return print_config(config);
  return print_config(with_chosen_layout(config, facts_before_data(config, ranks)));
}

// Writes the files of the run folder that exist from the start: the effective run file, the plan and its schedule. Each
// file is replaced atomically, so that a full disk leaves the file of the earlier run.
void write_run_folder(const Plan& plan) {
  const std::string& folder = plan.config.job.dump_folder;
  write_file(folder + "/config.toml", print_config(plan.config));
  write_file(folder + "/plan.json", plan_json(plan, {}));
  write_file(folder + "/schedule.svg", planned_svg(plan));
}

// A text that must be equal on all ranks in addition to the run file, because the schedule may come from a separate
// file.
std::string schedule_line(const Plan& plan) {
  return fmt::format("parallelism.pipeline_parallel_schedule = \"{}\", whose Actions have the checksum {:016x}",
                     plan.config.parallelism.pipeline_parallel_schedule, xxh3(to_csv(plan.schedule)));
}

// True after all ranks have met. Before that, a rank that received a stop signal ends at once, because the others
// received it too and do not wait for it.
std::atomic<bool> g_all_connected = false;

void end_if_stopped_early() {
  if (const int signal = stop_signal(); signal != 0 && !g_all_connected) exit_on_signal(signal);
}

// Ends this rank of a failed run. Every rank writes the error file for torchrun; only one reports to the user. Two
// threads may call this: the training thread and the watch thread. The first one ends the process; a thread that may
// not report waits a second, to let one that may report go first. The rank that serves the store waits until the other
// ranks have read it once more.
[[noreturn]] void end_failed(const std::string& message, bool must_report, bool serves) {
  end_if_stopped_early();
  static std::mutex first_in;
  constexpr double kNextLook_s = 2;
  if (!must_report) std::this_thread::sleep_for(std::chrono::seconds(1));
  first_in.lock();
  if (must_report) std::fprintf(stderr, "error: %s\n", message.c_str());
  write_error_file(process_environment, "Error", message);
  if (serves) std::this_thread::sleep_for(std::chrono::duration<double>(kNextLook_s));
  _exit(kFailed);  // no destructors: other threads may hang in a collective while they hold a stream's lock
}

// Before a Comm exists: returns true if this rank is the first to fail. The rank that serves the store waits at most 3
// s until all others have asked. It uses the existing connection, because a new one to a dead store would retry for a
// minute.
bool first_to_fail(const Rendezvous& rendezvous, const std::string& message) {
  if (rendezvous.world_size == 1) return true;
  constexpr double kOthersFail_s = 3;
  try {
    const Store& store = rendezvous.store;
    const bool first = post_failure(store, message);
    store.add("abort/acknowledged", 1);
    const auto start = Clock::now();
    while (rendezvous.serves && store.add("abort/acknowledged", 0) < rendezvous.world_size &&
           seconds_since(start) < kOthersFail_s) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return first;
  } catch (const CommError&) {
    return rendezvous.rank <= 1;  // the store is gone, perhaps with rank 0: let rank 1 report too
  }
}

// A warning if the run needs more memory than this machine, or the GPU of this rank, has available; empty otherwise.
// ConfigError if it needs more than there is in total.
std::string memory_warning(const Plan& plan, int local_ranks) {
  const at::Device device = device_of(plan.config);
  MachineMemory memory;
  int sharers = local_ranks;
  if (device.is_cuda()) {
    const DeviceMemory of_device = read_cuda_memory(device);
    memory = {of_device.total_bytes, of_device.available_bytes, "the GPU"};
    const int gpus = count_cuda_devices();
    sharers = (local_ranks + gpus - 1) / gpus;
  } else {
    memory = machine_memory();
  }
  const MemoryNeed need = memory_need(plan, sharers, memory);
  require_memory(need, plan.config);
  return need.warning;
}

// Returns the warnings for the banner, which leaves out empty ones. Throws as memory_warning() does.
std::vector<std::string> run_warnings(const Plan& plan, int local_ranks) {
  std::vector<std::string> warnings = model_from_warnings(plan);
  const std::vector<std::string> others = {
      memory_warning(plan, local_ranks),
      cores_warning(local_ranks, threads_per_rank(plan.config, local_ranks), cores_of_local_ranks(local_ranks)),
      idle_ranks_warning(plan),
      gpus_warning(plan),
      empty_ranks_warning(plan),
      idle_settings_warning(plan),
      family_warning(plan),
      tokenizer_warning(plan),
      disk_warning(plan, free_disk_bytes(plan.config.job.dump_folder))};
  warnings.insert(warnings.end(), others.begin(), others.end());
  return warnings;
}

// Returns the checkpoint to resume, after all comparisons with the run that need no tokens; empty if there is none.
// Throws ConfigError or DataError.
std::string validate_checkpoint_to_resume(const Plan& plan) {
  const std::string directory = checkpoint_to_resume(plan.config);
  if (!directory.empty()) check_resume_before_data(open_checkpoint(directory, kNoFiles), plan);
  return directory;
}

// All ranks call it, under a Watch. Rank 0 chooses the checkpoint to resume, because another machine may see an older
// state of a shared disk. Rank 0 may read the entire text to compare it.
std::string agree_on_checkpoint(const Plan& plan, const Launch& launch, const Rendezvous& rendezvous) {
  constexpr const char* kKey = "resume-from";
  constexpr double kLongestReading_s = 24 * 3600;
  if (rendezvous.rank != 0) return rendezvous.store.get(kKey, kLongestReading_s);
  const bool checked_by_launcher = launch.launcher == "orthant";
  const std::string directory =
      checked_by_launcher ? checkpoint_to_resume(plan.config) : validate_checkpoint_to_resume(plan);
  rendezvous.store.set(kKey, directory);
  if (directory.empty()) {
    fmt::print(stderr, "--resume: there is no checkpoint in {}/checkpoints yet; the run begins with step 1\n",
               plan.config.job.dump_folder);
  }
  return directory;
}

// A warning if a restart by torchrun would lose the trained steps; empty otherwise.
std::string restart_warning(const TrainArguments& arguments, const Launch& launch) {
  if (arguments.resume || launch.max_restarts == 0) return "";
  return fmt::format(
      "torchrun may restart this run (--max-restarts={}), and a restart then begins with step 1; add "
      "--resume, so that it continues from the newest checkpoint",
      launch.max_restarts);
}

TrainerOptions trainer_options(const TrainArguments& arguments, const Plan& plan, const Launch& launch) {
  const Config& config = plan.config;
  TrainerOptions options;
  options.threads = threads_per_rank(config, launch.local_size);
  options.version = version();
  options.local_ranks = launch.local_size;
  options.warnings = run_warnings(plan, launch.local_size);
  options.warnings.push_back(restart_warning(arguments, launch));
  if (device_of(config).is_cuda()) {
    options.device_peak_flops = peak_flop_per_s(*find_hardware(config, plan.mesh.size()), config.training.dtype);
  }
  options.write_run_folder = [&plan] { write_run_folder(plan); };
  options.write_report = [folder = config.job.dump_folder] { return write_report(folder); };
  options.resume_command = arguments.resume_command;
  options.sample_command = sample_command(arguments, config);
  return options;
}

CommOptions comm_options(const TrainArguments& arguments, const Config& config, bool serves) {
  CommOptions options = transport_options(config);
  options.timeout_s = config.run.timeout_s;
  options.heartbeat_timeout_s = std::min(options.heartbeat_timeout_s, config.run.timeout_s);
  options.on_failure = [arguments, config, serves](const std::string& message, bool must_report) {
    end_failed(message + "\n" + advice_after_failure(config, arguments.resume_command), must_report, serves);
  };
  return options;
}

// Watches the ranks until a Comm with its own Watch exists. Ranks may tokenize for hours, and must not wait for a dead
// one.
std::unique_ptr<Watch> watch_setup(const Rendezvous& rendezvous, const CommOptions& options) {
  if (rendezvous.world_size == 1) return nullptr;
  return std::make_unique<Watch>(rendezvous.store, "setup", rendezvous.rank, rendezvous.world_size,
                                 options.connect_timeout_s,
                                 WatchOptions{.heartbeat = {.timeout_s = options.heartbeat_timeout_s},
                                              .board = rendezvous.board,
                                              .on_failure = options.on_failure});
}

// An addition to an error message if the ranks' store is unreachable; else empty.
std::string describe_lost_store(const Rendezvous& rendezvous) {
  try {
    (void)has_failed(rendezvous.store);
    return "";
  } catch (const CommError&) {
    return " (rank 0 or the launcher, which serves the store, has died or cannot be reached)";
  }
}

// For a store that ended with the rank that served it: waits for the watch to find the cause and end this process. If
// the watch finds none, returns.
void wait_for_watch_to_end(Watch& watch) {
  constexpr double kCauseKnown_s = 5;
  watch.wait_for_cause(kCauseKnown_s);
  if (watch.failure()) std::this_thread::sleep_for(std::chrono::duration<double>(kCauseKnown_s));
}

// Runs one rank, from the rendezvous to the last step.
int train_rank(const TrainArguments& arguments, const Plan& plan, const Launch& launch, const Rendezvous& rendezvous) {
  const Config& config = plan.config;
  std::unique_ptr<Watch> setup;
  std::unique_ptr<FolderLock> folder_lock;
  std::optional<Comm> comm;
  std::optional<TrainingData> data;
  std::optional<Trainer> trainer;  // destroyed after a failure is reported: its destructor waits for a save in progress
  try {
    at::set_num_threads(threads_per_rank(config, launch.local_size));
    if (config.run.device == "cuda") {
      set_cuda_defaults(plan.mesh.size());
      select_cuda_device(launch.local_rank % count_cuda_devices());
    }
    const CommOptions comm_options_of_rank = comm_options(arguments, config, rendezvous.serves);
    check_agreement(rendezvous, print_config(config), config.run.timeout_s);
    setup = watch_setup(rendezvous, comm_options_of_rank);
    const std::string resume_from = arguments.resume ? agree_on_checkpoint(plan, launch, rendezvous) : "";
    data = open_training_data_together(config, rendezvous);
    ORTHANT_CHECK(data->tokenizer->vocab_size() == plan.facts.vocab_size, plan.facts.vocab_size);
    TrainerOptions options = trainer_options(arguments, plan, launch);
    options.resume_from = resume_from;
    if (rendezvous.rank == 0) folder_lock = lock_run_folder(config);
    check_agreement(rendezvous, schedule_line(plan), config.run.timeout_s);
    record_stop_signals(rendezvous.rank == 0);
    comm.emplace(plan.mesh, rendezvous.rank, rendezvous, comm_options_of_rank);
    g_all_connected = true;
    if (setup) setup->leave(true);
    trainer.emplace(plan, *data, *comm, options);  // writes nothing; returns when every rank has accepted the run
    if (rendezvous.rank == 0 && resume_from.empty()) archive_earlier_run(config);
    const int code = trainer->run();
    require_printed();
    return code;
  } catch (const std::exception& error) {
    end_if_stopped_early();
    std::string text = brief(error);
    if (dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr) {
      text +=
          "\nLower training.local_batch_size or training.seq_len, or set activation_checkpoint.mode to \"full\"; "
          "orthant plan shows the memory of each choice.";
    }
    const bool lost_peer = dynamic_cast<const CommError*>(&error) != nullptr;
    // Errors of the system or of a library do not name the rank, which helps to find the cause.
    if (dynamic_cast<const Error*>(&error) == nullptr) text = fmt::format("rank {}: {}", rendezvous.rank, text);
    if (lost_peer && setup && !comm) wait_for_watch_to_end(*setup);
    if (lost_peer && !comm) text += describe_lost_store(rendezvous);
    const std::string advice = lost_peer ? "\n" + advice_after_failure(config, arguments.resume_command) : "";
    // The Watch of this rank must know that the failure is its own: it would end the process for another's.
    const bool must_report = comm ? comm->abort(text) : setup ? setup->abort(text) : first_to_fail(rendezvous, text);
    // The watches of the other ranks still read the store, so the rank that serves it must not end at once.
    end_failed(text + advice, must_report, (comm || setup) && rendezvous.serves);
  }
}

// Ends this rank without a message if another rank has already reported a failure.
Rendezvous connect_or_end(const Config& config, const Launch& launch) {
  try {
    return connect(launch, config.run.timeout_s, print_config(config));
  } catch (const PeerFailed& failure) {
    end_failed(failure.what(), false, false);
  }
}

// Runs as a rank of a launcher. If the run file is invalid, the ranks still agree on one that reports the error.
int train_launched(const TrainArguments& arguments, const Launch& launch) {
  constexpr double kConnectAfterFailure_s = 5;
  Config config;
  std::optional<Plan> plan;
  try {
    if (arguments.restarts > 0) require_own_launcher(launch);
    config = load_run(arguments, launch.launcher == "orthant" ? 0 : launch.world_size);
    if (!arguments.print_config) plan = advised_plan(config, facts_before_data(config, launch.world_size));
    if (plan) check_operations(*plan), check_nccl_groups(*plan);
  } catch (const Error& error) {
    bool must_report = true;
    try {
      must_report = first_to_fail(connect(launch, kConnectAfterFailure_s), error.what());
    } catch (const PeerFailed&) {
      must_report = false;
    } catch (const Error&) {  // no rendezvous: this rank must report
    }
    end_failed(error.what(), must_report, false);
  }
  if (plan) return train_rank(arguments, *plan, launch, connect_or_end(config, launch));
  if (launch.rank == 0) std::fputs(effective_config(config, launch.world_size).c_str(), stdout);
  return kDone;
}

int dry_run(const Plan& plan, const TrainArguments& arguments) {
  TrainerOptions options;
  options.threads = threads_per_rank(plan.config, plan.mesh.size());
  options.warnings = run_warnings(plan, plan.mesh.size());
  if (arguments.resume) options.resume_from = validate_checkpoint_to_resume(plan);
  const TrainingData data = open_run_data(plan.config, make_progress_callback("tokenizing"));
  std::fputs(banner(make_banner(plan, data, options), terminal_style(STDOUT_FILENO)).c_str(), stdout);
  std::fputs(explain(plan, {}).c_str(), stdout);
  return kDone;
}

// Runs without a launcher: performs all checks, the slow ones last, then starts the ranks.
int train_locally(const TrainArguments& arguments, const Config& config) {
  const auto ranks = static_cast<int>(config.run.ranks);
  const Plan plan = advised_plan(config, facts_before_data(config, ranks));
  check_operations(plan);
  check_nccl_groups(plan);
  if (arguments.dry_run) return dry_run(plan, arguments);
  if (arguments.resume) validate_checkpoint_to_resume(plan);
  // On GPUs, each rank compares the plan with the memory of its own.
  if (config.run.device == "cpu") memory_warning(plan, ranks);
  FileReadings readings;
  open_run_data(config, make_progress_callback("tokenizing"), &readings);
  if (ranks == 1 && arguments.restarts == 0) {
    const Store store = Store::in_process();
    share_readings(store, readings);
    return train_rank(arguments, plan, {.launcher = "orthant", .store_kind = StoreKind::kServedByLauncher},
                      {.store = store, .in_process = true});
  }
  block_stop_signals();  // until each rank can handle them
  return run_local_ranks(arguments.command, ranks,
                         {.program = "/proc/self/exe",
                          .threads_per_rank = threads_per_rank(config, ranks),
                          .prepare = [&](const Store& store) { share_readings(store, readings); },
                          .advice = [&] { return advice_after_failure(config, arguments.resume_command); },
                          .restart = restarts_of(arguments, config)});
}

}  // namespace

int train(const TrainArguments& given) {
  die_with_parent();
  install_counting_allocator();
  const auto launch = detect_launch(process_environment, parent_identity());
  TrainArguments arguments = given;
  arguments.resume_command = resume_command(given.command, launch, ancestor_commands(), process_environment);
  end_on_stop_signals(!launch || launch->rank == 0);
  if (launch) return train_launched(arguments, *launch);
  const Config config = load_run(arguments);
  if (!arguments.print_config) return train_locally(arguments, config);
  std::fputs(effective_config(config, static_cast<int>(config.run.ranks)).c_str(), stdout);
  return kDone;
}

}  // namespace orthant
