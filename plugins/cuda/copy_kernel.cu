// SPDX-License-Identifier: Apache-2.0
// Copies and fills that the copy engine does not do: rows with pitches, host to host, patterns.
// Bytes move 16 at a time where both sides are aligned alike. Read first: copy.hpp.
#include "cancel.cuh"
#include "copy.hpp"

#include <cstring>

namespace kvspan::cuda {
namespace {

constexpr uint32_t kThreads = 256;
constexpr uint32_t kBlocksMax = 1024;

__device__ void copy_bytes(const uint8_t* source, uint8_t* target, uint64_t bytes) {
  uint64_t at = 0;
  if ((reinterpret_cast<uint64_t>(source) - reinterpret_cast<uint64_t>(target)) % 16 == 0) {
    uint64_t head = (16 - reinterpret_cast<uint64_t>(target) % 16) % 16;
    head = head < bytes ? head : bytes;
    if (threadIdx.x < head) {
      target[threadIdx.x] = source[threadIdx.x];
    }
    const uint64_t wide = (bytes - head) / 16;
    const auto* from = reinterpret_cast<const uint4*>(source + head);
    auto* to = reinterpret_cast<uint4*>(target + head);
    for (uint64_t i = threadIdx.x; i < wide; i += kThreads) {
      to[i] = from[i];
    }
    at = head + 16 * wide;
  }
  for (uint64_t i = at + threadIdx.x; i < bytes; i += kThreads) {
    target[i] = source[i];
  }
}

struct HeldCopy {
  const CopyRows* segments;
  CopyRows held[kHeldSegments];  // [gridDim.y], unless there are more
};

// grid (units, segments): block x of a segment takes its pieces x, x + gridDim.x, ...
__global__ void copy_kernel(const __grid_constant__ HeldCopy call, Cancel cancel) {
  if (block_is_cancelled(cancel, uint64_t{blockIdx.y} * gridDim.x + blockIdx.x)) {
    return;
  }
  const CopyRows rows =
      gridDim.y <= kHeldSegments ? call.held[blockIdx.y] : call.segments[blockIdx.y];
  const uint64_t pieces = (rows.bytes + kCopyUnitBytes - 1) / kCopyUnitBytes;
  for (uint64_t unit = blockIdx.x; unit < rows.rows * pieces; unit += gridDim.x) {
    const uint64_t row = unit / pieces;
    const uint64_t first = unit % pieces * kCopyUnitBytes;
    const uint64_t left = rows.bytes - first;
    copy_bytes(rows.source + row * rows.source_pitch + first,
               rows.target + row * rows.target_pitch + first,
               left < kCopyUnitBytes ? left : kCopyUnitBytes);
  }
}

// The range begins anywhere, so byte i is byte i % pattern_bytes of the pattern.
__global__ void fill_kernel(FillBody fill, Cancel cancel) {
  if (block_is_cancelled(cancel, blockIdx.x)) {
    return;
  }
  const uint64_t pieces = (fill.bytes + kCopyUnitBytes - 1) / kCopyUnitBytes;
  for (uint64_t unit = blockIdx.x; unit < pieces; unit += gridDim.x) {
    const uint64_t first = unit * kCopyUnitBytes;
    const uint64_t left = fill.bytes - first;
    const uint64_t bytes = left < kCopyUnitBytes ? left : kCopyUnitBytes;
    for (uint64_t i = first + threadIdx.x; i < first + bytes; i += kThreads) {
      const uint32_t shift = 8 * static_cast<uint32_t>(i % fill.pattern_bytes);
      fill.target[i] = static_cast<uint8_t>(fill.pattern >> shift);
    }
  }
}

}  // namespace

cudaError_t load_copy_kernels() {
  cudaFuncAttributes unused{};
  const cudaError_t bad = cudaFuncGetAttributes(&unused, copy_kernel);
  return bad != cudaSuccess ? bad : cudaFuncGetAttributes(&unused, fill_kernel);
}

cudaError_t launch_copy(cudaStream_t stream,
                        const CopyRows* segments,
                        uint32_t count,
                        uint64_t units,
                        const Cancel& cancel) {
  const uint64_t each = kBlocksMax / count + 1;  // enough blocks altogether
  const dim3 grid(static_cast<uint32_t>(units < each ? units : each), count);
  HeldCopy call;
  call.segments = segments;
  if (count <= kHeldSegments) {
    std::memcpy(call.held, segments, sizeof(CopyRows) * count);
  }
  copy_kernel<<<grid, kThreads, 0, stream>>>(call, cancel);
  return cudaGetLastError();
}

cudaError_t launch_fill(cudaStream_t stream,
                        const FillBody& fill,
                        const Cancel& cancel) {
  const uint64_t units = units_of(fill.bytes, 1);
  const auto blocks = static_cast<uint32_t>(units < kBlocksMax ? units : kBlocksMax);
  fill_kernel<<<blocks, kThreads, 0, stream>>>(fill, cancel);
  return cudaGetLastError();
}

}  // namespace kvspan::cuda
