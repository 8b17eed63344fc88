// The prompts of `orthant generate`: a text or a message of its command line, or those of a file.
#pragma once

#include <string>
#include <vector>

#include "app/commands.h"
#include "runtime/sample.h"

namespace orthant {

/// A prompt with its origin.
struct ReadPrompt {
  Prompt prompt;
  std::string object;  // JSON, to which the continuation is added: the line of a .jsonl file, or {"prompt": TEXT}
  std::string source;  // "--prompt", or the file and the line
};

/// The prompt of the command line, or those of its file in their order. Every line of a text file is a prompt, also an
/// empty one; blank lines of a .jsonl file are skipped. With --chat, a text is a message of the user. The chat template
/// of the model in `directory` writes messages. Throws ConfigError if the file has no line or the model no template,
/// and DataError with file and line for a line that has no prompt, or has a member "text", "tokens" or "end".
std::vector<ReadPrompt> read_prompts(const GenerateArguments& arguments, const std::string& directory);

}  // namespace orthant
