// SPDX-License-Identifier: Apache-2.0
// The attending warps: a warpgroup takes 64 pairs through all granules by itself. Scores of a granule
// are products of queries with whole numbers of K, a block of 32 elements at a time, scaled in f32 and
// summed by ascending block; then the running maximum, weights rounded to f16, u = u * kept + P V. A
// thread has two pairs, all their scores of every fourth two tokens, and the same columns of u.
// Device code only.
#pragma once

#include "attention/fold.cuh"
#include "attention/tensor/ptx.cuh"
#include "attention/wide/block.cuh"
#include "plane.cuh"
#include "typed_block.cuh"

namespace kvspan::cuda::wide {

template <class K, class V>
class Attender {
 public:
  using Owner = Block<K, V>;
  using Places = typename Owner::Places;
  static constexpr uint32_t size = Places::size;
  static constexpr uint32_t parts = size / 128;  // of u, as products take them

  __device__ explicit Attender(const Owner& block)
      : block_(block),
        quad_(threadIdx.x % 4),
        first_pair_(threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4),
        query_(wgmma::uniform(wgmma::operand(
            ptx::shared_address(block.q()) + threadIdx.x / 128 * 64 * wgmma::kPanelRowBytes, 0))) {}

  // All granules of the item, and what comes of them.
  __device__ void walk() {
    const auto& kept = block_.kept();
    if (threadIdx.x / 128 * 64 >= kept.count) {
      return pass();
    }
    const Problem& problem = block_.problem;
    const Walk walk = kept.item.walk;
    bent_ = problem.soft_cap != 0.0f || problem.slopes != nullptr;
    q_scale_[0] = kept.pairs.q_scale[pair(0)];
    q_scale_[1] = kept.pairs.q_scale[pair(1)];
    forget();
    bool walked = false;
    if (walk == Walk::resume) {
      load_state();
    }
    tensor::for_each_stretch(kept, [&](const tensor::Stretch& stretch) {
      if (walk == Walk::splits) {
        forget();
      }
      for (uint32_t granule = 0; granule < stretch.granules; ++granule) {
        attend(stretch, granule);
      }
      finish_products();
      leave_values();
      if (walk == Walk::splits) {
        fold_split(walked);
      }
      walked = true;
    });
    if (walk == Walk::splits) {
      write_outputs(walked);
    } else if (walked || walk == Walk::fresh) {
      store_state();
    }
  }

 private:
  [[nodiscard]] __device__ uint32_t pair(uint32_t r) const { return first_pair_ + 8 * r; }

  [[nodiscard]] __device__ bool is_there(uint32_t r) const { return pair(r) < block_.kept().count; }

  [[nodiscard]] __device__ uint64_t state_index(uint32_t r) const {
    const auto& pairs = block_.kept().pairs;
    return pairs.row[pair(r)] * block_.problem.q_heads + pairs.head[pair(r)];
  }

  // A warpgroup without pairs.
  __device__ void pass() {
    tensor::for_each_stretch(block_.kept(), [&](const tensor::Stretch& stretch) {
      for (uint32_t i = 0; i < stretch.granules; ++i) {
        (void)begin_tile(k_ring_, 0);
        end_tile(k_ring_);
        (void)begin_tile(v_ring_, 0);
        end_tile(v_ring_);
      }
    });
  }

  // Waits for a tile; names it as an operand.
  [[nodiscard]] __device__ uint32_t begin_tile(const tensor::Ring& ring, uint32_t panel_bytes) const {
    ptx::wait(&block_.kept().tile_full[ring.slot], ring.parity);
    return wgmma::uniform(wgmma::operand(ptx::shared_address(block_.tile(ring.slot)), panel_bytes));
  }

  __device__ void end_tile(tensor::Ring& ring) const {
    __syncwarp();
    if (threadIdx.x % 32 == 0) {
      ptx::arrive(&block_.kept().tile_empty[ring.slot]);
    }
    ring.next_by(2, Places::tiles);
  }

  __device__ void forget() {
#pragma unroll
    for (uint32_t part = 0; part < parts; ++part) {
#pragma unroll
      for (uint32_t i = 0; i < 64; ++i) {
        u_[part][i] = 0.0f;
      }
    }
    for (uint32_t r = 0; r < 2; ++r) {
      l_[r] = 0.0f;
      m_[r] = -INFINITY;
    }
  }

  // Calls visit(r, element, u of it, u of the next element) for all that this thread has.
  template <class Visit>
  __device__ void for_each_two(Visit&& visit) {
#pragma unroll
    for (uint32_t r = 0; r < 2; ++r) {
      if (!is_there(r)) {
        continue;
      }
#pragma unroll
      for (uint32_t part = 0; part < parts; ++part) {
#pragma unroll
        for (uint32_t i = 0; i < 16; ++i) {
          visit(r, 128 * part + 8 * i + 2 * quad_, u_[part][4 * i + 2 * r], u_[part][4 * i + 2 * r + 1]);
        }
      }
    }
  }

  __device__ void load_state() {
    const StateView state = block_.kept().item.state;
    for (uint32_t r = 0; r < 2; ++r) {
      if (is_there(r)) {
        m_[r] = state.ml[2 * state_index(r)];
        l_[r] = state.ml[2 * state_index(r) + 1] * tensor::kWeightScale;
      }
    }
    for_each_two([&](uint32_t r, uint32_t element, float& a, float& b) {
      const auto* const from = reinterpret_cast<const float2*>(state.u + state_index(r) * size + element);
      a = from->x * tensor::kWeightScale;
      b = from->y * tensor::kWeightScale;
    });
  }

  __device__ void store_state() {
    const StateView state = block_.kept().item.state;
    for (uint32_t r = 0; r < 2; ++r) {
      if (is_there(r) && quad_ == 0) {
        state.ml[2 * state_index(r)] = m_[r];
        state.ml[2 * state_index(r) + 1] = l_[r] / tensor::kWeightScale;
      }
    }
    for_each_two([&](uint32_t r, uint32_t element, float a, float b) {
      *reinterpret_cast<float2*>(state.u + state_index(r) * size + element) =
          make_float2(a / tensor::kWeightScale, b / tensor::kWeightScale);
    });
  }

  __device__ void attend(const tensor::Stretch& stretch, uint32_t granule) {
    const bool open = stretch.is_open(granule);
    const uint64_t first = stretch.token(granule);
    const uint32_t k_tile = begin_tile(k_ring_, 0);
#pragma unroll 1
    for (uint32_t half = 0; half < 2; ++half) {
      attend_half(k_tile, half, stretch, first, open);
    }
    other_ ^= 1;
    owes_v_ = true;
  }

  // 32 tokens. Products of the half before with V are under way until the first products with K are
  // over, which come behind them; u is theirs so long.
  __device__ void attend_half(uint32_t k_tile,
                              uint32_t half,
                              const tensor::Stretch& stretch,
                              uint64_t first,
                              bool open) {
    float scores[16];
    multiply_keys(k_tile + half * (kHalfBytes / 16), half, scores);
    if (half == 0) {
      leave_values();
    } else {
      end_tile(k_ring_);
    }
    uint32_t seen[2] = {~0u, ~0u};
    if (!open) {
      seen[0] = static_cast<uint32_t>(block_.visible_bits(pair(0), first, stretch.stop) >> 32 * half);
      seen[1] = static_cast<uint32_t>(block_.visible_bits(pair(1), first, stretch.stop) >> 32 * half);
    }
    make_scores(scores, seen, first + 32 * half, open);
    uint32_t weights[2][4];  // first operands of 16 tokens each
    float kept[2];
    weigh(scores, weights, kept);
    if (__any_sync(~0u, kept[0] != 1.0f || kept[1] != 1.0f ? 1 : 0) != 0) {
      rescale(kept);  // a product with 1 changes nothing, and most granules have no new maximum
    }
    multiply_values(half, weights);
    if (!open) {
      finish_products();
      add_odd(weights, seen, half, first + 32 * half);
    }
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
    const float* scales = &block_.kept().scales[other_][0][32 * half + 8 * quad_];
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
    pin_u();
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

  __device__ void pin_u() {
#pragma unroll
    for (uint32_t part = 0; part < parts; ++part) {
      wgmma::pin(u_[part]);
    }
  }

  // Behind the products with V that are under way.
  __device__ void finish_products() {
    wgmma::wait<0>();
    pin_u();
  }

  // Gives back the tile of V whose products are over, if there is one.
  __device__ void leave_values() {
    if (owes_v_) {
      end_tile(v_ring_);
      owes_v_ = false;
    }
  }

  // Token of the half granule that element e is a score of.
  [[nodiscard]] __device__ uint32_t token_of(uint32_t e) const { return e / 4 * 8 + 2 * quad_ + e % 2; }

  // Scores in natural units in place of products, -infinity where the pair does not see the token.
  __device__ void make_scores(float (&scores)[16],
                              const uint32_t (&seen)[2],
                              uint64_t first,
                              bool open) const {
#pragma unroll
    for (uint32_t e = 0; e < 16; ++e) {
      scores[e] = __fmul_rn(scores[e], q_scale_[e / 2 % 2]);
    }
    if (bent_) {
#pragma unroll
      for (uint32_t e = 0; e < 16; ++e) {
        scores[e] = tensor::bent(block_, scores[e], pair(e / 2 % 2), first + token_of(e));
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
      float top = m_[r];
#pragma unroll
      for (uint32_t i = 0; i < 8; ++i) {
        top = ptx::max_nan(top, scores[i / 2 * 4 + 2 * r + i % 2]);
      }
      top = ptx::max_nan(top, __shfl_xor_sync(~0u, top, 1));
      top = ptx::max_nan(top, __shfl_xor_sync(~0u, top, 2));
      from[r] = is_neutral(top) ? 0.0f : top;
      kept[r] = tensor::kept_of(m_[r], from[r]);
      m_[r] = top;
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
      l_[r] = fmaf(l_[r], kept[r], sums[r]);
    }
  }

  __device__ void rescale(const float (&kept)[2]) {
#pragma unroll
    for (uint32_t part = 0; part < parts; ++part) {
#pragma unroll
      for (uint32_t i = 0; i < 64; ++i) {
        u_[part][i] *= kept[i / 2 % 2];
      }
    }
  }

  __device__ void multiply_values(uint32_t half, const uint32_t (&weights)[2][4]) {
    const uint32_t values = begin_tile(v_ring_, Places::tile_panel_bytes) + half * (kHalfBytes / 16);
    wgmma::begin();
#pragma unroll
    for (uint32_t step = 0; step < 2; ++step) {
#pragma unroll
      for (uint32_t part = 0; part < parts; ++part) {
        wgmma::multiply(u_[part],
                        weights[step],
                        values + 2 * part * (Places::tile_panel_bytes / 16) + step * (kHalfBytes / 32));
      }
    }
    wgmma::commit();
  }

  // Tokens that were left out of the products, for the pairs that see them, from where they lie.
  __device__ void add_odd(const uint32_t (&weights)[2][4],
                          const uint32_t (&seen)[2],
                          uint32_t half,
                          uint64_t first) {
    const auto& kept = block_.kept();
    const Problem& problem = block_.problem;
    for (uint32_t left = reinterpret_cast<const uint32_t*>(kept.odd[other_])[half]; left != 0;
         left &= left - 1) {
      const auto token = static_cast<uint32_t>(__ffs(static_cast<int>(left)) - 1);
      const SpanView span = span_of(first + token);
      const uint8_t* const row = row_of(
          problem.v_in_k != 0 ? span.k : span.v, first + token - span.first_token, kept.kv_head);
      float weight[2];
#pragma unroll
      for (uint32_t r = 0; r < 2; ++r) {
        // Lane token % 8 / 2 of the quad has it.
        uint32_t bits = 0;
#pragma unroll
        for (uint32_t eight = 0; eight < 4; ++eight) {
          bits = token / 8 == eight ? weights[eight / 2][eight % 2 * 2 + r] : bits;
        }
        bits = __shfl_sync(~0u, bits, static_cast<int>(threadIdx.x % 32 / 4 * 4 + token % 8 / 2));
        const float2 two = __half22float2(ptx::half2_of(bits));
        weight[r] = token % 2 == 0 ? two.x : two.y;
      }
      for_each_two([&](uint32_t r, uint32_t element, float& a, float& b) {
        if ((seen[r] >> token & 1) != 0) {
          const kvspan_type_t type = V::type(KVSPAN_TYPE_F32);
          a = fmaf(weight[r], tensor::saturated(tensor::element_at(type, row, element)), a);
          b = fmaf(weight[r], tensor::saturated(tensor::element_at(type, row, element + 1)), b);
        }
      });
    }
  }

  // The span of a token that some pair sees.
  [[nodiscard]] __device__ SpanView span_of(uint64_t token) const {
    const auto& entry = block_.kept().entry;
    uint32_t at = 0;
    while (entry.spans[at].first_token + entry.spans[at].token_count <= token) {
      ++at;
    }
    SpanView span = entry.spans[at];
    reach_all(block_.near(), span);
    return span;
  }

  // The state of a split is over: into the accumulator, which lies in the item's state.
  __device__ void fold_split(bool has_accumulator) {
    const StateView state = block_.kept().item.state;
    Fold fold[2];
#pragma unroll
    for (uint32_t r = 0; r < 2; ++r) {
      fold[r] = fold_of(fold_m_[r], m_[r]);
      fold_m_[r] = fold[r].m;
      fold_l_[r] = folded(fold[r], fold_l_[r], l_[r] / tensor::kWeightScale);
    }
    for_each_two([&](uint32_t r, uint32_t element, float a, float b) {
      auto* const to = reinterpret_cast<float2*>(state.u + state_index(r) * size + element);
      const float2 sum = has_accumulator ? *to : make_float2(0.0f, 0.0f);
      *to = make_float2(folded(fold[r], sum.x, a / tensor::kWeightScale),
                        folded(fold[r], sum.y, b / tensor::kWeightScale));
    });
  }

  __device__ void write_outputs(bool has_accumulator) {
    const auto& kept = block_.kept();
    const Problem& problem = block_.problem;
    const EntryView& entry = kept.entry;
    Finish finish[2];
#pragma unroll
    for (uint32_t r = 0; r < 2; ++r) {
      const float* const sink =
          problem.sinks != nullptr ? problem.sinks + kept.pairs.head[pair(r)] : nullptr;
      finish[r] = finish_of(fold_m_[r], fold_l_[r], sink);
      if (is_there(r) && quad_ == 0 && entry.lse != nullptr) {
        entry.lse[state_index(r)] = finish[r].lse;
      }
    }
    const StateView state = kept.item.state;
    const uint32_t bytes = entry.out.type == KVSPAN_TYPE_F32 ? 4 : 2;
#pragma unroll
    for (uint32_t r = 0; r < 2; ++r) {
      if (!is_there(r)) {
        continue;
      }
      const float* const from = state.u + state_index(r) * size;
      uint8_t* const to = row_of(entry.out, kept.pairs.row[pair(r)], kept.pairs.head[pair(r)]);
#pragma unroll 1
      for (uint32_t element = 2 * quad_; element < size; element += 8) {
        const float2 sum = has_accumulator ? *reinterpret_cast<const float2*>(from + element)
                                           : make_float2(0.0f, 0.0f);
        store_element(entry.out.type, finished(finish[r], sum.x), to + element * bytes);
        store_element(entry.out.type, finished(finish[r], sum.y), to + (element + 1) * bytes);
      }
    }
  }

  const Owner block_;
  const uint32_t quad_;        // lane of the four that share two pairs
  const uint32_t first_pair_;  // of this thread's two
  const uint32_t query_;       // operand of the warpgroup's pairs
  tensor::Ring k_ring_;        // of tiles, every other one
  tensor::Ring v_ring_{1, 0};
  bool owes_v_ = false;  // the tile of V before is still to be given back
  uint32_t other_ = 0;         // of Kept's numbers of every other granule
  bool bent_ = false;
  float q_scale_[2];
  float u_[parts][64];
  float l_[2];
  float m_[2];
  float fold_m_[2] = {-INFINITY, -INFINITY};
  float fold_l_[2] = {};
};

}  // namespace kvspan::cuda::wide
