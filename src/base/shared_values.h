// SharedValues: keeps one copy of each distinct value. Equal values then have equal pointers, and comparing them is
// cheap.
#pragma once

#include <memory>
#include <set>
#include <utility>

namespace orthant {

/// Value must be comparable with <.
template <class Value>
class SharedValues {
 public:
  /// The stored value that equals `value`. It stays valid after this object is gone.
  std::shared_ptr<const Value> share(Value value) {
    return *values_.insert(std::make_shared<const Value>(std::move(value))).first;
  }

 private:
  struct Less {
    bool operator()(const auto& a, const auto& b) const { return *a < *b; }
  };
  std::set<std::shared_ptr<const Value>, Less> values_;
};

}  // namespace orthant
