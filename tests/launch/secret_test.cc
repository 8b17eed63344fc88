// The secret of a run: the vectors of RFC 4231, and the files and variables that are refused.
#include "launch/secret.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>

#include "base/errors.h"
#include "tests/support/says.h"

namespace orthant::secret_test {
namespace {

std::string from_hex(const std::string& digits) {
  std::string bytes;
  for (size_t i = 0; i < digits.size(); i += 2) bytes += static_cast<char>(std::stoi(digits.substr(i, 2), nullptr, 16));
  return bytes;
}

TEST(Secret, HmacOfRfc4231) {
  const auto mac = [](const std::string& key, const std::string& text) { return to_hex(hmac_sha256(key, text)); };
  EXPECT_EQ(mac(std::string(20, '\x0b'), "Hi There"),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  EXPECT_EQ(mac("Jefe", "what do ya want for nothing?"),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_EQ(mac(std::string(131, '\xaa'), "Test Using Larger Than Block-Size Key - Hash Key First"),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

TEST(Secret, MacsAreEqualOnlyIfAllBytesAre) {
  const std::string mac = hmac_sha256("key", "text");
  EXPECT_TRUE(are_equal_macs(mac, hmac_sha256("key", "text")));
  for (const std::string& other : {hmac_sha256("key", "texT"), hmac_sha256("kex", "text"), std::string(), mac + "x"})
    EXPECT_FALSE(are_equal_macs(mac, other));
}

TEST(Secret, RandomSecretsDiffer) {
  EXPECT_EQ(from_hex(random_secret()).size(), 32u);
  EXPECT_NE(random_secret(), random_secret());
}

class SecretFile : public testing::Test {
 protected:
  SecretFile() { write("  0123456789abcdef+/=\n"); }
  ~SecretFile() override { std::filesystem::remove(path_); }

  void write(const std::string& text) {
    std::ofstream(path_) << text;
    chmod(path_.c_str(), 0600);
  }
  std::string read(std::map<std::string, std::string> table) {
    return read_secret([&](const std::string& name) -> std::optional<std::string> {
      return table.contains(name) ? std::optional(table[name]) : std::nullopt;
    });
  }
  std::string read() { return read({{"ORTHANT_SECRET_FILE", path_}}); }
  std::string refusal() {
    return message_of<ConfigError>([&] { (void)read(); });
  }

  const std::string path_ =
      (std::filesystem::temp_directory_path() / fmt::format("orthant-secret-{}", getpid())).string();
};

TEST_F(SecretFile, IsReadWithoutWhiteSpaceAround) {
  EXPECT_EQ(read(), "0123456789abcdef+/=");
  EXPECT_EQ(read({{"ORTHANT_SECRET", "0123456789abcdef+/=\n"}}), read());
  EXPECT_EQ(read({}), "");
}

TEST_F(SecretFile, BothVariables) {
  EXPECT_TRUE(says(message_of<ConfigError>(
                       [&] { (void)read({{"ORTHANT_SECRET", "0123456789abcdef"}, {"ORTHANT_SECRET_FILE", path_}}); }),
                   {"ORTHANT_SECRET and ORTHANT_SECRET_FILE are both set", "unset one"}));
}

TEST_F(SecretFile, ShortSecret) {
  write("0123456789abcde\n");
  EXPECT_TRUE(says(refusal(), {"at least 16 characters", path_, "has 15", "head -c 32 /dev/urandom"}));
  EXPECT_TRUE(says(message_of<ConfigError>([&] { (void)read({{"ORTHANT_SECRET", "x"}}); }),
                   {"at least 16 characters", "ORTHANT_SECRET has 1"}));
}

TEST_F(SecretFile, FileThatOthersCanRead) {
  for (const mode_t mode : {0640, 0604, 0620, 0602}) {
    chmod(path_.c_str(), mode);
    EXPECT_TRUE(says(refusal(), {"ORTHANT_SECRET_FILE = " + path_, fmt::format("its permissions are {:04o}", mode),
                                 "must be at most 0600"}));
  }
  chmod(path_.c_str(), 0400);
  EXPECT_EQ(read(), "0123456789abcdef+/=");
}

TEST_F(SecretFile, FileOfAnotherUser) {
  if (chown(path_.c_str(), 12345, getgid()) != 0) GTEST_SKIP() << "only root can give a file to another user";
  EXPECT_TRUE(says(refusal(), {"it belongs to the user with id 12345"}));
}

TEST_F(SecretFile, MissingFileAndFolder) {
  EXPECT_TRUE(says(message_of<ConfigError>([&] { (void)read({{"ORTHANT_SECRET_FILE", path_ + "x"}}); }),
                   {"cannot read the secret", "No such file", "umask 077"}));
  EXPECT_TRUE(
      says(message_of<ConfigError>([&] { (void)read({{"ORTHANT_SECRET_FILE", "/"}}); }), {"it is not a regular file"}));
}

}  // namespace
}  // namespace orthant::secret_test
