// SPDX-License-Identifier: Apache-2.0
// What a block of the tensor-core kernel is made of. Three kinds of warps work on granules of 64
// tokens, each on the next one while the others are still behind:
//   4 loading warps       bring rows of K and V into slots of shared memory (load.cuh)
//   8 or 16 scoring warps K times Q, the running maximum, weights P (scores.cuh)
//   8 summing warps       u = u * kept + V times P, folding, outputs (values.cuh)
// A scoring warp takes 16 tokens; four make a group, and groups take granules in turn. A summing warp
// takes an eighth of the head size. Which numbers are added in which order depends on tokens and
// elements only: not on the number of pairs, on cuts or on slots. Device code only.
#pragma once

#include "attention/fold.cuh"
#include "attention/held.cuh"
#include "attention/kernel.hpp"
#include "attention/tensor/ptx.cuh"
#include "attention/tensor/sides.cuh"

#include <cstdint>

namespace kvspan::cuda::tensor {

inline constexpr uint32_t kSumWarps = 8;  // as many as kVWarps
inline constexpr uint32_t kSumThreads = 32 * kSumWarps;
inline constexpr uint32_t kLoadWarps = 4;
inline constexpr uint32_t kLoadThreads = 32 * kLoadWarps;
inline constexpr uint32_t kTokenTiles = kTokens / 16;  // warps of a group of scoring warps
inline constexpr uint32_t kGroupThreads = 32 * kTokenTiles;
inline constexpr uint32_t kSlotsMax = 8;

// Named barriers; those of pairs of scoring warps are kPairBarrier + token tile.
inline constexpr uint32_t kValueBarrier = 2;
inline constexpr uint32_t kPairBarrier = 3;  // to 6
inline constexpr uint32_t kQueryBarrier = 7;
inline constexpr uint32_t kGroupBarrier = 8;  // to 11, a group of scoring warps each
inline constexpr uint32_t kLoadBarrier = 12;  // and 13: the keys of a granule are there, see load.cuh

// Weights are kept times 2^12, so that those far below the largest stay normal in f16, and so do their
// products with the scales of V's blocks, up to kLargestScaleBits. Powers of two change no other bit;
// l and u carry the factor too and lose it when they leave.
inline constexpr float kWeightExponent = 12.0f;
inline constexpr float kWeightScale = 4096.0f;

inline constexpr float kLog2E = 1.4426950408889634f;

// The weight of a score, and what a sum before is multiplied with, where `from` is the largest score now.
__device__ inline float weight_of(float score, float from) {
  return ptx::exp2_fast(fmaf(__fsub_rn(score, from), kLog2E, kWeightExponent));
}

__device__ inline float kept_of(float before, float from) {
  return ptx::exp2_fast(__fmul_rn(__fsub_rn(before, from), kLog2E));
}

// What each pair of the tile sees.
template <uint32_t kPairs>
struct SightOf {
  uint64_t window_begin[kPairs];
  uint64_t visible_end[kPairs];
  uint64_t suffix_mask[kPairs];
};

// An item of the call that a block has opened, and its tile.
template <uint32_t kPairs>
struct Opened {
  EntryView entry;
  AdvanceWork item;
  SightOf<kPairs> sight;
  uint64_t seen_begin;  // tokens that some pair may see
  uint64_t seen_end;
  uint64_t open_begin;  // tokens that every pair sees
  uint64_t open_end;
  uint64_t first_pair;  // of the entry's pairs of that KV head
  uint32_t kv_head;
  uint32_t count;  // pairs
};

// More numbers of each pair of the tile.
template <uint32_t kPairs>
struct PairsOf {
  int64_t position[kPairs];
  uint64_t row[kPairs];
  uint32_t head[kPairs];  // query head
  float slope[kPairs];
  float q_scale[kPairs];  // of a product with the normalised query, to natural units
};

// Bit t: the pair sees token first + t of the tokens up to `stop`. kvspan_ref_sees, 64 at a time.
template <uint32_t kPairs>
__device__ uint64_t visible_bits(const Opened<kPairs>& opened,
                                 uint32_t pair,
                                 uint64_t first,
                                 uint64_t stop) {
  if (pair >= opened.count) {
    return 0;
  }
  const auto& all = opened.sight;
  const uint64_t begin = all.window_begin[pair] > first ? all.window_begin[pair] : first;
  const uint64_t end = all.visible_end[pair] < stop ? all.visible_end[pair] : stop;
  if (begin >= end || begin - first >= kTokens) {
    return 0;
  }
  const uint64_t below_end = end - first >= kTokens ? ~0ull : (1ull << (end - first)) - 1;
  const uint64_t range = below_end & (~0ull << (begin - first));
  const uint32_t suffix = opened.entry.suffix_count;
  if (suffix == 0) {
    return range;
  }
  const uint64_t suffix_begin = opened.entry.token_total - suffix;
  const uint64_t mask = all.suffix_mask[pair];
  if (first >= suffix_begin) {
    return first - suffix_begin < 64 ? range & mask >> (first - suffix_begin) : 0;
  }
  const uint64_t before = suffix_begin - first;  // tokens of the granule that no mask hides
  return before >= kTokens ? range : range & (((1ull << before) - 1) | mask << before);
}

// What the scoring warps tell the summing ones of a granule, beside the weights.
template <uint32_t kPairs>
struct Weighed {
  uint64_t bits[kPairs];  // tokens that the pair sees
  alignas(16) float kept[kPairs];  // what the old l and u are multiplied with
  float m[kPairs];     // afterwards
};

// Descriptors of a call that are brought to shared memory, where that is all of them.
inline constexpr uint32_t kNearBytes = 1024;

template <uint32_t kPairs, uint32_t kGroups>
struct Kept : Opened<kPairs> {
  static constexpr uint32_t weight_slots = kGroups == 1 ? 2 : kGroups;
  // A group posts maxima while others still read those of so many granules before.
  static constexpr uint32_t top_slots = 4 * kGroups;

  alignas(16) uint8_t near[kNearBytes];
  SpanView spans[kLoadWarps];  // the one that a loading warp found last
  PairsOf<kPairs> pairs;
  // Of quantised K: what the sums of each block of 32 elements begin with, see k_operand.cuh.
  alignas(16) float q_bias[kHeadSizeMax / 32][kPairs];
  Weighed<kPairs> weighed[weight_slots];
  alignas(16) float tops[top_slots][kPairs][kTokenTiles];  // of a granule, a token tile each
  Fold fold[kPairs];
  Finish finish[kPairs];
  uint64_t v_wanted[kSlotsMax];
  uint64_t k_full[kSlotsMax];
  uint64_t k_empty[kSlotsMax];
  uint64_t v_full[kSlotsMax];
  uint64_t v_empty[kSlotsMax];
  uint64_t tops_full[top_slots];
  uint64_t p_full[weight_slots];
  uint64_t p_empty[weight_slots];
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
  static constexpr uint32_t k_slot_bytes = round128(K::slot_bytes);
  static constexpr uint32_t v_slot_bytes = round128(V::slot_bytes);

  // With so many groups of scoring warps: bytes of all but the slots, and how many slots fit.
  template <uint32_t kGroups>
  static constexpr uint32_t before_slots = round128(sizeof(Kept<pairs, kGroups>)) +
                                           round128(q_bytes) +
                                           Kept<pairs, kGroups>::weight_slots * round128(p_bytes) +
                                           round128(2 * K::made_bytes) + round128(V::made_bytes);
  template <uint32_t kGroups>
  static constexpr uint32_t slots_fit =
      before_slots<kGroups> < K::shared_max
          ? (K::shared_max - before_slots<kGroups>) / (k_slot_bytes + v_slot_bytes)
          : 0;
  static constexpr bool fits = slots_fit<1> >= 1;

  // As many slots as groups, since a group that is further ahead than the slots would take the end of
  // one phase for that of the next. Rows that are made have room for one group, whose warps the
  // others help to make them. Four were faster than two for three tiles (226 us, 259 us), slower for
  // one, as were three (132 us, 127 us); for more there are not enough registers.
  static constexpr uint32_t groups = K::made_bytes != 0                ? 1
                                     : kTiles == 3 && slots_fit<4> >= 4 ? 4
                                     : slots_fit<2> >= 2                ? 2
                                                                        : 1;
  static constexpr uint32_t k_readers = groups == 1 ? 2 * kTokenTiles : kTokenTiles;  // warps
  // With one tile a slot less than there may be: blocks of run_fold.cu find room beside.
  static constexpr uint32_t slots_max = kTiles == 1 ? kSlotsMax - 1 : kSlotsMax;
  static constexpr uint32_t slots = slots_fit<groups> < slots_max ? slots_fit<groups> : slots_max;

  using Numbers = Kept<pairs, groups>;
  static constexpr uint32_t numbers_at = 0;
  static constexpr uint32_t q_at = round128(sizeof(Numbers));
  static constexpr uint32_t p_at = q_at + round128(q_bytes);
  static constexpr uint32_t k_made_at = p_at + Numbers::weight_slots * round128(p_bytes);
  static constexpr uint32_t v_made_at = k_made_at + round128(2 * K::made_bytes);
  static constexpr uint32_t slots_at = v_made_at + round128(V::made_bytes);
  static constexpr uint32_t v_slots_at = slots_at + slots * k_slot_bytes;
  static constexpr uint32_t bytes = v_slots_at + slots * v_slot_bytes;
};

// The warps of a block, in this order; registers of a thread of each role are at most those that the
// block is started with, all together: the pool that setmaxnreg draws from.
template <class K, class V, uint32_t kTiles>
struct Roles {
  static constexpr uint32_t groups = Layout<K, V, kTiles>::groups;
  static constexpr uint32_t score_warps = kTokenTiles * (groups == 1 ? 2 : groups);
  static constexpr uint32_t first_summer = score_warps;
  static constexpr uint32_t first_loader = score_warps + kSumWarps;
  static constexpr uint32_t threads = 32 * (first_loader + kLoadWarps);

  static constexpr bool many = groups == 4;
  static constexpr uint32_t registers = many ? 72 : 96;
  static constexpr uint32_t loader_registers = many ? 56 : kTiles < 6 ? 64 : 48;
  static constexpr uint32_t scorer_registers = many ? 64 : kTiles < 6 ? 80 : 104;
  static constexpr uint32_t summer_registers = many ? 96 : kTiles < 6 ? 128 : 112;
  static_assert(kLoadThreads * loader_registers + 32 * score_warps * scorer_registers +
                    kSumThreads * summer_registers <=
                registers * threads);
};

// What a loading warp tells of a slot beside its rows: whether every pair sees all tokens; over: nothing
// comes any more.
enum class Granule : uint32_t { closed, open, over };

// A block's call, and what every kernel of this kind has in shared memory: its numbers first, then
// slots of rows as they come.
template <class PlacesOf>
struct Sharing {
  using Places = PlacesOf;
  using Numbers = typename Places::Numbers;

  const HeldCall& call;
  const Problem& problem;
  uint8_t* shared;

  __device__ Numbers& kept() const { return *reinterpret_cast<Numbers*>(shared + Places::numbers_at); }

  // The call with the descriptors that copy_near brought.
  __device__ NearCall near() const {
    return {call.view, call, kept().near, call.bytes <= kNearBytes ? call.bytes : 0};
  }

  // By a warp.
  __device__ void copy_near() const {
    const auto* const from = reinterpret_cast<const uint4*>(call.room != nullptr ? call.room : call.held);
    for (uint32_t i = threadIdx.x % 32; 16 * i < near().near_bytes; i += 32) {
      reinterpret_cast<uint4*>(kept().near)[i] = from[i];
    }
    __syncwarp();
  }

  __device__ uint8_t* k_slot(uint32_t slot) const {
    return shared + Places::slots_at + slot * Places::k_slot_bytes;
  }

  __device__ uint8_t* v_slot(uint32_t slot) const {
    return shared + Places::v_slots_at + slot * Places::v_slot_bytes;
  }
};

// A block of this kernel.
template <class K, class V, uint32_t kTiles>
struct Block : Sharing<Layout<K, V, kTiles>> {
  using Places = Layout<K, V, kTiles>;
  using Warps = Roles<K, V, kTiles>;
  static constexpr uint32_t pairs = Places::pairs;
  static_assert(Places::fits);

  // A block of this kernel opens one item, and all its warps know what they are at.
  __device__ Opened<pairs>& opened() const { return this->kept(); }

  __device__ static void tell(uint32_t /*slot*/, Granule /*granule*/) {}

  __device__ uint8_t* q() const { return this->shared + Places::q_at; }

  __device__ uint8_t* p(uint32_t slot) const {
    return this->shared + Places::p_at + slot * round128(Places::p_bytes);
  }

  __device__ uint8_t* k_made() const { return this->shared + Places::k_made_at; }

  __device__ uint8_t* v_made() const { return this->shared + Places::v_made_at; }

  __device__ uint32_t q_parts() const {
    return Places::q_parts == 2 && needs_two_parts(K::is_bf16, this->kept().entry.q.type) ? 2 : 1;
  }
};

// A score with soft cap and ALiBi.
template <class Owner>
__device__ float bent(const Owner& block, float score, uint32_t pair, uint64_t token) {
  const Problem& problem = block.problem;
  if (problem.soft_cap != 0.0f) {
    score = __fmul_rn(problem.soft_cap, tanhf(__fdiv_rn(score, problem.soft_cap)));
  }
  if (problem.slopes != nullptr) {
    const auto& pairs = block.kept().pairs;
    const int64_t distance = static_cast<int64_t>(token) - pairs.position[pair];
    score = fmaf(pairs.slope[pair], static_cast<float>(distance), score);
  }
  return score;
}

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
    next_by(1, slots);
  }

  // `step` is at most `slots`.
  __device__ void next_by(uint32_t step, uint32_t slots) {
    slot += step;
    if (slot >= slots) {
      slot -= slots;
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
__device__ Stretch stretch_of(const Opened<kPairs>& opened, uint64_t first, uint64_t stop) {
  const uint64_t closed = opened.open_begin > first ? opened.open_begin - first : 0;
  const uint64_t end = opened.open_end < stop ? opened.open_end : stop;
  return {first,
          stop,
          static_cast<uint32_t>((stop - first + kTokens - 1) / kTokens),
          static_cast<uint32_t>((closed + kTokens - 1) / kTokens),
          end > first ? static_cast<uint32_t>((end - first) / kTokens) : 0};
}

// The next stretch from token `at` on, where one of the item's splits begins, and where the one behind
// it does. All that it takes is looked up anew: registers are dear while a stretch is walked.
template <uint32_t kPairs>
__device__ bool find_stretch(const Opened<kPairs>& opened, uint64_t& at, Stretch& stretch) {
  const AdvanceWork& item = opened.item;
  const uint64_t each =
      item.walk == Walk::splits ? opened.entry.split_tokens : item.end - item.first;
  const uint64_t last = item.end < opened.seen_end ? item.end : opened.seen_end;
  const uint64_t seen = opened.seen_begin / kTokens * kTokens;
  while (at < last) {
    const uint64_t end = last - at < each ? last : at + each;
    const uint64_t begin = at > seen ? at : seen;
    at = end;
    if (begin < end) {
      stretch = stretch_of(opened, begin, end);
      return true;
    }
  }
  return false;
}

// Calls visit(stretch) for all that the item walks, by ascending token; all roles see the same.
template <uint32_t kPairs, class Visit>
__device__ void for_each_stretch(const Opened<kPairs>& opened, Visit&& visit) {
  const AdvanceWork& item = opened.item;
  uint64_t at = item.first;
  if (item.walk == Walk::splits && opened.seen_begin < item.end) {
    at = opened.seen_begin / opened.entry.split_tokens * opened.entry.split_tokens;
  }
  for (Stretch stretch; find_stretch(opened, at, stretch);) {
    visit(stretch);
  }
}

}  // namespace kvspan::cuda::tensor
