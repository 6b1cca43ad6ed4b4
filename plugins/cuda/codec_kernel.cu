// SPDX-License-Identifier: Apache-2.0
// Rows of the engine to typed rows and back, a chunk of 32 elements a thread. Read first:
// codec.hpp, typed_block.cuh.
#include "cancel.cuh"
#include "codec.hpp"
#include "divide.cuh"
#include "plane.cuh"
#include "typed_block.cuh"

#include <cstring>

namespace kvspan::cuda {
namespace {

constexpr uint32_t kThreads = 128;
constexpr uint64_t kBlocksMax = 4096;

// The last of `count` items that begins at or before `chunk`.
__device__ uint32_t item_of(const CodecRows* items, uint32_t count, uint64_t chunk) {
  uint32_t low = 0;
  uint32_t high = count;
  while (high - low > 1) {
    const uint32_t middle = low + (high - low) / 2;
    if (items[middle].first_chunk <= chunk) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

struct Chunk {
  uint8_t* untyped;
  uint8_t* typed;
  uint32_t elements;
};

__device__ Chunk chunk_of(const CodecRows& item, uint64_t chunk) {
  const uint64_t each = chunks_of(item.head_size);
  const uint64_t index = chunk - item.first_chunk;
  const uint64_t of_head = divided(index, each);  // head and row
  const auto part = static_cast<uint32_t>(index - of_head * each);
  const uint64_t row = divided(of_head, item.head_count);
  const auto head = static_cast<uint32_t>(of_head - row * item.head_count);
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

template <bool kEncode, uint32_t kItems>
__global__ void codec_kernel(const __grid_constant__ HeldCodec<kItems> call, Cancel cancel) {
  if (short_block_is_cancelled(cancel)) {
    return;
  }
  const CodecBody& body = call.body;
  const CodecRows* const items = body.items == nullptr ? call.held : body.items;
  const uint64_t step = uint64_t{gridDim.x} * kThreads;
  for (uint64_t at = uint64_t{blockIdx.x} * kThreads + threadIdx.x; at < body.chunks; at += step) {
    const CodecRows& item = items[item_of(items, body.count, at)];
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

template <bool kEncode, uint32_t kItems>
cudaError_t launch_held(cudaStream_t stream, const CodecBody& body, const Cancel& cancel, bool hold) {
  HeldCodec<kItems> call;
  call.body = body;
  if (hold && body.count <= kItems) {
    std::memcpy(call.held, body.items, sizeof(CodecRows) * body.count);
    call.body.items = nullptr;
  }
  codec_kernel<kEncode, kItems><<<blocks_of(body), kThreads, 0, stream>>>(call, cancel);
  return cudaGetLastError();
}

template <bool kEncode>
cudaError_t launch(cudaStream_t stream, const CodecBody& body, const Cancel& cancel, bool hold) {
  return body.count <= kFewCodecItems
             ? launch_held<kEncode, kFewCodecItems>(stream, body, cancel, hold)
             : launch_held<kEncode, kHeldCodecItems>(stream, body, cancel, hold);
}

template <bool kEncode>
cudaError_t load() {
  cudaFuncAttributes unused{};
  const cudaError_t bad = cudaFuncGetAttributes(&unused, codec_kernel<kEncode, kFewCodecItems>);
  return bad != cudaSuccess
             ? bad
             : cudaFuncGetAttributes(&unused, codec_kernel<kEncode, kHeldCodecItems>);
}

}  // namespace

cudaError_t load_codec_kernels() {
  const cudaError_t bad = load<true>();
  return bad != cudaSuccess ? bad : load<false>();
}

cudaError_t launch_encode(cudaStream_t stream,
                          const CodecBody& body,
                          const Cancel& cancel,
                          bool hold) {
  return launch<true>(stream, body, cancel, hold);
}

cudaError_t launch_decode(cudaStream_t stream,
                          const CodecBody& body,
                          const Cancel& cancel,
                          bool hold) {
  return launch<false>(stream, body, cancel, hold);
}

}  // namespace kvspan::cuda
