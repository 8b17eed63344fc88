// orthant checkpoint: lists the checkpoints of a run, verifies one, and compares two.

#include <algorithm>
#include <cmath>
#include <ctime>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <span>

#include "app/command_line.h"
#include "app/commands.h"
#include "app/run_setup.h"
#include "base/errors.h"
#include "base/terminal_text.h"
#include "base/text.h"
#include "base/text_table.h"
#include "checkpoint/diff.h"
#include "checkpoint/list.h"
#include "checkpoint/retention.h"
#include "checkpoint/verify.h"

namespace orthant {
namespace {

using OrderedJson = nlohmann::ordered_json;
namespace fs = std::filesystem;

void print_json(const OrderedJson& object) {
  fmt::print("{}\n", object.dump(2, ' ', false, OrderedJson::error_handler_t::replace));
}

// The checkpoint or Hugging Face directory that a user names: itself, or the newest checkpoint of a run folder or of a
// folder of checkpoints. A damaged one is taken, too, because its damage is to be reported.
std::string saved_model(const std::string& directory) {
  const fs::path path(directory);
  if (fs::exists(path / "orthant") || fs::exists(path / "config.json")) return directory;
  for (const fs::path& folder : {path / "checkpoints", path}) {
    if (!fs::is_directory(folder)) continue;
    if (const auto latest = follow_latest(folder)) return *latest;
    if (const std::vector<int64_t> steps = list_steps(folder); !steps.empty()) return folder / step_name(steps.back());
  }
  return model_directory(directory);  // explains what to name
}

std::string time_text(std::time_t seconds, const char* format, std::tm* (*convert)(const std::time_t*, std::tm*)) {
  std::tm fields{};
  char text[64] = "";
  if (convert(&seconds, &fields) != nullptr) (void)std::strftime(text, sizeof text, format, &fields);
  return text;
}

// The axes of a mesh that have more than one rank: "data 2" of "[row 1, data 2]".
std::string short_mesh(const std::string& mesh) {
  if (!mesh.starts_with("[") || !mesh.ends_with("]")) return mesh.empty() ? "-" : mesh;
  std::vector<std::string> axes;
  for (const std::string& axis : split(mesh.substr(1, mesh.size() - 2), ',')) {
    if (!axis.ends_with(" 1")) axes.emplace_back(trim(axis));
  }
  return axes.empty() ? "one rank" : join(axes, ", ");
}

OrderedJson json_of(const CheckpointList& list) {
  OrderedJson checkpoints = OrderedJson::array();
  bool ok = list.leftovers.empty();
  for (const ListedCheckpoint& listed : list.checkpoints) {
    ok = ok && listed.is_complete();
    checkpoints.push_back(
        {{"name", listed.name},
         {"step", listed.step},
         {"bytes", listed.bytes},
         {"saved", listed.saved_unix_s ? OrderedJson(time_text(*listed.saved_unix_s, "%Y-%m-%dT%H:%M:%SZ", gmtime_r))
                                       : OrderedJson()},
         {"dtype", listed.dtype},
         {"mesh", listed.mesh},
         {"tensors", listed.num_tensors ? OrderedJson(*listed.num_tensors) : OrderedJson()},
         {"complete", listed.is_complete()},
         {"latest", listed.is_latest},
         {"problem", listed.problem}});
  }
  return {{"ok", ok}, {"directory", list.directory}, {"checkpoints", checkpoints}, {"leftovers", list.leftovers}};
}

int list_action(const CheckpointArguments& arguments) {
  const CheckpointList list = list_checkpoints(arguments.directories[0]);
  if (arguments.json) {
    print_json(json_of(list));
    return kDone;
  }
  std::vector<std::vector<std::string>> rows = {
      {"checkpoint", "step", "size", "saved", "dtype", "tensors", "complete", "mesh"}};
  std::string problems;
  for (const ListedCheckpoint& listed : list.checkpoints) {
    rows.push_back({escape_for_terminal(listed.name) + (listed.is_latest ? " (latest)" : ""), grouped(listed.step),
                    format_bytes(static_cast<double>(listed.bytes)),
                    listed.saved_unix_s ? time_text(*listed.saved_unix_s, "%Y-%m-%d %H:%M", localtime_r) : "-",
                    listed.dtype.empty() ? "-" : escape_for_terminal(listed.dtype),
                    listed.num_tensors ? grouped(*listed.num_tensors) : "-", listed.is_complete() ? "yes" : "no",
                    escape_for_terminal(short_mesh(listed.mesh))});
    if (!listed.is_complete()) problems += fmt::format("not complete: {}\n", escape_for_terminal(listed.problem));
  }
  fmt::print("{}\n{}{}", escape_for_terminal(list.directory), text_table(rows), problems);
  for (const std::string& name : list.leftovers) {
    fmt::print("leftover of an interrupted save, which the next save removes or restores: {}\n",
               escape_for_terminal(name));
  }
  if (!list.has_latest) fmt::print("`latest` points to no checkpoint\n");
  return kDone;
}

int verify_action(const CheckpointArguments& arguments) {
  const std::string directory = saved_model(arguments.directories[0]);
  const VerifiedCheckpoint result = verify_checkpoint(directory);
  if (arguments.json) {
    print_json({{"ok", result.ok()},
                {"directory", directory},
                {"files", result.num_files},
                {"bytes", result.bytes},
                {"tensors", result.num_tensors},
                {"problems", result.problems}});
    return result.ok() ? kDone : kFailed;
  }
  if (result.problems.size() == 1) throw DataError(escape_for_terminal(result.problems[0]));
  if (!result.ok()) {
    throw DataError(fmt::format("{} has {}:\n  {}", directory, counted(std::ssize(result.problems), "problem"),
                                escape_for_terminal(join(result.problems, "\n  "), 1 << 16)));
  }
  fmt::print("complete: {}, {}, {}{}\n", counted(result.num_files, "file"), counted(result.bytes, "byte"),
             counted(result.num_tensors, "tensor"),
             directory == arguments.directories[0] ? "" : fmt::format(", in {}", directory));
  return kDone;
}

std::string form_of(Dtype dtype, const std::vector<int64_t>& shape) {
  return fmt::format("{} [{}]", dtype_name(dtype), fmt::join(shape, ", "));
}

OrderedJson json_of(const TensorDifference& tensor) {
  OrderedJson object = {{"name", tensor.name}, {"dtype", dtype_name(tensor.dtype)}, {"shape", tensor.shape}};
  if (!tensor.elements) return object;
  const auto& largest = tensor.elements->largest;
  object["elements"] = tensor.elements->num_elements;
  object["different"] = tensor.elements->num_different;
  object["largest_difference"] = largest && std::isfinite(*largest) ? OrderedJson(*largest) : OrderedJson();
  return object;
}

OrderedJson json_of(const CheckpointDiff& diff) {
  OrderedJson tensors = OrderedJson::array(), forms = OrderedJson::array(), state = OrderedJson::array();
  for (const TensorDifference& tensor : diff.tensors) tensors.push_back(json_of(tensor));
  for (const FormDifference& form : diff.forms) {
    forms.push_back({{"name", form.name},
                     {"a", {{"dtype", dtype_name(form.dtype_a)}, {"shape", form.shape_a}}},
                     {"b", {{"dtype", dtype_name(form.dtype_b)}, {"shape", form.shape_b}}}});
  }
  for (const StateDifference& field : diff.state) {
    state.push_back({{"field", field.field}, {"a", field.a}, {"b", field.b}});
  }
  return {{"equal", diff.equal()},
          {"tensors", diff.num_tensors},
          {"read_tensors", diff.read_tensors},
          {"different", tensors},
          {"dtype_or_shape", forms},
          {"only_a", diff.only_a},
          {"only_b", diff.only_b},
          {"state", state},
          {"settings", diff.settings}};
}

constexpr std::size_t kMostRows = 10;  // of each list

template <typename Rows>
auto first_rows(const Rows& rows) {
  return std::span(rows).first(std::min(rows.size(), kMostRows));
}

// "and 2 more" for a list that is longer than its first rows, else empty.
std::string others(std::size_t size) {
  return size > kMostRows ? fmt::format("and {} more", grouped(static_cast<int64_t>(size - kMostRows))) : "";
}

// Prints "TITLE (12): a, b, ..., and 2 more".
void print_names(const std::string& title, const std::vector<std::string>& names) {
  if (names.empty()) return;
  std::vector<std::string> words;
  for (const std::string& name : first_rows(names)) words.push_back(printable(name));
  if (names.size() > kMostRows) words.push_back(others(names.size()));
  fmt::print("{} ({}): {}\n", title, names.size(), join(words, ", "));
}

void print_tensors(const std::vector<TensorDifference>& tensors) {
  if (tensors.empty()) return;
  std::vector<std::vector<std::string>> rows = {
      {"tensor", "different elements", "of", "largest difference", "dtype and shape"}};
  for (const TensorDifference& tensor : first_rows(tensors)) {
    const auto& elements = tensor.elements;
    rows.push_back({printable(tensor.name), elements ? grouped(elements->num_different) : "-",
                    elements ? grouped(elements->num_elements) : "-",
                    elements && elements->largest ? fmt::format("{:.3g}", *elements->largest) : "-",
                    form_of(tensor.dtype, tensor.shape)});
  }
  fmt::print("{}", text_table(rows));
  if (tensors.size() > kMostRows) fmt::print("  {}\n", others(tensors.size()));
}

void print_diff(const CheckpointDiff& diff) {
  if (diff.equal()) {
    fmt::print("equal: {}{}\n", counted(diff.num_tensors, "tensor"),
               diff.read_tensors ? "" : ", by the hashes in their manifests");
  } else if (diff.tensors.empty()) {
    fmt::print("different; the {} that both have in the same dtype and shape are equal\n",
               counted(diff.num_tensors - std::ssize(diff.forms), "tensor"));
  } else {
    fmt::print("different: {} of {} that both have, the first is {}\n", grouped(std::ssize(diff.tensors)),
               counted(diff.num_tensors, "tensor"), printable(diff.tensors.front().name));
  }
  print_tensors(diff.tensors);
  for (const FormDifference& form : first_rows(diff.forms)) {
    fmt::print("{} is {} in A, and {} in B\n", printable(form.name), form_of(form.dtype_a, form.shape_a),
               form_of(form.dtype_b, form.shape_b));
  }
  if (diff.forms.size() > kMostRows) fmt::print("{} of another dtype or shape\n", others(diff.forms.size()));
  print_names("only in A", diff.only_a);
  print_names("only in B", diff.only_b);
  for (const StateDifference& field : diff.state) {
    fmt::print("state: {} is {} in A, and {} in B\n", escape_for_terminal(field.field, 100),
               escape_for_terminal(field.a, 100), escape_for_terminal(field.b, 100));
  }
  for (const std::string& file : diff.settings) fmt::print("note: {} differs\n", file);
}

int diff_action(const CheckpointArguments& arguments) {
  const std::string a = saved_model(arguments.directories[0]), b = saved_model(arguments.directories[1]);
  const CheckpointDiff diff =
      diff_checkpoints(a, b, {.weights_only = arguments.weights_only, .max_read = static_cast<int>(kMostRows)});
  if (arguments.json) {
    OrderedJson object = {{"a", a}, {"b", b}};
    object.update(json_of(diff));
    print_json(object);
  } else {
    fmt::print("A: {}\nB: {}\n", a, b);
    print_diff(diff);
    const bool have_the_same = diff.only_a.empty() && diff.only_b.empty();
    if (!have_the_same && !arguments.weights_only) fmt::print("note: --weights compares the model alone\n");
  }
  return diff.equal() ? kDone : kFailed;
}

}  // namespace

int checkpoint(const CheckpointArguments& arguments) {
  const std::size_t wanted = arguments.action == "diff" ? 2 : 1;
  if (arguments.directories.size() != wanted) {
    throw UsageError(fmt::format("checkpoint {} takes {}, but got {}\nhelp:  orthant checkpoint --help",
                                 arguments.action, wanted == 1 ? "one directory" : "two directories",
                                 arguments.directories.size()));
  }
  if (arguments.weights_only && wanted != 2) {
    throw UsageError(fmt::format("--weights requires diff, but the action is {}\nhelp:  orthant checkpoint --help",
                                 arguments.action));
  }
  if (arguments.action == "list") return list_action(arguments);
  return arguments.action == "verify" ? verify_action(arguments) : diff_action(arguments);
}

}  // namespace orthant
