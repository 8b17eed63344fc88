// Reads the secret of a run from the environment or a file, and computes HMAC-SHA-256 with libsodium.
#include "launch/secret.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sodium.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/errors.h"
#include "base/text.h"
#include "launch/owned_file.h"

namespace orthant {
namespace {

constexpr size_t kFewestCharacters = 16, kMostBytesOfFile = 4096;

void start_sodium() {
  static const bool has_started = sodium_init() >= 0;
  if (!has_started) throw CommError("libsodium cannot read random numbers from the kernel");
}

const unsigned char* bytes_of(const std::string& text) { return reinterpret_cast<const unsigned char*>(text.data()); }

std::string read_secret_file(const std::string& path) {
  const auto refuse = [&](const std::string& why) {
    throw ConfigError(
        fmt::format("{} = {}: {}; make a new one, for example with (umask 077; head -c 32 /dev/urandom | "
                    "base64 > FILE), where each host can read it",
                    kSecretFile, path, why));
  };
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) refuse(fmt::format("cannot read the secret of the run: {}", std::strerror(errno)));
  const std::string foreign = why_not_owned(fd, S_IRWXG | S_IRWXO);
  std::string text(kMostBytesOfFile, '\0');
  const ssize_t bytes = foreign.empty() ? read(fd, text.data(), text.size()) : 0;
  close(fd);
  if (!foreign.empty()) refuse("the secret of the run must not be known to other users, but " + foreign);
  text.resize(bytes < 0 ? 0 : static_cast<size_t>(bytes));
  return text;
}

}  // namespace

std::string read_secret(const Environment& environment) {
  const auto text = environment(kSecret), path = environment(kSecretFile);
  if (!text && !path) return "";
  if (text && path) throw ConfigError(fmt::format("{} and {} are both set: unset one of them", kSecret, kSecretFile));
  std::string secret(trim(text ? *text : read_secret_file(*path)));
  if (secret.size() < kFewestCharacters) {
    throw ConfigError(
        fmt::format("the secret of a run must have at least {} characters, but the one in {} has {}; "
                    "head -c 32 /dev/urandom | base64 prints a new one",
                    kFewestCharacters, text ? kSecret : *path, secret.size()));
  }
  return secret;
}

std::string random_secret() {
  constexpr size_t kBytes = 32;
  start_sodium();
  std::string bytes(kBytes, '\0');
  randombytes_buf(bytes.data(), bytes.size());
  return to_hex(bytes);
}

std::string hmac_sha256(const std::string& secret, const std::string& text) {
  start_sodium();
  crypto_auth_hmacsha256_state state;
  crypto_auth_hmacsha256_init(&state, bytes_of(secret), secret.size());
  crypto_auth_hmacsha256_update(&state, bytes_of(text), text.size());
  std::string mac(crypto_auth_hmacsha256_BYTES, '\0');
  crypto_auth_hmacsha256_final(&state, reinterpret_cast<unsigned char*>(mac.data()));
  return mac;
}

bool are_equal_macs(const std::string& a, const std::string& b) {
  return a.size() == b.size() && sodium_memcmp(a.data(), b.data(), a.size()) == 0;
}

std::string to_hex(const std::string& bytes) {
  std::string digits;
  for (const unsigned char byte : bytes) digits += fmt::format("{:02x}", byte);
  return digits;
}

}  // namespace orthant
