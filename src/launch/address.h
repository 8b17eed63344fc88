// Addresses of this machine: the loopback, and the one at which ranks of other machines reach this rank. IPv4 is
// preferred, because all ranks must use the same family; IPv6 is used where there is no IPv4.
#pragma once

#include <string>

#include "launch/launch.h"

namespace orthant {

/// The loopback address of this machine: 127.0.0.1, or ::1 on a machine that has only IPv6.
std::string loopback_address();

/// Whether the name or address means this machine on every machine, such as 127.0.0.1, ::1 and localhost.
bool is_loopback(const std::string& address);

/// Returns a socket that listens on the loopback address; port 0 takes a free one. -1 with errno set if that fails.
int listen_on_loopback(int port);
/// The port of such a socket.
int port_of_listener(int fd);

/// Returns the local address at which the other ranks of this launch reach this rank. Throws ConfigError if the user
/// named a network interface that does not exist or has no address.
std::string local_address(const Launch& launch);

/// "10.0.0.1:29500", or "[fd00::1]:29500".
std::string host_and_port(const std::string& host, int port);

}  // namespace orthant
