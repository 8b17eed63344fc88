#include "parallel/sequence/ulysses/heads_plan.h"

#include "base/errors.h"
#include "mesh/layout.h"

namespace orthant {

bool HeadShard::regular(int64_t heads, int64_t key_heads) const {
  if (query.size() % key.size() != 0) return false;
  for (int64_t i = 0; i < query.size(); ++i) {
    if (key_of(i, heads, key_heads) != i / (query.size() / key.size())) return false;
  }
  return true;
}

HeadShard head_shard(int64_t heads, int64_t key_heads, int ranks, int rank) {
  ORTHANT_CHECK(key_heads > 0 && heads % key_heads == 0 && heads >= ranks, heads, key_heads, ranks);
  const int64_t group = heads / key_heads;
  if (key_heads >= ranks) {
    const Range key = shard(key_heads, ranks, rank);
    return {.query = {key.begin * group, key.end * group}, .key = key};
  }
  const Range query = shard(heads, ranks, rank);
  return {.query = query, .key = {query.begin / group, (query.end - 1) / group + 1}};
}

}  // namespace orthant
