// Reads a TOML file into a Hardware, and states the broken law if the file is wrong.
#include <fmt/format.h>
#include <toml++/toml.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <regex>
#include <sstream>

#include "base/errors.h"
#include "base/terminal_text.h"
#include "base/text.h"
#include "base/toml_depth.h"
#include "hardware/keys.h"

namespace orthant {
namespace {

using KeysOfTables = std::map<std::string, std::vector<std::string>, std::less<>>;  // table -> its keys, in order

// Returns all keys of the file by table. The top of the file is the table "".
const KeysOfTables& keys_of_tables() {
  static const KeysOfTables keys = [] {
    KeysOfTables found = {{"", {"name", "description"}}};
    Hardware hardware;
    visit_tables(hardware, [&]<typename T>(const std::string& name, T& table) {
      const size_t dot = name.rfind('.');
      found[dot == std::string::npos ? "" : name.substr(0, dot)].push_back(name.substr(dot + 1));
      std::vector<std::string>& own = found[name];
      const auto add = [&](const char* key, const auto&...) { own.emplace_back(key); };
      if constexpr (requires { table.origin; }) {
        visit_keys(table, add);
      } else {
        CollectiveTable entry;
        visit_keys(entry, add);
      }
    });
    return found;
  }();
  return keys;
}

std::string full_key(const std::string& table, std::string_view key) {
  return table.empty() ? std::string(key) : fmt::format("{}.{}", table, key);
}

std::string locate(const std::string& file, const toml::source_region& region) {
  return fmt::format("{}:{}:{}", file, region.begin.line, region.begin.column);
}

// Returns the value as in the file, shortened to 60 characters.
std::string shorten(const toml::node& node) {
  constexpr size_t kMost = 60;
  if (node.is_table()) return "{...}";
  if (const auto number = node.value_exact<double>()) return fmt::format("{}", *number);
  std::ostringstream out;
  node.visit([&](const auto& value) { out << value; });
  std::string text = out.str();
  std::ranges::replace(text, '\n', ' ');
  return text.size() <= kMost ? text : text.substr(0, kMost) + "...";
}

// Reads one table. Every function throws ConfigError "KEY = VALUE (FILE:LINE:COLUMN) LAW".
struct TableReader {
  const toml::table& table;
  const std::string& name;
  const std::string& file;

  [[noreturn]] void refuse(std::string_view key, const toml::node& node, std::string_view law) const {
    throw ConfigError(
        fmt::format("{} = {} ({}) {}", full_key(name, key), shorten(node), locate(file, node.source()), law));
  }

  const toml::node& find(std::string_view key) const {
    if (const toml::node* node = table.get(key)) return *node;
    if (name.empty()) throw ConfigError(fmt::format("{}: the key {} is missing", file, key));
    throw ConfigError(
        fmt::format("{}: the key {} is missing", locate(file, table.source()), full_key(name, key)));
  }

  void operator()(std::string_view key, std::string& value) const {
    const toml::node& node = find(key);
    const auto text = node.value_exact<std::string>();
    if (!text) refuse(key, node, "must be a string in quotes");
    value = *text;
    if (key != "origin") return;
    const auto names_source = [&](std::string_view kind) {
      return text->starts_with(kind) && !trim(text->substr(kind.size())).empty();
    };
    if (names_source("assumed: ")) return;
    if (!names_source("measured: ")) {
      refuse(key, node, R"(must be "measured: SOURCE, DATE" or "assumed: REASON")");
    }
    static const std::regex is_dated(R"(\b20\d\d-(0[1-9]|1[0-2])|^measured: as \[[a-z_.]+\]$)");
    if (!std::regex_search(*text, is_dated)) {
      refuse(key, node, R"(must name the date, as in "measured: SOURCE, 2026-11", or a table: "measured: as [TABLE]")");
    }
  }

  void operator()(std::string_view key, bool& value) const {
    if (key == "bidirectional" && !table.contains(key)) return;
    const toml::node& node = find(key);
    const auto flag = node.value_exact<bool>();
    if (!flag) refuse(key, node, "must be true or false");
    value = *flag;
  }

  void operator()(std::string_view key, int64_t& value, CountLaw law) const {
    if (law == CountLaw::optional && !table.contains(key)) return;
    read_count(key, find(key), value);
  }

  void read_count(std::string_view key, const toml::node& node, int64_t& value) const {
    constexpr int64_t kMost = 1'000'000'000;
    const auto count = node.value_exact<int64_t>();
    if (!count || *count < 1 || *count > kMost) refuse(key, node, "must be a whole number from 1 to 1,000,000,000");
    value = *count;
  }

  void operator()(std::string_view key, std::array<int64_t, 2>& value) const {
    const toml::node& node = find(key);
    const toml::array* items = node.as_array();
    if (items == nullptr || items->size() != 2) {
      refuse(key, node, "must be a list of 2 whole numbers, as in [128, 256]");
    }
    for (size_t i = 0; i < 2; ++i) read_count(key, (*items)[i], value[i]);
  }

  void operator()(std::string_view key, double& value, NumberLaw law) const {
    const bool is_optional = law == NumberLaw::optional_factor || law == NumberLaw::optional_share;
    if (is_optional && !table.contains(key)) return;
    const toml::node& node = find(key);
    if (!node.is_number()) refuse(key, node, "must be a number");
    value = *node.value<double>();
    if (!std::isfinite(value)) refuse(key, node, "must be a finite number");
    if (const auto broken = find_broken_law(value, law)) refuse(key, node, *broken);
  }

  std::optional<std::string> find_broken_law(double value, NumberLaw law) const {
    const auto require = [](bool holds, const char* text) {
      return holds ? std::nullopt : std::optional<std::string>(text);
    };
    switch (law) {
      case NumberLaw::share:
      case NumberLaw::optional_share: return require(value >= 1e-6 && value <= 1, "must be from 1e-6 to 1");
      case NumberLaw::relative_rate:
        return require(value >= 1e-6 && value <= 2, "must be from 1e-6 to 2");
      case NumberLaw::optional_factor: return require(value >= 0 && value <= 100, "must be from 0 to 100");
      case NumberLaw::fraction: return require(value >= 0 && value <= 1, "must be from 0 to 1");
      case NumberLaw::tail: return require(value >= 0 && value <= 2, "must be from 0 to 2");
      case NumberLaw::message_share: return check_message_share(value);
      case NumberLaw::memory:
        return require(value >= 1e6 && value <= 1e18, "must be from 1e6 to 1e18, in bytes: 80 GB is 80e9");
      case NumberLaw::amount:
        return require(value >= 1e6 && value <= 1e30,
                       "must be from 1e6 to 1e30, in bytes, bytes/s or FLOP/s: 80 GB is 80e9, 312 TFLOP/s is 312e12");
      case NumberLaw::not_negative: return require(value >= 0 && value <= 1e30, "must be from 0 to 1e30");
      case NumberLaw::at_least_one: return require(value >= 1 && value <= 1e30, "must be from 1 to 1e30");
    }
    return {};
  }

  std::optional<std::string> check_message_share(double value) const {
    const bool bidirectional = table["bidirectional"].value_or(false);
    if (value >= 1e-6 && value <= (bidirectional ? 2 : 1)) return {};
    return bidirectional ? "must be from 1e-6 to 2"
                         : "must be from 1e-6 to 1; a share of both directions needs bidirectional = true";
  }
};

// Throws unless the text is safe to parse.
void check_text(std::string_view text, const std::string& file) {
  for (size_t at = 0; at < text.size();) {
    const size_t length = utf8_length(text, at);
    if (length == 0) throw DataError(fmt::format("{}: a hardware file must be UTF-8, but offset {} is not", file, at));
    at += length;
  }
  if (const auto line = line_of_deep_key(text)) {
    throw DataError(fmt::format("{}:{}: a key must have at most {} parts", file, *line, kMostKeyParts));
  }
}

// Throws for the first key of the table, and of the tables in it, that no hardware file has.
void refuse_unknown_keys(const toml::table& table, const std::string& name, const std::string& file) {
  const std::vector<std::string>& known = keys_of_tables().find(name)->second;
  for (const auto& [key, node] : table) {
    const std::string found(key.str());
    if (std::ranges::find(known, found) == known.end()) {
      const auto near = nearest(found, known);
      throw ConfigError(fmt::format("{}: unknown key {}; {}", locate(file, key.source()), full_key(name, found),
                                    near ? fmt::format("did you mean {}?", full_key(name, *near))
                                         : fmt::format("the keys here are {}", join(known, ", "))));
    }
    const std::string inner = full_key(name, found);
    if (!keys_of_tables().contains(inner)) continue;
    if (const toml::table* child = node.as_table()) refuse_unknown_keys(*child, inner, file);
    if (const toml::array* list = node.as_array()) {
      for (const toml::node& item : *list) {
        if (item.is_table()) refuse_unknown_keys(*item.as_table(), inner, file);
      }
    }
  }
}

void read_list(const TableReader& parent, const std::string& name, const std::string& key,
               std::vector<CollectiveTable>& entries) {
  const toml::node* node = parent.table.get(key);
  if (node == nullptr) throw ConfigError(fmt::format("{}: the list [[{}]] is missing", parent.file, name));
  const toml::array* list = node->as_array();
  const auto is_table = [](const toml::node& item) { return item.is_table(); };
  if (list == nullptr || list->empty() || !std::ranges::all_of(*list, is_table)) {
    parent.refuse(key, *node, fmt::format("must be a list of tables: [[{}]]", name));
  }
  for (const toml::node& item : *list) {
    CollectiveTable entry;
    const TableReader reader{*item.as_table(), name, parent.file};
    visit_keys(entry, reader);
    if (!entries.empty()) {
      const int64_t before = entries.back().ranks;
      if (before == 0) {
        throw ConfigError(fmt::format("{}: an entry of [[{}]] without ranks must be the last one",
                                      locate(parent.file, item.source()), name));
      }
      if (entry.ranks != 0 && entry.ranks <= before) {
        reader.refuse("ranks", reader.find("ranks"),
                      fmt::format("must be larger than {}, the ranks of the entry before it", before));
      }
    }
    entries.push_back(entry);
  }
}

// Ranks that share cores copy their messages on them, and every rate is that of one core.
void check_shared_cores(const toml::table& root, const Hardware& hardware, const std::string& file) {
  const DeviceTable& device = hardware.device;
  if (device.shared_cores == 0) return;
  const std::string name = "device";
  const TableReader reader{*root[name].as_table(), name, file};
  if (!device.communication_uses_compute) {
    reader.refuse("communication_uses_compute", reader.find("communication_uses_compute"),
                  "must be true, because device.shared_cores is set");
  }
  if (device.compute_units != 1) {
    reader.refuse("compute_units", reader.find("compute_units"), "must be 1, because device.shared_cores is set");
  }
}

void check_process_memory(const toml::table& root, const Hardware& hardware, const std::string& file) {
  const double needed = hardware.process_memory.context_bytes + hardware.process_memory.communicator_bytes;
  if (needed < hardware.device.memory_bytes) return;
  const std::string name = "process_memory";
  const TableReader reader{*root[name].as_table(), name, file};
  reader.refuse("context_bytes", reader.find("context_bytes"),
                fmt::format("plus communicator_bytes = {} must be less than device.memory_bytes = {}",
                            hardware.process_memory.communicator_bytes, hardware.device.memory_bytes));
}

}  // namespace

Hardware parse_hardware(std::string_view text, const std::string& source) {
  check_text(text, source);
  toml::table root;
  try {
    root = toml::parse(text);
  } catch (const toml::parse_error& error) {
    throw ConfigError(fmt::format("{}: {}", locate(source, error.source()), error.description()));
  }
  refuse_unknown_keys(root, "", source);
  Hardware hardware;
  const std::string top;
  const TableReader reader{root, top, source};
  reader("name", hardware.name);
  reader("description", hardware.description);
  if (hardware.name.empty()) reader.refuse("name", reader.find("name"), "must not be empty");

  visit_tables(hardware, [&]<typename T>(const std::string& name, T& table) {
    const size_t dot = name.rfind('.');
    const std::string outer = dot == std::string::npos ? "" : name.substr(0, dot), key = name.substr(dot + 1);
    const toml::table& parent = outer.empty() ? root : *root[outer].as_table();  // visited before, so it is a table
    if constexpr (requires { table.origin; }) {
      const toml::node* node = parent.get(key);
      if (node == nullptr) throw ConfigError(fmt::format("{}: the table [{}] is missing", source, name));
      if (!node->is_table()) {
        TableReader{parent, outer, source}.refuse(key, *node, fmt::format("must be a table: [{}]", name));
      }
      visit_keys(table, TableReader{*node->as_table(), name, source});
    } else {
      read_list(TableReader{parent, outer, source}, name, key, table);
    }
  });
  check_shared_cores(root, hardware, source);
  check_process_memory(root, hardware, source);
  return hardware;
}

}  // namespace orthant
