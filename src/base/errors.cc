// Formats the message of a failed ORTHANT_CHECK. The file name is shortened to the part from src/ on, so that messages
// do not depend on the build folder.
#include "base/errors.h"

#include <cstring>

namespace orthant::detail {

void check_failed(const char* file, int line, const char* condition, const std::string& values) {
  const char* below_src = std::strstr(file, "/src/");
  throw LogicError(fmt::format("{}:{}: check failed: {}{}{}{}", below_src ? below_src + 1 : file, line, condition,
                               values.empty() ? "" : " [", values, values.empty() ? "" : "]"));
}

}  // namespace orthant::detail
