// Hardware files: shipped profiles, the round trip through to_toml(), the exact messages for bad files, hostile files.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <stdexcept>

#include "base/errors.h"
#include "base/text.h"
#include "hardware/hardware.h"
#include "tests/support/temp_folder.h"

namespace orthant::hardware_file_test {
namespace {

// Returns the file of b200-8x with one line of a table replaced. An empty `line` removes the line.
std::string with(std::string_view table, std::string_view key, std::string_view line) {
  std::vector<std::string> lines = split(to_toml(load_hardware("b200-8x")), '\n');
  const auto is_header = [&](const std::string& text) {
    return text == fmt::format("[{}]", table) || text == fmt::format("[[{}]]", table);
  };
  auto at = table.empty() ? lines.begin() : std::ranges::find_if(lines, is_header);
  if (key.empty()) {  // the header itself
    *at = line;
    return join(lines, "\n");
  }
  const std::string begin = fmt::format("{} = ", key);
  at = std::find_if(at, lines.end(), [&](const std::string& text) { return text.starts_with(begin); });
  if (at == lines.end()) throw std::logic_error("no such key in the file of b200-8x");
  if (line.empty()) {
    lines.erase(at);
  } else {
    *at = line;
  }
  return join(lines, "\n");
}

std::string error_of(const std::string& text) {
  try {
    parse_hardware(text, "m.toml");
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(HardwareFile, ShippedProfilesAreLoaded) {
  const std::vector<std::string> expected = {"a100-8x", "a100-pcie", "a800-8x", "b200-8x",
                                             "h100-8x", "h200-8x",   "this-cpu"};
  EXPECT_EQ(shipped_hardware(), expected);
  for (const std::string& name : shipped_hardware()) {
    const Hardware hardware = load_hardware(name);
    EXPECT_EQ(hardware.name, name);
    EXPECT_FALSE(hardware.description.empty());
    EXPECT_EQ(hardware.device.communication_uses_compute, name == "this-cpu");
  }
  EXPECT_EQ(load_hardware("a800-8x").same_host.bytes_per_s, 200e9);
  EXPECT_EQ(load_hardware("h200-8x").memory.bytes_per_s, 4.8e12);
}

TEST(HardwareFile, ToTomlIsReadBackEqual) {
  const TempFolder folder;
  for (const std::string& name : shipped_hardware()) {
    Hardware hardware = load_hardware(name);
    hardware.name = "my \"own\" \\ machine\n\t\x7f \u00e4";
    hardware.products.share = 1.0 / 3;
    hardware.peak_flop_per_s.float64 = 1e22;
    EXPECT_EQ(load_hardware(folder.write("m.toml", to_toml(hardware))), hardware);
  }
}

TEST(HardwareFile, ToTomlRefusesAnIllegalValue) {
  Hardware hardware = load_hardware("b200-8x");
  hardware.memory.share = NAN;
  EXPECT_THROW(to_toml(hardware), ConfigError);
  hardware = load_hardware("b200-8x");
  hardware.same_host.all_reduce.clear();
  EXPECT_THROW(to_toml(hardware), ConfigError);
}

// Four ranks on eight shared cores have two cores each; sixteen ranks have one each, and all have a part of the memory.
TEST(HardwareFile, RanksOfAHostShareItsCoresAndMemory) {
  Hardware hardware = load_hardware("this-cpu");
  EXPECT_EQ(for_ranks_of_host(hardware, 4), hardware);  // each device computes alone
  hardware.device.shared_cores = 8;
  hardware.device.per_host = 16;
  const Hardware two = for_ranks_of_host(hardware, 4), one = for_ranks_of_host(hardware, 16);
  EXPECT_EQ(two.peak_flop_per_s.float32, 2 * hardware.peak_flop_per_s.float32);
  EXPECT_EQ(two.memory.bytes_per_s, 2 * hardware.memory.bytes_per_s);
  EXPECT_EQ(two.device.memory_bytes, hardware.device.memory_bytes / 4);
  EXPECT_EQ(one.peak_flop_per_s, hardware.peak_flop_per_s);
  EXPECT_EQ(one.device.memory_bytes, hardware.device.memory_bytes / 16);
  EXPECT_EQ(for_ranks_of_host(hardware, 64), one);  // on four hosts
}

TEST(HardwareFile, OriginsSayWhichValuesAreMeasured) {
  const std::vector<TableOrigin> pcie = origins(load_hardware("a100-pcie"));
  const auto find = [&](std::string_view table) { return *std::ranges::find(pcie, table, &TableOrigin::table); };
  EXPECT_TRUE(find("products").measured);
  EXPECT_TRUE(find("same_host.all_reduce, 2 ranks").measured);
  EXPECT_FALSE(find("peak_flop_per_s").measured);
  EXPECT_EQ(find("peak_flop_per_s").origin, "assumed: data sheet");
  for (const char* name : {"a100-8x", "a800-8x", "this-cpu"}) {
    for (const TableOrigin& entry : origins(load_hardware(name))) EXPECT_FALSE(entry.measured) << name << entry.table;
  }
}

TEST(HardwareFile, TheExampleOfTheDocumentIsComplete) {
  const std::string page = slurp(std::string(ORTHANT_SOURCE_DIR) + "/docs/hardware.md");
  const size_t begin = page.find("```toml\n") + 8;
  const Hardware hardware = parse_hardware(page.substr(begin, page.find("```\n", begin) - begin), "docs/hardware.md");
  EXPECT_EQ(hardware.same_host.all_reduce.size(), 2u);
  EXPECT_TRUE(hardware.same_host.message.bidirectional);
}

struct BadFile {
  std::string text;
  std::string message;
};

TEST(HardwareFile, BadFilesAreRefusedWithKeyPlaceAndLaw) {
  const std::string law =
      " must be from 1e6 to 1e30, in bytes, bytes/s or FLOP/s: 80 GB is 80e9, 312 TFLOP/s is 312e12";
  const BadFile table[] = {
      {with("memory", "bytes_per_s", "bytes_per_s = 1.9e-3"), "memory.bytes_per_s = 0.0019 (m.toml:19:15)" + law},
      {with("memory", "bytes_per_s", "bytes_per_s = 0"), "memory.bytes_per_s = 0 (m.toml:19:15)" + law},
      {with("memory", "bytes_per_s", "bytes_per_s = -3.5"), "memory.bytes_per_s = -3.5 (m.toml:19:15)" + law},
      {with("memory", "bytes_per_s", "bytes_per_s = nan"),
       "memory.bytes_per_s = nan (m.toml:19:15) must be a finite number"},
      {with("memory", "bytes_per_s", "bytes_per_s = inf"),
       "memory.bytes_per_s = inf (m.toml:19:15) must be a finite number"},
      {with("memory", "bytes_per_s", "bytes_per_s = 1e300"), "memory.bytes_per_s = 1e+300 (m.toml:19:15)" + law},
      {with("memory", "bytes_per_s", "bytes_per_s = \"fast\""),
       "memory.bytes_per_s = 'fast' (m.toml:19:15) must be a number"},
      {with("memory", "bytes_per_s", "bytes_per_second = 8e12"),
       "m.toml:19:1: unknown key memory.bytes_per_second; did you mean memory.bytes_per_s?"},
      {with("device", "memory_bytes", "memory_bytes = 1e19"),
       "device.memory_bytes = 1e+19 (m.toml:8:16) must be from 1e6 to 1e18, in bytes: 80 GB is 80e9"},
      {with("memory", "bytes_per_s", ""), "m.toml:17:1: the key memory.bytes_per_s is missing"},
      {with("memory", "", "[memmory]"), "m.toml:17:2: unknown key memmory; did you mean memory?"},
      {with("memory", "", "[xyzzy]"),
       "m.toml:17:2: unknown key xyzzy; the keys here are name, description, device, peak_flop_per_s, memory, "
       "products, attention, step, same_host, between_hosts, process_memory"},
      {with("memory", "share", "share = 1.5"), "memory.share = 1.5 (m.toml:20:9) must be from 1e-6 to 1"},
      {with("memory", "share", "share = 1e-320"), "memory.share = 1e-320 (m.toml:20:9) must be from 1e-6 to 1"},
      {with("memory", "latency_seconds", "latency_seconds = -1e-6"),
       "memory.latency_seconds = -1e-06 (m.toml:21:19) must be from 0 to 1e30"},
      {with("memory", "origin", "origin = \"guess\""),
       "memory.origin = 'guess' (m.toml:18:10) must be \"measured: SOURCE, DATE\" or \"assumed: REASON\""},
      {with("memory", "origin", "origin = \"measured: me\""),
       "memory.origin = 'measured: me' (m.toml:18:10) must name the date, as in \"measured: SOURCE, 2026-11\", or a "
       "table: "
       "\"measured: as [TABLE]\""},
      {with("memory", "origin", "origin = \"measured:  \""),
       "memory.origin = 'measured:  ' (m.toml:18:10) must be \"measured: SOURCE, DATE\" or \"assumed: REASON\""},
      {with("memory", "origin", ""), "m.toml:17:1: the key memory.origin is missing"},
      {with("device", "per_host", "per_host = 0"),
       "device.per_host = 0 (m.toml:6:12) must be a whole number from 1 to 1,000,000,000"},
      {with("device", "per_host", "per_host = 2.5"),
       "device.per_host = 2.5 (m.toml:6:12) must be a whole number from 1 to 1,000,000,000"},
      {with("device", "communication_uses_compute", "communication_uses_compute = 1"),
       "device.communication_uses_compute = 1 (m.toml:9:30) must be true or false"},
      {with("products", "tile", "tile = [128]"),
       "products.tile = [ 128 ] (m.toml:28:8) must be a list of 2 whole numbers, as in [128, 256]"},
      {with("products", "tile", "tile = [128, 0]"),
       "products.tile = 0 (m.toml:28:14) must be a whole number from 1 to 1,000,000,000"},
      {with("products", "wave_loss", "wave_loss = 1.01"),
       "products.wave_loss = 1.01 (m.toml:30:13) must be from 0 to 1"},
      {with("products", "half_work_flop", "half_work_flop = 0.5"),
       "products.half_work_flop = 0.5 (m.toml:32:18) must be from 1 to 1e30"},
      {with("attention.forward", "tail", "tail = 3"), "attention.forward.tail = 3 (m.toml:43:8) must be from 0 to 2"},
  };
  for (const BadFile& bad : table) EXPECT_EQ(error_of(bad.text), bad.message) << bad.text.substr(0, 300);
}

TEST(HardwareFile, BadLinksAndTablesAreRefused) {
  const BadFile table[] = {
      {with("same_host.message", "share", "share = 2.1"),
       "same_host.message.share = 2.1 (m.toml:64:9) must be from 1e-6 to 2"},
      {with("same_host.message", "bidirectional", ""),
       "same_host.message.share = 1.5588 (m.toml:64:9) must be from 1e-6 to 1; a share of both directions "
       "needs bidirectional = true"},
      {with("same_host.all_reduce", "", "[same_host.all_reduce]"),
       "same_host.all_reduce = {...} (m.toml:68:1) must be a list of tables: [[same_host.all_reduce]]"},
      {with("same_host.all_reduce", "share",
            "share = 0.7\nranks = 4\n[[same_host.all_reduce]]\nranks = 4\n"
            "origin = \"assumed: x\"\nshare = 0.5"),
       "m.toml:68:1: the key same_host.all_reduce.latency_seconds is missing"},
      {with("process_memory", "context_bytes", "context_bytes = 1e12"),
       "process_memory.context_bytes = 1000000000000 (m.toml:128:17) plus communicator_bytes = 200000000 must be less "
       "than device.memory_bytes = 180000000000"},
      {with("attention.forward", "tail", "tail = 0\nnarrow_head_share = 1.1"),
       "attention.forward.narrow_head_share = 1.1 (m.toml:44:21) must be from 1e-6 to 1"},
      {with("products", "half_work_flop", "half_work_flop = 1e9\noperand_traffic = -1"),
       "products.operand_traffic = -1 (m.toml:33:19) must be from 0 to 100"},
      {with("step", "compute_share", "compute_share = 1\ncall_seconds = 101"),
       "step.call_seconds = 101 (m.toml:57:16) must be from 0 to 100"},
      {with("step", "compute_share", "compute_share = 2.1"),
       "step.compute_share = 2.1 (m.toml:56:17) must be from 1e-6 to 2"},
      {with("device", "per_host", "per_host = 8\nshared_cores = 4"),
       "device.communication_uses_compute = false (m.toml:10:30) must be true, because device.shared_cores is set"},
      {with("device", "communication_uses_compute", "communication_uses_compute = true\nshared_cores = 4"),
       "device.compute_units = 148 (m.toml:7:17) must be 1, because device.shared_cores is set"},
      {with("device", "communication_uses_compute", "communication_uses_compute = true\nshared_cores = 0"),
       "device.shared_cores = 0 (m.toml:10:16) must be a whole number from 1 to 1,000,000,000"},
      {with("", "name", "name = \"\""), "name = '' (m.toml:1:8) must not be empty"},
      {with("", "name", ""), "m.toml: the key name is missing"},
      {"name = \"a\"\ndescription = \"b\"", "m.toml: the table [device] is missing"},
      {"name = \"a\"\ndescription = \"b\"\ndevice = 3", "device = 3 (m.toml:3:10) must be a table: [device]"},
      {"", "m.toml: the key name is missing"},
  };
  for (const BadFile& bad : table) EXPECT_EQ(error_of(bad.text), bad.message) << bad.text.substr(0, 300);
}

TEST(HardwareFile, GroupSizesAscend) {
  const std::string entry = "origin = \"assumed: x\"\nshare = 0.5\nlatency_seconds = 0\nstep_seconds = 0\n";
  const auto file = [&](std::string_view first, std::string_view second) {
    return with("same_host.all_gather", "",
                fmt::format("[[same_host.all_gather]]\n{0}{2}[[same_host.all_gather]]\n{1}{2}[[same_host.all_gather]]",
                            first, second, entry));
  };
  EXPECT_EQ(error_of(file("ranks = 2\n", "ranks = 4\n")), "no error");
  EXPECT_EQ(parse_hardware(file("ranks = 2\n", "ranks = 4\n"), "m.toml").same_host.all_gather.size(), 3u);
  EXPECT_EQ(error_of(file("ranks = 4\n", "ranks = 4\n")),
            "same_host.all_gather.ranks = 4 (m.toml:81:9) must be larger than 4, the ranks of the entry before it");
  EXPECT_EQ(error_of(file("ranks = 4\n", "ranks = 2\n")),
            "same_host.all_gather.ranks = 2 (m.toml:81:9) must be larger than 4, the ranks of the entry before it");
  EXPECT_EQ(error_of(file("", "ranks = 2\n")),
            "m.toml:79:1: an entry of [[same_host.all_gather]] without ranks must be the last one");
}

TEST(HardwareFile, FilesThatCannotBeReadAreRefused) {
  const TempFolder folder;
  const auto error = [](const std::string& name) -> std::string {
    try {
      load_hardware(name);
    } catch (const ConfigError& wrong) {
      return std::string("ConfigError ") + wrong.what();
    } catch (const DataError& wrong) {
      return std::string("DataError ") + wrong.what();
    }
    return "no error";
  };
  for (const char* name : {"h100", "H100", "H100-8x"})
    EXPECT_EQ(load_hardware(name).name, load_hardware("h100-8x").name);
  EXPECT_EQ(error("a100").rfind("ConfigError hardware a100: no profile and no file has this name", 0), 0u);
  EXPECT_EQ(error("b200-x8"),
            "ConfigError hardware b200-x8: no profile and no file has this name; did you mean b200-8x?");
  EXPECT_EQ(error("xyzzy"),
            "ConfigError hardware xyzzy: no profile and no file has this name; the profiles are a100-8x, a100-pcie, "
            "a800-8x, b200-8x, h100-8x, h200-8x, this-cpu");
  EXPECT_EQ(error(folder.path()), "DataError " + folder.path() + ": a hardware file must be a regular file");
  EXPECT_EQ(error("/dev/zero"), "DataError /dev/zero: a hardware file must be a regular file");
  const std::string large = folder.write("large.toml", std::string(65537, '\n'));
  EXPECT_EQ(error(large), "DataError " + large + ": a hardware file must have at most 65536 bytes");
  const std::string latin = folder.write("latin.toml", "name = \"\xe4\"\n");
  EXPECT_EQ(error(latin), "DataError " + latin + ": a hardware file must be UTF-8, but offset 8 is not");
}

TEST(HardwareFile, HostileFilesAreRefused) {
  const auto repeat = [](std::string_view text, int times) {
    std::string out;
    for (int i = 0; i < times; ++i) out += text;
    return out;
  };
  const std::string files[] = {
      "name = " + repeat("[", 60'000),
      "name = " + repeat("{a=", 20'000),
      repeat("a.", 32'000) + "a = 1",
      "[" + repeat("a.", 32'000) + "a]",
      repeat("[[a]]\n", 10'000),
      "name = " + repeat("[\na.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a = ", 900),
      "name = 1" + repeat("0", 60'000),
      "name = 1e" + repeat("9", 60'000),
      with("memory", "bytes_per_s", "bytes_per_s = 99999999999999999999"),
      with("device", "per_host", "per_host = 9223372036854775807"),
      with("memory", "bytes_per_s", "bytes_per_s = 1e999"),
      with("memory", "share", "share = 1e-400"),
      std::string("name = \"\0\"", 10),
  };
  for (const std::string& text : files) EXPECT_NE(error_of(text), "no error") << text.substr(0, 100);
}

// Deletes, duplicates and changes random bytes. Every result is a Hardware, a ConfigError or a DataError.
TEST(HardwareFile, DamagedFilesNeverCrash) {
  std::mt19937 random(1);
  const std::string good = to_toml(load_hardware("a100-pcie"));
  for (int i = 0; i < 300; ++i) {
    std::string text = good;
    for (int change = 0; change < 3; ++change) {
      const size_t at = random() % text.size();
      switch (random() % 3) {
        case 0: text.erase(at, 1 + random() % 20); break;
        case 1: text.insert(at, text.substr(random() % text.size(), random() % 40)); break;
        default: text[at] = static_cast<char>(random() % 128);
      }
    }
    try {
      parse_hardware(text, "m.toml");
    } catch (const ConfigError&) {
    } catch (const DataError&) {
    }
  }
}

}  // namespace
}  // namespace orthant::hardware_file_test
