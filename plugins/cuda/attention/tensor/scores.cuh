// SPDX-License-Identifier: Apache-2.0
// The scoring warps: products of a granule's keys with all queries of the tile, scores, the running
// maximum of each pair, weights. A product is the sum over the lower half of the head size plus
// that over the upper half, each by ascending element. Device code only.
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
  static constexpr uint32_t own_max = (kTiles + 1) / 2;  // tiles of 8 pairs that a warp finishes

  __device__ explicit Scorer(const Owner& block)
      : block_(block),
        lane_(threadIdx.x % 32),
        token_tile_(threadIdx.x / 32 % kTokenTiles),
        half_(threadIdx.x / 32 / kTokenTiles) {}

  // All granules of the item.
  __device__ void walk() {
    const Kept<Owner::pairs>& kept = block_.kept();
    const Problem& problem = block_.problem;
    two_parts_ = Places::q_parts == 2 && block_.q_parts() == 2;
    bent_ = problem.soft_cap != 0.0f || problem.slopes != nullptr;
    const bool resumes = kept.item.walk == Walk::resume;
    for_each_stretch(kept, [&](const Stretch& stretch) {
      begin(resumes);
      for (uint32_t granule = 0; granule < stretch.granules; ++granule) {
        score(stretch, granule);
      }
    });
  }

 private:
  // The pair of column c of the i-th tile that this warp finishes.
  __device__ uint32_t pair_of(uint32_t i, uint32_t c) const {
    return 8 * (2 * i + half_) + 2 * (lane_ % 4) + c;
  }

  // Whether there is an i-th tile.
  __device__ bool has(uint32_t i) const { return 2 * i + half_ < kTiles; }

  __device__ void begin(bool resumes) {
    const Kept<Owner::pairs>& kept = block_.kept();
#pragma unroll
    for (uint32_t i = 0; i < own_max; ++i) {
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

  __device__ void score(const Stretch& stretch, uint32_t granule) {
    Kept<Owner::pairs>& kept = block_.kept();
    float products[kTiles][4] = {};
    ptx::wait(&kept.k_full[ring_.slot], ring_.parity);
    if (two_parts_) {
      multiply<Places::q_parts>(products);
    } else {
      multiply<1>(products);
    }
    __syncwarp();
    if (lane_ == 0) {
      ptx::arrive(&kept.k_empty[ring_.slot]);
    }
    ring_.next(slots);
    float own[own_max][4];
    turn_ ^= 1;
    unite(products, own);
    if (kTiles == 1 && half_ == 1) {
      return;  // the lower half finishes the only tile
    }
    Weighed<Owner::pairs>& told = kept.weighed[weights_.slot];
    ptx::wait(&kept.p_empty[weights_.slot], weights_.parity ^ 1);
    if (stretch.is_open(granule) && !bent_) {
      make_scores<true>(own, 0, told);
    } else {
      const uint64_t first = stretch.token(granule);
      if (threadIdx.x < Owner::pairs) {
        told.bits[threadIdx.x] = block_.visible_bits(threadIdx.x, first, stretch.stop);
      }
      ptx::sync(kScoreBarrier, 32 * Places::finishers);
      make_scores<false>(own, first, told);
    }
    weigh(own, told);
    __syncwarp();
    if (lane_ == 0) {
      ptx::arrive(&kept.p_full[weights_.slot]);
    }
    weights_.next(kWeightSlots);
  }

  // kParts: of a query; see Layout::q_parts.
  template <uint32_t kParts>
  __device__ void multiply(float (&products)[kTiles][4]) const {
    const Kept<Owner::pairs>& kept = block_.kept();
    const Problem& problem = block_.problem;
    const uint32_t size = K::elements(problem.head_size_k);
    const uint32_t stride = K::stride(K::type(problem.k_type), size);
    const uint8_t* const tile =
        block_.k_slot(ring_.slot) + kept.k_skew[ring_.slot] + 16 * token_tile_ * stride;
    uint8_t* const made = block_.k_made() + 16 * token_tile_ * made_stride(size);
    const KOperand<K> keys(problem, tile, made, half_);
    const uint32_t first = half_ * ((size / 16 + 1) / 2);  // step
    const uint8_t* const q = block_.q() + (lane_ / 4) * Places::q_stride + 16 * (lane_ % 4);
    if constexpr (KOperand<K>::scales_products) {
      keys.for_each_block([&](uint32_t step, const uint32_t(&a)[2][4], const float(&scales)[2]) {
        const float* const biases =
            &kept.pairs.q_bias[(first + step) / 2][2 * (lane_ % 4)];
#pragma unroll
        for (uint32_t j = 0; j < kTiles; ++j) {
          const float2 begin = *reinterpret_cast<const float2*>(biases + 8 * j);
          float sums[4] = {begin.x, begin.y, begin.x, begin.y};
#pragma unroll
          for (uint32_t part = 0; part < kParts; ++part) {
            const uint4 b = *reinterpret_cast<const uint4*>(
                q + (part * Owner::pairs + 8 * j) * Places::q_stride + 32 * (first + step));
            ptx::multiply<K::is_bf16>(sums, a[0], b.x, b.y);
            ptx::multiply<K::is_bf16>(sums, a[1], b.z, b.w);
          }
          products[j][0] = fmaf(scales[0], sums[0], products[j][0]);
          products[j][1] = fmaf(scales[0], sums[1], products[j][1]);
          products[j][2] = fmaf(scales[1], sums[2], products[j][2]);
          products[j][3] = fmaf(scales[1], sums[3], products[j][3]);
        }
      });
    } else {
      keys.for_each_step([&](uint32_t step, const uint32_t(&a)[4]) {
        const uint32_t at = first + step;
#pragma unroll
        for (uint32_t j = 0; j < kTiles; ++j) {
#pragma unroll
          for (uint32_t part = 0; part < kParts; ++part) {
            const uint2 b = *reinterpret_cast<const uint2*>(
                q + (part * Owner::pairs + 8 * j) * Places::q_stride + at / 2 * 64 + at % 2 * 8);
            ptx::multiply<K::is_bf16>(products[j], a, b.x, b.y);
          }
        }
      });
    }
  }

  // Adds the sums of both halves: the warps of the lower half finish the even tiles, those of the
  // upper half the odd ones. Constant indices only, so that all stays in registers.
  __device__ void unite(const float (&products)[kTiles][4],
                        float (&own)[own_max][4]) const {
    float4* const place = block_.exchange() + token_tile_ * 32 + lane_ +
                          turn_ % Places::exchanges * kTiles * kTokenTiles * 32;
    const bool lower = half_ == 0;
#pragma unroll
    for (uint32_t i = 0; i < own_max; ++i) {
      constexpr uint32_t kLast = kTiles - 1;
      const bool both = 2 * i + 1 < kTiles;
      const float(&even)[4] = products[2 * i];
      const float(&odd)[4] = products[both ? 2 * i + 1 : kLast];
      if (both || !lower) {
        place[(2 * i + (lower ? 1 : 0)) * kTokenTiles * 32] = make_float4(lower ? odd[0] : even[0],
                                                                          lower ? odd[1] : even[1],
                                                                          lower ? odd[2] : even[2],
                                                                          lower ? odd[3] : even[3]);
      }
#pragma unroll
      for (uint32_t e = 0; e < 4; ++e) {
        own[i][e] = lower ? even[e] : odd[e];
      }
    }
    ptx::sync(kPairBarrier + token_tile_, 64);
#pragma unroll
    for (uint32_t i = 0; i < own_max; ++i) {
      if (has(i)) {
        const float4 other = place[(2 * i + half_) * kTokenTiles * 32];
        own[i][0] = __fadd_rn(own[i][0], other.x);
        own[i][1] = __fadd_rn(own[i][1], other.y);
        own[i][2] = __fadd_rn(own[i][2], other.z);
        own[i][3] = __fadd_rn(own[i][3], other.w);
      }
    }
  }

  // Scores in natural units in place of products, -infinity where the pair does not see the token;
  // the largest of the token tile to shared memory. kPlain: every pair sees all, scores are products.
  template <bool kPlain>
  __device__ void make_scores(float (&own)[own_max][4],
                              uint64_t first,
                              const Weighed<Owner::pairs>& told) {
    Kept<Owner::pairs>& kept = block_.kept();
    const uint32_t token = 16 * token_tile_ + lane_ / 4;
#pragma unroll
    for (uint32_t i = 0; i < own_max; ++i) {
      if (!has(i)) {
        continue;
      }
      const float2 scales = *reinterpret_cast<const float2*>(&kept.pairs.q_scale[pair_of(i, 0)]);
#pragma unroll
      for (uint32_t c = 0; c < 2; ++c) {
        const uint32_t pair = pair_of(i, c);
        float& low = own[i][c];
        float& high = own[i][2 + c];
        low = __fmul_rn(low, c == 0 ? scales.x : scales.y);
        high = __fmul_rn(high, c == 0 ? scales.x : scales.y);
        if constexpr (!kPlain) {
          low = bent(low, pair, first + token);
          high = bent(high, pair, first + token + 8);
          const uint64_t bits = told.bits[pair] >> token;
          low = (bits & 1) != 0 ? low : -INFINITY;
          high = (bits & 0x100) != 0 ? high : -INFINITY;
        }
        float top = ptx::max_nan(low, high);
        top = ptx::max_nan(top, __shfl_xor_sync(~0u, top, 4));
        top = ptx::max_nan(top, __shfl_xor_sync(~0u, top, 8));
        top = ptx::max_nan(top, __shfl_xor_sync(~0u, top, 16));
        if (lane_ < 4) {
          kept.tops[turn_][pair][token_tile_] = top;
        }
      }
    }
    ptx::sync(kScoreBarrier, 32 * Places::finishers);
  }

  // A score with soft cap and ALiBi.
  __device__ float bent(float score, uint32_t pair, uint64_t token) const {
    const Problem& problem = block_.problem;
    if (problem.soft_cap != 0.0f) {
      score = __fmul_rn(problem.soft_cap, tanhf(__fdiv_rn(score, problem.soft_cap)));
    }
    if (problem.slopes != nullptr) {
      const PairsOf<Owner::pairs>& pairs = block_.kept().pairs;
      const int64_t distance = static_cast<int64_t>(token) - pairs.position[pair];
      score = fmaf(pairs.slope[pair], static_cast<float>(distance), score);
    }
    return score;
  }

  // Weights of two tokens and two pairs a tile, rounded: l is their sum as they are used.
  __device__ void weigh(const float (&own)[own_max][4], Weighed<Owner::pairs>& told) {
    const Kept<Owner::pairs>& kept = block_.kept();
    uint8_t* const weights =
        block_.p(weights_.slot) + (16 * token_tile_ + lane_ / 4) * Places::p_stride;
    const bool tells = token_tile_ == 0 && lane_ < 4;
#pragma unroll
    for (uint32_t i = 0; i < own_max; ++i) {
      if (!has(i)) {
        continue;
      }
      float made[4];
#pragma unroll
      for (uint32_t c = 0; c < 2; ++c) {
        const uint32_t pair = pair_of(i, c);
        const float4 tops = *reinterpret_cast<const float4*>(kept.tops[turn_][pair]);
        const float before = tops_[i][c];
        const float top = ptx::max_nan(
            before, ptx::max_nan(ptx::max_nan(tops.x, tops.y), ptx::max_nan(tops.z, tops.w)));
        const float from = is_neutral(top) ? 0.0f : top;
        made[c] = ptx::exp2_fast(fmaf(__fsub_rn(own[i][c], from), kLog2E, kWeightExponent));
        made[2 + c] = ptx::exp2_fast(fmaf(__fsub_rn(own[i][2 + c], from), kLog2E, kWeightExponent));
        tops_[i][c] = top;
        if (tells) {
          told.kept[pair] = ptx::exp2_fast(__fmul_rn(__fsub_rn(before, from), kLog2E));
          told.m[pair] = top;
        }
      }
      uint8_t* const at = weights + 2 * pair_of(i, 0);
      *reinterpret_cast<uint32_t*>(at) = packed(made[0], made[1]);
      *reinterpret_cast<uint32_t*>(at + 8 * Places::p_stride) = packed(made[2], made[3]);
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
  const uint32_t half_;
  Ring ring_;
  Ring weights_;
  uint32_t turn_ = 0;  // every other granule
  bool two_parts_ = false;
  bool bent_ = false;
  float tops_[own_max][2];  // the running maximum of the pairs that this warp finishes
};

}  // namespace kvspan::cuda::tensor
