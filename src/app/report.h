// The report of a finished (or still going) run: one self-contained HTML file.
#pragma once

#include <string>

namespace orthant {

/// Reads a run folder and writes its report.html: loss, rates, time, communication, memory, validation, sample,
/// configuration; a sentence where a piece is missing. Returns the file's path. Throws DataError when metrics.jsonl is
/// missing or damaged (file and line), or when report.html cannot be written.
std::string write_report(const std::string& dump_folder);

}  // namespace orthant
