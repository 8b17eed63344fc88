// Tokenizers from sentencepiece models: encoding by the program spm_encode, decoding by ourselves, training by
// spm_train.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "data/tokenizer.h"

namespace orthant {

/// Reads a .model file. Throws ConfigError (no such file, no end-of-text id) or DataError (damaged: file and offset).
std::unique_ptr<Tokenizer> load_sentencepiece(const std::string& path);

/// Trains a byte-pair model of `pieces` pieces on text files and returns the path of the model, made in work_dir under
/// a name that the text and `pieces` determine; a model already there is taken. Text round-trips exactly through it: no
/// normalization, bytes for rare characters, single digits, runs of spaces. Long text is sampled to about 32 MiB.
/// Throws ConfigError with the nearest legal number of pieces where the text does not allow for this one.
std::string train_sentencepiece(int64_t pieces, const std::string& work_dir, std::span<const std::string> text_files);

}  // namespace orthant
