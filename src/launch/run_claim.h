// The protocol by which a rank joins its run before it writes to the store of the run. It keeps two runs that were
// given one MASTER_PORT from writing to each other's keys: the second run fails.
//
// Rank 0 publishes a RunRecord. Every other rank reads the record, compares it with its own launch, and only then
// claims its rank in one atomic step. Once all ranks are claimed, no other process can join. A refused rank has changed
// no key. Each rank sends a constant number of requests; while it waits for rank 0, it repeats some of them every 2 s.
//
// The record carries a MAC under the secret of the run, and all other keys are authenticated with a secret derived from
// it for this run. A rank with another secret, or without one, is refused. The record itself is public: a rank without
// the secret can read it, in order to say why it is refused.
//
// torchrun keeps its store when it restarts the ranks, so a record and claims of ended ranks may be there. Rank 0 then
// replaces the record, waits for the claims of all P ranks, and answers them. Another rank reads the record again,
// every 0.5 s, until its claim is answered. The restart count of torchrun cannot tell the restarts apart: if a host
// restarts its ranks after a failure, the other hosts restart theirs without counting it.
#pragma once

#include <optional>
#include <string>

#include "launch/launch.h"
#include "launch/store.h"

namespace orthant {

/// The run that a store serves, as rank 0 publishes it.
struct RunRecord {
  std::string nonce;   // random; prefix of the run's keys on a store that rank 0 serves
  int world_size = 1;
  std::string run_id;  // hash of Launch::run_id, "-" where the launcher gives none
  std::string mac;     // of the other fields, under the secret of the run; "-" if the run has no secret
  std::string text;    // the effective configuration, one setting a line; empty if it is not known
};

std::string to_text(const RunRecord& record);
/// Parses the text of a record; empty if it is not one.
std::optional<RunRecord> parse_run_record(const std::string& text);

/// The record with its MAC under the secret.
RunRecord with_mac(RunRecord record, const std::string& secret);

/// Returns why a rank with this launch and this configuration does not belong to the run of the record; empty if it may
/// belong to it. Configurations are compared only if the launcher gives the run no id. If it gives one, a difference is
/// a mistake within one run, which check_agreement() reports to all ranks.
std::string find_run_mismatch(const RunRecord& record, const Launch& launch, const std::string& text);

/// The first line that differs between two texts, as a clause about rank 0 and `rank`; empty if they are equal.
std::string first_difference(const std::string& rank_0_text, const std::string& text, int rank);

/// Claims the rank of the launch on a store over TCP. (A store in a file is not claimed.) Returns the store under the
/// prefix of the run, authenticated: run_prefix() if our own launcher serves the store, else the nonce. Throws
/// CommError, with nothing written, if another run serves there or the rank is already claimed, and if no run publishes
/// its record within timeout_s. On torchrun's store, it throws CommError only if ranks are missing after timeout_s.
Store claim_rank(const Store& store, const Launch& launch, const std::string& text, double timeout_s);

/// Whether rank 0 of a run of Orthant serves this store. Writes nothing. It does not recognise a launcher's store.
bool serves_a_run(const Store& store);

/// The message of a rank that finds a run other than its own at MASTER_ADDR:MASTER_PORT. `why` may be empty.
std::string other_run_message(const Launch& launch, const std::string& why);

}  // namespace orthant
