// Publishes, reads and compares the record of a run, and claims ranks.
#include "launch/run_claim.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <functional>
#include <thread>
#include <vector>

#include "base/errors.h"
#include "base/hash.h"
#include "base/terminal_text.h"
#include "base/text.h"
#include "launch/address.h"
#include "launch/failure_record.h"
#include "launch/process.h"
#include "launch/rendezvous.h"
#include "launch/secret.h"
#include "launch/wait.h"

namespace orthant {
namespace {

constexpr const char* kMagic = "orthant-run-3";

// The part of the store that holds the record. A store that rank 0 serves belongs to one run, and other runs must find
// its record, so the prefix is fixed. A launcher's store may hold several runs, so each has a prefix of its own.
Store run_store_of(const Store& store, const Launch& launch) {
  return store.under(launch.store_kind == StoreKind::kServedByRankZero ? "orthant" : run_prefix(launch.run_id));
}

std::string claim_key(int rank) { return fmt::format("claimed/{}", rank); }
constexpr const char* kRecordKey = "run";
constexpr const char* kAnswerKey = "all-claimed";  // rank 0 sets it on torchrun's store
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

RunRecord new_record(const Launch& launch, const std::string& text) {
  const RunRecord record{.nonce = random_nonce(),
                         .world_size = launch.world_size,
                         .run_id = hash_of_run_id(launch.run_id),
                         .mac = "",
                         .text = text};
  return with_mac(record, launch.secret);
}

RunRecord publish_record(const Store& store, const Launch& launch, const std::string& text) {
  const RunRecord record = new_record(launch, text);
  const std::string printed = to_text(record);
  if (store.set_if_new(kRecordKey, printed) != printed)
    refuse_rank(launch, "another process has already claimed its rank 0");
  return record;
}

// The keys of the run with this record. A launcher that posts the failure of a rank has the run id and the secret, but
// not the nonce. Elsewhere the secret may serve several runs, so each derives its own: no run accepts values of
// another.
Store keys_of_run(const Store& run_store, const Launch& launch, const std::string& nonce) {
  if (launch.store_kind == StoreKind::kServedByLauncher) return run_store.authenticated(launch.secret);
  const Store keys = run_store.under(nonce);
  return launch.secret.empty() ? keys : keys.authenticated(hmac_sha256(launch.secret, "run " + nonce));
}

// Where the ranks of one store report a failure before they have read a record.
Store keys_without_record(const Store& run_store, const Launch& launch) {
  return run_store.authenticated(launch.secret);
}

// A launcher's store outlives a failed rank, so the ranks agree there which of them reports the failure.
[[noreturn]] void end_waiting(const Store& run_store, const Launch& launch, const std::string& message) {
  const bool must_agree = launch.store_kind == StoreKind::kServedByLauncher;
  if (must_agree && !post_failure(keys_without_record(run_store, launch), message)) throw PeerFailed();
  throw CommError(message);
}

RunRecord read_record(const Store& store, const Launch& launch, double timeout_s) {
  const std::string awaited = fmt::format("rank 0 of {} to publish the run on the {}", launch.world_size, store.name());
  Wait wait(timeout_s, launch.rank == 1 ? awaited : "");
  const auto is_over = [&] {
    if (has_failed(keys_without_record(store, launch))) throw PeerFailed();
    return wait.is_over();
  };
  const auto text = await_key(store, kRecordKey, {.timeout_s = timeout_s, .longest_piece_s = 2, .is_over = is_over});
  if (!text) {
    end_waiting(store, launch,
                fmt::format("rank {}: waited {:g} s for {}; if another program uses that port, choose another "
                            "MASTER_PORT (the same for all ranks)",
                            launch.rank, timeout_s, awaited));
  }
  const auto record = parse_run_record(*text);
  if (!record) refuse_rank(launch, "its record was written by another version of Orthant, or by another program");
  return *record;
}

// Returns why the record was not written with this secret; empty if it was.
std::string find_secret_mismatch(const RunRecord& record, const std::string& secret) {
  constexpr const char* kNone = "-";
  const std::string ours = with_mac(record, secret).mac;
  if (are_equal_macs(ours, record.mac)) return "";
  if (record.mac == kNone) return "it has no secret, but this rank has one";
  return ours == kNone ? "it has a secret, but this rank has none" : "it has another secret than this rank";
}

// Claims a rank under the keys of a run. Returns false if another process has claimed it.
bool try_claim(const Store& keys, int rank) {
  const std::string mine = random_nonce();
  return keys.set_if_new(claim_key(rank), mine) == mine;
}

// Waits for a key of ranks that connect. Returns its value, or nothing once is_over() is true.
std::optional<std::string> await_ranks(const Store& store, const std::string& key,
                                       const std::function<bool()>& is_over) {
  return await_key(store, key, {.longest_piece_s = 0.5, .is_over = is_over});
}

// One rank reports that ranks are missing on torchrun's store; the others end without a message.
[[noreturn]] void end_claiming(const Store& keys, const std::string& message) {
  if (!post_failure(keys, message)) throw PeerFailed();
  throw CommError(message);
}

// Rank 0 on torchrun's store: replaces the record of ranks that have ended, and answers the ranks that claim this one.
Store gather_claims(const Store& run_store, const Launch& launch, const std::string& text, double timeout_s) {
  if (run_store.has(kRecordKey)) {
    const auto old = parse_run_record(run_store.get(kRecordKey, kExists_s));
    if (const std::string why = old ? find_secret_mismatch(*old, launch.secret) : ""; !why.empty())
      refuse_rank(launch, why);
  }
  const RunRecord record = new_record(launch, text);
  const Store keys = keys_of_run(run_store, launch, record.nonce);
  run_store.set(kRecordKey, to_text(record));
  for (int rank = 1; rank < launch.world_size; ++rank) {
    const std::string claimant = fmt::format("rank {} of {}", rank, launch.world_size);
    Wait wait(timeout_s, fmt::format("{} to connect to the {}", claimant, run_store.name()));
    if (await_ranks(keys, claim_key(rank), [&] { return wait.is_over(); })) continue;
    end_claiming(keys, fmt::format("rank 0: {} did not connect to the {} within {:g} s; start all ranks, check that "
                                   "they reach this address, or increase run.timeout_s",
                                   claimant, run_store.name(), timeout_s));
  }
  keys.set(kAnswerKey, "");
  return keys;
}

// Another rank on torchrun's store. A record is an old one if its claim is taken or its rank 0 does not answer.
Store claim_until_answered(const Store& run_store, const Launch& launch, double timeout_s) {
  const std::string awaited =
      fmt::format("rank 0 and all other ranks of {} to connect to the {}", launch.world_size, run_store.name());
  Wait wait(timeout_s, launch.rank > 1 ? "" : awaited);
  const auto is_over = [&] { return wait.is_over(); };
  Store keys = keys_without_record(run_store, launch);
  std::string tried;
  for (std::optional<std::string> text; (text = await_ranks(run_store, kRecordKey, is_over)) && !wait.is_over();) {
    const auto record = parse_run_record(*text);
    if (*text == tried || !record || record->world_size != launch.world_size) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      continue;
    }
    if (const std::string why = find_secret_mismatch(*record, launch.secret); !why.empty()) refuse_rank(launch, why);
    tried = *text;
    keys = keys_of_run(run_store, launch, record->nonce);
    const auto is_replaced = [&] { return wait.is_over() || run_store.get(kRecordKey, kExists_s) != tried; };
    if (try_claim(keys, launch.rank) && await_ranks(keys, kAnswerKey, is_replaced)) return keys;
  }
  end_claiming(keys, fmt::format("rank {}: waited {:g} s for {}; check that they reach this address, or increase "
                                 "run.timeout_s",
                                 launch.rank, timeout_s, awaited));
}

}  // namespace

std::string to_text(const RunRecord& record) {
  return fmt::format("{} {} {} {} {}\n{}", kMagic, record.nonce, record.world_size, record.run_id, record.mac,
                     record.text);
}

RunRecord with_mac(RunRecord record, const std::string& secret) {
  record.mac = "";
  record.mac = secret.empty() ? "-" : to_hex(hmac_sha256(secret, "record " + to_text(record)));
  return record;
}

std::optional<RunRecord> parse_run_record(const std::string& text) {
  const size_t end = text.find('\n');
  if (end == std::string::npos) return std::nullopt;
  const auto fields = split(text.substr(0, end), ' ');
  RunRecord record;
  if (fields.size() != 5 || fields[0] != kMagic || fields[1].empty()) return std::nullopt;
  if (!parse_int(fields[2], record.world_size)) return std::nullopt;
  record.nonce = fields[1], record.run_id = fields[3], record.mac = fields[4];
  record.text = text.substr(end + 1);
  return record;
}

std::string find_run_mismatch(const RunRecord& record, const Launch& launch, const std::string& text) {
  if (const std::string why = find_secret_mismatch(record, launch.secret); !why.empty()) return why;
  if (record.world_size != launch.world_size) {
    return fmt::format("it has {}, but this rank was started as one of {}", counted(record.world_size, "rank"),
                       launch.world_size);
  }
  if (record.run_id != hash_of_run_id(launch.run_id)) return "its launcher set another run id";
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
  if (launch.store_kind == StoreKind::kServedByTorchrun) {
    return launch.rank == 0 ? gather_claims(run_store, launch, text, timeout_s)
                            : claim_until_answered(run_store, launch, timeout_s);
  }
  if (launch.rank == 0) return keys_of_run(run_store, launch, publish_record(run_store, launch, text).nonce);
  const RunRecord record = read_record(run_store, launch, timeout_s);
  const std::string why = find_run_mismatch(record, launch, text);
  if (!why.empty()) refuse_rank(launch, why);
  const Store keys = keys_of_run(run_store, launch, record.nonce);
  if (!try_claim(keys, launch.rank))
    refuse_rank(launch, fmt::format("another process has already claimed its rank {}", launch.rank));
  return keys;
}

bool serves_a_run(const Store& store) {
  const Store run_store = store.under("orthant");
  return run_store.has(kRecordKey) && parse_run_record(run_store.get(kRecordKey, kExists_s)).has_value();
}

std::string other_run_message(const Launch& launch, const std::string& why) {
  return fmt::format(
      "rank {}: another run already uses {}{}. Choose another MASTER_PORT, the same for all "
      "ranks of this run; the other run is not affected. If all these ranks belong to one run, "
      "start all with the same run file, the same number of ranks and the same {} or {}",
      launch.rank, host_and_port(launch.address, launch.port), why.empty() ? "" : ": " + why, kSecret, kSecretFile);
}

}  // namespace orthant
