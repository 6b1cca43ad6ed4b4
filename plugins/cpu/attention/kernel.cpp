// SPDX-License-Identifier: Apache-2.0
// The attention kernel, compiled once per instruction set by Highway: a granule at a time, tokens
// ascending, all pairs of a tile on one dequantised copy of K and V.
// Read first: kernel.hpp. The parts: load_inl.hpp, product_inl.hpp, softmax_inl.hpp.
//
// Why cuts do not show: after a granule {m, l, u} is complete, and a granule's own numbers are sums
// over its tokens in ascending order that start from 0 and meet the state in one MulAdd.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "attention/kernel.cpp"
#include <hwy/foreach_target.h>
// Highway wants foreach_target first.
#include "attention/kernel.hpp"
#include "attention/load_inl.hpp"
#include "attention/product_inl.hpp"
#include "attention/softmax_inl.hpp"

#include <hwy/highway.h>

#include <cmath>

HWY_BEFORE_NAMESPACE();

namespace kvspan::cpu::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

void load_queries(const PairTile& tile, Scratch& scratch) {
  const Problem& problem = *tile.problem;
  const RowsView& rows = tile.entry->q;
  const size_t stride = padded(problem.head_size_k);
  for (uint32_t p = 0; p < tile.pair_count; ++p) {
    const uint64_t pair = tile.first_pair + p;
    scratch.row[p] = static_cast<uint32_t>(pair / problem.group);
    scratch.q_head[p] = tile.kv_head * problem.group + static_cast<uint32_t>(pair % problem.group);
    const uint8_t* const source =
        rows.base + scratch.row[p] * rows.row_stride + scratch.q_head[p] * rows.head_stride;
    load_row(rows.type, source, problem.head_size_k, scratch.q + p * stride);
  }
}

// Tokens [g, g + 32) that a row sees, as bits.
uint32_t visible_bits(const EntryView& entry, uint64_t row, uint64_t g) {
  const uint64_t begin = entry.window_begin != nullptr ? entry.window_begin[row] : 0;
  const uint64_t end = entry.visible_end[row];
  if (end <= g || begin >= g + kGranuleTokens || begin >= end) {
    return 0;
  }
  uint64_t bits = UINT32_MAX;
  if (begin > g) {
    bits = bits >> (begin - g) << (begin - g);
  }
  if (end < g + kGranuleTokens) {
    bits &= (uint64_t{1} << (end - g)) - 1;
  }
  if (entry.suffix_mask != nullptr && g + kGranuleTokens + entry.suffix_count > entry.token_total) {
    const uint64_t mask = entry.suffix_mask[row];
    const uint64_t from = g + entry.suffix_count;  // bit index + token_total of token g
    if (from >= entry.token_total) {
      const uint64_t shift = from - entry.token_total;
      bits &= shift < 64 ? mask >> shift : 0;
    } else {
      const uint64_t before = entry.token_total - from;  // tokens of the granule before the suffix
      bits &= (mask << before) | ((uint64_t{1} << before) - 1);
    }
  }
  return static_cast<uint32_t>(bits);
}

// Fills scratch.visible for granule g, tokens before `end` only. Returns what some pair sees.
uint32_t look(const PairTile& tile, uint64_t g, uint64_t end, Scratch& scratch) {
  const uint32_t in_range =
      end - g >= kGranuleTokens ? UINT32_MAX : (1u << static_cast<uint32_t>(end - g)) - 1u;
  uint32_t any = 0;
  uint64_t last_row = UINT64_MAX;
  uint32_t bits = 0;
  for (uint32_t p = 0; p < tile.pair_count; ++p) {
    if (scratch.row[p] != last_row) {
      last_row = scratch.row[p];
      bits = visible_bits(*tile.entry, last_row, g) & in_range;
    }
    scratch.visible[p] = bits;
    any |= bits;
  }
  return any;
}

// The span that holds `token`, at or after `index`. The caller's spans hold every visible token.
uint32_t span_of(const EntryView& entry, uint64_t token, uint32_t index) {
  while (index + 1 < entry.span_count &&
         entry.spans[index].first_token + entry.spans[index].token_count <= token) {
    ++index;
  }
  return index;
}

// First span that ends after `token`.
uint32_t first_span(const EntryView& entry, uint64_t token) {
  uint32_t low = 0;
  uint32_t high = entry.span_count;
  while (low < high) {
    const uint32_t middle = low + (high - low) / 2;
    if (entry.spans[middle].first_token + entry.spans[middle].token_count <= token) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

// Zeroes rows [from, to) of a tile, so that no stale byte is ever multiplied, not even by nothing.
void clear_rows(float* rows, uint32_t elements, uint32_t from, uint32_t to) {
  const size_t stride = padded(elements);
  for (size_t i = from * stride; i < to * stride; ++i) {
    rows[i] = 0.0f;
  }
}

// K columns and V rows of tokens `any` of granule g. Returns V's rows.
Left load_granule(
    const PairTile& tile, uint64_t g, uint32_t any, const SpanView& span, Scratch& scratch) {
  const Problem& problem = *tile.problem;
  const uint32_t low = static_cast<uint32_t>(__builtin_ctz(any));
  const uint32_t high = 32u - static_cast<uint32_t>(__builtin_clz(any));
  const uint64_t first = g + low - span.first_token;
  const auto load = [&](const PlaneView& plane, kvspan_type_t type, uint32_t size, float* rows) {
    clear_rows(rows, size, 0, low);
    load_rows(
        type, RowRun{&plane, first, high - low, tile.kv_head, size}, rows + low * padded(size));
    clear_rows(rows, size, high, kGranuleTokens);
  };
  load(span.k, problem.k_type, problem.head_size_k, scratch.k_rows);
  transpose(scratch.k_rows, problem.head_size_k, scratch.k_columns);
  if (problem.v_in_k != 0) {
    return Left{scratch.k_rows, padded(problem.head_size_k)};
  }
  load(span.v, problem.v_type, problem.head_size_v, scratch.v_rows);
  return Left{scratch.v_rows, padded(problem.head_size_v)};
}

// Distances of ALiBi for one row and granule.
void fill_distances(const EntryView& entry, uint64_t row, uint64_t g, float* distances) {
  const int64_t position = entry.positions != nullptr
                               ? entry.positions[row]
                               : static_cast<int64_t>(entry.visible_end[row]) - 1;
  const int64_t from = static_cast<int64_t>(g) - position;
  for (int64_t t = 0; t < kGranuleTokens; ++t) {
    distances[t] = static_cast<float>(from + t);
  }
}

// Scores of all pairs become weights; m, kept and sums are filled. A pair that sees nothing keeps m
// and gets kept = 1, sum = 0. A pair that sees only scores of -inf is treated alike: visible
// becomes 0.
void weigh_all(const PairTile& tile, uint64_t g, Scratch& scratch) {
  const Problem& problem = *tile.problem;
  HWY_ALIGN float distances[kGranuleTokens];
  Scoring scoring{problem.scale, problem.soft_cap, 0.0f, nullptr};
  uint64_t last_row = UINT64_MAX;
  for (uint32_t p = 0; p < tile.pair_count; ++p) {
    scratch.kept[p] = 0.0f;
    scratch.sums[p] = 0.0f;
    if (scratch.visible[p] == 0) {
      continue;
    }
    if (problem.slopes != nullptr) {
      if (scratch.row[p] != last_row) {
        last_row = scratch.row[p];
        fill_distances(*tile.entry, last_row, g, distances);
      }
      scoring.distances = distances;
      scoring.slope = problem.slopes[scratch.q_head[p]];
    }
    const float old_m = scratch.m[p];
    const Granule granule =
        weigh(scoring, scratch.visible[p], old_m, scratch.weights + p * kGranuleTokens);
    if (granule.m == kMinusInfinity) {
      scratch.visible[p] = 0;
      continue;
    }
    scratch.m[p] = granule.m;
    scratch.kept[p] = old_m - granule.m;
    scratch.sums[p] = granule.sum;
  }
  const Floats floats;
  for (uint32_t p = 0; p < tile.pair_count; p += kLanes) {
    const Vector kept = exp_of_negative(hn::Load(floats, scratch.kept + p));
    hn::Store(kept, floats, scratch.kept + p);
    const Vector l = hn::Load(floats, scratch.l + p);
    hn::Store(hn::MulAdd(l, kept, hn::Load(floats, scratch.sums + p)), floats, scratch.l + p);
  }
}

// u of all pairs. Blocks in which all pairs see all tokens go through the fast product.
void add_values(const PairTile& tile, Left values, Scratch& scratch) {
  const size_t stride = padded(tile.problem->head_size_v);
  const auto whole = [&](uint32_t p, size_t count) {
    for (size_t i = 0; i < count; ++i) {
      if (scratch.visible[p + i] != UINT32_MAX) {
        return false;
      }
    }
    return true;
  };
  uint32_t p = 0;
  while (p < tile.pair_count) {
    float* const weights = scratch.weights + p * kGranuleTokens;
    float* const u = scratch.u + p * stride;
    if (p + kBlockPairs <= tile.pair_count && whole(p, kBlockPairs)) {
      value_pairs<kBlockPairs>(weights, values, scratch.kept + p, u, stride);
      p += kBlockPairs;
    } else if (p + 3 <= tile.pair_count && whole(p, 3)) {
      value_pairs<3>(weights, values, scratch.kept + p, u, stride);
      p += 3;
    } else if (whole(p, 1)) {
      value_pairs<1>(weights, values, scratch.kept + p, u, stride);
      p += 1;
    } else {
      if (scratch.visible[p] != 0) {
        value_masked(weights, values, scratch.visible[p], scratch.kept[p], u, stride);
      }
      p += 1;
    }
  }
}

void walk(const PairTile& tile, uint64_t first, uint64_t end, Scratch& scratch) {
  const Problem& problem = *tile.problem;
  const Left q{scratch.q, padded(problem.head_size_k)};
  uint32_t span = first_span(*tile.entry, first);
  for (uint64_t g = first; g < end; g += kGranuleTokens) {
    const uint32_t any = look(tile, g, end, scratch);
    if (any == 0) {
      continue;
    }
    const uint64_t token = g + static_cast<uint64_t>(__builtin_ctz(any));
    span = span_of(*tile.entry, token, span);
    const Left values = load_granule(tile, g, any, tile.entry->spans[span], scratch);
    score(q, tile.pair_count, scratch.k_columns, problem.head_size_k, scratch.weights);
    weigh_all(tile, g, scratch);
    add_values(tile, values, scratch);
  }
}

// out = a * b + c * d over elements that are a multiple of 8.
void blend(float* a, float b, const float* c, float d, uint32_t elements) {
  const hn::CappedTag<float, 8> floats;
  const auto left = hn::Set(floats, b);
  const auto right = hn::Set(floats, d);
  for (uint32_t i = 0; i < elements; i += static_cast<uint32_t>(hn::MaxLanes(floats))) {
    const auto add = hn::Mul(hn::LoadU(floats, c + i), right);
    hn::StoreU(hn::MulAdd(hn::LoadU(floats, a + i), left, add), floats, a + i);
  }
}

void fold(const PairState& accumulator, const PairSource& source, uint32_t head_size_v) {
  if (source.m == kMinusInfinity) {
    return;
  }
  if (*accumulator.m == kMinusInfinity) {
    *accumulator.m = source.m;
    *accumulator.l = source.l;
    std::memcpy(accumulator.u, source.u, 4u * size_t{head_size_v});
    return;
  }
  const float old_m = *accumulator.m;
  const float m = source.m > old_m || source.m != source.m ? source.m : old_m;
  const float ours = exp_of_negative(old_m - m);
  const float theirs = exp_of_negative(source.m - m);
  *accumulator.m = m;
  *accumulator.l = *accumulator.l * ours + source.l * theirs;
  blend(accumulator.u, ours, source.u, theirs, head_size_v);
}

float finish(const PairSource& accumulator,
             const float* sink,
             uint32_t head_size_v,
             kvspan_type_t type,
             uint8_t* out) {
  HWY_ALIGN float row[kHeadSizeMax] = {};
  float lse = kMinusInfinity;
  if (accumulator.m != kMinusInfinity) {
    float m = accumulator.m;
    float l = accumulator.l;
    float factor = 1.0f;
    if (sink != nullptr) {
      m = *sink > m || *sink != *sink ? *sink : m;
      factor = exp_of_negative(accumulator.m - m);
      l = l * factor + exp_of_negative(*sink - m);
    }
    for (uint32_t d = 0; d < head_size_v; ++d) {
      row[d] = accumulator.u[d] * factor / l;
    }
    lse = l == 1.0f ? m : static_cast<float>(double{m} + std::log(double{l}));
  }
  for (uint32_t d = 0; d < head_size_v; ++d) {
    if (type == KVSPAN_TYPE_F32) {
      std::memcpy(out + 4u * d, row + d, 4);
    } else {
      kvspan_ref_store_u16(out + 2u * d,
                           type == KVSPAN_TYPE_F16 ? kvspan_ref_f16_from_f32(row[d])
                                                   : kvspan_ref_bf16_from_f32(row[d]));
    }
  }
  return lse;
}

void load_one_row(kvspan_type_t type, const uint8_t* row, uint32_t elements, float* out) {
  load_row(type, row, elements, out);
}

// Constant: nothing compiled for this instruction set may run when the file is loaded.
constexpr Kernels kKernels{HWY_TARGET, load_one_row, load_queries, walk, fold, finish};

}  // namespace

const Kernels* kernels() {
  return &kKernels;
}

}  // namespace kvspan::cpu::HWY_NAMESPACE

HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace kvspan::cpu {

namespace {

HWY_EXPORT(kernels);

}  // namespace

const Kernels& best_kernels() {
  return *HWY_DYNAMIC_DISPATCH(kernels)();
}

}  // namespace kvspan::cpu

#endif
