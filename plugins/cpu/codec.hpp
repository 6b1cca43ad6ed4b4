// SPDX-License-Identifier: Apache-2.0
// The body of an encode or decode as it waits in its packet. Read next: codec.cpp.
#pragma once

#include "attention/kernel.hpp"
#include "host.hpp"

#include <cstdint>

namespace kvspan::cpu {

struct CodecRows {
  RowsView rows;
  PlaneView plane;
  uint64_t first_token;
  kvspan_type_t type;  // of the plane
  uint32_t row_count;
  uint32_t head_count;
  uint32_t head_size;
};

struct CodecBody {
  const CodecRows* items;  // [count]
  uint64_t count;
};

struct CodecArrays {
  CodecBody* body = nullptr;
  CodecRows* items = nullptr;
  uint32_t* pages = nullptr;  // of all page lists
};

inline void cut_codec(Cutter& cutter,
                      CodecArrays& arrays,
                      uint64_t item_count,
                      uint64_t page_count) {
  cutter.cut(arrays.body, 1);
  cutter.cut(arrays.items, item_count);
  cutter.cut(arrays.pages, page_count);
}

}  // namespace kvspan::cpu
