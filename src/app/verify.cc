// orthant verify: compares the layout of a run file with one device.
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "advice/advised_plan.h"
#include "app/commands.h"
#include "app/run_setup.h"
#include "app/verify_text.h"
#include "base/errors.h"
#include "base/text.h"
#include "base/text_table.h"
#include "library/run.h"
#include "model/cuda_device.h"
#include "plan/rounding.h"
#include "report/progress_bar.h"

namespace orthant {
namespace {

using Json = nlohmann::ordered_json;

Json json_of(const Worst& worst) {
  return {{"worst_name", worst.name},
          {"worst_relative_error", worst.relative_error},
          {"bound", worst.bound},
          {"step", worst.step},
          {"rank", worst.rank}};
}

Json json_of(const ReferenceReport& report) {
  Json steps = Json::array();
  for (const ReferenceStep& step : report.steps) {
    steps.push_back({{"loss", step.other_loss},
                     {"own_loss", step.own_loss},
                     {"loss_relative_error", step.loss_error},
                     {"gradient_norm", step.other_norm},
                     {"own_gradient_norm", step.own_norm},
                     {"norm_relative_error", step.norm_error}});
  }
  return {{"ok", report.ok},
          {"dtype", report.dtype},
          {"bound", report.bound},
          {"bounded_steps", report.bounded_steps},
          {"steps", std::move(steps)},
          {"gradients", report.gradients},
          {"own_gradients", report.own_gradients},
          {"worst_gradient", report.worst_gradient.name},
          {"worst_gradient_relative_error", report.worst_gradient.relative_error},
          {"first_difference", report.first_difference}};
}

std::string error_text(double error) { return error > 0 ? fmt::format("{:.1e}", error) : "0"; }

}  // namespace

std::string verify_json(const VerifyReport& report, const ReferenceReport* reference, const Plan& plan) {
  Json json = {{"ok", report.ok && (reference == nullptr || reference->ok)},
               {"steps", report.steps},
               {"labels", report.labels},
               {"mesh", plan.mesh_and_kind()},
               {"dtype", plan.config.training.dtype},
               {"loss",
                {{"step", report.loss_step},
                 {"oracle", report.oracle_loss},
                 {"layout", report.layout_loss},
                 {"relative_error", report.loss_error}}},
               {"norm", {{"relative_error", report.norm_error}}},
               {"gradients", json_of(report.gradients)},
               {"weights", json_of(report.weights)},
               {"first_difference", report.first_difference}};
  if (reference != nullptr) json["reference"] = json_of(*reference);
  return json.dump(2) + "\n";
}

std::string reference_text(const ReferenceReport& report, const std::string& file) {
  std::vector<std::vector<std::string>> rows = {{"", "other engine", "one device", "error", "bound"}};
  const auto add = [&](const std::string& what, double other, double own, double error, bool is_bounded) {
    rows.push_back({what, fmt::format("{:.9g}", other), fmt::format("{:.9g}", own), error_text(error),
                    is_bounded ? error_text(report.bound) : "-"});
  };
  for (size_t i = 0; i < report.steps.size(); ++i) {
    const ReferenceStep& step = report.steps[i];
    const bool is_bounded = static_cast<int64_t>(i) < report.bounded_steps;
    add(fmt::format("step {}, loss", i + 1), step.other_loss, step.own_loss, step.loss_error, is_bounded);
    if (step.other_norm != 0) add("gradient norm", step.other_norm, step.own_norm, step.norm_error, is_bounded);
  }
  if (report.gradients > 0) {
    rows.push_back({fmt::format("{} of {}", report.gradients, counted(report.own_gradients, "gradient")), "", "",
                    error_text(report.worst_gradient.relative_error), error_text(report.bound)});
  }
  std::string out =
      fmt::format("{}: another engine in {} against one device\n\n{}\n", file, report.dtype, text_table(rows));
  if (report.gradients > 0)
    out += fmt::format("  the largest error of a gradient is at {}\n", report.worst_gradient.name);
  if (report.bounded_steps < std::ssize(report.steps)) {
    out += "  later steps have no bound, because updates amplify roundings of gradients that are nearly zero\n";
  }
  return out + (report.ok ? "\nok: the other engine computes what one device computes\n"
                          : "\nDIFFERENT: " + report.first_difference + "\n");
}

std::string verify_text(const VerifyReport& report, const Plan& plan) {
  std::vector<std::vector<std::string>> rows = {{"", "error", "bound", "largest at"}};
  const auto add = [&](const char* what, double error, double bound, const std::string& where) {
    rows.push_back({what, error_text(error), error_text(bound), where});
  };
  const auto location = [](const Worst& worst) {
    if (worst.relative_error == 0) return std::string();
    return fmt::format("{}, step {}, rank {}", worst.name, worst.step, worst.rank);
  };
  add("loss", report.loss_error, report.loss_bound,
      fmt::format("step {} in {}: layout {:.10g}, one device {:.10g}", report.loss_step, plan.config.training.dtype,
                  report.layout_loss, report.oracle_loss));
  add("gradient norm", report.norm_error, report.loss_bound, "");
  add("gradients", report.gradients.relative_error, report.gradients.bound, location(report.gradients));
  add("weights", report.weights.relative_error, report.weights.bound, location(report.weights));
  const bool on_gpu = plan.config.run.device == "cuda";
  std::string out = fmt::format("{} {}, {}, {}\n\n{}\n", plan.mesh_and_kind(),
                                on_gpu ? "on a GPU against one rank on the CPU" : "against one device",
                                plan.config.training.dtype, counted(report.steps, "step"), text_table(rows));
  out +=
      "  error:    |layout - one device| / |one device|, the largest of all steps, ranks and tensors\n"
      "  bound:    the largest error that another order of additions can cause; docs/derivations.md derives it\n";
  if (plan.config.training.dtype == "bfloat16") {
    out += "            in bfloat16, at least three rounding errors of one device, but not more than 3.0e-01\n";
  }
  if (report.weights.bound == 0) {
    out += "  weights:  compared after an update with the gradients of one device, which every layout rounds alike\n";
  }
  out += "\n";
  if (report.labels == 0) {
    return out +
           "nothing was compared: no token of these steps had a label; use more steps, longer documents or, "
           "with the masked objective, a larger model.masked_share\n";
  }
  if (report.ok && plan.mesh.size() == 1 && !on_gpu) {
    return out + "nothing was compared, because one rank is the oracle itself; choose a layout, such as run.ranks=2\n";
  }
  return out + (report.ok ? fmt::format("ok: the {} computes what {} computes\n", on_gpu ? "GPU" : "layout",
                                        on_gpu ? "the CPU" : "one device")
                          : "WRONG: " + report.first_difference + "\n");
}

namespace {

// The ranks are threads of this process. Ranks that share a GPU would share a thread of libtorch for backward, too, and
// wait for each other in it forever.
void require_gpus(int ranks) {
  const int gpus = count_cuda_devices();
  if (ranks <= gpus) return;
  throw ConfigError(
      fmt::format("verify needs a GPU for each of the {} ranks, but this machine has {}; use fewer ranks, or compare "
                  "the layout on the CPU with run.device=cpu",
                  ranks, gpus));
}

// Draws one progress bar for one device, then one for the layout.
StepProgress make_step_progress_callback() {
  const auto bar = std::make_shared<std::optional<ProgressBar>>();
  return [bar](const std::string& who, int64_t done, int64_t total) {
    if (done == 0) bar->emplace(who, "steps");
    (*bar)->update(done, total);
    if (done == total) (*bar)->finish();
  };
}

// Selects float64, unless the command line sets training.dtype.
void choose_dtype(Config& config) {
  const auto dtype = config.origins.find("training.dtype");
  if (dtype != config.origins.end() && dtype->second == "command line") return;
  config.training.dtype = "float64";
  config.origins["training.dtype"] = "verify";
}

// Throws ConfigError if `path` exists and is no regular file, or if the directory that would contain it is missing.
void require_place_for_reference(const std::string& path) {
  namespace fs = std::filesystem;
  const fs::path file(path), parent = file.has_parent_path() ? file.parent_path() : ".";
  if (fs::exists(file) && !fs::is_regular_file(file)) {
    throw ConfigError(fmt::format("--write-reference = {} exists and is no regular file; name another file", path));
  }
  if (!fs::is_directory(parent)) {
    throw ConfigError(
        fmt::format("--write-reference = {}: there is no directory {}; create it", path, parent.string()));
  }
}

}  // namespace

int verify(const VerifyArguments& arguments) {
  if (!arguments.write_reference.empty()) require_place_for_reference(arguments.write_reference);
  Config config = load_run(arguments);
  if (const std::string& from = config.model.from; !from.empty()) print_unknown_keys(from);
  const std::string dtype = config.training.dtype;
  choose_dtype(config);
  if (arguments.print_config) {
    std::fputs(print_config(config).c_str(), stdout);
    return kDone;
  }
  // The layout is that of the run itself, with the batch and the recomputation that layout = "auto" chooses. If memory
  // decides, it is chosen for the run's own dtype, not for float64.
  const RunFacts facts = facts_before_data(config, static_cast<int>(config.run.ranks));
  Config own = config;
  own.training.dtype = dtype;
  const std::string compared = config.training.dtype;
  config = advised_plan(own, facts).config;
  config.training.dtype = compared;
  config.run.memory_gib_per_rank = 0;   // the limit holds for the run; float64 and the reference need more memory
  config.training.skip_above_norm = 0;  // every step must update
  const Plan plan = advised_plan(config, facts);
  check_bounds_detect_mistakes(plan);
  require_memory(memory_need(plan, plan.mesh.size(), machine_memory()), config);
  if (config.run.device == "cuda") {
    set_cuda_defaults(plan.mesh.size());
    require_gpus(plan.mesh.size());
  }
  const TrainingData data = open_training_data(config, make_progress_callback("tokenizing"));
  const StepProgress progress = make_step_progress_callback();
  const int64_t steps = arguments.reference.empty() ? arguments.steps : reference_steps(arguments.reference);
  const OracleTrace trace = trace_oracle(plan, data, steps, progress);
  if (!arguments.write_reference.empty()) write_reference(arguments.write_reference, trace, plan, data);
  std::optional<ReferenceReport> reference;
  if (!arguments.reference.empty()) reference = compare_reference(arguments.reference, trace, plan, data);
  const VerifyReport report = verify_against(trace, plan, data, progress);
  if (arguments.json) {
    std::fputs(verify_json(report, reference ? &*reference : nullptr, plan).c_str(), stdout);
  } else {
    const bool has_layout = plan.mesh.size() > 1 || config.run.device == "cuda";
    if (has_layout || !reference) std::fputs(verify_text(report, plan).c_str(), stdout);
    if (has_layout && reference) std::fputs("\n", stdout);
    if (reference) std::fputs(reference_text(*reference, arguments.reference).c_str(), stdout);
  }
  return report.ok && (!reference || reference->ok) ? kDone : kFailed;
}

}  // namespace orthant
