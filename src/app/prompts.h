// The prompts of `orthant generate`: a text or a message of its command line, or those of a file.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "app/commands.h"
#include "runtime/sample.h"

namespace orthant {

/// A prompt, and the JSON object to which its continuation is added: a line of a .jsonl file, or {"prompt": TEXT}.
struct ReadPrompt {
  Prompt prompt;
  nlohmann::ordered_json object;
};

/// The prompt of the command line, or those of its file in their order. Every line of a text file is a prompt, also an
/// empty one. `directory` is that of the model, whose chat template writes messages. Throws ConfigError if the file has
/// no line, and DataError with file and line for a line that has no prompt.
std::vector<ReadPrompt> read_prompts(const GenerateArguments& arguments, const std::string& directory);

}  // namespace orthant
