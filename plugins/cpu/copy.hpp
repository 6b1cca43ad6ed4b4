// SPDX-License-Identifier: Apache-2.0
// The body of a copy or fill as it waits in its packet. Read next: copy.cpp.
#pragma once

#include "host.hpp"

#include <cstdint>

namespace kvspan::cpu {

struct CopyRows {
  const uint8_t* source;
  uint8_t* target;
  uint64_t bytes;
  uint64_t rows;
  uint64_t source_pitch;
  uint64_t target_pitch;
};

struct CopyBody {
  const CopyRows* segments;  // [count]
  uint64_t count;
};

struct CopyArrays {
  CopyBody* body = nullptr;
  CopyRows* segments = nullptr;
};

inline void cut_copy(Cutter& cutter, CopyArrays& arrays, uint64_t segment_count) {
  cutter.cut(arrays.body, 1);
  cutter.cut(arrays.segments, segment_count);
}

}  // namespace kvspan::cpu
