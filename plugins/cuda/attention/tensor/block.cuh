// SPDX-License-Identifier: Apache-2.0
// What a block of the tensor-core kernel is made of. Three kinds of warps work on granules of 64
// tokens, each on the next one while the others are still behind:
//   4 loading warps       bring rows of K and V into slots of shared memory (load.cuh)
//   8 scoring warps       K times Q, the running maximum, weights P (scores.cuh)
//   8 summing warps       u = u * kept + V times P, folding, outputs (values.cuh)
// A scoring warp takes 16 tokens and one half of the head size, a summing warp an eighth of the
// head size. Which numbers are added in which order depends on tokens and elements only: not on the
// number of pairs, on cuts or on slots. Device code only.
#pragma once

#include "attention/fold.cuh"
#include "attention/kernel.hpp"
#include "attention/tensor/ptx.cuh"
#include "attention/tensor/sides.cuh"

#include <cstdint>

namespace kvspan::cuda::tensor {

inline constexpr uint32_t kRoleWarps = 8;  // as many as kVWarps
inline constexpr uint32_t kRoleThreads = 32 * kRoleWarps;
inline constexpr uint32_t kLoadWarps = 4;
inline constexpr uint32_t kLoadThreads = 32 * kLoadWarps;
inline constexpr uint32_t kThreads = 2 * kRoleThreads + kLoadThreads;
// Registers of a thread of each role: together no more than the block was started with, which is
// 96 a thread: the pool that setmaxnreg draws from.
inline constexpr uint32_t kLoaderRegisters = 56;
inline constexpr uint32_t kScorerRegisters = 80;
inline constexpr uint32_t kSummerRegisters = 128;
static_assert(kLoadThreads * kLoaderRegisters + kRoleThreads * (kScorerRegisters + kSummerRegisters) <=
              96 * kThreads);
inline constexpr uint32_t kTokenTiles = kTokens / 16;
inline constexpr uint32_t kSlotsMax = 8;
inline constexpr uint32_t kWeightSlots = 2;

// Named barriers; those of pairs of scoring warps are kPairBarrier + token tile.
inline constexpr uint32_t kScoreBarrier = 1;
inline constexpr uint32_t kValueBarrier = 2;
inline constexpr uint32_t kPairBarrier = 3;  // to 6
inline constexpr uint32_t kQueryBarrier = 7;

// Weights are kept times 2^15, so that those far below the largest stay normal in f16. Powers of
// two change no other bit; l and u carry the factor too and lose it when they leave.
inline constexpr float kWeightExponent = 15.0f;
inline constexpr float kWeightScale = 32768.0f;

inline constexpr float kLog2E = 1.4426950408889634f;

// Numbers of each pair of the tile.
template <uint32_t kPairs>
struct PairsOf {
  uint64_t window_begin[kPairs];
  uint64_t visible_end[kPairs];
  uint64_t suffix_mask[kPairs];
  int64_t position[kPairs];
  uint64_t row[kPairs];
  uint32_t head[kPairs];  // query head
  float slope[kPairs];
  float q_scale[kPairs];  // of a product with the normalised query, to natural units
  // Of quantised K: what the sums of each block of 32 elements begin with, see k_operand.cuh.
  alignas(16) float q_bias[kHeadSizeMax / 32][kPairs];
};

// What the scoring warps tell the summing ones of a granule, beside the weights.
template <uint32_t kPairs>
struct Weighed {
  uint64_t bits[kPairs];  // tokens that the pair sees; only where not all pairs see all
  alignas(16) float kept[kPairs];  // what the old l and u are multiplied with
  float m[kPairs];     // afterwards
};

template <uint32_t kPairs>
struct Kept {
  EntryView entry;
  AdvanceWork item;
  SpanView spans[kLoadWarps];  // the one that a loading warp found last
  PairsOf<kPairs> pairs;
  Weighed<kPairs> weighed[kWeightSlots];
  // Of a granule, a token tile each; the next granule's while a slow warp still reads this one's.
  alignas(16) float tops[2][kPairs][kTokenTiles];
  Fold fold[kPairs];
  Finish finish[kPairs];
  uint64_t seen_begin;  // tokens that some pair may see
  uint64_t seen_end;
  uint64_t open_begin;  // tokens that every pair sees
  uint64_t open_end;
  uint32_t kv_head;
  uint32_t count;  // pairs
  uint64_t v_wanted[kSlotsMax];
  uint32_t k_skew[kSlotsMax];  // bytes between a row's place in its slot and the row
  uint32_t v_skew[kSlotsMax];
  uint64_t k_full[kSlotsMax];
  uint64_t k_empty[kSlotsMax];
  uint64_t v_full[kSlotsMax];
  uint64_t v_empty[kSlotsMax];
  uint64_t p_full[kWeightSlots];
  uint64_t p_empty[kWeightSlots];
};

constexpr uint32_t round128(uint32_t bytes) {
  return (bytes + 127) / 128 * 128;
}

// Places in dynamic shared memory, bytes.
template <class K, class V, uint32_t kTiles>
struct Layout {
  static constexpr uint32_t pairs = 8 * kTiles;
  // Queries that do not fit 16 bits are two numbers; large tiles have room for one.
  static constexpr uint32_t q_parts = kTiles <= 6 ? 2 : 1;
  // 64 bytes more: reads of 16 bytes by eight threads, two rows of four, meet no bank twice.
  static constexpr uint32_t q_stride = 2 * K::size_max + 64;
  static constexpr uint32_t q_bytes = q_parts * pairs * q_stride;
  static constexpr uint32_t p_stride = 2 * (pairs + (kTiles % 2 == 0 ? 8 : 0));
  static constexpr uint32_t p_bytes = kTokens * p_stride;
  // Where only the lower half finishes scores, the upper one is a granule ahead of it.
  static constexpr uint32_t finishers = kTiles == 1 ? kRoleWarps / 2 : kRoleWarps;  // warps
  static constexpr uint32_t exchanges = kTiles == 1 ? 2 : 1;
  static constexpr uint32_t exchange_bytes = exchanges * kTiles * kTokenTiles * 32 * 16;

  static constexpr uint32_t kept_at = 0;
  static constexpr uint32_t q_at = round128(sizeof(Kept<pairs>));
  static constexpr uint32_t p_at = q_at + round128(q_bytes);
  static constexpr uint32_t exchange_at = p_at + kWeightSlots * round128(p_bytes);
  static constexpr uint32_t k_made_at = exchange_at + round128(exchange_bytes);
  static constexpr uint32_t v_made_at = k_made_at + round128(2 * K::made_bytes);
  static constexpr uint32_t slots_at = v_made_at + round128(V::made_bytes);
  static constexpr uint32_t limit = 232448;  // bytes a block may have on 9.0

  static constexpr uint32_t slots_fit =
      (limit - slots_at) / (round128(K::slot_bytes) + round128(V::slot_bytes));
  static constexpr uint32_t slots = slots_fit < kSlotsMax ? slots_fit : kSlotsMax;
  static_assert(slots >= 1);
  static constexpr uint32_t k_slot_bytes = round128(K::slot_bytes);
  static constexpr uint32_t v_slot_bytes = round128(V::slot_bytes);
  static constexpr uint32_t v_slots_at = slots_at + slots * k_slot_bytes;
  static constexpr uint32_t bytes = v_slots_at + slots * v_slot_bytes;
};

// A block's shared memory and its call.
template <class K, class V, uint32_t kTiles>
struct Block {
  using Places = Layout<K, V, kTiles>;
  static constexpr uint32_t pairs = Places::pairs;

  const HeldCall& call;
  const Problem& problem;
  uint8_t* shared;

  __device__ Kept<pairs>& kept() const { return *reinterpret_cast<Kept<pairs>*>(shared); }

  __device__ uint8_t* q() const { return shared + Places::q_at; }

  __device__ uint8_t* p(uint32_t slot) const {
    return shared + Places::p_at + slot * round128(Places::p_bytes);
  }

  __device__ float4* exchange() const {
    return reinterpret_cast<float4*>(shared + Places::exchange_at);
  }

  __device__ uint8_t* k_made() const { return shared + Places::k_made_at; }

  __device__ uint8_t* v_made() const { return shared + Places::v_made_at; }

  __device__ uint8_t* k_slot(uint32_t slot) const {
    return shared + Places::slots_at + slot * Places::k_slot_bytes;
  }

  __device__ uint8_t* v_slot(uint32_t slot) const {
    return shared + Places::v_slots_at + slot * Places::v_slot_bytes;
  }

  __device__ uint32_t q_parts() const {
    return Places::q_parts == 2 && kept().entry.q.type == KVSPAN_TYPE_F32 ? 2 : 1;
  }

  // Bit t: the pair sees token first + t of the tokens up to `stop`. kvspan_ref_sees, 64 at a time.
  __device__ uint64_t visible_bits(uint32_t pair, uint64_t first, uint64_t stop) const {
    const PairsOf<pairs>& all = kept().pairs;
    if (pair >= kept().count) {
      return 0;
    }
    const uint64_t begin = all.window_begin[pair] > first ? all.window_begin[pair] : first;
    const uint64_t end = all.visible_end[pair] < stop ? all.visible_end[pair] : stop;
    if (begin >= end || begin - first >= kTokens) {
      return 0;
    }
    const uint64_t below_end = end - first >= kTokens ? ~0ull : (1ull << (end - first)) - 1;
    const uint64_t range = below_end & (~0ull << (begin - first));
    const uint32_t suffix = kept().entry.suffix_count;
    if (suffix == 0) {
      return range;
    }
    const uint64_t suffix_begin = kept().entry.token_total - suffix;
    const uint64_t mask = all.suffix_mask[pair];
    if (first >= suffix_begin) {
      return first - suffix_begin < 64 ? range & mask >> (first - suffix_begin) : 0;
    }
    const uint64_t before = suffix_begin - first;  // tokens of the granule that no mask hides
    return before >= kTokens ? range : range & (((1ull << before) - 1) | mask << before);
  }
};

// 8-byte words of a struct in host memory, a lane each, so that all come in one trip.
template <class T>
__device__ void copy_struct(T* to, const T* from) {
  static_assert(sizeof(T) % 8 == 0 && sizeof(T) / 8 <= 32);
  const uint32_t lane = threadIdx.x % 32;
  if (lane < sizeof(T) / 8) {
    reinterpret_cast<uint64_t*>(to)[lane] = reinterpret_cast<const uint64_t*>(from)[lane];
  }
  __syncwarp();
}

// A ring of slots as one role sees it.
struct Ring {
  uint32_t slot = 0;
  uint32_t parity = 0;

  __device__ void next(uint32_t slots) {
    if (++slot == slots) {
      slot = 0;
      parity ^= 1;
    }
  }
};

// Granules that are walked one after another from one state: of a split, or of an item's part of it.
struct Stretch {
  uint64_t first;  // token
  uint64_t stop;   // behind the last token
  uint32_t granules;
  uint32_t open_begin;  // granules [open_begin, open_end): every pair sees all of their tokens
  uint32_t open_end;

  __device__ bool is_open(uint32_t granule) const {
    return granule >= open_begin && granule < open_end;
  }

  __device__ uint64_t token(uint32_t granule) const { return first + uint64_t{kTokens} * granule; }
};

template <uint32_t kPairs>
__device__ Stretch stretch_of(const Kept<kPairs>& kept, uint64_t first, uint64_t stop) {
  const uint64_t closed = kept.open_begin > first ? kept.open_begin - first : 0;
  const uint64_t end = kept.open_end < stop ? kept.open_end : stop;
  return {first,
          stop,
          static_cast<uint32_t>((stop - first + kTokens - 1) / kTokens),
          static_cast<uint32_t>((closed + kTokens - 1) / kTokens),
          end > first ? static_cast<uint32_t>((end - first) / kTokens) : 0};
}

// Calls visit(stretch) for all that the item walks, by ascending token; all roles see the same.
template <uint32_t kPairs, class Visit>
__device__ void for_each_stretch(const Kept<kPairs>& kept, Visit&& visit) {
  const AdvanceWork& item = kept.item;
  const bool whole = item.walk == Walk::splits;
  const uint64_t each = whole ? kept.entry.split_tokens : item.end - item.first;
  const uint64_t last = item.end < kept.seen_end ? item.end : kept.seen_end;
  const uint64_t seen = kept.seen_begin / kTokens * kTokens;
  uint64_t split = whole && kept.seen_begin < last ? kept.seen_begin / each * each : item.first;
  while (split < last) {
    const uint64_t end = last - split < each ? last : split + each;
    const uint64_t begin = split > seen ? split : seen;
    if (begin < end) {
      visit(stretch_of(kept, begin, end));
    }
    split = end;
  }
}

}  // namespace kvspan::cuda::tensor
