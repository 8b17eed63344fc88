// Hardware: a machine as a value, read from a TOML file. It holds the rates, efficiencies and latencies of its devices
// and links, from which times.h computes how long kernels and messages take. docs/hardware.md explains every key.
//
// Every table of the file states the origin of its values: "measured: SOURCE, DATE" or "assumed: REASON". A rate that a
// kernel or a collective reaches is the peak multiplied by a share. All units are in the names: bytes, seconds, FLOPs.
// Reading a file takes time linear in its size, which is at most 64 KiB. No size depends on the number of ranks.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace orthant {

/// Table [device].
struct DeviceTable {
  std::string origin;
  int64_t per_host = 1;         // devices of one host
  int64_t compute_units = 1;    // streaming multiprocessors of a GPU, cores of a CPU
  double memory_bytes = 0;      // memory of one device
  bool communication_uses_compute = false;  // copying occupies the units that compute, as on a CPU
  /// Cores of a host that all its ranks share; 0: every device computes alone. If set, per_host is the number of ranks
  /// of a host, a device is one core, memory_bytes is that of the host, and times are those of a rank that has a core.
  int64_t shared_cores = 0;

  bool operator==(const DeviceTable&) const = default;
};

/// Table [peak_flop_per_s]: FLOPs per second of one device, by the dtype of the operands.
struct PeakTable {
  std::string origin;
  double bfloat16 = 0, float32 = 0, float64 = 0;

  bool operator==(const PeakTable&) const = default;
};

/// Table [memory]: the memory of one device, for kernels that only read and write it.
struct MemoryTable {
  std::string origin;
  double bytes_per_s = 0;      // peak
  double share = 1;            // share of the peak that kernels reach
  double latency_seconds = 0;  // fixed time of one kernel

  bool operator==(const MemoryTable&) const = default;
};

/// Table [products]: the model of matrix products. See product_seconds() in times.h.
struct ProductTable {
  std::string origin;
  double share = 1;                         // share of the peak in a short product with full waves of tiles
  double weight_gradient_share = 1;         // the same for gradients of weights
  double latency_seconds = 0;               // fixed time of one product
  std::array<int64_t, 2> tile = {128, 256};  // rows and columns of the output that a compute unit makes at a time
  double small_tile_share = 1;              // rate with tiles of half as many columns, relative to full tiles
  double wave_loss = 0;                     // part of the idle time in the last wave of tiles that is lost
  double sustained_share = 1;               // rate of a long kernel, relative to a short one: effect of power limits
  double half_work_flop = 1;                // work of a kernel that has lost half of the difference
  /// Time to read the operands that computation does not hide, relative to their bytes / bandwidth. Above 1 on CPUs,
  /// whose products read operands at a lower rate than kernels that are bound by memory.
  double operand_traffic = 0;

  bool operator==(const ProductTable&) const = default;
};

/// Tables [attention.forward] and [attention.backward].
struct AttentionPassTable {
  std::string origin;
  double share = 1;              // share of the peak in a short kernel with many tiles
  double tail = 0;               // part of the longest tile that adds to the time, because other units already idle
  double wide_head_share = 1;    // rate with heads of more than 128 elements, relative to heads of 128
  double narrow_head_share = 1;  // rate with heads of fewer than 128 elements, relative to heads of 128
  int64_t tile_rows = 128;       // query tokens that one compute unit handles at a time

  bool operator==(const AttentionPassTable&) const = default;
};

/// Table [attention]: the model of fused attention. See attention_seconds() in times.h.
struct AttentionTable {
  std::string origin;
  double latency_seconds = 0;  // fixed time of one kernel
  double sustained_share = 1;  // as in [products]
  double half_work_flop = 1;   // as in [products]
  AttentionPassTable forward, backward;

  bool operator==(const AttentionTable&) const = default;
};

/// Table [step]: differences between a kernel in a long training step and the same kernel measured alone.
struct StepTable {
  std::string origin;
  double compute_share = 1;    // rate of products and attention in a step, relative to that of a kernel alone: power,
                               // temperature, gaps between kernels; above 1 if caches help more than these cost
  double bfloat16_share = 1;   // that rate in bfloat16, relative to other dtypes
  double call_seconds = 0;     // time of the software around a collective that is waited for: slices, dispatch
  double message_traffic = 0;  // memory traffic around messages of operators, relative to the bytes sent: copies
  double shared_call_seconds = 0;  // added to call_seconds if ranks share cores: switches between them

  /// The rate of products and attention with operands of this dtype.
  double share_of(std::string_view dtype) const {
    return dtype == "bfloat16" ? compute_share * bfloat16_share : compute_share;
  }

  bool operator==(const StepTable&) const = default;
};

/// Tables [same_host.message] and [between_hosts.message]: one message from one rank to another.
struct MessageTable {
  std::string origin;
  double share = 1;            // share of the link's peak; at most 1, or at most 2 if bidirectional
  double latency_seconds = 0;  // fixed time of one message
  bool bidirectional = false;  // the share was measured over both directions at once; one message gets half of it

  bool operator==(const MessageTable&) const = default;
};

/// One entry of [[same_host.all_reduce]] and of the other kinds: a collective over a group of up to `ranks` ranks.
struct CollectiveTable {
  std::string origin;
  int64_t ranks = 0;           // largest group that the entry describes; 0 means any size
  double share = 1;            // share of the link's peak
  double latency_seconds = 0;  // fixed time of one collective
  double step_seconds = 0;     // time of one step of a ring, in addition to the time for the bytes

  bool operator==(const CollectiveTable&) const = default;
};

/// Tables [same_host] and [between_hosts]. Every list has at least one entry, in ascending order of `ranks`, with an
/// entry for any size last.
struct LinkTable {
  std::string origin;
  double bytes_per_s = 0;  // peak of one device in one direction
  MessageTable message;
  std::vector<CollectiveTable> all_reduce, all_gather, reduce_scatter, all_to_all;

  bool operator==(const LinkTable&) const = default;
};

/// Table [process_memory]: device memory that a process takes in addition to tensors.
struct ProcessMemoryTable {
  std::string origin;
  double context_bytes = 0;          // driver context, libraries and their work areas
  double communicator_bytes = 0;     // buffers of one communicator
  double allocator_slack_share = 0;  // memory that the allocator loses to rounding and gaps, relative to the tensors

  bool operator==(const ProcessMemoryTable&) const = default;
};

/// A machine: equal hosts with equal devices.
struct Hardware {
  std::string name, description;
  DeviceTable device;
  PeakTable peak_flop_per_s;
  MemoryTable memory;
  ProductTable products;
  AttentionTable attention;
  StepTable step;
  LinkTable same_host, between_hosts;
  ProcessMemoryTable process_memory;

  bool operator==(const Hardware&) const = default;
};

/// Origin of the values of one table of the file.
struct TableOrigin {
  std::string table;     // such as "same_host.all_reduce"
  std::string origin;    // text of the file
  bool measured = false;  // whether the text begins with "measured: "
};

/// Names of the profiles that are compiled into the library, in alphabetical order.
std::vector<std::string> shipped_hardware();

/// Reads a shipped profile, or else a TOML file, or else the only profile whose name continues this one in lower case:
/// "H100" is h100-8x. Throws ConfigError with file, line, key, value and the broken law; for an unknown key or name
/// also the nearest one. Throws DataError if the file cannot be read, is no regular file, is larger than 64 KiB, is
/// not UTF-8, or has a key of more than 32 parts.
Hardware load_hardware(const std::string& name_or_file);

/// The same for a text. `source` names it in errors.
Hardware parse_hardware(std::string_view text, const std::string& source);

/// Returns the hardware as the ranks of a host use it, if they share its cores: each rank is a device with an equal
/// part of the memory and of the cores, at least one core. Other hardware is returned as it is. Requires ranks >= 1.
Hardware for_ranks_of_host(const Hardware& hardware, int64_t ranks);

/// Writes a file that load_hardware() reads as an equal value. Throws ConfigError if the value breaks a law of the
/// file.
std::string to_toml(const Hardware& hardware);

/// Origins of all tables, in the order of the file.
std::vector<TableOrigin> origins(const Hardware& hardware);

}  // namespace orthant
