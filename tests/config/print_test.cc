// Text printed from the table of keys: the effective configuration reads back equal, and the reference page is up to
// date.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>
#include <random>

#include "base/text.h"
#include "config/changes.h"
#include "config/config.h"
#include "config/table.h"

namespace orthant::config_print_test {
namespace {

using Random = std::mt19937_64;

int64_t below(Random& random, int64_t end) { return static_cast<int64_t>(random() % static_cast<uint64_t>(end)); }

// Characters that TOML must escape are drawn often.
std::string random_text(Random& random) {
  static const std::vector<std::string> letters = {"a",
                                                   "Z",
                                                   "7",
                                                   " ",
                                                   "\"",
                                                   "\\",
                                                   "\n",
                                                   "\t",
                                                   "\x01",
                                                   "\x7f",
                                                   "#",
                                                   "'",
                                                   "=",
                                                   "[",
                                                   "]",
                                                   ",",
                                                   "\xc3\xa9",
                                                   "\xe2\x82\xac",
                                                   "\xf0\x9f\xa6\x8b"};
  std::string text;
  for (int64_t i = below(random, 12); i > 0; --i) text += letters[random() % letters.size()];
  return text;
}

double random_number(const Legal& legal, Random& random) {
  const double share = std::uniform_real_distribution<double>(0.001, 0.999)(random);
  if (std::isfinite(legal.most)) return legal.least + share * (legal.most - legal.least);
  const double magnitude = std::exp(std::uniform_real_distribution<double>(-30, 30)(random));
  return std::max(legal.least, 0.0) + magnitude;
}

std::vector<std::string> random_list(Random& random) {
  std::vector<std::string> items(static_cast<size_t>(1 + below(random, 3)));
  for (auto& item : items) item = random_text(random);
  return items;
}

struct Randomize {
  const Key& key;
  Random& random;

  int64_t whole() const {
    if (key.legal.or_minus_one && below(random, 4) == 0) return -1;
    const auto least = static_cast<int64_t>(key.legal.least);
    const int64_t most =
        std::isfinite(key.legal.most) ? static_cast<int64_t>(key.legal.most) : int64_t{1} << below(random, 62);
    return least + below(random, std::max<int64_t>(most - least, 0) + 1);
  }
  void operator()(bool* value) const { *value = below(random, 2) == 1; }
  void operator()(int64_t* value) const { *value = whole(); }
  void operator()(double* value) const { *value = random_number(key.legal, random); }
  void operator()(std::string* value) const {
    const auto& choices = key.legal.choices;
    *value = choices.empty() ? random_text(random) : choices[random() % choices.size()];
  }
  void operator()(std::vector<std::string>* value) const {
    const auto& choices = key.legal.choices;
    *value = random_list(random);
    for (std::string& item : *value) {
      if (!choices.empty()) item = choices[random() % choices.size()];
    }
  }
  void operator()(std::vector<int64_t>* value) const { *value = {3, 0, 5}; }
  void operator()(std::vector<double>* value) const {
    value->resize(below(random, 3));
    for (double& item : *value) item = random_number(key.legal, random);
  }
  void operator()(std::array<int64_t, 3>* value) const {
    for (auto& item : *value) item = whole();
  }
  void operator()(HeldOut* value) const {
    const uint64_t kind = below(random, 3);
    if (kind == 0) *value = {random_number(key.legal, random), {}};
    if (kind == 1) *value = {0.0, {{"", random_list(random)}}};
    if (kind == 2) *value = {0.0, {{"code.py", random_list(random)}, {"wiki-1", random_list(random)}}};
  }
};

TEST(ConfigPrint, RandomConfigsReadBackEqual) {
  Random random(20);
  for (int i = 0; i < 500; ++i) {
    Config config;
    for (const Key& key : config_table()) std::visit(Randomize{key, random}, key.field(config));
    config.origins["training.steps"] = "odd\nname.toml:3";
    const std::string text = print_config(config);
    const Config again = parse_config(text, "again.toml", {});
    ASSERT_TRUE(again == config) << text;
    ASSERT_EQ(again.origins.size(), config_keys().size());
  }
}

// Values of every key but free texts, as words of the command line.
TEST(ConfigPrint, SettingWordsReadBackEqual) {
  Random random(21);
  for (const Key& key : config_table()) {
    for (int i = 0; i < 20; ++i) {
      Config config, again;
      std::visit(Randomize{key, random}, key.field(config));
      const bool is_free_text = key.full_name().starts_with("data.") || key.full_name().ends_with("_from") ||
                                (value_text(key, config).find('"') != std::string::npos && key.legal.choices.empty());
      if (is_free_text) continue;
      const std::string word = setting_word(key, config);
      ASSERT_EQ(word.find_first_of("[]\" "), std::string::npos) << word;
      ASSERT_EQ(set_from_word(key, again, word.substr(word.find('=') + 1)), std::nullopt) << word;
      ASSERT_TRUE(again == config) << word;
    }
  }
}

TEST(ConfigPrint, EqualityNoticesEverySingleKey) {
  for (const Key& key : config_table()) {
    Random random(7);
    Config changed;
    for (int tries = 0; tries < 50 && changed == Config{}; ++tries)
      std::visit(Randomize{key, random}, key.field(changed));
    const bool has_other_values = key.legal.choices.size() != 1 || key.legal.accepts != nullptr;
    if (key.full_name() == "data.tokenizer") changed.data.tokenizer = "x.model";
    EXPECT_EQ(changed == Config{}, !has_other_values) << key.full_name();
  }
}

TEST(ConfigPrint, EachLineTellsWhereItsValueCameFrom) {
  const std::vector<std::string> overrides = {"run.ranks=2"};
  const std::string text = print_config(parse_config("[training]\nsteps = 20\n", "run.toml", overrides));
  const auto has_line = [&](std::string_view begin, std::string_view end) {
    for (const std::string& line : split(text, '\n')) {
      if (line.starts_with(begin) && line.ends_with(end)) return true;
    }
    return false;
  };
  EXPECT_TRUE(has_line("steps = 20 ", "# run.toml:2"));
  EXPECT_TRUE(has_line("ranks = 2 ", "# command line"));
  EXPECT_TRUE(has_line("seq_len = 256 ", "# default"));
  EXPECT_FALSE(has_line("steps = 20 ", "# default"));
}

TEST(ConfigPrint, HelpNamesEveryKeyWithItsDefault) {
  const std::string help = config_help();
  for (const Key& key : config_table()) {
    EXPECT_NE(help.find("--" + key.full_name() + " " + type_name(key) + "\n"), std::string::npos) << key.full_name();
    EXPECT_FALSE(key.help.empty());
    EXPECT_FALSE(key.help.ends_with('.')) << key.help;
  }
  EXPECT_NE(help.find("  --training.steps int\n      optimizer steps of the whole run (default 300; at least 1)\n"),
            std::string::npos);
  for (const std::string& line : split(help, '\n')) EXPECT_LE(line.size(), 100U) << line;
}

TEST(ConfigPrint, ADefaultThatFollowsFromTheFileIsShownAsSuch) {
  EXPECT_NE(config_help().find("\"runs/NAME\")\n"), std::string::npos);
  EXPECT_NE(config_reference().find("| `dump_folder` | string | `\"runs/NAME\"` |"), std::string::npos);
  const std::string text = print_config(parse_config("", "tiny.toml", {}));
  EXPECT_NE(text.find("dump_folder = \"runs/tiny\"  # default, from the name of the run file\n"), std::string::npos)
      << text;
}

TEST(ConfigPrint, ShortHelpNamesKeysThatAreThereInEightyColumns) {
  const auto keys = config_keys();
  const std::string help = config_short_help();
  for (const std::string& line : split(std::string(trim(help)), '\n')) {
    const std::string name(trim(line));
    EXPECT_NE(std::ranges::find(keys, name.substr(2, name.find(' ') - 2)), keys.end()) << line;
    EXPECT_LE(line.size(), 80U) << line;
  }
  for (const char* key : {"training.steps", "data.path", "job.dump_folder", "optimizer.lr", "run.ranks"}) {
    EXPECT_NE(help.find(std::string("--") + key + " "), std::string::npos) << key;
  }
}

TEST(ConfigPrint, TheReferencePageIsUpToDate) {
  std::ifstream file(ORTHANT_SOURCE_DIR "/docs/run-file.md");
  const std::string page((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  EXPECT_TRUE(page == config_reference()) << "print it again: orthant reference > docs/run-file.md";
}

TEST(ConfigChanges, AreThoseThatDecideWhatIsLearnt) {
  const auto config = [](const std::vector<std::string>& words) { return parse_config("", "run.toml", words); };
  const Config from = config({"training.steps=10", "run.ranks=2"});
  EXPECT_EQ(config_changes(from, config({"training.steps=10", "run.ranks=4", "metrics.log_freq=7",
                                         "parallelism.bucket_mib=3", "checkpoint.interval=5"})),
            std::vector<std::string>{});
  EXPECT_EQ(config_changes(from, config({"training.steps=12", "data.path=a,b", "model.dropout=0.5",
                                         "optimizer.weight_decay=0", "lr_scheduler.decay_type=linear"})),
            (std::vector<std::string>{"model.dropout 0.0 -> 0.5", "data.path [\"corpus.txt\"] -> [\"a\", \"b\"]",
                                      "training.steps 10 -> 12", "optimizer.weight_decay 0.1 -> 0.0",
                                      "lr_scheduler.decay_type \"cosine\" -> \"linear\"",
                                      "lr_scheduler.warmup_steps 10 -> 12"}));  // follows from training.steps
}

}  // namespace
}  // namespace orthant::config_print_test
