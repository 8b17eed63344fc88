#include "base/descriptors.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <limits>

#include "base/errors.h"

namespace orthant {
namespace {

int64_t as_number(rlim_t limit) {
  constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max();
  return limit == RLIM_INFINITY ? kUnlimited : static_cast<int64_t>(std::min<rlim_t>(limit, kUnlimited));
}

int64_t open_descriptors() {
  std::error_code error;
  const std::filesystem::directory_iterator all("/proc/self/fd", error);
  return error ? 0 : std::distance(begin(all), end(all));
}

}  // namespace

int64_t raise_descriptor_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return as_number(RLIM_INFINITY);  // unknown: let the opening of files fail
  if (limit.rlim_cur < limit.rlim_max) {
    const rlimit highest{limit.rlim_max, limit.rlim_max};
    if (setrlimit(RLIMIT_NOFILE, &highest) == 0) limit = highest;
  }
  return as_number(limit.rlim_cur);
}

void require_descriptors(int64_t least, const std::string& purpose) {
  const int64_t limit = raise_descriptor_limit();
  if (limit >= least) return;
  throw CommError(
      fmt::format("the limit of open files must be at least {0} for {1}, but the highest that this process may set is "
                  "{2}: raise the hard limit (as root: ulimit -Hn {0}; for a service: LimitNOFILE={0})",
                  least, purpose, limit));
}

std::string descriptor_problem() {
  constexpr int64_t kSpare = 4;
  const int64_t limit = raise_descriptor_limit(), open = open_descriptors();
  if (open + kSpare < limit) return "";
  return fmt::format(
      ". {} of {} file descriptors are in use: raise the hard limit (as root: ulimit -Hn {}; for a "
      "service: LimitNOFILE={})",
      open, limit, 2 * limit, 2 * limit);
}

}  // namespace orthant
