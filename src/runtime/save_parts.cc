#include "runtime/save_parts.h"

#include <ATen/ATen.h>

#include <map>

#include "base/errors.h"
#include "model/cuda_device.h"

namespace orthant {
namespace {

// The view of the unsharded tensor that a shard fills.
at::Tensor place_of(at::Tensor whole, const std::vector<Range>& shard) {
  for (size_t dim = 0; dim < shard.size(); ++dim) {
    whole = whole.narrow(static_cast<int64_t>(dim), shard[dim].begin, shard[dim].size());
  }
  return whole;
}

std::vector<std::pair<int64_t, int64_t>> borders(const std::vector<Range>& shard) {
  std::vector<std::pair<int64_t, int64_t>> all;
  for (const Range& range : shard) all.emplace_back(range.begin, range.end);
  return all;
}

}  // namespace

// A copy to make once the messages of the round have arrived.
struct PartCollector::Arrival {
  at::Tensor to, from;
};

PartCollector::PartCollector(const Plan& plan, const SavePlan& files, Session& session, bool copies)
    : plan_(plan), files_(files), session_(session), copies_(copies), routes_(plan) {}

at::ScalarType PartCollector::dtype_of_parts(const SavedTensor& tensor) const {
  const Weights& weights = session_.weights();
  return tensor.kind == SavedKind::values ? weights.working_dtype() : weights.masters().scalar_type();
}

// The device on which the ranks keep their parts. It is the same on all.
at::Device PartCollector::device_of_parts(const SavedTensor& tensor) const {
  Weights& weights = session_.weights();
  switch (tensor.kind) {
    case SavedKind::values:
      return routes_.only_owned(tensor.kind) ? weights.owned_values().device()
                                             : weights.segmented_values().segment(0).device();
    case SavedKind::state:
      return session_.optimizer().state()[tensor.state].flat.device();
    case SavedKind::masters:
      return weights.masters().device();
  }
  throw LogicError("no kind of saved tensors");
}

// This rank's elements of the parameter, as a view with one dim.
at::Tensor PartCollector::own_part(SavedKind kind, size_t state, size_t parameter) const {
  const Weights& weights = session_.weights();
  switch (kind) {
    case SavedKind::values:
      return routes_.only_owned(kind) ? weights.owned_value(parameter) : weights.value(parameter).view(-1);
    case SavedKind::state:
      return session_.optimizer().state()[state].part(parameter);
    case SavedKind::masters:
      return weights.owned_master(parameter);
  }
  throw LogicError("no kind of saved tensors");
}

std::vector<CollectedTensor> PartCollector::collect(int round) {
  const at::NoGradGuard no_grad;
  const int own = session_.comm().rank();
  std::vector<CollectedTensor> collected;
  std::vector<Arrival> arrivals;
  for (const SavedFile& file : files_.files) {
    for (const SavedTensor& tensor : file.tensors) {
      if (tensor.round != round) continue;
      if (file.writer == own) {
        collected.push_back({&file, &tensor, receive(tensor, arrivals)});
      } else {
        send(file, tensor);
      }
    }
  }
  exchange();
  for (const Arrival& arrival : arrivals) arrival.to.copy_(arrival.from);
  for (CollectedTensor& tensor : collected) {
    if (tensor.tensor->stored.transposed) tensor.content = tensor.content.t().contiguous();
  }
  return collected;
}

void PartCollector::send(const SavedFile& file, const SavedTensor& tensor) {
  const int own = session_.comm().rank();
  for (const size_t parameter : tensor.stored.parameters) {
    if (!routes_.has_part_for(file.writer, tensor.kind, parameter, own)) continue;
    const at::Tensor part = own_part(tensor.kind, tensor.state, parameter);
    if (part.numel() == 0) continue;
    (part.is_cpu() ? on_host_ : on_device_).push_back({.tensor = part, .peer = file.writer});
  }
}

// Returns the tensor that will hold all parts after the exchange.
at::Tensor PartCollector::receive(const SavedTensor& tensor, std::vector<Arrival>& arrivals) {
  const std::vector<size_t>& parameters = tensor.stored.parameters;
  if (const size_t first = parameters.front(); !copies_ && parameters.size() == 1) {
    const std::vector<SavedPart> parts = routes_.parts_for(session_.comm().rank(), tensor.kind, first);
    const bool alone = parts.size() == 1 && parts.front().rank == session_.comm().rank();
    const at::Tensor part = alone ? own_part(tensor.kind, tensor.state, first) : at::Tensor();
    if (alone && part.is_cpu()) return part.view(plan_.parameters[first].shape);
  }
  std::vector<int64_t> shape = tensor.stored.shape;
  if (tensor.stored.transposed) std::swap(shape.front(), shape.back());
  const at::Tensor whole = at::empty(shape, dtype_of_parts(tensor));
  int64_t first_row = 0;
  for (const size_t parameter : parameters) {
    const int64_t rows = plan_.parameters[parameter].shape.front();
    receive_parameter(tensor, parameter, whole.narrow(0, first_row, rows), arrivals);
    first_row += rows;
  }
  return whole;
}

// Posts the receives of a parameter's parts. A shard that is not contiguous in the unsharded tensor, or that lies on
// the device, arrives in a buffer of its own.
void PartCollector::receive_parameter(const SavedTensor& tensor, size_t parameter, const at::Tensor& target,
                                      std::vector<Arrival>& arrivals) {
  const int own = session_.comm().rank();
  std::map<std::vector<std::pair<int64_t, int64_t>>, at::Tensor> shards;  // flat, by their borders
  for (const SavedPart& part : routes_.parts_for(own, tensor.kind, parameter)) {
    at::Tensor& shard = shards[borders(part.shard)];
    if (!shard.defined()) {
      const at::Tensor place = place_of(target, part.shard);
      const at::Device device = device_of_parts(tensor);
      const bool in_place = place.is_contiguous() && device.is_cpu();
      shard = in_place ? place.view(-1) : at::empty({place.numel()}, place.options().device(device));
      if (!in_place) arrivals.push_back({place, shard.view(place.sizes())});
    }
    const at::Tensor elements = shard.narrow(0, part.elements.begin, part.elements.size());
    if (part.rank == own) {
      elements.copy_(own_part(tensor.kind, tensor.state, parameter));
    } else {
      (elements.is_cpu() ? on_host_ : on_device_).push_back({.tensor = elements, .peer = part.rank, .receive = true});
    }
  }
}

// Carries out the messages of the round.
void PartCollector::exchange() {
  Comm& comm = session_.comm();
  const Axes all = all_axes(comm.mesh());
  Work device_work = comm.exchange(on_device_, all), host_work = comm.exchange(on_host_, all);
  device_work.wait();
  host_work.wait();
  on_device_.clear();
  on_host_.clear();
}

}  // namespace orthant
