// Creates the UCX contexts of this process: one for its own host, and one for a TCP network between hosts.
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

// Changes of UCX's settings. They apply only where the user has not set the variable.
using Changes = std::vector<std::pair<const char*, std::string>>;

ucp_context_h open_context(const Changes& changes, int connections) {
  ucp_config_t* config = nullptr;
  check_ucx(ucx().ucp_config_read(nullptr, nullptr, &config), "reading its settings");
  const std::unique_ptr<ucp_config_t, decltype(ucx().ucp_config_release)> release(config, ucx().ucp_config_release);
  for (const auto& [name, value] : changes) {
    if (std::getenv(fmt::format("UCX_{}", name).c_str()) == nullptr)
      check_ucx(ucx().ucp_config_modify(config, name, value.c_str()), "choosing its settings");
  }
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_MT_WORKERS_SHARED | UCP_PARAM_FIELD_ESTIMATED_NUM_EPS;
  params.features = UCP_FEATURE_TAG | UCP_FEATURE_WAKEUP;
  params.mt_workers_shared = 1;
  params.estimated_num_eps = static_cast<size_t>(connections);
  ucp_context_h out = nullptr;
  check_ucx(ucx().ucp_init_version(UCP_API_MAJOR, UCP_API_MINOR, &params, config, &out), "starting");
  // Refuses to go on if a requested device or transport is not available: UCX would silently use others.
  if (const std::string text = ucx_complaints(); text.find("is not available") != std::string::npos) {
    ucx().ucp_cleanup(out);
    throw ConfigError("UCX failed while starting: a requested device or transport is not available" + text);
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
  throw ConfigError(fmt::format("UCX failed while {}: {}{}", what, ucx().ucs_status_string(status), ucx_complaints()));
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

// Contexts are never cleaned up, because an abandoned rank may still use them.
ucp_context_h ucx_context(const std::string& interface_name, int connections) {
  static const ucp_context_h made =
      open_context(interface_name.empty() ? Changes{} : Changes{{"NET_DEVICES", interface_name}}, connections);
  return made;
}

// Disables UCX's rendezvous protocol over TCP. With it, a long message uses one direction of the link while the other
// is idle. Rings, where every rank sends and receives, would run at half the rate. Within a host the protocol saves a
// copy; over TCP it does not.
ucp_context_h ucx_network_context(const std::string& interface_name, int connections) {
  static const ucp_context_h made = [&] {
    const ucp_context_h any = ucx_context(interface_name, connections);
    if (!has_tcp_only(any)) return any;
    Changes changes = {{"RNDV_THRESH", "inf"}};
    if (!interface_name.empty()) changes.emplace_back("NET_DEVICES", interface_name);
    return open_context(changes, connections);
  }();
  return made;
}

}  // namespace orthant

#endif
