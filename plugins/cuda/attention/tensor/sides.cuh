// SPDX-License-Identifier: Apache-2.0
// How the K and the V side of an instance lie in shared memory and become operands of the tensor
// cores. A side is a type that says: its rows' bytes, the stride of its slots, whether its elements
// are bf16. Read next: k_operand.cuh, v_operand.cuh. Device code only.
#pragma once

#include "kvspan/types.h"

#include "attention/kernel.hpp"
#include "typed_block.cuh"

#include <cstdint>

namespace kvspan::cuda::tensor {

inline constexpr uint32_t kTokens = kTensorGranuleTokens;

constexpr uint32_t round16(uint32_t bytes) {
  return (bytes + 15) / 16 * 16;
}

constexpr uint32_t bytes_of_row(kvspan_type_t type, uint32_t elements) {
  const BlockShape shape = block_shape(type);
  return elements / shape.elements * shape.bytes;
}

constexpr bool is_half(kvspan_type_t type) {
  return type == KVSPAN_TYPE_F16 || type == KVSPAN_TYPE_BF16;
}

// Whether rows lie in a slot as they come.
constexpr bool lies_dense(kvspan_type_t type) {
  return !is_half(type);
}

// Bytes between the rows of a slot. Rows of 16-bit elements are padded by 16 bytes, so that eight
// rows read side by side meet no bank twice. Quantised ones lie as they come, for one bulk copy.
constexpr uint32_t slot_stride(kvspan_type_t type, uint32_t elements) {
  const uint32_t row = bytes_of_row(type, elements);
  return lies_dense(type) ? row : row + 16;
}

// Bytes between rows of f16 that a warp made of quantised ones.
constexpr uint32_t made_stride(uint32_t elements) {
  return 2 * elements + 16;
}

// A type and head size known when this was compiled, for cards whose blocks have `kShared` bytes.
template <kvspan_type_t kType, uint32_t kElements, uint32_t kShared = kShared227KiB>
struct Fixed {
  static constexpr uint32_t shared_max = kShared;
  static constexpr bool is_bf16 = kType == KVSPAN_TYPE_BF16;
  static constexpr uint32_t size_max = kElements;
  static constexpr uint32_t slot_bytes = kTokens * slot_stride(kType, kElements);
  static constexpr uint32_t made_bytes = 0;
  static constexpr uint32_t units = round16(bytes_of_row(kType, kElements)) / 16;  // of a row
  // Quantised rows become operands in registers: see dim_of.
  static constexpr bool is_packed = !is_half(kType);

  static constexpr kvspan_type_t type(kvspan_type_t) { return kType; }

  static constexpr uint32_t elements(uint32_t) { return kElements; }

  static constexpr uint32_t stride(kvspan_type_t, uint32_t) {
    return slot_stride(kType, kElements);
  }
};

// Any quantised type or 16-bit float of the named kind, any head size: rows that are not of 16-bit
// elements are made so in shared memory first.
template <bool kBf16>
struct Loaded {
  static constexpr uint32_t shared_max = kShared227KiB;  // with less there is no room for one slot
  static constexpr bool is_bf16 = kBf16;
  static constexpr uint32_t size_max = kHeadSizeMax;
  static constexpr uint32_t slot_bytes = kTokens * slot_stride(KVSPAN_TYPE_F16, kHeadSizeMax);
  static constexpr uint32_t made_bytes = kBf16 ? 0 : kTokens * made_stride(kHeadSizeMax);
  static constexpr uint32_t units = 0;  // not known
  static constexpr bool is_packed = false;

  __device__ static kvspan_type_t type(kvspan_type_t given) { return given; }

  __device__ static uint32_t elements(uint32_t given) { return given; }

  __device__ static uint32_t stride(kvspan_type_t type, uint32_t elements) {
    return slot_stride(type, elements);
  }
};

// ---- numbers of quantised blocks as f16: exact, then one product with the scale ----

// Scales of V above this could leave f16 with the largest weight; NaN and infinity too.
inline constexpr uint16_t kLargestScaleBits = 0x4BFF;  // 15.99

// Bit 0: the first of two f16 scales is such a one; bit 1: the second.
__device__ inline uint32_t odd_scales(uint32_t scales) {
  const uint32_t magnitudes = scales & 0x7FFF7FFFu;
  return ((magnitudes & 0xFFFFu) > kLargestScaleBits ? 1u : 0u) |
         ((magnitudes >> 16) > kLargestScaleBits ? 2u : 0u);
}

// A value as an operand: what f16 does not reach saturates, NaN and infinity stay.
__device__ inline float saturated(float value) {
  const float most = 65504.0f;
  return value > most && value != INFINITY     ? most
         : value < -most && value != -INFINITY ? -most
                                               : value;
}

// Element `element` of a typed row.
__device__ inline float element_at(kvspan_type_t type, const uint8_t* row, uint32_t element) {
  const uint32_t chunk = element / 32;
  const uint32_t lane = element % 32;
  switch (type) {
    case KVSPAN_TYPE_F16:
      return element_of<KVSPAN_TYPE_F16>(row, chunk, lane);
    case KVSPAN_TYPE_BF16:
      return element_of<KVSPAN_TYPE_BF16>(row, chunk, lane);
    case KVSPAN_TYPE_Q8_0:
      return element_of<KVSPAN_TYPE_Q8_0>(row, chunk, lane);
    case KVSPAN_TYPE_Q5_1:
      return element_of<KVSPAN_TYPE_Q5_1>(row, chunk, lane);
    case KVSPAN_TYPE_Q5_0:
      return element_of<KVSPAN_TYPE_Q5_0>(row, chunk, lane);
    case KVSPAN_TYPE_Q4_1:
      return element_of<KVSPAN_TYPE_Q4_1>(row, chunk, lane);
    default:
      return element_of<KVSPAN_TYPE_Q4_0>(row, chunk, lane);
  }
}

}  // namespace kvspan::cuda::tensor
