// SPDX-License-Identifier: Apache-2.0
// The body of an encode or decode as it waits in its packet. Read next: codec.cpp.
#pragma once

#include "attention/kernel.hpp"
#include "cancel.hpp"
#include "host.hpp"

#include <cstdint>

namespace kvspan::cuda {

// A thread converts one chunk: a block of a quantised type, or as many elements of another.
inline constexpr uint32_t kChunkElements = 32;

struct CodecRows {
  RowsView rows;
  PlaneView plane;
  uint64_t first_token;
  uint64_t first_chunk;  // chunks of the items before
  kvspan_type_t type;    // of the plane
  uint32_t row_count;
  uint32_t head_count;
  uint32_t head_size;
};

struct CodecBody {
  const CodecRows* items;  // [count], none of them without a row
  uint32_t count;
  uint64_t chunks;  // of all items
};

// A body as a kernel gets it. An item that is read from host memory costs each warp several trips
// over the link (256 rows of K and V: 50 us); few travel in the arguments, below 4 KiB of them.
template <uint32_t kItems>
struct HeldCodec {
  CodecBody body;
  CodecRows held[kItems];  // [body.count] where body.items is nullptr
};

inline constexpr uint32_t kFewCodecItems = 4;  // K and V of a step's rows
inline constexpr uint32_t kHeldCodecItems = 24;
static_assert(sizeof(HeldCodec<kHeldCodecItems>) + sizeof(Cancel) <= 4096);

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

constexpr uint64_t chunks_of(uint32_t head_size) {
  return (uint64_t{head_size} + kChunkElements - 1) / kChunkElements;
}

// codec_kernel.cu. Items beyond those held are read by the device. Loading is done once a device is
// open: CUDA loads a kernel at its first launch otherwise, and may wait for all work of the context
// there.
cudaError_t load_codec_kernels();
// `hold`: items may travel in the arguments; false where a graph keeps those, see
// Packet::body_bytes.
cudaError_t launch_encode(cudaStream_t stream,
                          const CodecBody& body,
                          const Cancel& cancel,
                          bool hold);
cudaError_t launch_decode(cudaStream_t stream,
                          const CodecBody& body,
                          const Cancel& cancel,
                          bool hold);

}  // namespace kvspan::cuda
