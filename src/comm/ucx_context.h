// UCX's contexts: which networks it uses, and how it sends over them.
#pragma once

#include <ucp/api/ucp.h>

#include <string>
#include <vector>

namespace orthant {

/// ConfigError for a status that is not OK: it does not start, which is for the user to mend, and what UCX says of it
/// names the cause.
void check_ucx(ucs_status_t status, const char* what);

/// One for the process, whose threads may be ranks of their own. The interface is the user's, or empty: any.
ucp_context_h ucx_context(const std::string& interface_name);
/// For peers on other hosts; the same one where there is more than TCP.
ucp_context_h ucx_network_context(const std::string& interface_name);

/// What it can send by, like "tcp/eth0".
std::vector<std::string> ucx_transports(ucp_context_h context);

}  // namespace orthant
