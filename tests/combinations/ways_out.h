// Reads the ways out that the text of a ConfigError offers, as settings that can be applied.
#pragma once

#include "tests/combinations/features.h"

#include <string>
#include <vector>

namespace orthant {

/// Each way out of the message: the settings to apply together. The text of a way is "set KEY to VALUE" or "set it to
/// VALUE", where "it" is the first key of the message. " and KEY to VALUE" belongs to the same way; ", or KEY to VALUE"
/// and further values ("1, 2 or 4") begin another. Empty where the message offers nothing that can be applied.
std::vector<Settings> ways_out(const std::string& message);

/// The first key that a message names; empty if it names none.
std::string first_key(const std::string& message);

/// The message without the origins of its values: "(command line)", "(run.toml:3:1)", "(default)".
std::string without_origins(const std::string& message);

/// The message without its ways out, origins, numbers, mesh extents and quoted values. All refusals by one law have the
/// same text.
std::string law_of(const std::string& message);

}  // namespace orthant
