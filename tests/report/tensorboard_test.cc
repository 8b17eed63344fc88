// TensorBoard event files: golden bytes, and files that the test's own reader reads back. The control is a damaged
// byte.
#include "report/tensorboard.h"

#include "base/errors.h"
#include "tests/support/says.h"
#include "tests/support/temp_folder.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <map>

namespace orthant::tensorboard_test {
namespace {

std::string hex(std::string_view bytes) {
  std::string out;
  for (const char c : bytes) out += fmt::format("{:02x}", static_cast<unsigned char>(c));
  return out;
}

// A field of a protobuf message, as the test's own reader sees it; numbers as their bits.
struct Field {
  uint64_t number = 0;
  uint64_t bits = 0;
  std::string bytes;
};

uint64_t take_little_endian(std::string_view& in, size_t size) {
  if (in.size() < size) throw std::runtime_error("message ends early");
  uint64_t value = 0;
  for (size_t i = 0; i < size; ++i) value |= uint64_t{static_cast<unsigned char>(in[i])} << (8 * i);
  in.remove_prefix(size);
  return value;
}

uint64_t take_varint(std::string_view& in) {
  for (uint64_t value = 0, shift = 0;; shift += 7) {
    const uint64_t byte = take_little_endian(in, 1);
    value |= (byte & 0x7f) << shift;
    if (byte < 0x80) return value;
  }
}

std::vector<Field> fields(std::string_view message) {
  std::vector<Field> out;
  while (!message.empty()) {
    const uint64_t tag = take_varint(message);
    Field field{.number = tag >> 3, .bits = 0, .bytes = {}};
    switch (tag & 7) {
      case 0:
        field.bits = take_varint(message);
        break;
      case 1:
        field.bits = take_little_endian(message, 8);
        break;
      case 5:
        field.bits = take_little_endian(message, 4);
        break;
      case 2: {
        const uint64_t size = take_varint(message);
        field.bytes = message.substr(0, size);
        message.remove_prefix(size);
        break;
      }
      default:
        throw std::runtime_error("unknown wire type");
    }
    out.push_back(field);
  }
  return out;
}

Field only(std::string_view message, uint64_t number) {
  for (const auto& field : fields(message)) {
    if (field.number == number) return field;
  }
  return {};
}

std::vector<std::string> read_records(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string content{std::istreambuf_iterator<char>(file), {}};
  std::string_view in = content;
  std::vector<std::string> events;
  while (!in.empty()) {
    const std::string_view start = in;
    const uint64_t size = take_little_endian(in, 8);
    const std::string data(in.substr(4, size));
    const std::string expected = tensorboard_record(data);
    if (start.substr(0, expected.size()) != expected) throw std::runtime_error("checksum");
    events.push_back(data);
    in = start.substr(expected.size());
  }
  return events;
}

std::map<std::string, float> scalars_of(const std::string& event) {
  std::map<std::string, float> out;
  for (const auto& value : fields(only(event, 5).bytes)) {
    const auto bits = static_cast<uint32_t>(only(value.bytes, 2).bits);
    float number;
    std::memcpy(&number, &bits, sizeof number);
    out[only(value.bytes, 1).bytes] = number;
  }
  return out;
}

TEST(TensorBoard, Crc32c) {
  EXPECT_EQ(crc32c("123456789"), 0xe3069283u);
  EXPECT_EQ(crc32c(""), 0u);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8a9136aau);  // RFC 3720, B.4
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62a8ab43u);
}

TEST(TensorBoard, GoldenBytes) {
  EXPECT_EQ(hex(tensorboard_record(tensorboard_version_event(1.0))),
            "1800000000000000a37f4b22"
            "09000000000000f03f1a0d627261696e2e4576656e743a32"
            "86bf577a");
  EXPECT_EQ(hex(tensorboard_record(tensorboard_scalars_event(1.0, 1, {{"loss", 2.5f}}))),
            "1a00000000000000129bd82d"
            "09000000000000f03f10012a0d0a0b0a046c6f73731500002040"
            "269910bb");
  EXPECT_EQ(hex(tensorboard_start_event(1.0, 300)),
            "09000000000000f03f10ac02"
            "3a020801");
  EXPECT_EQ(hex(tensorboard_text_event(1.0, 0, "a", "b")),
            "09000000000000f03f1000"
            "2a1e0a1c"
            "0a0161"
            "420b0807120412020801420162"
            "4a0a0a060a04746578742002");
}

TEST(TensorBoard, FileReadsBack) {
  const TempFolder folder;
  std::string path;
  {
    TensorBoardWriter writer(folder / "tb", std::nullopt, "SGD");
    path = writer.path();
    writer.write_text("config", "    [training]\n    steps = 300");
    writer.write(StepMetrics{.step = 300,
                             .loss = 2.5,
                             .grad_norm = 0.5,
                             .lr = 1e-3,
                             .tokens = 1,
                             .step_seconds = 0.5,
                             .tokens_per_second = 1000,
                             .mfu = std::numeric_limits<double>::quiet_NaN(),
                             .peak_memory_bytes = 1 << 30,
                             .communication_seconds = 0.1,
                             .communication_bytes = 64,
                             .communication_calls = 2,
                             .data_seconds = 0.05});
    writer.write(ValidationMetrics{.step = 300, .validation_loss = 2.75, .bits_per_byte = 1.5});
    EXPECT_EQ(read_records(path).size(), 4u) << "every record is in the file before the writer is gone";
  }
  EXPECT_EQ(std::filesystem::path(path).filename().string().find("events.out.tfevents."), 0u);
  const auto events = read_records(path);
  EXPECT_EQ(only(events[0], 3).bytes, "brain.Event:2");
  const std::string text = only(only(events[1], 5).bytes, 1).bytes;
  EXPECT_EQ(only(text, 1).bytes, "config");
  EXPECT_EQ(only(only(text, 8).bytes, 8).bytes, "    [training]\n    steps = 300");
  EXPECT_EQ(only(events[2], 2).bits, 300u);
  auto step = scalars_of(events[2]);
  EXPECT_EQ(step.count("mfu(%)"), 0u) << "an unknown value is left out";
  EXPECT_EQ(step.at("loss_metrics/global_avg_loss"), 2.5f);
  EXPECT_EQ(step.at("grad_norm"), 0.5f);
  EXPECT_EQ(step.at("lr/SGD"), 1e-3f);
  EXPECT_EQ(step.at("throughput(tps)"), 1000.0f);
  EXPECT_EQ(step.at("time_metrics/end_to_end(s)"), 0.5f);
  EXPECT_EQ(step.at("time_metrics/data_loading(%)"), 10.0f);
  EXPECT_EQ(step.at("time_metrics/communication(%)"), 20.0f);
  EXPECT_EQ(step.at("memory/max_active(GiB)"), 1.0f);
  EXPECT_EQ(scalars_of(events[3]).at("validation_metrics/loss"), 2.75f);
}

TEST(TensorBoard, ResumeWithdrawsLaterStepsInAFileOfItsOwn) {
  const TempFolder folder;
  const TensorBoardWriter first(folder.path());
  const TensorBoardWriter second(folder.path(), 100);
  EXPECT_NE(first.path(), second.path());
  const auto events = read_records(second.path());
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(only(events[1], 2).bits, 101u);
  EXPECT_EQ(only(only(events[1], 7).bytes, 1).bits, 1u);
}

TEST(TensorBoard, DamageIsSeenByTheReader) {
  const TempFolder folder;
  std::string path;
  {
    const TensorBoardWriter writer(folder.path());
    path = writer.path();
  }
  std::fstream(path, std::ios::in | std::ios::out | std::ios::binary).seekp(14).put('x');
  EXPECT_THROW(read_records(path), std::runtime_error);
}

TEST(TensorBoard, FolderThatCannotBeMadeIsNamed) {
  EXPECT_EQ(message_of<DataError>([] { TensorBoardWriter("/dev/null/tb"); }),
            "cannot create the folder /dev/null/tb: Not a directory");
}

}  // namespace
}  // namespace orthant::tensorboard_test
