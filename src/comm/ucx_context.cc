#ifdef ORTHANT_UCX

#include "comm/ucx_context.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <utility>

#include "base/errors.h"
#include "base/text.h"
#include "comm/ucx_library.h"

namespace orthant {
namespace {

using Changes = std::vector<std::pair<const char*, std::string>>;  // of UCX's settings, where the user has set none

ucp_context_h open_context(const Changes& changes) {
  ucp_config_t* config = nullptr;
  check_ucx(ucx().ucp_config_read(nullptr, nullptr, &config), "reading its settings");
  const std::unique_ptr<ucp_config_t, decltype(ucx().ucp_config_release)> release(config, ucx().ucp_config_release);
  for (const auto& [name, value] : changes) {
    if (std::getenv(fmt::format("UCX_{}", name).c_str()) == nullptr)
      check_ucx(ucx().ucp_config_modify(config, name, value.c_str()), "choosing its settings");
  }
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_MT_WORKERS_SHARED;
  params.features = UCP_FEATURE_TAG | UCP_FEATURE_WAKEUP;
  params.mt_workers_shared = 1;
  ucp_context_h out = nullptr;
  check_ucx(ucx().ucp_init_version(UCP_API_MAJOR, UCP_API_MINOR, &params, config, &out), "starting");
  // A device or transport that it was told to use and has not: it would go on with others.
  if (const std::string text = ucx_complaints(); text.find("is not available") != std::string::npos) {
    ucx().ucp_cleanup(out);
    throw ConfigError("UCX: starting: it cannot do as it is told" + text);
  }
  return out;
}

bool has_tcp_only(ucp_context_h context) {
  const auto names = ucx_transports(context);
  return std::none_of(names.begin(), names.end(), [](const std::string& name) {
    const std::string kind = name.substr(0, 3);
    return kind == "rc_" || kind == "dc_" || kind == "ud_" || kind == "srd";
  });
}

}  // namespace

void check_ucx(ucs_status_t status, const char* what) {
  if (status == UCS_OK) return;
  throw ConfigError(fmt::format("UCX: {}: {}{}", what, ucx().ucs_status_string(status), ucx_complaints()));
}

std::vector<std::string> ucx_transports(ucp_context_h context) {
  char* text = nullptr;
  size_t size = 0;
  FILE* const stream = open_memstream(&text, &size);
  ucx().ucp_context_print_info(context, stream);
  std::fclose(stream);
  std::vector<std::string> found;
  for (const std::string& line : split(text, '\n')) {
    const size_t flags = line.find("flags "), slash = line.find('/');
    if (flags == std::string::npos || slash == std::string::npos) continue;
    const size_t space = line.rfind(' ', slash);
    const std::string name = line.substr(space + 1, slash - space - 1);
    if (std::find(found.begin(), found.end(), name) == found.end()) found.push_back(name);
  }
  std::free(text);
  return found;
}

// Contexts are never cleaned up: an abandoned rank may still use it.
ucp_context_h ucx_context(const std::string& interface_name) {
  static const ucp_context_h made =
      open_context(interface_name.empty() ? Changes{} : Changes{{"NET_DEVICES", interface_name}});
  return made;
}

// Over TCP a long message that waits for its receiver's answer (rendezvous) goes one way
// while nothing goes the other: rings, where everybody sends and receives, run at half the rate. Nor is there a copy to
// save, as there is within a host.
ucp_context_h ucx_network_context(const std::string& interface_name) {
  static const ucp_context_h made = [&] {
    if (!has_tcp_only(ucx_context(interface_name))) return ucx_context(interface_name);
    Changes changes = {{"RNDV_THRESH", "inf"}};
    if (!interface_name.empty()) changes.emplace_back("NET_DEVICES", interface_name);
    return open_context(changes);
  }();
  return made;
}

}  // namespace orthant

#endif
