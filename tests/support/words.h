// Settings of a run file's keys, as words of a command line.
#pragma once

#include <string>
#include <vector>

namespace orthant {

using Words = std::vector<std::string>;

/// The words, followed by `more`.
inline Words with(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

}  // namespace orthant
