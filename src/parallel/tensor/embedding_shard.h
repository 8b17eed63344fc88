// EmbeddingShard: one rank's part of an embedding whose table is sharded by rows of the vocabulary. Each rank looks up
// the tokens that are in its rows, and has zeros for all others. So the sum over ranks is the embedding, bit for bit.
// If rows of a mesh shard the table's width, either the table or the results move over rows: see EmbeddingMove.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "mesh/mesh.h"
#include "model/weights.h"
#include "parallel/tensor/slice_mesh.h"
#include "parallel/tensor/token_rows.h"

namespace orthant {

class EmbeddingShard {
 public:
  /// tokens: int64 [B,T], or [N] if a single rank has the rows. `rows`: rows of the table that this rank has. Gathers
  /// the tokens over the mesh's rows if results move. Results move only if `trains`, because only microbatches of
  /// training have equally many tokens on all rows of the mesh; the last batch of a validation need not.
  EmbeddingShard(const SliceMesh& mesh, const Weight& table, const at::Tensor& tokens, const Range& rows, bool trains);

  /// This rank's shard of the sum over the mesh's columns, with one row a token.
  at::Tensor look_up(const SliceMesh& mesh, const Weight& table) const;
  /// Adds to the table's gradient, given this rank's shard of the gradient of that sum.
  void accumulate(const SliceMesh& mesh, const Weight& table, const at::Tensor& gradient) const;

 private:
  EmbeddingMove move_;
  int64_t sequences_;
  bool has_tokens_;
  std::optional<TokenRows> rows_;  // of the tokens that this rank looks up: its own, or those of all rows of the mesh
};

}  // namespace orthant
