// The training loop: steps, validations, checkpoints, stop requests, and the output of rank 0.
#include "runtime/trainer.h"

#include <ATen/ATen.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <limits>
#include <thread>

#include "base/clock.h"
#include "base/errors.h"
#include "base/text.h"
#include "checkpoint/retention.h"
#include "config/from_config.h"
#include "launch/process.h"
#include "launch/spawn.h"
#include "model/cuda_device.h"
#include "runtime/memory.h"
#include "runtime/peak_flops.h"
#include "runtime/run_banner.h"
#include "runtime/step_timeline.h"
#include "runtime/stop.h"

namespace orthant {
namespace {

void say(const std::string& text) {
  std::fputs(text.c_str(), stdout);
  std::fflush(stdout);
}

}  // namespace

struct Trainer::Output {
  Output(const Config& config, std::optional<int64_t> resumed, const std::string& version)
      : style(terminal_style(STDOUT_FILENO)), metrics(config.job.dump_folder + "/metrics.jsonl", resumed) {
    if (config.metrics.enable_tensorboard) {
      tensorboard.emplace(config.job.dump_folder + "/tb", resumed, optimizer_spec(config.optimizer).torch_class);
      tensorboard->write_text("config", "```toml\n" + print_config(config) + "```\n");
    }
    if (config.metrics.enable_prometheus || config.metrics.port != 0) {
      const std::string file = config.metrics.enable_prometheus ? config.job.dump_folder + "/metrics.prom" : "";
      prometheus.emplace(
          PrometheusRun{.name = config.job.dump_folder, .version = version, .steps = config.training.steps}, file,
          static_cast<int>(config.metrics.port));
    }
  }

  template <class Record>
  void write(const Record& record) {
    metrics.write(record);
    if (tensorboard) tensorboard->write(record);
  }
  /// Publishes a logged record for Prometheus.
  template <class Record>
  void publish(const Record& record) {
    if (prometheus) prometheus->publish(record);
  }

  TerminalStyle style;
  MetricsWriter metrics;
  std::optional<TensorBoardWriter> tensorboard;
  std::optional<PrometheusExport> prometheus;
  std::vector<StepMetrics> steps;  // of this process
  std::vector<ValidationMetrics> validations;
  Clock::time_point started = Clock::now();
};

Trainer::Trainer(const Plan& plan, const TrainingData& data, Comm& comm, TrainerOptions options)
    : plan_(plan),
      data_(data),
      comm_(comm),
      options_(std::move(options)),
      device_(device_of(plan.config)),
      session_(plan, data.train, comm),
      saver_(plan, data, session_) {
  const Config& config = plan.config;
  if (!options_.resume_from.empty()) {
    // The ranks divide the files whose checksums they compare.
    state_ = load_snapshot(options_.resume_from, plan, data, session_,
                              {comm.rank(), comm.mesh().size()});
  } else {
    load_first_weights(plan, session_.weights());
  }
  if (options_.device_peak_flops > 0) {
    peak_flops_ = options_.device_peak_flops * comm.mesh().size();
  } else {
    // Ranks that share cores share the cores' FLOP/s.
    const int cores = cores_of_local_ranks(options_.local_ranks);
    const double at_once = std::min<double>(options_.local_ranks, std::max(1, cores / options_.threads));
    peak_flops_ = measure_peak_flops(config.training.dtype) * at_once / options_.local_ranks * comm.mesh().size();
  }
  reset_peak_bytes();  // the matrices of the measurement do not count as memory of the run
  comm_.set_activity("waiting until every rank has loaded its weights");
  call_roll(comm_.open_roll_call());  // reading has no time limit
}

const std::string& Trainer::newest_checkpoint() const {
  return saver_.last_saved().empty() ? options_.resume_from : saver_.last_saved();
}

int64_t Trainer::peak_bytes() const { return device_.is_cuda() ? peak_cuda_bytes(device_) : peak_allocated_bytes(); }

void Trainer::reset_peak_bytes() const {
  device_.is_cuda() ? reset_peak_cuda_bytes(device_) : reset_peak_allocated_bytes();
}

void Trainer::open_output() {
  if (comm_.rank() != 0) return;
  const Config& config = plan_.config;
  output_ = std::make_shared<Output>(
      config, options_.resume_from.empty() ? std::nullopt : std::optional<int64_t>(state_.step), options_.version);
  if (const int64_t missing = output_->metrics.missing_steps(); missing > 0) {
    std::fprintf(stderr, "warning: %s/metrics.jsonl lacks %s of the %s before this run\n",
                 config.job.dump_folder.c_str(), counted(missing, "step").c_str(), grouped(state_.step).c_str());
  }
  // A run that has no step left trains nothing with its settings, so the files keep those of the steps.
  if (options_.write_run_folder && has_steps_left()) options_.write_run_folder();
}

int Trainer::run() {
  const auto& config = plan_.config;
  open_output();
  if (output_) print_banner();
  const int64_t begun = state_.step;
  int64_t saved = begun;
  bool save_is_due = false;
  auto save_once = [&] {
    if (saved == state_.step) return;
    save();
    saved = state_.step;
  };
  while (has_steps_left()) {
    step(state_.step + 1);
    const int64_t done = state_.step;
    const bool last = done == config.training.steps;
    const bool validates = config.validation.freq > 0 && (done % config.validation.freq == 0 || last);
    save_is_due |= last || (config.checkpoint.interval > 0 && done % config.checkpoint.interval == 0);
    if (validates || save_is_due || last_.stopped()) {
      finalize_pending_step();
      step_begin_.reset();  // the next step does not follow this one
    }
    const bool stop = last_.stopped();
    if (stop) save_once();  // before validation: the sender of the signal may not wait that long
    if (validates) validate(done);
    // Skipped steps may mean that the weights are of no use, so a save waits for an update.
    if (save_is_due && (skipped_in_row_ == 0 || last)) {
      save_once();
      save_is_due = false;
    }
    if (stop) break;
  }
  if (state_.step > begun) save_timeline();
  comm_.set_activity("writing the last checkpoint");
  saver_.wait();
  finish();
  comm_.set_activity("waiting until rank 0 has written the sample and the report");
  const auto advancing = comm_.keep_advancing();
  call_roll(comm_.open_roll_call());  // this may take longer than run.timeout_s
  return last_.interrupt ? kInterrupted : kDone;
}

void Trainer::step(int64_t step) {
  saver_.throw_if_failed();
  if (!device_.is_cuda() || !step_begin_) step_begin_ = Clock::now();
  const double waited = comm_.exposed_wait_s();
  const Traffic before = comm_.total_traffic();
  const int signal = stop_signal();
  session_.advance(step,
                   {.terminate = signal != 0 && signal != SIGINT,
                    .interrupt = signal == SIGINT,
                    .peak_memory_bytes = static_cast<double>(peak_bytes())},
                   [this](const StepResult& result) { record_result(result); });
  state_.step = step;
  if (!output_) return;

  const Traffic after = comm_.total_traffic();
  StepMetrics& m = unwritten_[step].metrics;
  m.step = step;
  m.lr = learning_rate_of(plan_.config, step);
  if (!reports_late(plan_.config)) end_time_of(step);
  m.peak_memory_bytes = std::max(m.peak_memory_bytes, peak_bytes());
  m.communication_seconds = comm_.exposed_wait_s() - waited;
  m.communication_bytes = after.bytes.sent - before.bytes.sent;
  m.received_bytes = after.bytes.received - before.bytes.received;
  m.communication_calls = after.calls - before.calls;
  write_steps();
}

void Trainer::record_result(const StepResult& result) {
  const TrainingConfig& training = plan_.config.training;
  const int64_t most_skipped = training.on_nonfinite == "skip" ? training.max_skipped_steps : 0;
  const bool skipped = session_.must_skip(result);
  if (skipped && skipped_in_row_ == most_skipped) stop_on_skipped(result);
  skipped_in_row_ = skipped ? skipped_in_row_ + 1 : 0;
  last_ = result;
  state_.tokens += result.tokens;
  if (skipped) ++state_.skipped_steps;
  if (!output_) return;
  auto& [m, tokens, skipped_in_row] = unwritten_[result.step];
  skipped_in_row = skipped_in_row_;
  m.skipped = skipped;
  m.skipped_steps = state_.skipped_steps;
  // A step without labels has no loss.
  m.loss = result.valid_labels > 0 ? result.loss : std::numeric_limits<double>::quiet_NaN();
  m.grad_norm = result.norm;
  m.tokens = state_.tokens;
  m.peak_memory_bytes = std::max(m.peak_memory_bytes, static_cast<int64_t>(result.peak_memory_bytes));
  m.data_seconds = result.data_seconds;
  tokens = result.tokens;
  if (reports_late(plan_.config)) end_time_of(result.step);
}

void Trainer::end_time_of(int64_t step) {
  const auto now = Clock::now();
  unwritten_[step].metrics.step_seconds = std::chrono::duration<double>(now - *step_begin_).count();
  step_begin_ = now;
}

void Trainer::finalize_pending_step() {
  session_.finalize_pending_step([this](const StepResult& result) { record_result(result); });
  if (output_) write_steps();
}

void Trainer::write_steps() {
  const int64_t last = plan_.config.training.steps;
  for (; !unwritten_.empty() && unwritten_.begin()->first <= std::min(last_.step, state_.step);
       unwritten_.erase(unwritten_.begin())) {
    auto& [m, tokens, skipped_in_row] = unwritten_.begin()->second;
    m.tokens_per_second = static_cast<double>(tokens) / m.step_seconds;
    m.mfu = training_flops_per_token(plan_.architecture, plan_.config.training.seq_len) * m.tokens_per_second /
            peak_flops_;
    output_->steps.push_back(m);
    output_->write(m);
    if (m.skipped) {
      say(skipped_line(m, last, skipped_in_row, plan_.config.training.max_skipped_steps, output_->style) + "\n");
    }
    if (m.step != 1 && m.step % plan_.config.metrics.log_freq != 0 && m.step != last) continue;
    output_->publish(m);
    if (m.skipped) continue;  // it has a line already
    std::vector<double> seconds;
    for (size_t i = output_->steps.size() - std::min<size_t>(50, output_->steps.size()); i < output_->steps.size();
         ++i) {
      seconds.push_back(output_->steps[i].step_seconds);
    }
    say(step_line(m, last, eta_seconds(seconds, last - m.step), output_->style) + "\n");
  }
}

void Trainer::validate(int64_t step) {
  if (data_.validation.empty()) return;
  // Bits per byte has no meaning if the model guesses only some of the tokens.
  const bool causal = plan_.architecture.causal();
  const auto metrics_of = [&](const std::string& name, const Session::Validation& sums) {
    constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();
    return SetMetrics{.name = name,
                      .validation_loss = sums.labels > 0 ? sums.nats / static_cast<double>(sums.labels) : kUnknown,
                      .bits_per_byte = causal && sums.bytes > 0
                                           ? sums.nats / std::log(2.0) / static_cast<double>(sums.bytes)
                                           : kUnknown};
  };
  Session::Validation total;
  std::vector<SetMetrics> sets;
  for (const ValidationSet& set : data_.validation) {
    comm_.set_activity(fmt::format("validation{} after step {}", set.name.empty() ? "" : " on " + set.name, step));
    const auto sums = session_.validate(set.samples, plan_.config.validation.steps, data_.bytes_of_token);
    total.nats += sums.nats, total.labels += sums.labels, total.bytes += sums.bytes;
    sets.push_back(metrics_of(set.name, sums));
  }
  if (!output_ || total.labels == 0) return;
  const SetMetrics all = metrics_of("", total);
  ValidationMetrics m{.step = step, .validation_loss = all.validation_loss, .bits_per_byte = all.bits_per_byte};
  if (!sets.front().name.empty()) m.sets = std::move(sets);
  output_->validations.push_back(m);
  output_->write(m);
  output_->publish(m);
  say(validation_line(m, plan_.config.training.steps, output_->style) + "\n");
}

void Trainer::save() {
  comm_.set_activity(fmt::format("saving step {}", state_.step));
  // A checkpoint that cannot be continued must not replace one that can.
  if (const std::string weight = session_.first_weight_not_finite(); !weight.empty()) {
    throw Error(fmt::format("step {}: the update made {} not finite (rank {}). {}", state_.step, weight, comm_.rank(),
                            way_out()));
  }
  saver_.save(state_, /*keeps_old=*/skipped_in_row_ > 0);  // the weights may be of no use
  reset_peak_bytes();  // a plan states the memory of a save by itself
}

// Saves the timeline of the last step. With one pipeline rank it would add nothing to the metrics.
void Trainer::save_timeline() {
  if (comm_.group_size(kOverPipeline) == 1) return;
  comm_.set_activity("comparing clocks");
  const MeasuredStep measured = gather_timeline(comm_, plan_.schedule, state_.step, session_.intervals());
  if (output_) std::ofstream(plan_.config.job.dump_folder + "/timeline.json") << to_json(measured);
}

std::string Trainer::way_out() const {
  const Config& config = plan_.config;
  if (newest_checkpoint().empty()) {
    const bool clips = config.training.max_norm > 0;
    return fmt::format("There is no checkpoint yet; lower optimizer.lr{}, or check the data.",
                       clips ? " or training.max_norm"
                       : config.optimizer.in_backward
                           ? ", set training.max_norm and training.clip_by = \"previous_norm\""
                           : ", set training.max_norm");
  }
  return fmt::format(
      "The newest checkpoint is {}. Resume from it with a lower rate: add optimizer.lr={:g} to\n"
      "  {}\n"
      "If the run fails again, move that checkpoint away: --resume then {}.",
      newest_checkpoint(), config.optimizer.lr / 10, options_.resume_command,
      has_other_checkpoint(newest_checkpoint()) ? "takes the one before it" : "begins with step 1");
}

void Trainer::stop_on_skipped(const StepResult& result) {
  // Only the rank with the cause sees where a value that is not finite began.
  std::string cause;
  bool reports = comm_.rank() == 0;
  if (result.is_finite()) {
    cause =
        fmt::format("The norm exceeds training.skip_above_norm = {:g}: raise that, if the norm is usual for the run.",
                    plan_.config.training.skip_above_norm);
  } else {
    comm_.set_activity(fmt::format("looking for the first value that is not finite in step {}", result.step));
    const auto [found, first] = session_.find_first_not_finite(result.step);
    reports = first;
    cause = found.empty()
                ? fmt::format("All tensors of rank {} are finite{}; another rank reports the first one that is not.",
                              comm_.rank(), reports_late(plan_.config) ? " when the step is repeated" : "")
                : fmt::format("First tensor that is not finite: {} (rank {}).", found, comm_.rank());
  }
  if (!reports) std::this_thread::sleep_for(std::chrono::seconds(2));  // so that the other rank reports first
  const auto number = [](double value) { return std::isnan(value) ? "nan" : fmt::format("{}", value); };
  const std::string skipped =
      skipped_in_row_ > 0
          ? fmt::format(", after training.max_skipped_steps = {} skipped steps in a row", skipped_in_row_)
          : "";
  throw Error(fmt::format("step {}: loss {}, gradient norm {}{}. {} {}", result.step, number(result.loss),
                          number(result.norm), skipped, cause, way_out()));
}

void Trainer::print_banner() const {
  Banner b = make_banner(plan_, data_, options_);
  b.transport = comm_.transport();
  say(banner(b, output_->style));
}

void Trainer::finish() {
  const Config& config = plan_.config;
  const bool complete = state_.step == config.training.steps, masked = !plan_.architecture.causal();
  const bool has_sample = complete && config.metrics.sample_tokens > 0;
  const std::string sample_file = config.job.dump_folder + "/sample.txt";
  std::string text;
  if (complete) set_training_complete();
  if (has_sample) comm_.set_activity("writing a sample");
  if (has_sample && masked) text = filled_text(session_, plan_, data_, comm_);
  // One replica writes the text. If weights are sharded, it needs those of the others.
  const bool takes_part = plan_.shards_weights() || plan_.replica_leader(comm_.rank()) == comm_.rank();
  if (has_sample && !masked && takes_part) text = sample_text(session_, plan_, data_, comm_);
  comm_.set_activity("done");
  if (!output_) return;
  Summary s = make_summary(plan_, output_->steps, output_->validations);
  s.seconds = seconds_since(output_->started);
  s.checkpoint = newest_checkpoint();
  if (last_.stopped()) {
    // Rank 0 may not be the rank that received the signal.
    const int signal = last_.interrupt ? SIGINT : stop_signal() != 0 ? stop_signal() : SIGTERM;
    s.stopped = fmt::format("by {}, after step {} of {}", signal_name(signal), state_.step, config.training.steps);
  }
  if (has_sample) {
    s.sample_text = text;
    std::ofstream(sample_file) << visible_text(text) << "\n";
  } else if (!output_->steps.empty()) {    // else this process has trained no step
    std::filesystem::remove(sample_file);  // a sample of fewer steps, from before the run was continued
  }
  if (complete && !masked) s.sample_command = options_.sample_command;
  if (!complete && !output_->steps.empty()) s.resume_command = options_.resume_command;
  if (options_.write_report && !output_->steps.empty()) s.report = options_.write_report();
  say(summary(s, output_->style));
}

}  // namespace orthant
