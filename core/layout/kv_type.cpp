// SPDX-License-Identifier: Apache-2.0
// The table of element types and the bytes of a row.
// Source of the block sizes: the comments of kvspan/types.h, which restate the GGML format.
#include "kvspan/core/layout/kv_type.hpp"

#include "kvspan/core/layout/checked.hpp"

#include <algorithm>
#include <array>
#include <string>

namespace kvspan {
namespace {

constexpr std::array<KvType, 8> kTypes{{
    {KVSPAN_TYPE_F32, "f32", 1, 4},
    {KVSPAN_TYPE_F16, "f16", 1, 2},
    {KVSPAN_TYPE_BF16, "bf16", 1, 2},
    {KVSPAN_TYPE_Q8_0, "q8_0", 32, 34},
    {KVSPAN_TYPE_Q5_1, "q5_1", 32, 24},
    {KVSPAN_TYPE_Q5_0, "q5_0", 32, 22},
    {KVSPAN_TYPE_Q4_1, "q4_1", 32, 20},
    {KVSPAN_TYPE_Q4_0, "q4_0", 32, 18},
}};

std::string known_names() {
  std::string names;
  for (const KvType& type : kTypes) {
    if (!names.empty()) {
      names += &type == &kTypes.back() ? " and " : ", ";
    }
    names += type.name;
  }
  return names;
}

// Enough of a name to recognise it: it came from a person, and may be of any length.
std::string quoted(std::string_view text) {
  constexpr std::size_t kShown = 40;
  std::string shown = "'" + std::string(text.substr(0, kShown));
  return shown + (text.size() > kShown ? "...'" : "'");
}

std::string refusal(const KvType& type, std::uint64_t elements) {
  const std::uint64_t below = elements / type.block_elements * type.block_elements;
  const auto above = checked_add(below, type.block_elements);
  std::string sizes = below > 0 ? std::to_string(below) : std::string();
  if (above) {
    sizes += (sizes.empty() ? "" : " or ") + std::to_string(*above);
  }
  return "head size " + std::to_string(elements) + " is not a multiple of the " +
         std::to_string(type.block_elements) + "-element block of " + std::string(type.name) +
         "; use f32, f16 or bf16, or head size " + sizes;
}

}  // namespace

std::span<const KvType> kv_types() {
  return kTypes;
}

Result<KvType> kv_type(kvspan_type_t id) {
  const auto* found = std::find_if(
      kTypes.begin(), kTypes.end(), [id](const KvType& type) { return type.id == id; });
  if (found != kTypes.end()) {
    return *found;
  }
  const std::string whose = id >= KVSPAN_TYPE_VENDOR ? " belongs to a plugin and is not known here"
                                                     : " is not known here";
  return tl::unexpected(
      Error{Errc::unsupported,
            "KV type " + std::to_string(id) + whose + "; known types are " + known_names()});
}

Result<KvType> kv_type_named(std::string_view type_name) {
  const auto* found = std::find_if(kTypes.begin(), kTypes.end(), [type_name](const KvType& type) {
    return type.name == type_name;
  });
  if (found != kTypes.end()) {
    return *found;
  }
  return tl::unexpected(
      Error{Errc::invalid_argument,
            "unknown KV type " + quoted(type_name) + "; known types are " + known_names()});
}

Result<std::uint64_t> row_bytes(kvspan_type_t id, std::uint64_t elements) {
  const auto type = kv_type(id);
  if (!type) {
    return tl::unexpected(type.error());
  }
  if (elements % type->block_elements != 0) {
    return tl::unexpected(Error{Errc::unsupported, refusal(*type, elements)});
  }
  const auto bytes = checked_mul(elements / type->block_elements, type->block_bytes);
  if (!bytes) {
    return tl::unexpected(Error{Errc::too_large,
                                "a row of " + std::to_string(elements) + " elements of " +
                                    std::string(type->name) +
                                    " takes more bytes than 64 bits can count; use smaller heads"});
  }
  return *bytes;
}

}  // namespace kvspan
