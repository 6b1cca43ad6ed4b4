// SPDX-License-Identifier: Apache-2.0
// The element types that a K or V row can have: ids, names, and how many bytes a row takes.
// Not the codec: nobody here reads or writes an element, that is the backend's work.
// Read next: kvspan/types.h for the ids, geometry.hpp for what is built from rows.
#pragma once

#include "kvspan/core/error.hpp"
#include "kvspan/types.h"

#include <cstdint>
#include <span>
#include <string_view>

namespace kvspan {

// Byte layouts are GGML's: a row of E elements is E / block_elements blocks of block_bytes each.
// `name` is spelled as on the command line ("q8_0") and has static storage.
struct KvType {
  kvspan_type_t id;
  std::string_view name;
  std::uint32_t block_elements;
  std::uint32_t block_bytes;
};

// Every type that this build knows, in the order of falling row size. Any thread.
[[nodiscard]] std::span<const KvType> kv_types();

// The type with this id. Errc::unsupported: no such id here; the message lists the known names. Any
// thread.
[[nodiscard]] Result<KvType> kv_type(kvspan_type_t id);

// The type with this name, as spelled in KvType::name.
// Errc::invalid_argument: no such name; the message lists the known ones. Any thread.
[[nodiscard]] Result<KvType> kv_type_named(std::string_view type_name);

// Bytes of a row of `elements` (one head of one token). 0 elements take 0 bytes.
// Errc::unsupported: unknown type, or a block does not divide the row: the message names a type and
// sizes that work.
// Errc::too_large: the row does not fit 64 bits. Any thread.
[[nodiscard]] Result<std::uint64_t> row_bytes(kvspan_type_t id, std::uint64_t elements);

}  // namespace kvspan
