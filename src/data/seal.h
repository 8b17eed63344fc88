// Checksums of cached files derived from the input (tokens of a text, a trained tokenizer). A damaged file is detected
// and made again, instead of used for training.
#pragma once

#include <span>
#include <string>

#include "data/file_readings.h"

namespace orthant {

/// Writes PATH.xxh3 for each file: its XXH3 hash in 16 hexadecimal digits. Throws DataError.
void write_checksums(std::span<const std::string> paths, FileReadings& readings);
/// Removes the checksums. Call it before replacing the files, so that no crash pairs old checksums with new files.
void remove_checksums(std::span<const std::string> paths);
/// True if all files exist and match their checksums. Reads the files completely, unless `readings` has their results.
bool checksums_match(std::span<const std::string> paths, FileReadings& readings);
/// Prints one line on stderr for each file that does not match its checksum. Call it where the files are made again.
void report_damaged(std::span<const std::string> paths, FileReadings& readings);

}  // namespace orthant
