// orthant compare: one HTML page about several run folders.
#include "report/compare.h"

#include <cstdio>

#include "app/command_line.h"
#include "app/commands.h"
#include "app/streams.h"
#include "base/errors.h"
#include "report/data.h"

namespace orthant {

int compare(const CompareArguments& arguments) {
  const size_t count = arguments.dump_folders.size();
  if (count < 2) {
    throw UsageError(
        fmt::format("compare requires at least two run folders, but got {}; for one run, use orthant report "
                    "RUN_DIR\nhelp:  orthant compare --help",
                    count));
  }
  if (count > kMostRuns) {
    throw UsageError(
        fmt::format("compare draws at most {} runs, but got {}; leave some out\n"
                    "help:  orthant compare --help",
                    kMostRuns, count));
  }
  std::vector<ReportData> runs;
  for (const std::string& folder : arguments.dump_folders) runs.push_back(read_run_folder(folder));
  write_file("--output", arguments.output, compare_page(runs));
  std::puts(arguments.output.c_str());
  return kDone;
}

}  // namespace orthant
