// Fits a hardware profile to measured times of kernels, collectives and messages on a host whose ranks share its cores.
// The models are those of times.h. The fit is deterministic and takes a few seconds; it does not depend on the number
// of ranks, except that links have one entry for each measured group size.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "hardware/times.h"

namespace orthant {

/// The time of one product on one core, while all other cores multiply, too.
struct MeasuredProduct {
  ProductKind kind = ProductKind::forward;
  int64_t m = 1, k = 1, n = 1;
  std::string dtype;
  double seconds = 0;
};

/// The same for one attention.
struct MeasuredAttention {
  bool backward = false;
  AttentionSize size;
  std::string dtype;
  double seconds = 0;
};

/// The same for one kernel that is bound by memory.
struct MeasuredKernel {
  double bytes = 0;  // read and written
  double seconds = 0;
};

/// The time of one collective over a group of `ranks` ranks; `shift`: of one message between two ranks.
struct MeasuredCollective {
  CollectiveKind kind = CollectiveKind::shift;
  int64_t ranks = 2;
  double bytes_sent = 0;  // by one rank
  double seconds = 0;
};

/// All measurements of a host.
struct Measurements {
  std::string host, date;  // of the measurement, for the origins
  int64_t cores = 1;
  double memory_bytes = 0;   // of the host
  double process_bytes = 0;  // of a process with libtorch, before any tensor
  double group_bytes = 0;    // that a process needs to exchange messages
  std::vector<MeasuredProduct> products;
  std::vector<MeasuredAttention> attention;
  std::vector<MeasuredKernel> kernels;
  std::vector<MeasuredCollective> collectives;
};

/// Returns the profile of the host. Ranks of a group that is larger than the number of cores take turns; their measured
/// times are multiplied by cores / ranks, so that the profile has the times of ranks with a core each. Links between
/// hosts are assumed; fit_network() finds them. Throws LogicError without measurements of a kind.
Hardware fit_hardware(const Measurements& measured);

/// Returns the links between hosts, with one entry for each measured group size: the latency is the time of the
/// smallest message, and the rate that of the largest one, because networks may lose packets when many ranks send much.
/// Ranks that wait for a link leave their cores to others, so the times do not depend on how many share a core. Throws
/// LogicError without measurements of a kind.
LinkTable fit_network(const std::vector<MeasuredCollective>& measured, const std::string& origin);

/// Returns the positive numbers with the smallest loss that a search along the coordinates finds from `x`. Steps are
/// factors, from 1.5 down to 1.001.
std::vector<double> minimize(std::vector<double> x, const std::function<double(const std::vector<double>&)>& loss);

/// How well the profile explains the measured times: for each kind of kernel the mean of |model / measured - 1|.
struct FitErrors {
  double products = 0, attention = 0, kernels = 0, collectives = 0;
};
FitErrors fit_errors(const Hardware& hardware, const Measurements& measured);

}  // namespace orthant
