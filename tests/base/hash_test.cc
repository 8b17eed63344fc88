// XXH3 against values of the reference implementation. The digest of a stream must not depend on how it is split.
#include "base/hash.h"

#include <gtest/gtest.h>

#include <string>

namespace orthant::hash_test {
namespace {

TEST(Xxh3, IsThatOfTheReferenceImplementation) {
  // printed by `xxhsum -H3` for an empty input and for "abc"
  EXPECT_EQ(xxh3(""), 0x2d06800538d394c2u);
  EXPECT_EQ(xxh3("abc"), 0x78af5f94892f3950u);
}

TEST(Hasher, DoesNotDependOnHowTheStreamIsCut) {
  const std::string text = "the quick brown fox jumps over the lazy dog";
  Hasher whole;
  whole.add(text);
  for (size_t cut = 0; cut <= text.size(); ++cut)
    for (size_t second = cut; second <= text.size(); second += 5) {
      Hasher parts;
      parts.add(text.substr(0, cut));
      parts.add(text.substr(cut, second - cut));
      parts.add(text.substr(second));
      EXPECT_EQ(parts.digest(), whole.digest());
    }
  EXPECT_EQ(whole.digest(), xxh3(text));
  // Negative controls: length and field borders change the digest.
  Hasher zero, zeros;
  zero.add(std::string(1, '\0'));
  zeros.add(std::string(2, '\0'));
  EXPECT_NE(zero.digest(), zeros.digest());
  Hasher ab, a;
  ab.add_field("ab"), ab.add_field("c");
  a.add_field("a"), a.add_field("bc");
  EXPECT_NE(ab.digest(), a.digest());
}

TEST(Hasher, BeginsAnewWhenReset) {
  Hasher hasher;
  hasher.add("rubbish");
  hasher.reset();
  hasher.add("abc");
  EXPECT_EQ(hasher.digest(), xxh3("abc"));
}

}  // namespace
}  // namespace orthant::hash_test
