// Table of the element types of safetensors: names and sizes.
#include <array>
#include <nlohmann/json.hpp>

#include "checkpoint/safetensors.h"

namespace orthant {
namespace {

struct DtypeRow {
  std::string_view name;
  int bits;
};

// In the order of the enum.
constexpr std::array<DtypeRow, 22> kDtypes{
    {{"BOOL", 8},    {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6},     {"U8", 8},          {"I8", 8},
     {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"I16", 16},
     {"U16", 16},    {"F16", 16},    {"BF16", 16},   {"I32", 32},        {"U32", 32},        {"F32", 32},
     {"C64", 64},    {"F64", 64},    {"I64", 64},    {"U64", 64}}};
static_assert(static_cast<std::size_t>(Dtype::u64) + 1 == kDtypes.size());

}  // namespace

int dtype_bits(Dtype dtype) { return kDtypes.at(static_cast<std::size_t>(dtype)).bits; }

std::string_view dtype_name(Dtype dtype) { return kDtypes.at(static_cast<std::size_t>(dtype)).name; }

std::optional<Dtype> dtype_from_name(std::string_view name) {
  for (std::size_t i = 0; i < kDtypes.size(); ++i) {
    if (kDtypes[i].name == name) return static_cast<Dtype>(i);
  }
  return std::nullopt;
}

std::string printable(const std::string& name) {
  return nlohmann::json(name.substr(0, 200)).dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
}

}  // namespace orthant
