// A message signature (kind, dtype, flags) is packed into the bits that transports leave free, and unpacked again.
#include <gtest/gtest.h>

#include <set>

#include "comm/message_signature.h"
#include "comm/transport.h"

namespace orthant::message_signature_test {
namespace {

TEST(MessageSignature, ComesBackAsItWas) {
  std::set<uint32_t> seen;
  size_t labels = 0;
  for (uint32_t kind = 0; kind <= static_cast<uint32_t>(MessageKind::barrier); ++kind) {
    for (int type = 0; type < static_cast<int>(at::ScalarType::NumOptions); ++type) {
      for (const bool more : {false, true}) {
        for (const bool one_round : {false, true}) {
          const MessageSignature signature{static_cast<MessageKind>(kind), static_cast<at::ScalarType>(type), more,
                                     one_round};
          const uint32_t bits = signature.packed();
          EXPECT_LT(bits, 1u << kSignatureBits);
          const MessageSignature back = MessageSignature::unpack(bits);
          EXPECT_TRUE(back.kind == signature.kind && back.type == signature.type && back.more == more &&
                      back.one_round == one_round);
          seen.insert(bits);
          ++labels;
        }
      }
    }
  }
  EXPECT_EQ(seen.size(), labels);  // all distinct
}

TEST(MessageSignature, IsDescribed) {
  EXPECT_EQ(describe({MessageKind::all_reduce, at::kFloat}, 4096), "4.0 KiB of Float for an all_reduce");
  EXPECT_EQ(describe({MessageKind::all_reduce, at::kFloat, false, true}, 16),
            "16 B of Float for an all_reduce in one round");
  EXPECT_EQ(describe({MessageKind::reduce, at::kBFloat16, true}, 512 << 10),
            "512.0 KiB of BFloat16 for a reduce with more segments to follow");
  EXPECT_EQ(describe({static_cast<MessageKind>(20), at::kByte}, 1), "1 B of Byte for an unknown operation");
}

}  // namespace
}  // namespace orthant::message_signature_test
