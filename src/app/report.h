// The report of a finished or running run: one self-contained HTML file.
#pragma once

#include <string>

namespace orthant {

/// Reads a run folder and writes its report.html: loss, rates, time, communication, memory, validation, sample,
/// configuration. A sentence replaces each missing part. Returns the path of the file. Throws DataError if
/// metrics.jsonl is missing or damaged (with file and line), or if report.html cannot be written.
std::string write_report(const std::string& dump_folder);

}  // namespace orthant
