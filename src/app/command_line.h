// argv as a value: one struct of commands.h, or text to print. Pure, so that every message is testable.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "app/commands.h"
#include "base/errors.h"

namespace orthant {

/// The command line itself is wrong: the program exits with kUsage instead of kFailed.
struct UsageError : ConfigError {
  using ConfigError::ConfigError;
};

/// Nothing to run: help, version or the reference page, for stdout.
struct PrintText {
  std::string text;
};

using Command = std::variant<PrintText, TrainArguments, PlanArguments, VerifyArguments, TokenizeArguments,
                             GenerateArguments, ReportArguments, DoctorArguments>;

/// Reads the arguments after the program's name. Settings of the run file ("--training.steps 20", "run.ranks=2") may
/// stand anywhere and are checked against the table of keys here already. Throws UsageError with the nearest command,
/// option or key, and how to get help.
Command parse_command_line(const std::vector<std::string>& arguments);

}  // namespace orthant
