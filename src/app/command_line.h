// Parses argv into a value: one struct of commands.h, or text to print. It is a pure function, so that every message
// can be tested.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "app/commands.h"
#include "base/errors.h"

namespace orthant {

/// An error of the command line: the program exits with kUsage instead of kFailed.
struct UsageError : ConfigError {
  using ConfigError::ConfigError;
};

/// Text for stdout instead of a command to run: help, version, the reference page or the manual page.
struct PrintText {
  std::string text;
};

using Command = std::variant<PrintText, TrainArguments, PlanArguments, VerifyArguments, TokenizeArguments,
                             GenerateArguments, ConvertArguments, CheckpointArguments, ReportArguments,
                             CompareArguments, DoctorArguments, CalibrateArguments, CompletionArguments>;

/// Parses the arguments after the program's name. Settings of the run file ("--training.steps 20", "run.ranks=2") may
/// appear anywhere and are checked against the table of keys. Throws UsageError with the nearest command, option or key
/// and a pointer to the help.
Command parse_command_line(const std::vector<std::string>& arguments);

}  // namespace orthant
