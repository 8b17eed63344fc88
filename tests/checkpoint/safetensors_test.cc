// Safetensors files: golden bytes, order and alignment of tensors, and round trips. A failed write leaves the old file.
#include "checkpoint/safetensors.h"

#include <array>

#include "checkpoint/tensor_hash.h"
#include "tests/checkpoint/fixtures.h"

namespace orthant::safetensors_test {
namespace {

std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

TEST(Safetensors, WritesTheGoldenBytes) {
  TempFolder dir;
  const std::array<float, 2> values{1.0f, 2.0f};
  const TensorBytes tensor{.name = "t", .dtype = Dtype::f32, .shape = {2}, .bytes = std::as_bytes(std::span(values))};
  const WrittenFile written = write_safetensors(dir / "t", std::span(&tensor, 1), {});
  const std::string golden = std::string("\x38\0\0\0\0\0\0\0", 8) +
                             R"({"t":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}  )" +
                             std::string("\0\0\x80\x3f\0\0\0\x40", 8);
  EXPECT_EQ(slurp(dir / "t"), golden);
  EXPECT_EQ(written.digest, digest_file(dir / "t"));
  ASSERT_EQ(written.tensors.size(), 1u);
  EXPECT_EQ(written.tensors.at("t").xxh3, tensor_xxh3(tensor.bytes));
  EXPECT_EQ(written.tensors.at("t").dtype, Dtype::f32);
  EXPECT_EQ(written.tensors.at("t").shape, std::vector<int64_t>{2});
  EXPECT_EQ(text_of(SafetensorsFile(dir / "t").bytes("t")), golden.substr(64));
}

TEST(Safetensors, OrdersByDtypeThenNameAndAligns) {
  TempFolder dir;
  Tensors tensors;
  tensors.add("b", Dtype::bf16, {3});
  tensors.add("z", Dtype::u8, {5});
  tensors.add("a", Dtype::f32, {1});
  tensors.add("c", Dtype::i64, {1});
  tensors.add("a2", Dtype::bf16, {1});
  write_safetensors(dir / "t", tensors.views);
  const SafetensorsFile file(dir / "t");
  std::vector<std::string> names;
  for (const TensorInfo& info : file.tensors()) {
    names.push_back(info.name);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(file.bytes(info.name).data()) % (dtype_bits(info.dtype) / 8), 0u)
        << info.name;
  }
  EXPECT_EQ(names, (std::vector<std::string>{"c", "a", "a2", "b", "z"}));
  EXPECT_EQ(file.metadata(), (std::map<std::string, std::string>{{"format", "pt"}}));
}

TEST(Safetensors, RoundTripsRandomFiles) {
  TempFolder dir;
  std::mt19937_64 generator(11);
  for (int round = 0; round < 100; ++round) {
    Tensors tensors;
    const int count = static_cast<int>(generator() % 8);
    for (int i = 0; i < count; ++i) {
      std::vector<int64_t> shape(generator() % 4);
      for (int64_t& size : shape) size = static_cast<int64_t>(generator() % 5);
      auto dtype = static_cast<Dtype>(generator() % 22);
      // 4 and 6 bits need a multiple of 4 elements to fill whole bytes.
      if (dtype_bits(dtype) % 8 != 0) shape.push_back(4);
      tensors.add(fmt::format("w{}.\"\\ \n\xc3\xa9", i), dtype, shape, generator());
    }
    const std::map<std::string, std::string> metadata{{"format", "pt"}, {"k", std::string(generator() % 20, '"')}};
    write_safetensors(dir / "t", tensors.views, metadata);
    const SafetensorsFile file(dir / "t");
    EXPECT_EQ(file.metadata(), metadata);
    ASSERT_EQ(file.tensors().size(), tensors.views.size());
    for (const TensorBytes& want : tensors.views) {
      const TensorBytes have = file.tensor(want.name);
      EXPECT_EQ(have.dtype, want.dtype);
      EXPECT_EQ(have.shape, want.shape);
      EXPECT_TRUE(same_bytes(have.bytes, want.bytes));
    }
  }
}

TEST(Safetensors, RefusesOurOwnMistakes) {
  TempFolder dir;
  Tensors tensors;
  tensors.add("a", Dtype::f32, {2});
  auto write = [&](std::vector<TensorBytes> views) { write_safetensors(dir / "t", views); };
  TensorBytes wrong = tensors.views[0];
  wrong.shape = {3};
  EXPECT_THROW(write({wrong}), LogicError);
  wrong.shape = {int64_t{1} << 40, int64_t{1} << 40};
  EXPECT_THROW(write({wrong}), LogicError);
  EXPECT_THROW(write({tensors.views[0], tensors.views[0]}), LogicError);
  TensorBytes bad_name = tensors.views[0];
  bad_name.name = "\xff";
  EXPECT_THROW(write({bad_name}), LogicError);
  EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
  write({tensors.views[0]});
}

TEST(Safetensors, NamesWhatIsNotThere) {
  TempFolder dir;
  Tensors tensors;
  tensors.add("a", Dtype::f32, {2});
  write_safetensors(dir / "t", tensors.views);
  const SafetensorsFile file(dir / "t");
  EXPECT_TRUE(file.contains("a"));
  EXPECT_FALSE(file.contains("b"));
  expect_pieces(message_of<DataError>([&] { (void)file.tensor("b"); }), {dir / "t", "no tensor \"b\""});
}

TEST(Safetensors, ViewsOutliveAMove) {
  TempFolder dir;
  Tensors tensors;
  tensors.add("a", Dtype::f32, {64});
  write_safetensors(dir / "t", tensors.views);
  std::vector<SafetensorsFile> files;
  files.emplace_back(dir / "t");
  const auto view = files[0].bytes("a");
  for (int i = 0; i < 10; ++i) files.emplace_back(dir / "t");
  EXPECT_EQ(files[0].bytes("a").data(), view.data());
  EXPECT_TRUE(same_bytes(view, tensors.views[0].bytes));
}

TEST(TensorSet, ReadsSeveralFilesAsOne) {
  TempFolder dir;
  Tensors tensors;
  tensors.add("a", Dtype::f32, {2}, 1);
  tensors.add("b", Dtype::bf16, {3}, 2);
  write_safetensors(dir / "1", std::span(tensors.views).first(1));
  write_safetensors(dir / "2", std::span(tensors.views).last(1));
  const TensorSet set(std::vector<std::string>{dir / "1", dir / "2"});
  EXPECT_EQ(set.names(), (std::vector<std::string>{"a", "b"}));
  EXPECT_TRUE(same_bytes(set.bytes("b"), tensors.views[1].bytes));
  expect_pieces(message_of<DataError>([&] { (void)set.tensor("c"); }), {"no tensor \"c\"", "1 more file"});
  expect_pieces(message_of<DataError>([&] {
                  TensorSet twice(std::vector<std::string>{dir / "1", dir / "2", dir / "1"});
                }),
                {"tensor \"a\" is also in "});
}

TEST(Safetensors, AFullDiskLeavesTheOldFile) {
  TempFolder dir;
  Tensors tensors;
  tensors.add("a", Dtype::u8, {100'000}, 1);
  spill(dir / "t", "old");
  {
    FileSizeLimit limit(50'000);
    expect_pieces(message_of<DataError>([&] { write_safetensors(dir / "t", tensors.views); }),
                  {dir / "t", "offset 50000", "cannot write", "File too large"});
  }
  EXPECT_EQ(slurp(dir / "t"), "old");
  std::filesystem::remove(dir / "t");
  EXPECT_TRUE(std::filesystem::is_empty(dir.path())) << "no temporary stays";
  write_safetensors(dir / "t", tensors.views);  // negative control: without the limit it succeeds
  EXPECT_TRUE(same_bytes(SafetensorsFile(dir / "t").bytes("a"), tensors.views[0].bytes));
}

}  // namespace
}  // namespace orthant::safetensors_test
