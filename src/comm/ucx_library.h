// UCX's functions, loaded at first use, so that one program serves machines with and without the library.
#pragma once

#include <ucp/api/ucp.h>
#include <ucs/debug/log_def.h>

#include <string>

namespace orthant {

#define ORTHANT_UCX_FUNCTIONS(X)                                                                                  \
  X(ucs_log_push_handler) X(ucp_get_version_string) X(ucp_context_print_info)                                     \
  X(ucp_config_read) X(ucp_config_modify) X(ucp_config_release) X(ucp_init_version) X(ucp_cleanup)                \
  X(ucp_worker_create) X(ucp_worker_destroy) X(ucp_worker_get_address) X(ucp_worker_release_address)              \
  X(ucp_worker_progress) X(ucp_worker_arm) X(ucp_worker_get_efd) X(ucp_worker_flush_nbx) X(ucp_ep_create)         \
  X(ucp_tag_send_nbx) X(ucp_tag_recv_nbx) X(ucp_request_free) X(ucp_request_check_status) X(ucs_status_string)

/// Pointers to UCX's functions, under their own names.
struct UcxLibrary {
#define ORTHANT_DECLARE(name) decltype(&::name) name = nullptr;
  ORTHANT_UCX_FUNCTIONS(ORTHANT_DECLARE)
#undef ORTHANT_DECLARE
  /// Why UCX cannot be used; empty if it can.
  std::string problem;
};

/// Loads libucp.so.0 on the first call.
const UcxLibrary& ucx();

/// Returns " (...)" with the warnings that UCX has logged since the last call and the UCX variables that the user has
/// set; empty if neither exists.
std::string ucx_complaints();

}  // namespace orthant
