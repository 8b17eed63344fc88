#include "report/data.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/errors.h"
#include "base/json.h"
#include "base/text.h"
#include "config/hf_family.h"
#include "plan/pipeline.h"
#include "plan/plan.h"

namespace orthant {
namespace {

using Json = nlohmann::ordered_json;

std::string content_of(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// The start time of the run, from the name of the first event file. Unlike a file's date, the name survives copying.
std::string start_time(const std::filesystem::path& events) {
  constexpr std::string_view kPrefix = "events.out.tfevents.";
  std::time_t earliest = 0;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(events, ignored)) {
    const std::string name = entry.path().filename();
    if (!name.starts_with(kPrefix)) continue;
    std::time_t seconds = 0;
    std::from_chars(name.data() + kPrefix.size(), name.data() + name.size(), seconds);
    if (seconds > 0 && (earliest == 0 || seconds < earliest)) earliest = seconds;
  }
  std::tm utc{};
  std::array<char, 64> text{};
  if (earliest == 0 || !::gmtime_r(&earliest, &utc)) return "";
  std::strftime(text.data(), text.size(), "%Y-%m-%d %H:%M UTC", &utc);
  return text.data();
}

void add_config_facts(const Config& config, ReportData& data) {
  data.description = config.job.description;
  data.facts.emplace_back("Model", fmt::format("{}, sequences of {}", architecture_text(config.model),
                                               counted(config.training.seq_len, "token")));
  data.facts.emplace_back("Data", fmt::format("{}; tokenizer {}", join(config.data.path, ", "), config.data.tokenizer));
  data.facts.emplace_back(
      "Batch", fmt::format("{} a step, microbatches of {}: {}", counted(config.training.global_batch_size, "sequence"),
                           config.training.local_batch_size,
                           counted(config.training.global_batch_size * config.training.seq_len, "token")));
  const int64_t stage = config.parallelism.zero_stage;
  data.facts.emplace_back("Optimizer", config.optimizer.name + (stage > 0 ? fmt::format(", ZeRO {}", stage) : ""));
  data.facts.emplace_back("Schedule", schedule_text(config));
  data.facts.emplace_back("Device", fmt::format("{}, {}", config.run.device, config.training.dtype));
}

std::vector<MemoryPart> memory_parts(const Json& ranks) {
  std::vector<MemoryPart> parts;
  for (const auto& [name, bytes] : ranks.at("memory_bytes").items()) {
    if (name != "total" && bytes.get<double>() > 0) parts.push_back({name, bytes.get<double>()});
  }
  return parts;
}

// The parts of a planned step that take time, with names for people.
std::vector<std::pair<std::string, double>> time_parts(const Json& step) {
  static const std::map<std::string_view, const char*> kNames = {{"products", "matrix products"},
                                                                 {"kernels", "other kernels"},
                                                                 {"sharing", "waits for cores that ranks share"},
                                                                 {"reductions", "gradient reductions"},
                                                                 {"gathers", "gathers after the update"}};
  std::vector<std::pair<std::string, double>> parts;
  const auto add = [&](const std::string& name, const Json& seconds) {
    if (seconds.get<double>() > 0) parts.emplace_back(name, seconds.get<double>());
  };
  for (const auto& [key, value] : step.items()) {
    if (value.is_object()) {
      for (const auto& [axis, seconds] : value.items()) add("messages over " + axis, seconds);
    } else {
      const auto name = kNames.find(key);
      add(name == kNames.end() ? key : name->second, value);
    }
  }
  return parts;
}

double total_bytes(const std::vector<MemoryPart>& parts) {
  return std::accumulate(parts.begin(), parts.end(), 0.0,
                         [](double sum, const auto& part) { return sum + part.bytes; });
}

void add_plan_facts(const Json& plan, const std::string& path, ReportData& data) {
  if (const int version = plan.value("version", 0); version != kPlanJsonVersion) {
    throw DataError(fmt::format("{}: \"version\" must be {}, but is {}; print the plan again with orthant plan --json",
                                path, kPlanJsonVersion, version));
  }
  data.facts.emplace_back("Parameters", grouped(plan.at("parameters").at("count").get<int64_t>()));
  std::vector<std::string> axes;
  for (const auto& axis : plan.at("mesh")) {
    const bool one = axis.at("size").get<int64_t>() == 1;
    if (axis.at("axis") == kPipeline) data.has_pipeline = !one;
    if (one) continue;
    axes.push_back(fmt::format("{} {}", axis.at("axis").get<std::string>(), axis.at("size").get<int64_t>()));
  }
  const auto ranks = plan.at("ranks").get<int64_t>();
  data.facts.emplace_back("Mesh", axes.empty() ? "1 rank" : fmt::format("{}; {} ranks", join(axes, ", "), ranks));
  const auto& classes = plan.at("classes");
  for (const auto& each : classes) {
    auto parts = memory_parts(each);
    if (total_bytes(parts) > total_bytes(data.expected_memory)) data.expected_memory = std::move(parts);
  }
  // Rank 0 is in the first class.
  if (!classes.empty()) {
    const auto& first = classes.at(0);
    data.expected_communication_bytes = first.at("communication_bytes").get<int64_t>();
    if (first.contains("received_bytes")) data.expected_received_bytes = first.at("received_bytes").get<int64_t>();
  }
  if (plan.contains("step_seconds")) {
    data.planned_time = {.step_seconds = plan.at("step_seconds").get<double>(),
                         .exposed_seconds = plan.at("exposed_communication_seconds").get<double>()};
    data.planned_time->parts = time_parts(plan.at("step_parts_seconds"));
  }
  if (!plan.contains("timeline")) return;
  for (const auto& pass : plan.at("timeline").at("passes")) {
    data.planned_passes[{pass.at("stage").get<size_t>(), pass.at("pass").get<std::string>()}] =
        pass.at("mean").get<double>();
  }
}

// Sorts facts in the order of the page, because they come from several files.
void sort_facts(Facts& facts) {
  constexpr std::array kOrder = {"Model", "Parameters", "Data", "Batch", "Optimizer", "Mesh", "Schedule", "Device"};
  const auto place = [&](const auto& fact) { return std::find(kOrder.begin(), kOrder.end(), fact.first); };
  std::stable_sort(facts.begin(), facts.end(), [&](const auto& a, const auto& b) { return place(a) < place(b); });
}

}  // namespace

ReportData read_run_folder(const std::string& folder) {
  ReportData data;
  data.folder = folder;
  const std::filesystem::path root(folder);
  if (!std::filesystem::exists(root / "metrics.jsonl")) {
    throw DataError(
        fmt::format("{} is not a run folder: it has no metrics.jsonl; give the job.dump_folder of a run", folder));
  }
  data.metrics = read_metrics(root / "metrics.jsonl");
  data.started = start_time(root / "tb");
  data.config_text = content_of(root / "config.toml");
  data.schedule_svg = content_of(root / "schedule.svg");
  data.sample_text = content_of(root / "sample.txt");
  const std::string plan_path = root / "plan.json";
  try {
    if (!data.config_text.empty()) data.config = parse_config(data.config_text, root / "config.toml", {});
    if (data.config) add_config_facts(*data.config, data);
  } catch (const Error& error) {
    data.problems.push_back(error.what());
  }
  try {
    if (const std::string text = content_of(plan_path); !text.empty())
      add_plan_facts(parse_json(text, plan_path), plan_path, data);
  } catch (const Error& error) {
    data.problems.push_back(error.what());
  } catch (const nlohmann::json::exception& error) {
    data.problems.push_back(fmt::format("{}: {}", plan_path, error.what()));
  }
  const std::string timeline_path = root / "timeline.json";
  try {
    if (const std::string text = content_of(timeline_path); !text.empty())
      data.measured = parse_measured_step(text, timeline_path);
  } catch (const Error& error) {
    data.problems.push_back(error.what());
  }
  if (!data.has_pipeline) std::erase_if(data.facts, [](const auto& fact) { return fact.first == "Schedule"; });
  sort_facts(data.facts);
  return data;
}

}  // namespace orthant
