// Before a rank writes to a store, it makes sure that the store serves its own run and that no other process holds its
// rank. Two runs that were given one MASTER_PORT therefore do not write to each other's keys: the second one fails.
//
// Rank 0 publishes a RunRecord. Every other rank reads it, compares, and only then claims its own rank, in one atomic
// step. After all ranks have claimed theirs, no other process can join. A refused rank has changed no key.
// Each rank sends a constant number of messages.
#pragma once

#include <optional>
#include <string>

#include "comm/launch.h"
#include "comm/store.h"

namespace orthant {

/// The run that a store serves, as rank 0 publishes it.
struct RunRecord {
  std::string nonce;   // random
  int world_size = 1;
  int attempt = 0;     // Launch::attempt
  std::string run_id;  // hash of Launch::run_id, "-" where the launcher gives none
  std::string text;    // the effective configuration, one setting a line; empty where it is not known
};

std::string to_text(const RunRecord& record);
/// Nothing where the text is not that of a record.
std::optional<RunRecord> parse_run_record(const std::string& text);

/// Why a rank that was launched so, with this configuration, does not belong to the run of the record; empty where it
/// may. Configurations are compared only where the launcher names no run: otherwise a difference is a mistake within
/// one run, which check_agreement() reports to all ranks.
std::string foreign_because(const RunRecord& record, const Launch& launch, const std::string& text);

/// The first line that differs between two texts, as a sentence about rank 0 and `rank`; empty where they are equal.
std::string first_difference(const std::string& rank_0_text, const std::string& text, int rank);

/// Claims the rank of the launch on a store over TCP. Returns the store under the prefix of the run. CommError, with
/// nothing written, when another run serves there or the rank has already been claimed; CommError after timeout_s
/// when no run publishes its record.
Store claim_rank(const Store& store, const Launch& launch, const std::string& text, double timeout_s);

/// Whether a run of Orthant in which rank 0 serves is to be found on the store. Writes nothing.
bool serves_a_run(const Store& store);

/// The message of a rank that meets another run than its own at MASTER_ADDR:MASTER_PORT.
std::string another_run_serves(const Launch& launch, const std::string& why);

}  // namespace orthant
