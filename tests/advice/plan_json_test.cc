// The JSON form of a plan has the plan's numbers for every rank, and docs/plan-json.md describes its fields.
#include "advice/plan_json.h"

#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "advice/layout_search.h"
#include "base/text.h"
#include "tests/support/tensor_plans.h"

namespace orthant::plan_json_test {
namespace {

using Json = nlohmann::json;

// Returns the class of each rank, from the text of the classes.
std::vector<int> classes_of_ranks(const Json& plan) {
  std::vector<int> found(plan["ranks"].get<size_t>(), -1);
  for (size_t index = 0; index < plan["classes"].size(); ++index) {
    int64_t count = 0;
    for (const std::string& part : split(plan["classes"][index]["ranks"].get<std::string>(), ',')) {
      const std::vector<std::string> ends = split(part, '-');
      for (int rank = std::stoi(ends.front()); rank <= std::stoi(ends.back()); ++rank, ++count) {
        EXPECT_EQ(found.at(static_cast<size_t>(rank)), -1) << "rank " << rank << " is in two classes";
        found.at(static_cast<size_t>(rank)) = static_cast<int>(index);
      }
    }
    EXPECT_EQ(plan["classes"][index]["count"], count);
  }
  return found;
}

TEST(PlanJson, HasEachRanksNumbers) {
  const Plan plan = plan_of(12, {"pipeline_parallel_degree=2", "tensor_parallel_degree=2", "zero_stage=1"},
                            {"training.global_batch_size=8", "training.local_batch_size=2"});
  const Json json = Json::parse(plan_json(plan, {}));
  EXPECT_EQ(json["version"], kPlanJsonVersion);
  const std::vector<int> classes = classes_of_ranks(json);
  for (int rank = 0; rank < 12; ++rank) {
    const auto at = static_cast<size_t>(classes[static_cast<size_t>(rank)]);
    const Json& own = json["classes"].at(at);
    EXPECT_EQ(own["memory_bytes"]["total"], plan.memory_of(rank).total());
    EXPECT_EQ(own["memory_bytes"]["optimizer"], plan.memory_of(rank).optimizer);
    EXPECT_EQ(own["pipeline_rank"], plan.pipeline_rank(rank));
    EXPECT_EQ(own["sequences"], plan.data_shard(rank).sequences.size());
    int64_t sequences = 0, sent = 0, received = 0;
    for (const Json& size : own["microbatches"]) {
      sequences += size["count"].get<int64_t>() * size["sequences"].get<int64_t>();
    }
    EXPECT_EQ(sequences, plan.data_shard(rank).sequences.size());
    for (size_t i = 0; i < plan.communication.size(); ++i) {
      const Json& entry = json["communication"].at(i);
      EXPECT_EQ(entry["calls_per_step"].at(at), plan.calls_of(plan.communication[i], rank));
      EXPECT_EQ(entry["bytes_per_step"].at(at), plan.bytes_of(plan.communication[i], rank));
      EXPECT_EQ(entry["received_bytes_per_step"].at(at), plan.received_by(plan.communication[i], rank));
      sent += entry["bytes_per_step"].at(at).get<int64_t>();
      received += entry["received_bytes_per_step"].at(at).get<int64_t>();
    }
    EXPECT_EQ(own["communication_bytes"], sent);
    EXPECT_EQ(own["received_bytes"], received);
  }
}

// The example of docs/plan-json.md.
TEST(PlanJson, ListsRanksThatHoldTheSameOnce) {
  const Plan plan = plan_of(3, {}, {"training.global_batch_size=4"});
  const Json json = Json::parse(plan_json(plan, {}));
  ASSERT_EQ(json["classes"].size(), 2u);
  EXPECT_EQ(json["classes"][0]["ranks"], "0");
  EXPECT_EQ(json["classes"][1]["ranks"], "1-2");
  EXPECT_EQ(json["classes"][0]["sequences"], 2);
  EXPECT_EQ(json["classes"][1]["sequences"], 1);
}

// Returns the fields that the page does not name.
std::vector<std::string> undocumented(const Json& json, const std::string& page) {
  std::set<std::string> missing;
  const std::function<void(const Json&)> check = [&](const Json& value) {
    for (const auto& [key, item] : value.items()) {
      const bool is_named = !value.is_object() || page.find("`" + key + "`") != std::string::npos ||
                            page.find("`" + key + "[]`") != std::string::npos;
      if (!is_named) missing.insert(key);
      // The keys of these are names of axes and of settings.
      if (item.is_structured() && key != "communication" && key != "settings") check(item);
    }
  };
  check(json);
  for (const Json& entry : json["communication"]) check(entry);
  return {missing.begin(), missing.end()};
}

TEST(PlanJson, IsDocumented) {
  std::stringstream page;
  page << std::ifstream(ORTHANT_SOURCE_DIR "/docs/plan-json.md").rdbuf();
  Plan plan = plan_of(4, {"pipeline_parallel_degree=2"});
  plan.facts.hardware = std::make_shared<const Hardware>(load_hardware("h100-8x"));
  const Json json = Json::parse(plan_json(make_plan(plan.config, plan.facts), Sections::all()));
  EXPECT_EQ(undocumented(json, page.str()), std::vector<std::string>());
  const SearchResult found = search_layouts(plan.config, plan.facts);
  EXPECT_EQ(undocumented(Json::parse(search_json(found, plan.facts, {})), page.str()), std::vector<std::string>());
  Json other = json;
  other["classes"][0]["unheard_of"] = 1;
  EXPECT_EQ(undocumented(other, page.str()), std::vector<std::string>{"unheard_of"});
}

}  // namespace
}  // namespace orthant::plan_json_test
