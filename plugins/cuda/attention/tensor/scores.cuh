// SPDX-License-Identifier: Apache-2.0
// The scoring warps: products of a granule's keys with all queries of the tile, scores, the running
// maximum of each pair, weights. A product is a sum by ascending element. Groups of warps take
// granules in turn, so that some multiply while others wait for maxima: a group posts the maxima of
// its granule, and knows all before the granule from its own last one and what the other groups
// posted since. Device code only.
#pragma once

#include "attention/tensor/block.cuh"
#include "attention/tensor/k_operand.cuh"

namespace kvspan::cuda::tensor {

template <class K, class V, uint32_t kTiles>
class Scorer {
 public:
  using Owner = Block<K, V, kTiles>;
  using Places = typename Owner::Places;
  static constexpr uint32_t slots = Places::slots;

  __device__ explicit Scorer(const Owner& block)
      : block_(block),
        lane_(threadIdx.x % 32),
        token_tile_(threadIdx.x / 32 % kTokenTiles),
        group_(threadIdx.x / 32 / kTokenTiles) {
    if (Places::groups != 1) {
      ahead_ = ring_.slot = top_.slot = weights_.slot = group_;
    }
  }

  // All granules of the item.
  __device__ void walk() {
    const typename Owner::Numbers& kept = block_.kept();
    const Problem& problem = block_.problem;
    two_parts_ = Places::q_parts == 2 && block_.q_parts() == 2;
    bent_ = problem.soft_cap != 0.0f || problem.slopes != nullptr;
    makes_ = K::made_bytes != 0 && !is_half(K::type(problem.k_type));
    const bool resumes = kept.item.walk == Walk::resume;
    for_each_stretch(kept, [&](const Stretch& stretch) {
      begin(resumes);
      for (; ahead_ < stretch.granules; ahead_ += Places::groups) {
        score(stretch, ahead_);
        ring_.next_by(Places::groups, slots);
        top_.next_by(Places::groups, Owner::Numbers::top_slots);
      }
      ahead_ -= stretch.granules;
    });
  }

 private:
  // The granule's token of row r, 0 or 1, of this thread's operands.
  __device__ uint32_t token_of(uint32_t r) const {
    return 16 * token_tile_ + KOperand<K>::token_of(lane_ / 4, r);
  }

  // The pair of column c of the i-th tile.
  __device__ uint32_t pair_of(uint32_t i, uint32_t c) const {
    return 8 * i + 2 * (lane_ % 4) + c;
  }

  __device__ void begin(bool resumes) {
    const typename Owner::Numbers& kept = block_.kept();
#pragma unroll
    for (uint32_t i = 0; i < kTiles; ++i) {
#pragma unroll
      for (uint32_t c = 0; c < 2; ++c) {
        const uint32_t pair = pair_of(i, c);
        tops_[i][c] = -INFINITY;
        if (resumes && pair < kept.count) {
          const uint64_t at = kept.pairs.row[pair] * block_.problem.q_heads + kept.pairs.head[pair];
          tops_[i][c] = kept.item.state.ml[2 * at];
        }
      }
    }
  }

  __device__ const uint8_t* k_tile() const {
    const uint32_t stride =
        K::stride(K::type(block_.problem.k_type), K::elements(block_.problem.head_size_k));
    return block_.k_slot(ring_.slot) + 16 * token_tile_ * stride;
  }

  __device__ uint8_t* made_tile() const {
    return block_.k_made() +
           16 * token_tile_ * made_stride(K::elements(block_.problem.head_size_k));
  }

  // Both warps of a token tile make half of its rows each.
  __device__ void make_half() const {
    if constexpr (K::made_bytes != 0) {
      KOperand<K>::make(block_.problem, k_tile(), made_tile(), group_);
      ptx::sync(kPairBarrier + token_tile_, 64);
    }
  }

  __device__ void leave_k() const {
    __syncwarp();
    ptx::arrive_as_warp(&block_.kept().k_empty[ring_.slot]);
  }

  // Where there is one group of scores, the second one's warps make rows only. Both warps of a pair
  // come to its barriers at the same places of the code: the sanitizer knows no others.
  __device__ void score(const Stretch& stretch, uint32_t granule) {
    typename Owner::Numbers& kept = block_.kept();
    const bool scores = Places::groups != 1 || group_ == 0;
    float own[kTiles][4] = {};
    ptx::wait(&kept.k_full[ring_.slot], ring_.parity);
    if (makes_) {
      make_half();
    }
    if (scores) {
      if (two_parts_) {
        multiply<Places::q_parts>(own);
      } else {
        multiply<1>(own);
      }
    }
    if (makes_) {
      ptx::sync(kPairBarrier + token_tile_, 64);  // what was made has been multiplied
    }
    leave_k();
    if (!scores) {
      return;
    }
    const uint32_t place = weights_.slot;
    uint64_t* const free = &kept.p_empty[place];
    const uint32_t free_parity = weights_.parity ^ 1;
    Weighed<Owner::pairs>& told = kept.weighed[place];
    if (stretch.is_open(granule) && !bent_) {
      make_scores<true>(own, 0, told);
      ptx::wait(free, free_parity);
      const uint32_t pair = threadIdx.x % kGroupThreads;
      if (pair < Owner::pairs) {
        told.bits[pair] = ~0ull;
      }
    } else {
      ptx::wait(free, free_parity);
      const uint32_t pair = threadIdx.x % kGroupThreads;
      const uint64_t first = stretch.token(granule);
      if (pair < Owner::pairs) {
        told.bits[pair] = visible_bits(block_.opened(), pair, first, stretch.stop);
      }
      ptx::sync(kGroupBarrier + group_, kGroupThreads);
      make_scores<false>(own, first, told);
    }
    take_tops(granule);
    weigh(own, told, block_.p(place));
    __syncwarp();
    ptx::arrive_as_warp(&kept.p_full[place]);
    weights_.next_by(Places::groups, Owner::Numbers::weight_slots);
  }

  // kParts: of a query; see Layout::q_parts.
  template <uint32_t kParts>
  __device__ void multiply(float (&products)[kTiles][4]) const {
    const typename Owner::Numbers& kept = block_.kept();
    const KOperand<K> keys(block_.problem, k_tile(), made_tile());
    const uint8_t* const q = block_.q() + (lane_ / 4) * Places::q_stride + 16 * (lane_ % 4);
    if constexpr (KOperand<K>::scales_products) {
      keys.for_each_block([&](uint32_t step, const uint32_t(&a)[2][4], const float(&scales)[2]) {
        const float* const biases = &kept.q_bias[step / 2][2 * (lane_ % 4)];
        // A few tiles at a time, so that a product does not wait for the one before (eight rows at
        // 128K: 228 us, 192 us); for that four groups of warps have no registers.
#pragma unroll
        for (uint32_t first = 0; first < kTiles; first += kAtOnce) {
          multiply_block<kParts>(q + 32 * step, biases, first, a, scales, products);
        }
      });
    } else {
      keys.for_each_step([&](uint32_t step, const uint32_t(&a)[4]) {
#pragma unroll
        for (uint32_t j = 0; j < kTiles; ++j) {
#pragma unroll
          for (uint32_t part = 0; part < kParts; ++part) {
            const uint2 b = *reinterpret_cast<const uint2*>(
                q + (part * Owner::pairs + 8 * j) * Places::q_stride + step / 2 * 64 + step % 2 * 8);
            ptx::multiply<K::is_bf16>(products[j], a, b.x, b.y);
          }
        }
      });
    }
  }

  static constexpr uint32_t kAtOnce = kTiles == 8 ? 4 : kTiles == 6 ? 3 : 1;

  // A block of 32 elements with the tiles from `first` on; `q`: of its first tile's queries.
  template <uint32_t kParts>
  __device__ static void multiply_block(const uint8_t* q,
                                        const float* biases,
                                        uint32_t first,
                                        const uint32_t (&a)[2][4],
                                        const float (&scales)[2],
                                        float (&products)[kTiles][4]) {
    float sums[kAtOnce][4];
    uint4 b[kAtOnce];
#pragma unroll
    for (uint32_t t = 0; t < kAtOnce; ++t) {
      const float2 begin = *reinterpret_cast<const float2*>(biases + 8 * (first + t));
      sums[t][0] = sums[t][2] = begin.x;
      sums[t][1] = sums[t][3] = begin.y;
    }
#pragma unroll
    for (uint32_t part = 0; part < kParts; ++part) {
#pragma unroll
      for (uint32_t t = 0; t < kAtOnce; ++t) {
        b[t] = *reinterpret_cast<const uint4*>(
            q + (part * Owner::pairs + 8 * (first + t)) * Places::q_stride);
        ptx::multiply<K::is_bf16>(sums[t], a[0], b[t].x, b[t].y);
      }
#pragma unroll
      for (uint32_t t = 0; t < kAtOnce; ++t) {
        ptx::multiply<K::is_bf16>(sums[t], a[1], b[t].z, b[t].w);
      }
    }
#pragma unroll
    for (uint32_t t = 0; t < kAtOnce; ++t) {
      float(&to)[4] = products[first + t];
      to[0] = fmaf(scales[0], sums[t][0], to[0]);
      to[1] = fmaf(scales[0], sums[t][1], to[1]);
      to[2] = fmaf(scales[1], sums[t][2], to[2]);
      to[3] = fmaf(scales[1], sums[t][3], to[3]);
    }
  }

  // Scores in natural units in place of products, -infinity where the pair does not see the token;
  // the largest of the token tile is posted. kPlain: every pair sees all, scores are products.
  template <bool kPlain>
  __device__ void make_scores(float (&own)[kTiles][4],
                              uint64_t first,
                              const Weighed<Owner::pairs>& told) {
    typename Owner::Numbers& kept = block_.kept();
    const uint32_t token[2] = {token_of(0), token_of(1)};
    const uint32_t slot = top_.slot;
#pragma unroll
    for (uint32_t i = 0; i < kTiles; ++i) {
      const float2 scales = *reinterpret_cast<const float2*>(&kept.pairs.q_scale[pair_of(i, 0)]);
#pragma unroll
      for (uint32_t c = 0; c < 2; ++c) {
        const uint32_t pair = pair_of(i, c);
        float& low = own[i][c];
        float& high = own[i][2 + c];
        low = __fmul_rn(low, c == 0 ? scales.x : scales.y);
        high = __fmul_rn(high, c == 0 ? scales.x : scales.y);
        if constexpr (!kPlain) {
          low = bent(block_, low, pair, first + token[0]);
          high = bent(block_, high, pair, first + token[1]);
          low = (told.bits[pair] >> token[0] & 1) != 0 ? low : -INFINITY;
          high = (told.bits[pair] >> token[1] & 1) != 0 ? high : -INFINITY;
        }
        float top = ptx::max_nan(low, high);
        top = ptx::max_nan(top, __shfl_xor_sync(~0u, top, 4));
        top = ptx::max_nan(top, __shfl_xor_sync(~0u, top, 8));
        top = ptx::max_nan(top, __shfl_xor_sync(~0u, top, 16));
        if (lane_ < 4) {
          kept.tops[slot][pair][token_tile_] = top;
        }
      }
    }
    __syncwarp();
    ptx::arrive_as_warp(&kept.tops_full[slot]);
  }

  // Waits for the maxima of granule `granule` of its stretch, and takes in those of the granules
  // between this group's last one and it: the other groups'.
  __device__ void take_tops(uint32_t granule) {
    typename Owner::Numbers& kept = block_.kept();
    constexpr uint32_t kSlots = Owner::Numbers::top_slots;
#pragma unroll
    for (uint32_t back = Places::groups - 1; back >= 1; --back) {
      if (back <= granule) {
        const bool wraps = top_.slot < back;
        const uint32_t before = wraps ? top_.slot + kSlots - back : top_.slot - back;
        ptx::wait(&kept.tops_full[before], top_.parity ^ (wraps ? 1 : 0));
#pragma unroll
        for (uint32_t i = 0; i < kTiles; ++i) {
#pragma unroll
          for (uint32_t c = 0; c < 2; ++c) {
            tops_[i][c] = ptx::max_nan(tops_[i][c], top_of(before, pair_of(i, c)));
          }
        }
      }
    }
    ptx::wait(&kept.tops_full[top_.slot], top_.parity);
  }

  // The largest score of a pair in a granule.
  __device__ float top_of(uint32_t slot, uint32_t pair) const {
    const float4 tops = *reinterpret_cast<const float4*>(block_.kept().tops[slot][pair]);
    return ptx::max_nan(ptx::max_nan(tops.x, tops.y), ptx::max_nan(tops.z, tops.w));
  }

  // Weights of two tokens and two pairs a tile, rounded: l is their sum as they are used.
  __device__ void weigh(const float (&own)[kTiles][4],
                        Weighed<Owner::pairs>& told,
                        uint8_t* slot) {
    uint8_t* const low = slot + token_of(0) * Places::p_stride;
    uint8_t* const high = slot + token_of(1) * Places::p_stride;
    const bool tells = token_tile_ == 0 && lane_ < 4;
#pragma unroll
    for (uint32_t i = 0; i < kTiles; ++i) {
      float made[4];
#pragma unroll
      for (uint32_t c = 0; c < 2; ++c) {
        const uint32_t pair = pair_of(i, c);
        const float before = tops_[i][c];
        const float top = ptx::max_nan(before, top_of(top_.slot, pair));
        const float from = is_neutral(top) ? 0.0f : top;
        made[c] = weight_of(own[i][c], from);
        made[2 + c] = weight_of(own[i][2 + c], from);
        tops_[i][c] = top;
        if (tells) {
          told.kept[pair] = kept_of(before, from);
          told.m[pair] = top;
        }
      }
      const uint32_t at = 2 * pair_of(i, 0);
      *reinterpret_cast<uint32_t*>(low + at) = packed(made[0], made[1]);
      *reinterpret_cast<uint32_t*>(high + at) = packed(made[2], made[3]);
    }
  }

  __device__ static uint32_t packed(float low, float high) {
    if constexpr (V::is_bf16) {
      const __nv_bfloat162 both = __floats2bfloat162_rn(low, high);
      return *reinterpret_cast<const uint32_t*>(&both);
    } else {
      return ptx::bits_of(__floats2half2_rn(low, high));
    }
  }

  const Owner block_;
  const uint32_t lane_;
  const uint32_t token_tile_;
  const uint32_t group_;
  Ring ring_;
  uint32_t ahead_ = 0;  // granules of the stretch before this group's next one
  Ring top_;      // where the granule's maxima are posted
  Ring weights_;  // where this group's next weights go
  bool two_parts_ = false;
  bool bent_ = false;
  bool makes_ = false;  // K's rows are made f16 in shared memory first
  float tops_[kTiles][2];  // the running maximum of each pair, as of this group's last granule
};

}  // namespace kvspan::cuda::tensor
