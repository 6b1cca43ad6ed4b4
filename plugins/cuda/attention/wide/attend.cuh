// SPDX-License-Identifier: Apache-2.0
// The attending warps: a warpgroup takes 64 pairs through all granules by itself. Scores of a granule
// are products of queries with whole numbers of K, a block of 32 elements at a time, scaled in f32 and
// summed by ascending block; then the running maximum, weights rounded to f16, u = u * kept + P V. A
// thread has two pairs, all their scores of every fourth two tokens, and the same columns of u.
// Device code only. Not here: queries (query.cuh), where u comes from and goes to (sums.cuh).
#pragma once

#include "attention/tensor/open.cuh"
#include "attention/tensor/ptx.cuh"
#include "attention/wide/block.cuh"
#include "attention/wide/closed.cuh"
#include "attention/wide/query.cuh"
#include "attention/wide/sums.cuh"

namespace kvspan::cuda::wide {

template <class K, class V>
class Attender {
 public:
  using Owner = Block<K, V>;
  using Places = typename Owner::Places;
  static constexpr uint32_t parts = Sums<K, V>::parts;

  __device__ explicit Attender(const Owner& block)
      : block_(block),
        query_(wgmma::uniform(wgmma::operand(
            ptx::shared_address(block.q()) + own_group() * kGroupPairs * wgmma::kPanelRowBytes, 0))) {}

  // The block as this warp sees it.
  __device__ Owner& block() { return block_; }

  // All granules of an item, and what comes of them.
  __device__ void walk() {
    if (own_group() * kGroupPairs >= block_.opened().count) {
      return pass();
    }
    begin();
    bool walked = false;
    tensor::for_each_stretch(block_.opened(), [&](const tensor::Stretch& stretch) {
      if (walk_is(Walk::splits)) {
        sums_.forget();
      }
      for (uint32_t granule = 0; granule < stretch.granules; ++granule) {
        attend(stretch, granule);
      }
      finish_products();
      leave_values();
      if (walk_is(Walk::splits)) {
        sums_.fold(block_, walked);
      }
      walked = true;
    });
    if (walk_is(Walk::splits)) {
      sums_.write_outputs(block_, walked);
    } else if (walked || walk_is(Walk::fresh)) {
      sums_.store(block_);
    }
  }

 private:
  // What an item is about is looked up when it is asked for: u, scores and products leave few registers.
  [[nodiscard]] __device__ bool walk_is(Walk walk) const { return block_.opened().item.walk == walk; }

  // A warpgroup without pairs.
  __device__ void pass() {
    tensor::for_each_stretch(block_.opened(), [&](const tensor::Stretch& stretch) {
      for (uint32_t i = 0; i < stretch.granules; ++i) {
        (void)begin_tile(tiles_, 0);
        leave_tile(tiles_.slot);
        (void)begin_values();
        leave_tile(values_of(tiles_).slot);
        tiles_.next_by(2, Places::tiles);
        other_ ^= 1;
      }
    });
  }

  // Queries of the warpgroup's pairs as operands, behind its last products with those before, and the
  // state, which is on its way meanwhile.
  __device__ void begin() {
    Queries<K, V> queries(block_);
    ptx::sync(kGroupBarrier + own_group(), 128);
    queries.ask();
    sums_.forget();
    if (walk_is(Walk::resume)) {
      sums_.fetch(block_);
    }
    queries.make();
    if (block_.problem.slopes != nullptr && threadIdx.x % 128 < kGroupPairs) {
      const uint32_t pair = own_group() * kGroupPairs + threadIdx.x % 128;
      const tensor::PairPlace at = tensor::place_of(block_.opened(), block_.problem, pair);
      tensor::lean(block_.kept().pairs, block_.opened(), block_.problem, pair, at);
    }
    ptx::fence_async();
    ptx::sync(kGroupBarrier + own_group(), 128);
    q_scale_[0] = block_.kept().pairs.q_scale[own_pair(0)];
    q_scale_[1] = block_.kept().pairs.q_scale[own_pair(1)];
    sums_.scale();
  }

  // Waits for a tile; names it as an operand.
  [[nodiscard]] __device__ uint32_t begin_tile(const tensor::Ring& ring, uint32_t panel_bytes) const {
    ptx::wait(&block_.kept().tile_full[ring.slot], ring.parity);
    return wgmma::uniform(wgmma::operand(ptx::shared_address(block_.tile(ring.slot)), panel_bytes));
  }

  // The tile of V of the granule whose K is at `keys`.
  [[nodiscard]] __device__ static tensor::Ring values_of(tensor::Ring keys) {
    keys.next(Places::tiles);
    return keys;
  }

  [[nodiscard]] __device__ uint32_t begin_values() const {
    return begin_tile(values_of(tiles_), Places::tile_panel_bytes);
  }

  __device__ void leave_tile(uint32_t slot) const {
    __syncwarp();
    ptx::arrive_as_warp(&block_.kept().tile_empty[slot]);
  }

  __device__ void attend(const tensor::Stretch& stretch, uint32_t granule) {
    const uint32_t k_tile = begin_tile(tiles_, 0);
#pragma unroll 1
    for (uint32_t half = 0; half < 2; ++half) {
      attend_half(k_tile, half, stretch, granule);
    }
    other_ ^= 1;
    tiles_.next_by(2, Places::tiles);
  }

  // 32 tokens. Products of the half before with V are under way until the first products with K are
  // over, which come behind them; u is theirs so long.
  __device__ void attend_half(uint32_t k_tile,
                              uint32_t half,
                              const tensor::Stretch& stretch,
                              uint32_t granule) {
    float scores[16];
    multiply_keys(k_tile + half * (kHalfBytes / 16), half, scores);
    if (half == 1) {
      leave_tile(tiles_.slot);
    } else if (granule != 0) {
      leave_values();
    }
    const bool open = stretch.is_open(granule);
    uint32_t seen[2] = {~0u, ~0u};
    if (!open) {
      seen[0] = seen_of(block_, own_pair(0), half, stretch, granule);
      seen[1] = seen_of(block_, own_pair(1), half, stretch, granule);
    }
    make_scores(scores, seen, stretch.token(granule) + 32 * half, open);
    uint32_t weights[2][4];  // first operands of 16 tokens each
    float kept[2];
    weigh(scores, weights, kept);
    if (__any_sync(~0u, kept[0] != 1.0f || kept[1] != 1.0f ? 1 : 0) != 0) {
      sums_.rescale(kept);  // a product with 1 changes nothing, and most granules have no new maximum
    }
    if (open) {
      multiply_values(half, weights);
      return;
    }
    Closed closed{{seen[0], seen[1]}, {}};
#pragma unroll
    for (uint32_t i = 0; i < 8; ++i) {
      closed.weights[i / 4][i % 4] = weights[i / 4][i % 4];
    }
    multiply_values(half, weights);
    finish_products();
    add_odd(block_,
            closed,
            reinterpret_cast<const uint32_t*>(block_.kept().odd[other_])[half],
            stretch.token(granule) + 32 * half,
            sums_);
  }

  static constexpr uint32_t kHalfBytes = 32 * wgmma::kPanelRowBytes;  // of 32 tokens, in a panel

  // A block of 32 elements.
  __device__ static void multiply_block(uint32_t query, uint32_t keys, float (&sums)[16]) {
    wgmma::begin();
    wgmma::multiply<false>(sums, query, keys);
    wgmma::multiply<true>(sums, query + 2, keys + 2);
    wgmma::commit();
  }

  // Scales of a block, of this thread's tokens of a half granule; fetched before products are waited for.
  struct Scales {
    float4 of[2];

    __device__ explicit Scales(const float* scales)
        : of{reinterpret_cast<const float4*>(scales)[0], reinterpret_cast<const float4*>(scales)[1]} {}

    __device__ void add(const float (&sums)[16], float (&scores)[16]) const {
#pragma unroll
      for (uint32_t i = 0; i < 2; ++i) {
#pragma unroll
        for (uint32_t r = 0; r < 2; ++r) {
          const uint32_t at = 8 * i + 2 * r;
          scores[at] = fmaf(of[i].x, sums[at], scores[at]);
          scores[at + 1] = fmaf(of[i].y, sums[at + 1], scores[at + 1]);
          scores[at + 4] = fmaf(of[i].z, sums[at + 4], scores[at + 4]);
          scores[at + 5] = fmaf(of[i].w, sums[at + 5], scores[at + 5]);
        }
      }
    }
  };

  // A panel has two blocks; the products of one are under way while the other's are scaled.
  __device__ void multiply_keys(uint32_t keys, uint32_t half, float (&scores)[16]) {
    const float* scales = &block_.kept().scales[other_][0][32 * half + 8 * sums_.quad];
    uint32_t query = query_;
    asm volatile("" : "+r"(query));  // else its sums are made once for all halves, and kept in local memory
    float low[16];
    float high[16];
    multiply_block(query, keys, low);
    multiply_block(query + 4, keys + 4, high);
#pragma unroll
    for (uint32_t i = 0; i < 16; ++i) {
      scores[i] = 0.0f;
    }
    wgmma::wait<0>();  // for those with V, too: with any under way ptxas puts all one after another
    sums_.pin();
    wgmma::pin(low);
    wgmma::pin(high);
#pragma unroll  // rolled, ptxas puts all products one after another
    for (uint32_t panel = 1; panel <= Places::panels; ++panel) {
      const bool more = panel < Places::panels;
      query += Places::q_panel_bytes / 16;
      keys += Places::tile_panel_bytes / 16;
      const Scales of_low(scales);
      wgmma::wait<1>();
      wgmma::pin(low);
      of_low.add(low, scores);
      if (more) {
        multiply_block(query, keys, low);
      }
      const Scales of_high(scales + kTokens);
      if (more) {
        wgmma::wait<1>();
      } else {
        wgmma::wait<0>();
      }
      wgmma::pin(high);
      of_high.add(high, scores);
      if (more) {
        multiply_block(query + 4, keys + 4, high);
      }
      scales += 2 * kTokens;
    }
  }

  // Behind the products with V that are under way.
  __device__ void finish_products() {
    wgmma::wait<0>();
    sums_.pin();
  }

  // Gives back the tile of V of the granule before, whose products are over.
  __device__ void leave_values() const {
    leave_tile(tiles_.slot == 0 ? Places::tiles - 1 : tiles_.slot - 1);
  }

  // Token of the half granule that element e is a score of.
  [[nodiscard]] __device__ uint32_t token_of(uint32_t e) const { return e / 4 * 8 + 2 * sums_.quad + e % 2; }

  // Scores in natural units in place of products, -infinity where the pair does not see the token.
  __device__ void make_scores(float (&scores)[16],
                              const uint32_t (&seen)[2],
                              uint64_t first,
                              bool open) const {
#pragma unroll
    for (uint32_t e = 0; e < 16; ++e) {
      scores[e] = __fmul_rn(scores[e], q_scale_[e / 2 % 2]);
    }
    const Problem& problem = block_.problem;
    if (problem.soft_cap != 0.0f || problem.slopes != nullptr) {
#pragma unroll
      for (uint32_t e = 0; e < 16; ++e) {
        scores[e] = tensor::bent(block_, scores[e], own_pair(e / 2 % 2), first + token_of(e));
      }
    }
    if (!open) {
#pragma unroll
      for (uint32_t e = 0; e < 16; ++e) {
        scores[e] = (seen[e / 2 % 2] >> token_of(e) & 1) != 0 ? scores[e] : -INFINITY;
      }
    }
  }

  // Weights, rounded: l is their sum as they are used. `kept`: what the old l and u are multiplied with.
  __device__ void weigh(const float (&scores)[16], uint32_t (&weights)[2][4], float (&kept)[2]) {
    float from[2];
    float sums[2] = {0.0f, 0.0f};
#pragma unroll
    for (uint32_t r = 0; r < 2; ++r) {
      float top = sums_.m[r];
#pragma unroll
      for (uint32_t i = 0; i < 8; ++i) {
        top = ptx::max_nan(top, scores[i / 2 * 4 + 2 * r + i % 2]);
      }
      top = ptx::max_nan(top, __shfl_xor_sync(~0u, top, 1));
      top = ptx::max_nan(top, __shfl_xor_sync(~0u, top, 2));
      from[r] = is_neutral(top) ? 0.0f : top;
      kept[r] = tensor::kept_of(sums_.m[r], from[r]);
      sums_.m[r] = top;
    }
#pragma unroll
    for (uint32_t i = 0; i < 8; ++i) {
      // i / 2: which eight tokens; i % 2 is r.
      const uint32_t at = i / 2 * 4 + i % 2 * 2;
      const __half2 two = __floats2half2_rn(tensor::weight_of(scores[at], from[i % 2]),
                                            tensor::weight_of(scores[at + 1], from[i % 2]));
      const float2 rounded = __half22float2(two);
      sums[i % 2] = __fadd_rn(sums[i % 2], __fadd_rn(rounded.x, rounded.y));
      weights[i / 4][i % 4] = ptx::bits_of(two);
    }
#pragma unroll
    for (uint32_t r = 0; r < 2; ++r) {
      sums[r] = __fadd_rn(sums[r], __shfl_xor_sync(~0u, sums[r], 1));
      sums[r] = __fadd_rn(sums[r], __shfl_xor_sync(~0u, sums[r], 2));
      sums_.l[r] = fmaf(sums_.l[r], kept[r], sums[r]);
    }
  }

  __device__ void multiply_values(uint32_t half, const uint32_t (&weights)[2][4]) {
    const uint32_t values = begin_values() + half * (kHalfBytes / 16);
    wgmma::begin();
#pragma unroll
    for (uint32_t step = 0; step < 2; ++step) {
#pragma unroll
      for (uint32_t part = 0; part < parts; ++part) {
        wgmma::multiply(sums_.u[part],
                        weights[step],
                        values + 2 * part * (Places::tile_panel_bytes / 16) + step * (kHalfBytes / 32));
      }
    }
    wgmma::commit();
  }

  Owner block_;
  const uint32_t query_;  // operand of the warpgroup's pairs
  tensor::Ring tiles_;    // where K of the granule is that is next; V lies behind it
  uint32_t other_ = 0;    // of Kept's numbers of every other granule
  float q_scale_[2];
  Sums<K, V> sums_;
};

}  // namespace kvspan::cuda::wide
