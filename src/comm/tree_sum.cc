// The sum of few elements over many ranks, along the tree of mesh/sum_tree.h.
#include <cstring>

#include "comm/collectives.h"
#include "comm/ordered_sum.h"
#include "mesh/sum_tree.h"

namespace orthant {
namespace {

// The summands of a subtree in the order of their positions, one after another.
class SubtreeSummands {
 public:
  SubtreeSummands(const Peers& peers, const TreeNeighbors& place, Bytes own)
      : peers_(peers),
        place_(place),
        own_(own),
        staging_(peers.staging(place.tensors_held() * static_cast<int64_t>(own.size()))) {}

  Posted receive(int child) const {
    const int in_subtree = child - peers_.position();
    return peers_.receive(child, part(in_subtree, tree_neighbors(peers_.size(), child).subtree));
  }
  Posted receive_sum_before() const { return peers_.receive(place_.previous, part(0, 1)); }
  Posted send_to_parent() const {
    if (place_.subtree == 1) return peers_.send(place_.parent, own_);
    if (!own_.empty()) std::memcpy(staging_, own_.data(), own_.size());
    return peers_.send(place_.parent, part(0, place_.subtree));
  }
  // Adds the own summand and those of the subtree to the sum of all positions before, in the place of the own one.
  // The last `maxima` elements are not added (ordered_sum.h).
  void add_all(int64_t maxima) const {
    std::vector<const std::byte*> sources;
    if (place_.previous >= 0) sources.push_back(staging_);
    sources.push_back(own_.data());
    for (int i = 1; i < place_.subtree; ++i) sources.push_back(part(i, 1).data());
    const int64_t count = static_cast<int64_t>(own_.size()) / peers_.element_bytes();
    ordered_sum(own_.data(), sources, count, peers_.type(), maxima);
  }

 private:
  Bytes part(int first, int tensors) const {
    const size_t bytes = own_.size();
    return {staging_ + static_cast<size_t>(first) * bytes, static_cast<size_t>(tensors) * bytes};
  }

  const Peers& peers_;
  const TreeNeighbors& place_;
  const Bytes own_;
  std::byte* const staging_;
};

}  // namespace

Task all_reduce_by_tree(Peers peers, Bytes memory, int64_t maxima) {
  const TreeNeighbors place = tree_neighbors(peers.size(), peers.position());
  const SubtreeSummands summands(peers, place, memory);
  std::vector<Posted> arriving;
  for (const int child : place.children) arriving.push_back(summands.receive(child));
  if (place.previous >= 0) arriving.push_back(summands.receive_sum_before());
  for (Posted& posted : arriving) co_await posted;
  if (place.parent >= 0) {
    co_await summands.send_to_parent();
  } else {
    summands.add_all(maxima);
    if (place.next >= 0) co_await peers.send(place.next, memory);
  }
  if (place.source >= 0) co_await peers.receive(place.source, memory);
  std::vector<Posted> leaving;
  for (const int receiver : place.receivers) leaving.push_back(peers.send(receiver, memory));
  for (Posted& posted : leaving) co_await posted;
}

}  // namespace orthant
