#include "app/report.h"

#include "app/commands.h"
#include "report/data.h"
#include "report/page.h"
#include "base/errors.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>

namespace orthant {

std::string write_report(const std::string& dump_folder) {
  const std::string page = report_page(read_run_folder(dump_folder));
  const std::string path = std::filesystem::path(dump_folder) / "report.html";
  std::ofstream out(path, std::ios::binary);
  out << page;
  out.close();
  if (!out) throw DataError(fmt::format("cannot write {}: {}", path, std::strerror(errno)));
  return path;
}

int report(const ReportArguments& arguments) {
  std::puts(write_report(arguments.dump_folder).c_str());
  return kDone;
}

}  // namespace orthant
