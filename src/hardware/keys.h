// The keys of a hardware file, in the order of the file, with their laws. The reader and the writer both visit them, so
// that they cannot differ. Private to this room.
#pragma once

#include <type_traits>

#include "hardware/hardware.h"

namespace orthant {

/// Law of a number. The reader states it in errors.
enum class NumberLaw {
  amount,           // 1e6 to 1e30: bytes/s or FLOP/s, so that a number of GB/s or TFLOP/s is refused
  memory,           // 1e6 to 1e18 bytes, which a 64-bit integer counts
  not_negative,     // 0 to 1e30
  at_least_one,     // 1 to 1e30
  share,            // 1e-6 to 1
  relative_rate,    // 1e-6 to 2
  fraction,         // 0 to 1
  optional_factor,  // 0 to 100; 0 if it is missing
  optional_share,   // as share; 1 if it is missing
  tail,             // 0 to 2
  message_share     // 1e-6 to 2; at most 1 unless bidirectional
};

/// Law of a whole number: 1 to 1e9. One that is `optional` may be missing, and is then 0.
enum class CountLaw { count, optional };

/// Calls visit(key, value) for text, flags and the tile, and visit(key, value, law) for numbers, in the order of the
/// file. T is a table of hardware.h, const or not.
template <typename T, typename Visit>
void visit_keys(T& table, Visit&& visit) {
  using Table = std::remove_const_t<T>;
  visit("origin", table.origin);
  if constexpr (std::is_same_v<Table, DeviceTable>) {
    visit("per_host", table.per_host, CountLaw::count);
    visit("compute_units", table.compute_units, CountLaw::count);
    visit("memory_bytes", table.memory_bytes, NumberLaw::memory);
    visit("communication_uses_compute", table.communication_uses_compute);
    visit("shared_cores", table.shared_cores, CountLaw::optional);
  } else if constexpr (std::is_same_v<Table, PeakTable>) {
    visit("bfloat16", table.bfloat16, NumberLaw::amount);
    visit("float32", table.float32, NumberLaw::amount);
    visit("float64", table.float64, NumberLaw::amount);
  } else if constexpr (std::is_same_v<Table, MemoryTable>) {
    visit("bytes_per_s", table.bytes_per_s, NumberLaw::amount);
    visit("share", table.share, NumberLaw::share);
    visit("latency_seconds", table.latency_seconds, NumberLaw::not_negative);
  } else if constexpr (std::is_same_v<Table, ProductTable>) {
    visit("share", table.share, NumberLaw::share);
    visit("weight_gradient_share", table.weight_gradient_share, NumberLaw::share);
    visit("latency_seconds", table.latency_seconds, NumberLaw::not_negative);
    visit("tile", table.tile);
    visit("small_tile_share", table.small_tile_share, NumberLaw::share);
    visit("wave_loss", table.wave_loss, NumberLaw::fraction);
    visit("sustained_share", table.sustained_share, NumberLaw::share);
    visit("half_work_flop", table.half_work_flop, NumberLaw::at_least_one);
    visit("operand_traffic", table.operand_traffic, NumberLaw::optional_factor);
  } else if constexpr (std::is_same_v<Table, AttentionTable>) {
    visit("latency_seconds", table.latency_seconds, NumberLaw::not_negative);
    visit("sustained_share", table.sustained_share, NumberLaw::share);
    visit("half_work_flop", table.half_work_flop, NumberLaw::at_least_one);
  } else if constexpr (std::is_same_v<Table, AttentionPassTable>) {
    visit("share", table.share, NumberLaw::share);
    visit("tail", table.tail, NumberLaw::tail);
    visit("wide_head_share", table.wide_head_share, NumberLaw::share);
    visit("narrow_head_share", table.narrow_head_share, NumberLaw::optional_share);
    visit("tile_rows", table.tile_rows, CountLaw::count);
  } else if constexpr (std::is_same_v<Table, StepTable>) {
    visit("compute_share", table.compute_share, NumberLaw::relative_rate);
    visit("bfloat16_share", table.bfloat16_share, NumberLaw::optional_share);
    visit("call_seconds", table.call_seconds, NumberLaw::optional_factor);
    visit("message_traffic", table.message_traffic, NumberLaw::optional_factor);
    visit("shared_call_seconds", table.shared_call_seconds, NumberLaw::optional_factor);
  } else if constexpr (std::is_same_v<Table, LinkTable>) {
    visit("bytes_per_s", table.bytes_per_s, NumberLaw::amount);
  } else if constexpr (std::is_same_v<Table, MessageTable>) {
    visit("share", table.share, NumberLaw::message_share);
    visit("latency_seconds", table.latency_seconds, NumberLaw::not_negative);
    visit("bidirectional", table.bidirectional);
  } else if constexpr (std::is_same_v<Table, CollectiveTable>) {
    visit("ranks", table.ranks, CountLaw::optional);
    visit("share", table.share, NumberLaw::share);
    visit("latency_seconds", table.latency_seconds, NumberLaw::not_negative);
    visit("step_seconds", table.step_seconds, NumberLaw::not_negative);
  } else {
    static_assert(std::is_same_v<Table, ProcessMemoryTable>);
    visit("context_bytes", table.context_bytes, NumberLaw::not_negative);
    visit("communicator_bytes", table.communicator_bytes, NumberLaw::not_negative);
    visit("allocator_slack_share", table.allocator_slack_share, NumberLaw::fraction);
  }
}

/// Calls visit(name, table) for every table and visit(name, list) for every list of tables, in the order of the file.
template <typename H, typename Visit>
void visit_tables(H& hardware, Visit&& visit) {
  visit("device", hardware.device);
  visit("peak_flop_per_s", hardware.peak_flop_per_s);
  visit("memory", hardware.memory);
  visit("products", hardware.products);
  visit("attention", hardware.attention);
  visit("attention.forward", hardware.attention.forward);
  visit("attention.backward", hardware.attention.backward);
  visit("step", hardware.step);
  visit("same_host", hardware.same_host);
  visit("same_host.message", hardware.same_host.message);
  visit("same_host.all_reduce", hardware.same_host.all_reduce);
  visit("same_host.all_gather", hardware.same_host.all_gather);
  visit("same_host.reduce_scatter", hardware.same_host.reduce_scatter);
  visit("same_host.all_to_all", hardware.same_host.all_to_all);
  visit("between_hosts", hardware.between_hosts);
  visit("between_hosts.message", hardware.between_hosts.message);
  visit("between_hosts.all_reduce", hardware.between_hosts.all_reduce);
  visit("between_hosts.all_gather", hardware.between_hosts.all_gather);
  visit("between_hosts.reduce_scatter", hardware.between_hosts.reduce_scatter);
  visit("between_hosts.all_to_all", hardware.between_hosts.all_to_all);
  visit("process_memory", hardware.process_memory);
}

}  // namespace orthant
