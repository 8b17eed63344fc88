// Tokenizers from sentencepiece models. The program spm_encode encodes and spm_train trains; decoding is implemented
// here.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "data/file_readings.h"
#include "data/text_file.h"
#include "data/tokenizer.h"

namespace orthant {

/// Reads a .model file. Throws ConfigError if it does not exist or has no end-of-text id, DataError with file and
/// offset if it is damaged.
std::unique_ptr<Tokenizer> load_sentencepiece(const std::string& path);

/// Trains a byte-pair model of `pieces` pieces and returns its path in work_dir. The name depends on text and `pieces`;
/// an existing model is reused. Text round-trips exactly: no normalization, bytes for rare characters, single digits,
/// runs of spaces. Long texts are sampled to about 32 MiB. Throws ConfigError with the nearest legal number of pieces
/// if the text does not allow this one.
std::string train_sentencepiece(int64_t pieces, const std::string& work_dir, std::span<const std::string> text_files,
                                const TextFormat& format, FileReadings& readings);

}  // namespace orthant
