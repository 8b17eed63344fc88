#include "runtime/reference.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <ranges>

#include "base/errors.h"
#include "base/text.h"
#include "checkpoint/safetensors.h"
#include "config/hf_tensors.h"
#include "plan/rounding.h"
#include "runtime/from_plan.h"
#include "runtime/tensor_files.h"

namespace orthant {
namespace {

std::string name_in(int64_t step, const std::string& what) { return fmt::format("step_{}.{}", step, what); }

Batch batch_of(int64_t step, const Plan& plan, const TrainingData& data) {
  const int64_t sequences = plan.config.training.global_batch_size;
  return data.train.batch((step - 1) * sequences, sequences);
}

// The gradient of the first step of a tensor in the model's files.
at::Tensor gradient_of(const OracleTrace& trace, const HfTensor& tensor) {
  std::vector<at::Tensor> parts;
  for (const size_t p : tensor.parameters) {
    const ParameterInfo& parameter = trace.parameters[p];
    parts.push_back(
        trace.gradients[0].narrow(0, trace.flat.parameter_offsets[p], parameter.size()).view(parameter.shape));
  }
  const at::Tensor whole = at::cat(parts);
  return tensor.transposed ? whole.t().contiguous() : whole;
}

std::vector<HfTensor> tensors_of(const OracleTrace& trace, const Plan& plan) {
  return hf_tensors(family_of(plan.architecture), trace.parameters);
}

// Infinite for values that are not numbers, so that they exceed every bound.
double relative(double difference, double size) {
  const double error = std::abs(difference) / size;
  return std::isfinite(error) ? error : std::numeric_limits<double>::infinity();
}

// A file, with messages that name it.
class ReferenceFile {
 public:
  explicit ReferenceFile(const std::string& path) : file_(path) {}

  bool has(const std::string& name) const { return file_.contains(name); }
  at::Tensor tensor(const std::string& name) const {
    if (!has(name)) throw DataError(fmt::format("{}: there is no {}; docs/verify.md lists the tensors", path(), name));
    return tensor_of_file(file_.tensor(name), path());
  }
  double number(const std::string& name) const {
    const at::Tensor value = tensor(name);
    if (value.numel() == 1) return value.to(at::kDouble).item<double>();
    throw DataError(fmt::format("{}: {} must hold 1 number, and has {}", path(), name, value.numel()));
  }
  int64_t steps() const {
    int64_t steps = 0;
    while (has(name_in(steps + 1, "loss"))) ++steps;
    return steps;
  }
  // A tensor of a step after the last one that has a loss.
  std::optional<std::string> tensor_after(int64_t steps) const {
    for (const TensorInfo& tensor : file_.tensors()) {
      if (!tensor.name.starts_with("step_")) continue;
      const std::string number = tensor.name.substr(5, tensor.name.find('.') - 5);
      const bool is_number =
          !number.empty() && number.size() < 10 && number.find_first_not_of("0123456789") == number.npos;
      if (is_number && std::stoll(number) > steps) return tensor.name;
    }
    return std::nullopt;
  }
  std::string dtype() const {
    const auto found = file_.metadata().find("dtype");
    const std::string dtype = found == file_.metadata().end() ? "float32" : found->second;
    if (dtype == "float32" || dtype == "bfloat16" || dtype == "float64") return dtype;
    throw DataError(
        fmt::format("{}: the metadata dtype = {} must be float32, bfloat16 or float64", path(), printable(dtype)));
  }
  // The names of the gradients of the first step.
  std::vector<std::string> gradients() const {
    const std::string prefix = name_in(1, "gradient.");
    std::vector<std::string> names;
    for (const TensorInfo& tensor : file_.tensors()) {
      if (tensor.name.starts_with(prefix)) names.push_back(tensor.name.substr(prefix.size()));
    }
    std::ranges::sort(names);
    return names;
  }
  const std::string& path() const { return file_.path(); }

 private:
  const SafetensorsFile file_;
};

// Throws unless the values of a batch, if the file has them, are those of the run.
void require_equal(const ReferenceFile& file, const std::string& name, const std::vector<int64_t>& own) {
  if (!file.has(name)) return;
  const at::Tensor other = file.tensor(name).to(at::kLong).contiguous().flatten();
  const auto* values = other.const_data_ptr<int64_t>();
  const bool same_size = other.numel() == std::ssize(own);
  const auto differs = same_size ? std::ranges::mismatch(own, std::span(values, own.size())).in1 : own.begin();
  if (same_size && differs == own.end()) return;
  throw DataError(fmt::format(
      "{}: {} must be those of the run{}; use the tokens of a file that --write-reference wrote", file.path(), name,
      same_size ? fmt::format(", and value {} is {} instead of {}", differs - own.begin(),
                              values[differs - own.begin()], *differs)
                : fmt::format(", {} values, and there are {}", own.size(), other.numel())));
}

RoundingBounds bounds_in(const std::string& dtype, const Plan& plan) {
  Config config = plan.config;
  config.training.dtype = dtype;
  config.parallelism = ParallelismConfig{};
  RunFacts facts = plan.facts;
  facts.ranks = 1;
  return rounding_bounds(make_plan(config, facts));
}

}  // namespace

void write_reference(const std::string& path, const OracleTrace& trace, const Plan& plan, const TrainingData& data) {
  std::map<std::string, at::Tensor> tensors;
  const auto number = [](double value) { return at::full({1}, value, at::kDouble); };
  for (size_t i = 0; i < trace.losses.size(); ++i) {
    const auto step = static_cast<int64_t>(i) + 1;
    const Batch batch = batch_of(step, plan, data);
    std::vector<int64_t> all(static_cast<size_t>(batch.seq_len));
    std::iota(all.begin(), all.end(), 0);
    const Microbatch whole = to_microbatch(batch, all, plan.config.data.mask_documents);
    tensors[name_in(step, "tokens")] = whole.tokens_BT;
    tensors[name_in(step, "labels")] = whole.labels_BT;
    if (plan.config.data.mask_documents) tensors[name_in(step, "positions")] = whole.positions_BT;
    tensors[name_in(step, "learning_rate")] = number(learning_rate_of(plan.config, step));
    tensors[name_in(step, "loss")] = number(trace.losses[i]);
    tensors[name_in(step, "gradient_norm")] = number(trace.norms[i]);
  }
  for (const HfTensor& tensor : tensors_of(trace, plan)) {
    tensors[name_in(1, "gradient." + tensor.name)] = gradient_of(trace, tensor);
  }
  std::vector<TensorBytes> stored;
  for (const auto& [name, tensor] : tensors) {
    stored.push_back({.name = name,
                      .dtype = dtype_of(tensor.scalar_type()),
                      .shape = tensor.sizes().vec(),
                      .bytes = bytes_of(tensor)});
  }
  write_safetensors(path, stored,
                    {{"format", "pt"}, {"dtype", plan.config.training.dtype}, {"run_file", print_config(plan.config)}});
}

int64_t reference_steps(const std::string& path) {
  const ReferenceFile file(path);
  const int64_t steps = file.steps();
  if (steps == 0) throw DataError(fmt::format("{}: there is no step_1.loss; docs/verify.md lists the tensors", path));
  if (const auto later = file.tensor_after(steps)) {
    throw DataError(fmt::format("{}: there is {}, but no {}; every step needs its loss", path, printable(*later),
                                name_in(steps + 1, "loss")));
  }
  return steps;
}

ReferenceReport compare_reference(const std::string& path, const OracleTrace& trace, const Plan& plan,
                                  const TrainingData& data) {
  const ReferenceFile file(path);
  const RoundingBounds bounds = bounds_in(file.dtype(), plan);
  ReferenceReport report{.dtype = file.dtype(), .bound = bounds.gradients};
  report.bounded_steps = report.dtype == "float64" ? std::ssize(trace.losses) : 1;
  const auto record = [&](int64_t step, double error, const std::string& what) {
    if (step > report.bounded_steps || error <= report.bound || !report.first_difference.empty()) return;
    report.first_difference =
        fmt::format("step {}: {} has a relative error of {:.2e}; rounding in {} explains at most {:.1e}", step, what,
                    error, report.dtype, report.bound);
  };
  for (size_t i = 0; i < trace.losses.size(); ++i) {
    const auto step = static_cast<int64_t>(i) + 1;
    const Batch batch = batch_of(step, plan, data);
    require_equal(file, name_in(step, "tokens"), batch.tokens);
    require_equal(file, name_in(step, "labels"), batch.labels);
    ReferenceStep& one = report.steps.emplace_back();
    one.own_loss = trace.losses[i], one.other_loss = file.number(name_in(step, "loss"));
    one.loss_error = relative(one.other_loss - one.own_loss, std::abs(one.own_loss));
    record(step, one.loss_error, fmt::format("the loss, {:.9g} instead of {:.9g},", one.other_loss, one.own_loss));
    if (const std::string name = name_in(step, "learning_rate"); file.has(name)) {
      constexpr double kEqualRates = 1e-6;  // a rate may be stored in float32
      const double own = learning_rate_of(plan.config, step), other = file.number(name);
      if (report.first_difference.empty() && relative(other - own, own) > kEqualRates && other != own) {
        report.first_difference =
            fmt::format("step {}: the learning rate is {:.9g} instead of {:.9g}", step, other, own);
      }
    }
    if (!file.has(name_in(step, "gradient_norm"))) continue;
    one.own_norm = trace.norms[i], one.other_norm = file.number(name_in(step, "gradient_norm"));
    one.norm_error = relative(one.other_norm - one.own_norm, std::abs(one.own_norm));
    record(step, one.norm_error,
           fmt::format("the gradient norm, {:.9g} instead of {:.9g},", one.other_norm, one.own_norm));
  }
  std::map<std::string, const HfTensor*> by_name;
  const std::vector<HfTensor> tensors = tensors_of(trace, plan);
  report.own_gradients = std::ssize(tensors);
  for (const HfTensor& tensor : tensors) by_name[tensor.name] = &tensor;
  report.worst_gradient = {.bound = report.bound, .step = 1};
  for (const std::string& name : file.gradients()) {
    const auto found = by_name.find(name);
    if (found == by_name.end()) {
      const auto keys = std::views::keys(by_name);
      const auto near = nearest(name, std::vector<std::string>(keys.begin(), keys.end()));
      throw DataError(fmt::format("{}: the model has no {}{}", path, printable(name),
                                  near ? fmt::format("; did you mean {}?", *near) : ""));
    }
    const at::Tensor own = gradient_of(trace, *found->second), other = file.tensor(name_in(1, "gradient." + name));
    if (other.sizes() != own.sizes()) {
      throw DataError(fmt::format("{}: the gradient of {} must have the shape [{}], and has [{}]", path, name,
                                  fmt::join(own.sizes(), ", "), fmt::join(other.sizes(), ", ")));
    }
    // A gradient that is zero but for roundings is measured by the norm of all.
    const double least = bounds.rest * trace.norms[0] / bounds.gradients;
    const double size = std::max(own.to(at::kDouble).norm().item<double>(), least);
    const double error = relative((other.to(at::kDouble) - own).norm().item<double>(), size);
    ++report.gradients;
    if (report.worst_gradient.name.empty() || error > report.worst_gradient.relative_error) {
      report.worst_gradient.name = name;
      report.worst_gradient.relative_error = error;
    }
    record(1, error, "the gradient of " + name);
  }
  report.ok = report.first_difference.empty();
  return report;
}

}  // namespace orthant
