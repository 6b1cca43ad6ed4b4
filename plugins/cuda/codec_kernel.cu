// SPDX-License-Identifier: Apache-2.0
// Rows of the engine to typed rows and back, a chunk of 32 elements a thread. Read first:
// codec.hpp, typed_block.cuh.
#include "cancel.cuh"
#include "codec.hpp"
#include "plane.cuh"
#include "typed_block.cuh"

namespace kvspan::cuda {
namespace {

constexpr uint32_t kThreads = 128;
constexpr uint64_t kBlocksMax = 4096;

// The last item that begins at or before `chunk`.
const __device__ CodecRows& item_of(const CodecBody& body, uint64_t chunk) {
  uint32_t low = 0;
  uint32_t high = body.count;
  while (high - low > 1) {
    const uint32_t middle = low + (high - low) / 2;
    if (body.items[middle].first_chunk <= chunk) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return body.items[low];
}

struct Chunk {
  uint8_t* untyped;
  uint8_t* typed;
  uint32_t elements;
};

__device__ Chunk chunk_of(const CodecRows& item, uint64_t chunk) {
  const uint64_t each = chunks_of(item.head_size);
  const uint64_t index = chunk - item.first_chunk;
  const auto part = static_cast<uint32_t>(index % each);
  const auto head = static_cast<uint32_t>(index / each % item.head_count);
  const uint64_t row = index / each / item.head_count;
  const uint32_t first = part * kChunkElements;
  const uint32_t left = item.head_size - first;
  const BlockShape shape = block_shape(item.type);
  const uint32_t row_element_bytes = item.rows.type == KVSPAN_TYPE_F32 ? 4 : 2;
  return {row_of(item.rows, row, head) + uint64_t{first} * row_element_bytes,
          row_of(item.plane, item.first_token + row, head) +
              uint64_t{first / shape.elements} * shape.bytes,
          left < kChunkElements ? left : kChunkElements};
}

__device__ void encode_chunk(const CodecRows& item, const Chunk& chunk) {
  const uint32_t from_bytes = item.rows.type == KVSPAN_TYPE_F32 ? 4 : 2;
  const BlockShape shape = block_shape(item.type);
  if (shape.elements == 1) {
    for (uint32_t i = 0; i < chunk.elements; ++i) {
      const float value = load_element(item.rows.type, chunk.untyped + i * from_bytes);
      store_element(item.type, value, chunk.typed + i * shape.bytes);
    }
    return;
  }
  float x[kBlockElements];
  for (uint32_t i = 0; i < kBlockElements; ++i) {
    x[i] = load_element(item.rows.type, chunk.untyped + i * from_bytes);
  }
  encode_block(item.type, x, chunk.typed);
}

__device__ void decode_chunk(const CodecRows& item, const Chunk& chunk) {
  const uint32_t to_bytes = item.rows.type == KVSPAN_TYPE_F32 ? 4 : 2;
  const BlockShape shape = block_shape(item.type);
  for (uint32_t i = 0; i < chunk.elements; ++i) {
    const float value = shape.elements == 1 ? load_element(item.type, chunk.typed + i * shape.bytes)
                                            : decode_element_bits(item.type, chunk.typed, i);
    store_element(item.rows.type, value, chunk.untyped + i * to_bytes);
  }
}

template <bool kEncode>
__global__ void codec_kernel(CodecBody body, Cancel cancel) {
  if (block_is_cancelled(cancel, blockIdx.x)) {
    return;
  }
  const uint64_t step = uint64_t{gridDim.x} * kThreads;
  for (uint64_t at = uint64_t{blockIdx.x} * kThreads + threadIdx.x; at < body.chunks; at += step) {
    const CodecRows& item = item_of(body, at);
    const Chunk chunk = chunk_of(item, at);
    if constexpr (kEncode) {
      encode_chunk(item, chunk);
    } else {
      decode_chunk(item, chunk);
    }
  }
}

uint32_t blocks_of(const CodecBody& body) {
  const uint64_t blocks = (body.chunks + kThreads - 1) / kThreads;
  return static_cast<uint32_t>(blocks < kBlocksMax ? blocks : kBlocksMax);
}

}  // namespace

cudaError_t load_codec_kernels() {
  cudaFuncAttributes unused{};
  const cudaError_t bad = cudaFuncGetAttributes(&unused, codec_kernel<true>);
  return bad != cudaSuccess ? bad : cudaFuncGetAttributes(&unused, codec_kernel<false>);
}

cudaError_t launch_encode(cudaStream_t stream,
                          const CodecBody& body,
                          const Cancel& cancel) {
  codec_kernel<true><<<blocks_of(body), kThreads, 0, stream>>>(body, cancel);
  return cudaGetLastError();
}

cudaError_t launch_decode(cudaStream_t stream,
                          const CodecBody& body,
                          const Cancel& cancel) {
  codec_kernel<false><<<blocks_of(body), kThreads, 0, stream>>>(body, cancel);
  return cudaGetLastError();
}

}  // namespace kvspan::cuda
