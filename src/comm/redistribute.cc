// Packs shards into flat messages for Comm, and unpacks the results into the shard of the new layout.
#include "comm/redistribute.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <functional>

#include "base/errors.h"

namespace orthant {
namespace {

// One Collective over one mesh axis, as seen from this rank.
struct Step {
  Comm& comm;
  const Collective& what;
  const Layout& before;
  const std::vector<int64_t>& global_shape;
  Axes axes;
  int size, position;

  // The local shape with dim `dim` unsharded along the step's axis; shard_range() gives the part of each position.
  std::vector<int64_t> unsharded_shape(const Layout& layout, int dim) const {
    Layout unsharded = layout;
    if (dim >= 0) std::erase(unsharded.split[static_cast<size_t>(dim)], what.axis);
    return local_shape(comm.mesh(), unsharded, global_shape, comm.rank());
  }
  Range shard_range(int64_t extent, int at) const { return shard(extent, size, at); }
};

std::vector<int64_t> with_extent(std::vector<int64_t> shape, int dim, int64_t extent) {
  shape[static_cast<size_t>(dim)] = extent;
  return shape;
}

// Builds the result after the messages have arrived. It also keeps their tensors alive until then.
using Finish = std::function<at::Tensor()>;
struct Started {
  Work work;
  Finish finish;
};

// Shards of a dim are contiguous in memory only if it is the first dim. So gather into flat memory, then concatenate.
Started all_gather(const Step& step, const at::Tensor& local) {
  const int dim = step.what.from_dim;
  const auto unsharded = step.unsharded_shape(step.before, dim);
  std::vector<int64_t> counts;
  std::vector<std::vector<int64_t>> shapes;
  for (int i = 0; i < step.size; ++i) {
    shapes.push_back(with_extent(unsharded, dim, step.shard_range(unsharded[static_cast<size_t>(dim)], i).size()));
    counts.push_back(volume(shapes.back()));
  }
  at::Tensor flat = at::empty({volume(unsharded)}, local.options());
  const at::Tensor own = local.contiguous();
  return {step.comm.all_gather(flat, own, step.axes, counts), [=] {
            (void)own;
            if (dim == 0) return flat.view(unsharded);
            auto parts = flat.split_with_sizes(counts);
            for (size_t i = 0; i < parts.size(); ++i) parts[i] = parts[i].view(shapes[i]);
            return at::cat(parts, dim);
          }};
}

Started reduce_scatter(const Step& step, const at::Tensor& local) {
  const int dim = step.what.to_dim;
  const at::Tensor all = dim == 0 ? local.contiguous() : at::empty({local.numel()}, local.options());
  std::vector<int64_t> counts;
  for (int64_t i = 0, begin = 0; i < step.size; ++i, begin += counts.back()) {
    const Range range = step.shard_range(local.size(dim), static_cast<int>(i));
    const at::Tensor part = local.slice(dim, range.begin, range.end);
    counts.push_back(part.numel());
    if (dim != 0) all.narrow(0, begin, part.numel()).view(part.sizes()).copy_(part);
  }
  const Range own = step.shard_range(local.size(dim), step.position);
  at::Tensor mine = at::empty(local.slice(dim, own.begin, own.end).sizes(), local.options());
  return {step.comm.reduce_scatter(mine, all, step.axes, counts), [=] {
            (void)all;
            return mine;
          }};
}

Started all_to_all(const Step& step, const at::Tensor& local) {
  const int from = step.what.from_dim, to = step.what.to_dim;
  const auto unsharded = step.unsharded_shape(step.before, from);
  std::vector<int64_t> sent, received;
  std::vector<std::vector<int64_t>> shapes;
  const int64_t mine = step.shard_range(unsharded[static_cast<size_t>(to)], step.position).size();
  // Shards of the first dim are contiguous in memory, so that they need no copy where they leave or arrive.
  const at::Tensor leaving = to == 0 ? local.contiguous() : at::empty({local.numel()}, local.options());
  for (int64_t i = 0, begin = 0; i < step.size; ++i, begin += sent.back()) {
    const Range range = step.shard_range(local.size(to), static_cast<int>(i));
    const at::Tensor part = local.slice(to, range.begin, range.end);
    sent.push_back(part.numel());
    if (to != 0) leaving.narrow(0, begin, part.numel()).view(part.sizes()).copy_(part);
    shapes.push_back(with_extent(with_extent(unsharded, to, mine), from,
                                 step.shard_range(unsharded[static_cast<size_t>(from)], static_cast<int>(i)).size()));
    received.push_back(volume(shapes.back()));
  }
  const auto result = with_extent(unsharded, to, mine);
  at::Tensor flat = at::empty({volume(result)}, local.options());
  return {step.comm.all_to_all(flat, leaving, step.axes, received, sent), [=] {
            (void)leaving;
            if (from == 0) return flat.view(result);
            auto pieces = flat.split_with_sizes(received);
            for (size_t i = 0; i < pieces.size(); ++i) pieces[i] = pieces[i].view(shapes[i]);
            return at::cat(pieces, from);
          }};
}

Started all_reduce(const Step& step, const at::Tensor& local) {
  const at::Tensor sum = local.clone(at::MemoryFormat::Contiguous);
  return {step.comm.all_reduce(sum, step.axes), [=] { return sum; }};
}

Started at_once(const at::Tensor& result) {
  return {Work(), [=] { return result; }};
}

at::Tensor slice(const Step& step, const at::Tensor& local) {
  const Range range = step.shard_range(local.size(step.what.to_dim), step.position);
  return local.slice(step.what.to_dim, range.begin, range.end).contiguous();
}

at::Tensor pad(const Step& step, const at::Tensor& local) {
  const int dim = step.what.from_dim;
  const auto unsharded = step.unsharded_shape(step.before, dim);
  const Range range = step.shard_range(unsharded[static_cast<size_t>(dim)], step.position);
  at::Tensor padded = at::zeros(unsharded, local.options());
  padded.slice(dim, range.begin, range.end).copy_(local);
  return padded;
}

Started start(Comm& comm, const Collective& collective, const at::Tensor& local, const Layout& before,
              const std::vector<int64_t>& global_shape) {
  const Axes axes{collective.axis};
  const Step step{comm, collective, before, global_shape, axes, comm.group_size(axes), comm.position(axes)};
  switch (collective.kind) {
    case CollectiveKind::relabel:
      return at_once(local);
    case CollectiveKind::all_gather:
      return all_gather(step, local);
    case CollectiveKind::reduce_scatter:
      return reduce_scatter(step, local);
    case CollectiveKind::all_to_all:
      return all_to_all(step, local);
    case CollectiveKind::all_reduce:
      return all_reduce(step, local);
    case CollectiveKind::slice:
      return at_once(slice(step, local));
    case CollectiveKind::pad:
      return at_once(pad(step, local));
    case CollectiveKind::mask_replicas:
      return at_once(step.position == 0 ? local : at::zeros_like(local));
    case CollectiveKind::all_reduce_by_tree:
    case CollectiveKind::broadcast:
    case CollectiveKind::reduce:
    case CollectiveKind::reduce_in_chunks:
    case CollectiveKind::shift:
      break;  // no list of steps contains these
  }
  throw LogicError(fmt::format("{} is not a step between layouts", to_string(collective)));
}

struct Redistribute : torch::autograd::Function<Redistribute> {
  using Shape = std::vector<int64_t>;

  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& local, Comm* comm,
                            const Layout& from, const Layout& to, const Shape& global_shape) {
    context->saved_data["comm"] = reinterpret_cast<int64_t>(comm);
    context->saved_data["from"] = to_string(from);
    context->saved_data["to"] = to_string(to);
    context->saved_data["shape"] = global_shape;
    const at::Tensor out = Redistribution(*comm, local, from, to, global_shape).wait();
    return out.is_same(local) ? local.view_as(local) : out;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    auto& comm = *reinterpret_cast<Comm*>(context->saved_data["comm"].toInt());
    const Layout from = parse_layout(context->saved_data["from"].toStringRef());
    const Layout to = parse_layout(context->saved_data["to"].toStringRef());
    const auto shape = context->saved_data["shape"].toIntVector();
    return {Redistribution(comm, gradients[0].contiguous(), dual(to), dual(from), shape).wait(), {}, {}, {}, {}};
  }
};

}  // namespace

at::Tensor carry_out(Comm& comm, const Collective& collective, const at::Tensor& local, const Layout& before,
                     const std::vector<int64_t>& global_shape) {
  Started started = start(comm, collective, local, before, global_shape);
  started.work.wait();
  return started.finish();
}

struct Redistribution::State {
  Comm& comm;
  std::vector<int64_t> global_shape;
  std::vector<Collective> steps;
  Started first;
};

Redistribution::Redistribution(Comm& comm, const at::Tensor& local, const Layout& from, const Layout& to,
                               const std::vector<int64_t>& global_shape) {
  const auto expected = local_shape(comm.mesh(), from, global_shape, comm.rank());
  ORTHANT_CHECK(local.sizes() == at::IntArrayRef(expected), to_string(from), comm.rank());
  const at::NoGradGuard no_grad;
  auto steps = orthant::redistribute(comm.mesh(), from, to, global_shape, local.element_size());
  Started first = steps.empty() ? at_once(local) : start(comm, steps[0], local, from, global_shape);
  state_ = std::make_unique<State>(State{comm, global_shape, std::move(steps), std::move(first)});
}
Redistribution::Redistribution(Redistribution&&) noexcept = default;
Redistribution& Redistribution::operator=(Redistribution&&) noexcept = default;
Redistribution::~Redistribution() = default;

at::Tensor Redistribution::wait() {
  const at::NoGradGuard no_grad;
  const std::unique_ptr<State> state = std::move(state_);
  state->first.work.wait();
  at::Tensor part = state->first.finish();
  for (size_t i = 1; i < state->steps.size(); ++i) {
    part = carry_out(state->comm, state->steps[i], part, state->steps[i - 1].after, state->global_shape);
  }
  return part;
}

at::Tensor redistribute(Comm& comm, const at::Tensor& local, const Layout& from, const Layout& to,
                        const std::vector<int64_t>& global_shape) {
  return Redistribute::apply(local, &comm, from, to, global_shape);
}

}  // namespace orthant
