// What this program made from something else and keeps (tokens of a text, a trained tokenizer) has its checksum beside
// it, so that damage is seen and the thing is made again, not trained on.
#pragma once

#include <span>
#include <string>

namespace orthant {

/// Writes PATH.xxh3, the XXH3 of the file in 16 hexadecimal digits, for each. Throws DataError.
void seal(std::span<const std::string> paths);
/// Removes the checksums: before the files are replaced, so that no crash can pair them with others.
void unseal(std::span<const std::string> paths);
/// Whether all files are there and are what was sealed. Reads them whole.
bool are_whole(std::span<const std::string> paths);
/// Those of the files that are not what was sealed, one line each on stderr. To be called where they are made again.
void report_damaged(std::span<const std::string> paths);

}  // namespace orthant
