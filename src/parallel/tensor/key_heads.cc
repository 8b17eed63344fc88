#include "parallel/tensor/key_heads.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "model/element.h"

namespace orthant {
namespace {

int64_t sum_of(const std::vector<int64_t>& counts) { return std::reduce(counts.begin(), counts.end()); }

// The parts of keys and values of N tokens that one column exchanges with each other column. A part is [N, 2, rows].
class ExchangedParts {
 public:
  ExchangedParts(const TensorMesh& mesh, const KeyHeadExchange& plan, int64_t tokens)
      : mesh_(mesh), plan_(plan), column_(mesh.column()), tokens_(tokens) {
    for (int other = 0; other < plan.columns; ++other) {
      const bool self = other == column_;
      of_rows_.push_back(self ? 0 : plan.sent(column_, other).size());
      of_heads_.push_back(self ? 0 : plan.sent(other, column_).size());
    }
  }

  // Sends the parts that `part(other)` returns. to_heads: they are rows of this column, and arriving ones are of the
  // heads that it reads; otherwise the reverse.
  template <class Part>
  std::vector<at::Tensor> exchange(bool to_heads, const at::TensorOptions& options, const Part& part) const {
    const auto &leaving = to_heads ? of_rows_ : of_heads_, &arriving = to_heads ? of_heads_ : of_rows_;
    const auto sizes_sent = counts(leaving), sizes_received = counts(arriving);
    const at::Tensor sent = at::empty({sum_of(sizes_sent)}, options);
    const at::Tensor received = at::empty({sum_of(sizes_received)}, options);
    const std::vector<at::Tensor> views = split(sent, leaving);
    for (int other = 0; other < plan_.columns; ++other) {
      const at::Tensor& view = views[static_cast<size_t>(other)];
      if (view.numel() > 0) view.copy_(part(other));
    }
    mesh_.comm().all_to_all(received, sent, kOverColumns, sizes_received, sizes_sent).wait();
    return split(received, arriving);
  }

 private:
  std::vector<int64_t> counts(std::vector<int64_t> rows) const {
    for (int64_t& each : rows) each *= 2 * tokens_;
    return rows;
  }
  std::vector<at::Tensor> split(const at::Tensor& buffer, const std::vector<int64_t>& rows) const {
    std::vector<at::Tensor> views = buffer.split_with_sizes(counts(rows));
    for (size_t i = 0; i < views.size(); ++i) views[i] = views[i].view({tokens_, 2, rows[i]});
    return views;
  }

  const TensorMesh& mesh_;
  const KeyHeadExchange& plan_;
  const int column_;
  const int64_t tokens_;
  std::vector<int64_t> of_rows_, of_heads_;  // rows of keys in the parts, by column
};

// Keys and values in a tensor [N, queries + 2 rows], as [N, 2, rows].
at::Tensor keys_and_values(const at::Tensor& all, int64_t queries) {
  const int64_t both = all.size(1) - queries;
  return all.narrow(1, queries, both).unflatten(1, {2, both / 2});
}

at::Tensor rows_in(const at::Tensor& keys, const Range& rows, int64_t first) {
  return keys.narrow(2, rows.begin - first, rows.size());
}

}  // namespace

at::Tensor receive_key_heads(const TensorMesh& mesh, const AttentionHeads& all, const at::Tensor& rows_BTP) {
  const KeyHeadExchange plan{all, mesh.plan().columns};
  if (!plan.needed()) return rows_BTP;
  const AttentionHeads own = heads_of_column(all, plan.columns);
  const int64_t queries = own.query * own.head_dim, B = rows_BTP.size(0), T = rows_BTP.size(1), column = mesh.column();
  const at::Tensor in = rows_BTP.view({B * T, rows_BTP.size(2)}), rows = keys_and_values(in, queries);
  const int64_t first = plan.rows_of(mesh.column()).begin;
  const ExchangedParts parts(mesh, plan, B * T);
  const std::vector<at::Tensor> arrived = parts.exchange(
      true, in.options(), [&](int other) { return rows_in(rows, plan.sent(mesh.column(), other), first); });
  const at::Tensor out = at::empty({B * T, own.elements()}, in.options());
  out.narrow(1, 0, queries).copy_(in.narrow(1, 0, queries));
  const at::Tensor heads = keys_and_values(out, queries);
  for (int from = 0; from < plan.columns; ++from) {
    const Range sent = plan.sent(from, mesh.column());
    if (sent.size() == 0) continue;
    const at::Tensor part = from == column ? rows_in(rows, sent, first) : arrived[static_cast<size_t>(from)];
    for (int64_t i = 0; i < own.key; ++i) {
      const int64_t head = plan.key_head(mesh.column(), i) * own.head_dim;
      const Range both{std::max(sent.begin, head), std::min(sent.end, head + own.head_dim)};
      if (both.size() <= 0) continue;
      rows_in(heads, {both.begin - head, both.end - head}, -i * own.head_dim).copy_(rows_in(part, both, sent.begin));
    }
  }
  return out.view({B, T, own.elements()});
}

at::Tensor return_key_heads(const TensorMesh& mesh, const AttentionHeads& all, const at::Tensor& gradient_BTC) {
  const KeyHeadExchange plan{all, mesh.plan().columns};
  if (!plan.needed()) return gradient_BTC;
  const AttentionHeads own = heads_of_column(all, plan.columns);
  const int64_t queries = own.query * own.head_dim, B = gradient_BTC.size(0), T = gradient_BTC.size(1);
  const at::Tensor in = gradient_BTC.view({B * T, gradient_BTC.size(2)});
  const Range read = plan.read_by(mesh.column()), rows = plan.rows_of(mesh.column());
  const int64_t first = read.begin * own.head_dim;
  at::Tensor heads = keys_and_values(in, queries);
  const auto sums = in.options().dtype(wide(in.scalar_type()));
  if (read.size() != own.key) {  // several of the column's key heads are the same
    const at::Tensor each = heads;
    heads = at::zeros({B * T, 2, read.size() * own.head_dim}, sums);
    for (int64_t i = 0; i < own.key; ++i) {
      const int64_t head = plan.key_head(mesh.column(), i) * own.head_dim;
      rows_in(heads, {head, head + own.head_dim}, first).add_(each.narrow(2, i * own.head_dim, own.head_dim));
    }
  }
  const ExchangedParts parts(mesh, plan, B * T);
  const std::vector<at::Tensor> arrived = parts.exchange(
      false, in.options(), [&](int other) { return rows_in(heads, plan.sent(other, mesh.column()), first); });
  const at::Tensor sum = at::zeros({B * T, 2, rows.size()}, sums);
  for (int from = 0; from < plan.columns; ++from) {
    const Range sent = plan.sent(mesh.column(), from);
    if (sent.size() == 0) continue;
    rows_in(sum, sent, rows.begin)
        .add_(from == mesh.column() ? rows_in(heads, sent, first) : arrived[static_cast<size_t>(from)]);
  }
  const at::Tensor out = at::empty({B * T, queries + 2 * rows.size()}, in.options());
  out.narrow(1, 0, queries).copy_(in.narrow(1, 0, queries));
  keys_and_values(out, queries).copy_(sum);
  return out.view({B, T, out.size(1)});
}

}  // namespace orthant
