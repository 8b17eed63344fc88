// Checks that every tag of an HTML page or SVG drawing is closed by its own end tag.
#pragma once

#include <algorithm>
#include <regex>
#include <string>
#include <vector>

namespace orthant {

/// Empty if every tag is closed by its own end tag; otherwise the first error.
inline std::string unbalanced(const std::string& html) {
  const std::vector<std::string> alone = {"!doctype", "meta", "img", "br"};
  const std::regex tag("<(/?)([a-zA-Z!][a-zA-Z0-9]*)((?:[^<>\"]|\"[^\"]*\")*?)(/?)>");
  std::vector<std::string> open;
  const size_t script = html.find("<script>"), script_end = html.find("</script>");
  const std::string text = html.substr(0, script) + (script == std::string::npos ? "" : html.substr(script_end + 9));
  for (std::sregex_iterator it(text.begin(), text.end(), tag), end; it != end; ++it) {
    const std::string name = (*it)[2];
    if ((*it)[4] == "/" || std::find(alone.begin(), alone.end(), name) != alone.end()) continue;
    if ((*it)[1] != "/") {
      open.push_back(name);
    } else if (open.empty() || open.back() != name) {
      return "unexpected </" + name + ">";
    } else {
      open.pop_back();
    }
  }
  return open.empty() ? "" : "open <" + open.back() + ">";
}

}  // namespace orthant
