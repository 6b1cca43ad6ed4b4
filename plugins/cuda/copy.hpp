// SPDX-License-Identifier: Apache-2.0
// The body of a copy or fill as it waits in its packet, and the kernels for what the copy engine
// does not do. Read next: copy.cpp (who does what), copy_kernel.cu.
#pragma once

#include "cancel.hpp"
#include "host.hpp"

#include <cstddef>
#include <cstdint>
#include <cuda_runtime_api.h>

namespace kvspan::cuda {

struct CopyRows {
  const uint8_t* source;
  uint8_t* target;
  uint64_t bytes;
  uint64_t rows;
  uint64_t source_pitch;
  uint64_t target_pitch;
};

struct CopyBody {
  CopyRows* segments;  // [count] for the kernel
  uint32_t count;
  uint32_t engine_count;
  void** targets;        // [engine_count] single rows for the copy engine
  const void** sources;  // [engine_count]
  std::size_t* sizes;    // [engine_count]
  uint64_t units;        // of the largest segment: blocks worth starting for each
};

struct CopyArrays {
  CopyBody* body = nullptr;
  CopyRows* segments = nullptr;
  void** targets = nullptr;
  const void** sources = nullptr;
  std::size_t* sizes = nullptr;
};

inline void cut_copy(Cutter& cutter, CopyArrays& arrays, uint64_t segment_count) {
  cutter.cut(arrays.body, 1);
  cutter.cut(arrays.segments, segment_count);
  cutter.cut(arrays.targets, segment_count);
  cutter.cut(arrays.sources, segment_count);
  cutter.cut(arrays.sizes, segment_count);
}

struct FillBody {
  uint8_t* target;
  uint64_t bytes;
  uint64_t pattern;
  uint32_t pattern_bytes;
};

// Bytes of one row that a block copies before it looks for more work.
inline constexpr uint64_t kCopyUnitBytes = uint64_t{64} << 10;

// Pieces that a segment is cut into, each of one row.
constexpr uint64_t units_of(uint64_t bytes, uint64_t rows) {
  return rows * ((bytes + kCopyUnitBytes - 1) / kCopyUnitBytes);
}

// Segments that travel in the kernel's arguments: each that is read from host memory costs a block
// a trip over the link. More are read from there.
inline constexpr uint32_t kHeldSegments = 16;  // rows of a step: a few a sequence

// copy_kernel.cu. More than kHeldSegments `segments` are read by the device. Loading: see
// codec.hpp.
cudaError_t load_copy_kernels();
cudaError_t launch_copy(cudaStream_t stream,
                        const CopyRows* segments,
                        uint32_t count,
                        uint64_t units,
                        const Cancel& cancel);
cudaError_t launch_fill(cudaStream_t stream, const FillBody& fill, const Cancel& cancel);

}  // namespace kvspan::cuda
