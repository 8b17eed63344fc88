// Publishes, reads and compares the record of a run, and claims ranks.
#include "launch/run_claim.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <vector>

#include "base/errors.h"
#include "base/hash.h"
#include "base/terminal_text.h"
#include "base/text.h"
#include "launch/process.h"
#include "launch/rendezvous.h"
#include "launch/watch.h"

namespace orthant {
namespace {

constexpr const char* kMagic = "orthant-run-1";

// The part of the store that holds the record. A store that rank 0 serves belongs to one run, and other runs must find
// its record, so the prefix is fixed. A launcher's store may hold several runs, so each has a prefix of its own.
Store run_store_of(const Store& store, const Launch& launch) {
  return launch.store_kind == StoreKind::kServedByLauncher ? store.under(run_prefix(launch.run_id, launch.attempt))
                                                           : store.under("orthant");
}

std::string claim_key(int rank) { return fmt::format("claimed/{}", rank); }
constexpr const char* kRecordKey = "run";
constexpr double kExists_s = 1;  // timeout for a key that is known to exist

// A run id may hold any bytes; its hash holds no space and no line end, which separate the fields of a record.
std::string hash_of_run_id(const std::string& run_id) {
  return run_id.empty() ? "-" : fmt::format("{:016x}", xxh3(run_id));
}

bool parse_int(const std::string& text, int& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size();
}

[[noreturn]] void refuse_rank(const Launch& launch, const std::string& why) {
  throw CommError(other_run_message(launch, why));
}

RunRecord publish_record(const Store& store, const Launch& launch, const std::string& text) {
  const RunRecord record{.nonce = random_nonce(),
                         .world_size = launch.world_size,
                         .attempt = launch.attempt,
                         .run_id = hash_of_run_id(launch.run_id),
                         .text = text};
  const std::string printed = to_text(record);
  if (store.set_if_new(kRecordKey, printed) != printed)
    refuse_rank(launch, "another process has already claimed its rank 0");
  return record;
}

// Returns the record that rank 0 publishes, or nothing after timeout_s. Throws CommError if the store is gone.
std::optional<std::string> await_record(const Store& store, double timeout_s) {
  try {
    return store.get(kRecordKey, timeout_s);
  } catch (const CommError&) {
    if (!store.has(kRecordKey)) return std::nullopt;
    return store.get(kRecordKey, kExists_s);
  }
}

// A launcher's store outlives a failed rank, so the ranks agree there which of them reports the failure.
[[noreturn]] void end_waiting(const Store& store, const Launch& launch, const std::string& message) {
  if (launch.store_kind == StoreKind::kServedByLauncher && !post_failure(store, message)) throw PeerFailed();
  throw CommError(message);
}

RunRecord read_record(const Store& store, const Launch& launch, double timeout_s) {
  constexpr double kPiece_s = 2;  // a failure is looked for after each piece of the wait; the first one also reports it
  const std::string awaited = fmt::format("rank 0 of {} to publish the run on the {}", launch.world_size, store.name());
  std::optional<std::string> text;
  for (double left_s = timeout_s; !(text = await_record(store, std::min(kPiece_s, left_s))); left_s -= kPiece_s) {
    if (has_failed(store)) throw PeerFailed();
    if (left_s <= kPiece_s) {
      end_waiting(store, launch,
                  fmt::format("rank {}: waited {:g} s for {}; if another program uses that port, choose another "
                              "MASTER_PORT (the same for all ranks)",
                              launch.rank, timeout_s, awaited));
    }
    if (launch.rank == 1 && left_s == timeout_s)
      fmt::print(stderr, "waiting for {}, for at most {:.0f} s\n", awaited, timeout_s);
  }
  const auto record = parse_run_record(*text);
  if (!record) refuse_rank(launch, "its record was written by another version of Orthant, or by another program");
  return *record;
}

}  // namespace

std::string to_text(const RunRecord& record) {
  return fmt::format("{} {} {} {} {}\n{}", kMagic, record.nonce, record.world_size, record.attempt, record.run_id,
                     record.text);
}

std::optional<RunRecord> parse_run_record(const std::string& text) {
  const size_t end = text.find('\n');
  if (end == std::string::npos) return std::nullopt;
  const auto fields = split(text.substr(0, end), ' ');
  RunRecord record;
  if (fields.size() != 5 || fields[0] != kMagic || fields[1].empty()) return std::nullopt;
  if (!parse_int(fields[2], record.world_size) || !parse_int(fields[3], record.attempt)) return std::nullopt;
  record.nonce = fields[1], record.run_id = fields[4];
  record.text = text.substr(end + 1);
  return record;
}

std::string find_run_mismatch(const RunRecord& record, const Launch& launch, const std::string& text) {
  if (record.world_size != launch.world_size) {
    return fmt::format("it has {}, but this rank was started as one of {}", counted(record.world_size, "rank"),
                       launch.world_size);
  }
  if (record.run_id != hash_of_run_id(launch.run_id)) return "its launcher set another run id";
  if (record.attempt != launch.attempt)
    return fmt::format("it is attempt {} of its launcher, but this rank is of attempt {}", record.attempt,
                       launch.attempt);
  if (!launch.run_id.empty() || record.text.empty() || text.empty()) return "";
  return first_difference(record.text, text, launch.rank);
}

std::string first_difference(const std::string& rank_0_text, const std::string& text, int rank) {
  const auto there = split(rank_0_text, '\n'), here = split(text, '\n');
  for (size_t i = 0; i < std::max(there.size(), here.size()); ++i) {
    const std::string a = i < there.size() ? there[i] : "(nothing)", b = i < here.size() ? here[i] : "(nothing)";
    if (a == b) continue;
    return escape_for_terminal(fmt::format("`{}` on rank 0, but `{}` on rank {}", trim(a), trim(b), rank));
  }
  return "";
}

Store claim_rank(const Store& store, const Launch& launch, const std::string& text, double timeout_s) {
  const Store run_store = run_store_of(store, launch);
  // A launcher that posts the failure of a rank has the run id, but not the nonce.
  const auto keys_of = [&](const RunRecord& record) {
    return launch.store_kind == StoreKind::kServedByLauncher ? run_store : run_store.under(record.nonce);
  };
  if (launch.rank == 0) return keys_of(publish_record(run_store, launch, text));
  const RunRecord record = read_record(run_store, launch, timeout_s);
  const std::string why = find_run_mismatch(record, launch, text);
  if (!why.empty()) refuse_rank(launch, why);
  const std::string taken = fmt::format("another process has already claimed its rank {}", launch.rank);
  const std::string mine = random_nonce();
  const Store keys = keys_of(record);
  if (keys.set_if_new(claim_key(launch.rank), mine) != mine) refuse_rank(launch, taken);
  return keys;
}

bool serves_a_run(const Store& store) {
  const Store run_store = store.under("orthant");
  return run_store.has(kRecordKey) && parse_run_record(run_store.get(kRecordKey, kExists_s)).has_value();
}

std::string other_run_message(const Launch& launch, const std::string& why) {
  return fmt::format(
      "rank {}: another run already uses {}:{}{}. Choose another MASTER_PORT, the same for all "
      "ranks of this run; the other run is not affected. If all these ranks belong to one run, "
      "start all with the same run file and the same number of ranks",
      launch.rank, launch.address, launch.port, why.empty() ? "" : ": " + why);
}

}  // namespace orthant
