// SPDX-License-Identifier: Apache-2.0
// One granule of one tile: which tokens each pair sees, K and V dequantised once for all pairs,
// scores, weights, sums. A pair's numbers depend on its own tokens only: the score of a token is
// summed in eight parts by element, the weights of a granule by a tree over 32 lanes, u by
// ascending token. f32 throughout, but for what turns a product into a weight, which is f64: scores
// are large where weights are sharp. Read first: tile.cuh. Device code only.
#pragma once

#include "attention/held.cuh"
#include "attention/tile.cuh"
#include "plane.cuh"
#include "typed_block.cuh"

namespace kvspan::cuda {

// A type as a type, to choose a loader with.
template <kvspan_type_t kType>
struct Typed {
  static constexpr kvspan_type_t value = kType;
};

// Bit t: the pair sees token first + t of the tokens up to `stop`. kvspan_ref_sees, 32 at a time.
__device__ inline uint32_t visible_bits(const Tile& tile,
                                        uint32_t pair,
                                        uint64_t first,
                                        uint64_t stop) {
  const PairNumbers& pairs = tile.pairs;
  const uint64_t begin = pairs.window_begin[pair] > first ? pairs.window_begin[pair] : first;
  const uint64_t end = pairs.visible_end[pair] < stop ? pairs.visible_end[pair] : stop;
  if (begin >= end || begin - first >= kGranuleTokens) {
    return 0;
  }
  const auto skipped = static_cast<uint32_t>(begin - first);
  const uint64_t tokens = end - first;
  const uint32_t below_end = tokens >= kGranuleTokens ? ~0u : (1u << tokens) - 1u;
  const uint32_t range = below_end & (~0u << skipped);
  const uint32_t suffix = tile.entry.suffix_count;
  if (suffix == 0) {
    return range;
  }
  const uint64_t suffix_begin = tile.entry.token_total - suffix;
  const uint64_t mask = pairs.suffix_mask[pair];
  if (first >= suffix_begin) {
    const uint64_t behind = first - suffix_begin;
    return behind < 64 ? range & static_cast<uint32_t>(mask >> behind) : 0;
  }
  const uint64_t before = suffix_begin - first;  // tokens of the granule that no mask hides
  if (before >= kGranuleTokens) {
    return range;
  }
  return range & (((1u << before) - 1u) | static_cast<uint32_t>(mask << before));
}

// The span of `token`: one thread.
__device__ inline void find_span(const Tile& tile, uint64_t token) {
  SpanView& found = tile.rows.span;
  if (token >= found.first_token && token - found.first_token < found.token_count) {
    return;
  }
  uint32_t low = 0;
  uint32_t high = tile.entry.span_count;
  while (low < high) {
    const uint32_t middle = low + (high - low) / 2;
    const SpanView& span = tile.entry.spans[middle];
    if (span.first_token + span.token_count <= token) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  found = tile.entry.spans[low];
  reach_all(tile.call, found);
}

// The bytes of the tokens in `wanted` to shared memory: a warp four tokens at once, so that enough
// loads are in flight. 16 bytes a lane where rows are aligned for it, else 2: no row is aligned for
// less. Others are not touched.
template <class Unit>
__device__ void stage_units(
    const uint8_t* const* rows, uint32_t wanted, uint32_t bytes, uint8_t* stage, uint32_t stride) {
  constexpr uint32_t kTokens = kGranuleTokens / kWalkWarps;
  const uint32_t warp = threadIdx.x / 32;
  for (uint32_t at = threadIdx.x % 32 * sizeof(Unit); at < bytes; at += 32 * sizeof(Unit)) {
    Unit loaded[kTokens];
#pragma unroll
    for (uint32_t i = 0; i < kTokens; ++i) {
      const uint32_t token = warp + i * kWalkWarps;
      if ((wanted >> token & 1u) != 0) {
        loaded[i] = *reinterpret_cast<const Unit*>(rows[token] + at);
      }
    }
#pragma unroll
    for (uint32_t i = 0; i < kTokens; ++i) {
      const uint32_t token = warp + i * kWalkWarps;
      if ((wanted >> token & 1u) != 0) {
        *reinterpret_cast<Unit*>(stage + token * stride + at) = loaded[i];
      }
    }
  }
}

// Staged rows of the tokens in `wanted` to f32: each warp its own four, a lane an element.
template <kvspan_type_t kType>
__device__ void convert_rows(const uint8_t* stage,
                             uint32_t staged,
                             uint32_t wanted,
                             uint32_t elements,
                             float* out,
                             uint32_t stride) {
  const uint32_t lane = threadIdx.x % 32;
  for (uint32_t token = threadIdx.x / 32; token < kGranuleTokens; token += kWalkWarps) {
    if ((wanted >> token & 1u) == 0) {
      continue;
    }
#pragma unroll 4
    for (uint32_t chunk = 0; chunk < elements / 32; ++chunk) {
      out[token * stride + chunk * 32 + lane] =
          element_of<kType>(stage + token * staged, chunk, lane);
    }
    if (lane < elements % 32) {
      const uint32_t chunk = elements / 32;
      out[token * stride + chunk * 32 + lane] =
          element_of<kType>(stage + token * staged, chunk, lane);
    }
  }
}

// Rows of the tokens in `wanted` of one side.
__device__ inline void load_rows(const Tile& tile,
                                 kvspan_type_t type,
                                 const uint8_t* const* rows,
                                 uint32_t wanted,
                                 uint32_t elements,
                                 float* out,
                                 uint32_t stride) {
  const BlockShape shape = block_shape(type);
  const uint32_t bytes = elements / shape.elements * shape.bytes;
  const uint32_t staged = stage_stride(tile.problem);
  uint64_t ends = bytes;  // bits that an address or the size has below a multiple of 16
  for (uint32_t token = threadIdx.x / 32; token < kGranuleTokens; token += kWalkWarps) {
    ends |= (wanted >> token & 1u) != 0 ? reinterpret_cast<uint64_t>(rows[token]) : 0;
  }
  if (ends % 16 == 0) {
    stage_units<uint4>(rows, wanted, bytes, tile.stage, staged);
  } else {
    stage_units<uint16_t>(rows, wanted, bytes, tile.stage, staged);
  }
  __syncwarp();
  const auto convert = [&](auto typed) {
    convert_rows<decltype(typed)::value>(tile.stage, staged, wanted, elements, out, stride);
  };
  switch (type) {
    case KVSPAN_TYPE_F32:
      convert(Typed<KVSPAN_TYPE_F32>());
      break;
    case KVSPAN_TYPE_F16:
      convert(Typed<KVSPAN_TYPE_F16>());
      break;
    case KVSPAN_TYPE_BF16:
      convert(Typed<KVSPAN_TYPE_BF16>());
      break;
    case KVSPAN_TYPE_Q8_0:
      convert(Typed<KVSPAN_TYPE_Q8_0>());
      break;
    case KVSPAN_TYPE_Q5_1:
      convert(Typed<KVSPAN_TYPE_Q5_1>());
      break;
    case KVSPAN_TYPE_Q5_0:
      convert(Typed<KVSPAN_TYPE_Q5_0>());
      break;
    case KVSPAN_TYPE_Q4_1:
      convert(Typed<KVSPAN_TYPE_Q4_1>());
      break;
    default:
      convert(Typed<KVSPAN_TYPE_Q4_0>());
      break;
  }
  __syncwarp();  // the stage is used again
}

__device__ inline float dot(const float* q, const float* k, uint32_t elements) {
  const auto* const left = reinterpret_cast<const float4*>(q);
  const auto* const right = reinterpret_cast<const float4*>(k);
  float sums[8] = {};
  for (uint32_t i = 0; i < elements / 4; i += 2) {
    const float4 a = left[i];
    const float4 b = right[i];
    const float4 c = left[i + 1];
    const float4 d = right[i + 1];
    sums[0] = fmaf(a.x, b.x, sums[0]);
    sums[1] = fmaf(a.y, b.y, sums[1]);
    sums[2] = fmaf(a.z, b.z, sums[2]);
    sums[3] = fmaf(a.w, b.w, sums[3]);
    sums[4] = fmaf(c.x, d.x, sums[4]);
    sums[5] = fmaf(c.y, d.y, sums[5]);
    sums[6] = fmaf(c.z, d.z, sums[6]);
    sums[7] = fmaf(c.w, d.w, sums[7]);
  }
  return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

// The score of `token` in natural units.
__device__ inline double score_of(const Tile& tile, uint32_t pair, uint64_t token, float product) {
  double score = static_cast<double>(tile.problem.scale) * static_cast<double>(product);
  if (tile.problem.soft_cap != 0.0f) {
    const double cap = tile.problem.soft_cap;
    score = cap * tanh(score / cap);
  }
  const float slope = tile.pairs.slope[pair];
  if (slope != 0.0f) {
    const int64_t distance = static_cast<int64_t>(token) - tile.pairs.position[pair];
    score += static_cast<double>(slope) * static_cast<double>(distance);
  }
  return score;
}

// Scores, weights and {m, l} of one pair: a warp, a lane a token. Leaves bits = 0 where the state
// stays as it is.
__device__ inline void weigh(const Tile& tile, uint32_t pair, uint64_t first, uint32_t lane) {
  PairNumbers& pairs = tile.pairs;
  const uint32_t bits = pairs.bits[pair];
  const bool sees = (bits >> lane & 1u) != 0;
  const uint32_t size = tile.problem.head_size_k;
  double score = 0.0;
  float top = -INFINITY;
  if (sees) {
    score = score_of(tile,
                     pair,
                     first + lane,
                     dot(tile.q + pair * size, tile.k + lane * (size + kColumnPad), size));
    top = static_cast<float>(score);
  }
  for (uint32_t step = 16; step > 0; step /= 2) {
    top = larger_or_nan(top, __shfl_xor_sync(~0u, top, step));
  }
  const float before = pairs.m[pair];
  const float m = larger_or_nan(before, top);
  const bool moves = bits != 0 && !is_neutral(m);
  const float weight =
      sees && moves ? expf(static_cast<float>(score - static_cast<double>(m))) : 0.0f;
  tile.weights[pair * kGranuleTokens + lane] = weight;
  double sum = weight;
  for (uint32_t step = 16; step > 0; step /= 2) {
    sum += __shfl_xor_sync(~0u, sum, step);
  }
  __syncwarp();  // every lane has read the pair's numbers
  if (lane != 0) {
    return;
  }
  if (!moves) {
    pairs.bits[pair] = 0;
    return;
  }
  const bool fresh = is_neutral(before);
  const float kept = fresh ? 0.0f : expf(before - m);
  pairs.m[pair] = m;
  pairs.l[pair] = fresh ? static_cast<float>(sum)
                        : static_cast<float>(static_cast<double>(pairs.l[pair]) * kept + sum);
  pairs.kept[pair] = kept;
  pairs.fresh[pair] = fresh ? 1 : 0;
}

// u of all pairs: what a pair does not see may be NaN and is skipped, not multiplied by 0.
__device__ inline void sum_values(const Tile& tile) {
  const PairNumbers& pairs = tile.pairs;
  const uint32_t size = tile.problem.head_size_v;
  for_each_element(tile.count, size, [&](uint32_t pair, uint32_t element) {
    const uint32_t bits = pairs.bits[pair];
    if (bits == 0) {
      return;
    }
    const float* const weights = tile.weights + pair * kGranuleTokens;
    const float* const values = tile.v + element;
    float sum = 0.0f;
    if (bits == ~0u) {  // the usual case, in the same order
#pragma unroll
      for (uint32_t token = 0; token < kGranuleTokens; ++token) {
        sum = fmaf(weights[token], values[token * tile.v_stride], sum);
      }
    } else {
      for (uint32_t token = 0; token < kGranuleTokens; ++token) {
        if ((bits >> token & 1u) != 0) {
          sum = fmaf(weights[token], values[token * tile.v_stride], sum);
        }
      }
    }
    float& u = tile.u[pair * size + element];
    u = pairs.fresh[pair] != 0 ? sum : fmaf(u, pairs.kept[pair], sum);
  });
}

// Tokens [first, min(stop, first + granule)) of all pairs; `first` is on the granule. Only tokens
// that some pair sees are read; all of those are in one span, since every span but the last ends on
// the granule.
__device__ inline void walk_granule(const Tile& tile, uint64_t first, uint64_t stop) {
  const uint32_t thread = threadIdx.x;
  if (thread < tile.count) {
    tile.pairs.bits[thread] = visible_bits(tile, thread, first, stop);
  }
  __syncthreads();
  uint32_t wanted = 0;
  for (uint32_t pair = 0; pair < tile.count; ++pair) {
    wanted |= tile.pairs.bits[pair];
  }
  if (wanted != 0 && thread == 0) {
    find_span(tile, first + static_cast<uint32_t>(__ffs(static_cast<int>(wanted)) - 1));
  }
  __syncthreads();
  if (wanted == 0) {
    return;
  }
  const SpanView& span = tile.rows.span;
  const bool latent = tile.problem.v_in_k != 0;
  if (thread < kGranuleTokens && (wanted >> thread & 1u) != 0) {
    const uint64_t token = first + thread - span.first_token;
    tile.rows.k[thread] = row_of(span.k, token, tile.kv_head);
    tile.rows.v[thread] = latent ? nullptr : row_of(span.v, token, tile.kv_head);
  }
  __syncthreads();
  const Problem& problem = tile.problem;
  load_rows(tile,
            problem.k_type,
            tile.rows.k,
            wanted,
            problem.head_size_k,
            tile.k,
            problem.head_size_k + kColumnPad);
  if (!latent) {
    load_rows(
        tile, problem.v_type, tile.rows.v, wanted, problem.head_size_v, tile.v, tile.v_stride);
  }
  __syncthreads();
  for (uint32_t pair = thread / 32; pair < tile.count; pair += kWalkWarps) {
    weigh(tile, pair, first, thread % 32);
  }
  __syncthreads();
  sum_values(tile);
  __syncthreads();
}

// Tokens [first, end) of all pairs; `first` is on the granule.
__device__ inline void walk(const Tile& tile, uint64_t first, uint64_t end) {
  for (uint64_t at = first; at < end; at += kGranuleTokens) {
    walk_granule(tile, at, end);
  }
}

}  // namespace kvspan::cuda
