// Writes a Hardware as a TOML file, and lists the origins of its values.
#include <fmt/format.h>

#include <string>
#include <string_view>
#include <vector>

#include "base/errors.h"
#include "hardware/keys.h"

namespace orthant {
namespace {

std::string quote(std::string_view text) {
  std::string out = "\"";
  for (const char letter : text) {
    const auto byte = static_cast<unsigned char>(letter);
    if (letter == '"' || letter == '\\') {
      out += '\\';
      out += letter;
    } else if (byte < 0x20 || byte == 0x7f) {
      out += fmt::format("\\u{:04x}", byte);
    } else {
      out += letter;
    }
  }
  return out + '"';
}

// Appends the keys of one table as lines "key = value".
struct KeyWriter {
  std::string& out;

  void operator()(std::string_view key, const std::string& value) {
    out += fmt::format("{} = {}\n", key, quote(value));
  }
  void operator()(std::string_view key, const bool& value) { out += fmt::format("{} = {}\n", key, value); }
  void operator()(std::string_view key, const std::array<int64_t, 2>& value) {
    out += fmt::format("{} = [{}, {}]\n", key, value[0], value[1]);
  }
  void operator()(std::string_view key, const double& value, NumberLaw law) {
    if (law == NumberLaw::optional_factor && value == 0) return;
    if (law == NumberLaw::optional_share && value == 1) return;
    out += fmt::format("{} = {}\n", key, value);
  }
  void operator()(std::string_view key, const int64_t& value, CountLaw law) {
    if (law == CountLaw::optional && value == 0) return;
    out += fmt::format("{} = {}\n", key, value);
  }
};

}  // namespace

std::string to_toml(const Hardware& hardware) {
  std::string out = fmt::format("name = {}\ndescription = {}\n", quote(hardware.name), quote(hardware.description));
  visit_tables(hardware, [&]<typename T>(std::string_view name, const T& table) {
    if constexpr (requires { table.origin; }) {
      out += fmt::format("\n[{}]\n", name);
      visit_keys(table, KeyWriter{out});
    } else {
      for (const CollectiveTable& entry : table) {
        out += fmt::format("\n[[{}]]\n", name);
        visit_keys(entry, KeyWriter{out});
      }
    }
  });
  ORTHANT_CHECK(parse_hardware(out, "to_toml") == hardware, out);
  return out;
}

std::vector<TableOrigin> origins(const Hardware& hardware) {
  std::vector<TableOrigin> found;
  const auto add = [&](std::string table, const std::string& origin) {
    found.push_back({std::move(table), origin, origin.starts_with("measured: ")});
  };
  visit_tables(hardware, [&]<typename T>(std::string_view name, const T& table) {
    if constexpr (requires { table.origin; }) {
      add(std::string(name), table.origin);
    } else {
      for (const CollectiveTable& entry : table) {
        add(entry.ranks == 0 ? std::string(name) : fmt::format("{}, {} ranks", name, entry.ranks), entry.origin);
      }
    }
  });
  return found;
}

}  // namespace orthant
