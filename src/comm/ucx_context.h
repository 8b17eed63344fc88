// UCX contexts: the networks that UCX may use, and its settings for sending over them.
#pragma once

#include <ucp/api/ucp.h>

#include <string>
#include <vector>

namespace orthant {

/// Throws ConfigError if the status is not UCS_OK. `what` names the failed step. UCX does not start because of the
/// user's settings or machine, and the warnings that UCX logged name the cause.
void check_ucx(ucs_status_t status, const char* what);

/// Returns the context of this process; its threads may be separate ranks. `interface_name` is the user's network
/// interface; empty: any. `connections` is the number of endpoints that a rank probably opens: with many, UCX prefers
/// transports whose memory does not grow with them, such as dc to rc on InfiniBand. Only the arguments of the first
/// successful call have an effect.
ucp_context_h ucx_context(const std::string& interface_name, int connections);
/// Returns the context for peers on other hosts. It is ucx_context() if UCX has RDMA (rc, dc, ud or srd).
ucp_context_h ucx_network_context(const std::string& interface_name, int connections);

/// UCX's names of the transports of a context, such as "posix" or "tcp".
std::vector<std::string> ucx_transports(ucp_context_h context);

}  // namespace orthant
