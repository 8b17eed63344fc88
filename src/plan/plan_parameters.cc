#include "plan/plan_parameters.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/errors.h"
#include "plan/from_config.h"

namespace orthant {
namespace {

Layout layout_on_any_mesh(const ParameterInfo& parameter, const Plan& plan) {
  Layout layout = whole(static_cast<int>(parameter.shape.size()));
  switch (parameter.role) {
    case ParameterRole::projection:  // rows that stand for tokens are held where those are
      layout.split[0] = {"ring"};
      return layout;
    case ParameterRole::gain:
      if (plan.tensor.stream == StreamCut::width) layout.split[0] = {std::string(kColumn)};
      return layout;
    case ParameterRole::to_stream:
      return weight_layout(
          stationary_of(plan.tensor, {.in = parameter.shape[1], .out = parameter.shape[0], .to_stream = true}));
    case ParameterRole::embedding:
    case ParameterRole::from_stream:
    case ParameterRole::head:
      return weight_layout(Stationary::output);
  }
  throw LogicError("a parameter without a role: " + parameter.name);
}

// How a parameter is cut; axes of one rank cut nothing.
Layout layout_of(const ParameterInfo& parameter, const Plan& plan) {
  Layout layout = layout_on_any_mesh(parameter, plan);
  for (auto& axes : layout.split) {
    std::erase_if(axes, [&](const std::string& axis) { return plan.mesh.axis_size(axis) == 1; });
  }
  return layout;
}

// Over which axes a parameter's gradient is a partial sum, were it whole: each column's heads use all of a projection.
std::vector<std::string> gradient_axes_of(const ParameterInfo& parameter, const Plan& plan) {
  std::vector<std::string> axes = plan.gradient_axes;
  const bool known = std::find(axes.begin(), axes.end(), kColumn) != axes.end();
  if (parameter.role == ParameterRole::projection && plan.tensor.columns > 1 && !known) axes.emplace_back(kColumn);
  return axes;
}

// Where a rank's weights stand in its gradient buffer.
struct GradientPlaces {
  std::vector<std::pair<int64_t, int64_t>> weights;
  std::vector<GradientRegion> regions;
};
GradientPlaces gradient_places(const Plan& plan, int rank) {
  const FlatLayout flat = flat_layout(plan.parameters_of(rank));
  GradientPlaces places{.weights = flat.weights, .regions = {}};
  for (size_t g = 0; g < flat.groups.size(); ++g) {
    const auto [begin, end] = flat.groups[g];
    places.regions.push_back({{begin, end}, plan.groups[g].reduced});
  }
  return places;
}

CommunicationEntry all_reduce_entry(const Plan& plan, std::string what, const std::vector<std::string>& axes) {
  return {.what = std::move(what),
          .collective = std::string(name_of(CollectiveKind::all_reduce)),
          .axis = plan.mesh.joined_name(axes),
          .calls = 1,
          .bytes_per_rank = {}};
}

}  // namespace

void lay_out_parameters(Plan& plan) {
  plan.groups = {{plan.gradient_axes, {}}};
  for (ParameterInfo& parameter : plan.parameters) {
    const Layout& layout = plan.layouts.emplace_back(layout_of(parameter, plan));
    ParameterGroup group{gradient_axes_of(parameter, plan), {}};
    for (const auto& axes : layout.split) {
      for (const std::string& axis : axes) {
        std::erase(group.reduced, axis);
        group.split.push_back(axis);
      }
    }
    const auto known = std::find(plan.groups.begin(), plan.groups.end(), group);
    parameter.group = static_cast<int>(known - plan.groups.begin());
    if (known == plan.groups.end()) plan.groups.push_back(std::move(group));
  }
  const double bucket_bytes = std::min(plan.config.parallelism.bucket_mib, 1e9) * (1 << 20);
  const auto elements = static_cast<int64_t>(bucket_bytes / master_bytes(plan.config));
  const GradientPlaces places = gradient_places(plan, 0);
  plan.buckets = gradient_buckets(places.weights, places.regions, std::max<int64_t>(1, elements));
}

void add_gradients(Plan& plan) {
  std::map<int, std::vector<GradientBucket>> held;
  for (int rank = 0; rank < plan.mesh.size(); ++rank) {
    if (plan.first_like(rank) == rank) held.emplace(rank, plan.buckets_of(rank));
  }
  for (size_t i = plan.buckets.size(); i-- > 0;) {
    const auto& axes = plan.buckets[i].axes;
    if (plan.mesh.group_size(axes) == 1) continue;
    auto entry = all_reduce_entry(plan, fmt::format("gradients, bucket {} of {}", i + 1, plan.buckets.size()), axes);
    for (int rank = 0; rank < plan.mesh.size(); ++rank) {
      const GradientBucket& bucket = held.at(plan.first_like(rank))[i];
      entry.bytes_per_rank.push_back(reduction_bytes(plan.mesh, bucket, master_bytes(plan.config), rank));
    }
    plan.communication.push_back(std::move(entry));
  }
  const auto add_numbers = [&](const char* what, int64_t numbers, const std::vector<std::string>& axes) {
    if (plan.mesh.group_size(axes) == 1) return;
    auto entry = all_reduce_entry(plan, what, axes);
    for (int rank = 0; rank < plan.mesh.size(); ++rank) {
      entry.bytes_per_rank.push_back(reduction_bytes(plan.mesh, {{0, numbers}, {}, axes}, sizeof(double), rank));
    }
    plan.communication.push_back(std::move(entry));
  };
  add_numbers("loss, signals and peaks", StepSignals::elements(plan.mesh.size()), all_axes(plan.mesh));
  for (const ParameterGroup& group : plan.groups) {
    if (!group.split.empty()) add_numbers("gradient norm, of what is split", 1, group.split);
  }
}

std::vector<ParameterInfo> Plan::parameters_of(int rank) const {
  std::vector<ParameterInfo> all = parameters;
  for (size_t i = 0; i < all.size(); ++i) {
    if (groups[static_cast<size_t>(all[i].group)].split.empty()) continue;
    for (const Range& range : local_ranges(mesh, layouts[i], all[i].shape, rank)) {
      all[i].held.emplace_back(range.begin, range.end);
    }
  }
  return all;
}

std::vector<GradientBucket> Plan::buckets_of(int rank) const {
  const GradientPlaces places = gradient_places(*this, rank);
  return placed(buckets, places.weights, places.regions);
}

int Plan::first_like(int rank) const {
  for (const Axis& axis : mesh.axes) {
    const bool splits = std::any_of(groups.begin(), groups.end(), [&](const ParameterGroup& group) {
      return std::find(group.split.begin(), group.split.end(), axis.name) != group.split.end();
    });
    if (!splits) rank = mesh.rank_at(rank, axis.name, 0);
  }
  return rank;
}

}  // namespace orthant
