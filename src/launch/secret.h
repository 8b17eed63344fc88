// The secret of a run, which only its ranks and their launcher have, and the message authentication codes (MACs) that
// prove that a rank has it.
#pragma once

#include <string>

#include "launch/launch.h"

namespace orthant {

/// The environment variables through which a rank gets the secret of its run: the text itself, or the path of a file
/// that contains it. Our own launcher sets the first one for its ranks.
inline constexpr const char* kSecret = "ORTHANT_SECRET";
inline constexpr const char* kSecretFile = "ORTHANT_SECRET_FILE";

/// Returns the secret that these variables hand to this rank, without white space around it; empty if neither is set.
/// Throws ConfigError if both are set, or if the secret has fewer than 16 characters. A file must also belong to this
/// user, and no other user may read or write it.
std::string read_secret(const Environment& environment);

/// A new random secret of 256 bits, as hexadecimal digits.
std::string random_secret();

/// The MAC of a text under a secret: HMAC-SHA-256 (RFC 2104, FIPS 180-4), 32 bytes.
std::string hmac_sha256(const std::string& secret, const std::string& text);
/// Whether two MACs are equal. The time does not depend on their bytes.
bool are_equal_macs(const std::string& a, const std::string& b);

/// The lower-case hexadecimal digits of some bytes.
std::string to_hex(const std::string& bytes);

}  // namespace orthant
