// SPDX-License-Identifier: Apache-2.0
// The summing warps: u = u * kept + V P for each granule, l = l * kept + the sum of P, and what
// becomes of a state at the end of its split: memory, or the accumulator of a whole run and its
// output. A warp has its own elements of u, in registers, and m and l of the pairs of one tile.
// Device code only.
#pragma once

#include "attention/tensor/block.cuh"
#include "attention/tensor/v_operand.cuh"
#include "plane.cuh"

namespace kvspan::cuda::tensor {

template <class K, class V, uint32_t kTiles>
class Summer {
 public:
  using Owner = Block<K, V, kTiles>;
  using Places = typename Owner::Places;
  using Operand = VOperand<V>;
  static constexpr uint32_t slots = Places::slots;
  static constexpr uint32_t tiles_max = Operand::tiles_max;

  __device__ explicit Summer(const Owner& block)
      : block_(block), lane_(threadIdx.x % 32), warp_(threadIdx.x / 32 - Owner::Warps::first_summer) {}

  // All granules of the item, and what comes of them.
  __device__ void walk() {
    const Walk walk = block_.kept().item.walk;
    forget();
    bool walked = false;
    if (walk == Walk::resume) {
      load_state();
    }
    for_each_stretch(block_.kept(), [&](const Stretch& stretch) {
      if (walk == Walk::splits) {
        forget();
      }
      for (uint32_t granule = 0; granule < stretch.granules; ++granule) {
        sum(stretch.is_open(granule));
      }
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
  // Calls visit(pair, element, u) for all that this thread has.
  template <class Visit>
  __device__ void for_each(Visit&& visit) {
    const uint32_t count = block_.kept().count;
    const uint32_t mine = Operand::tiles(block_.problem, warp_);
#pragma unroll
    for (uint32_t t = 0; t < tiles_max; ++t) {
#pragma unroll
      for (uint32_t j = 0; j < kTiles; ++j) {
#pragma unroll
        for (uint32_t e = 0; e < 4; ++e) {
          const uint32_t pair = 8 * j + 2 * (lane_ % 4) + e % 2;
          if (t < mine && pair < count) {
            visit(pair,
                  Operand::dim_of(block_.problem, warp_, t, lane_ / 4 + e / 2 * 8),
                  u_[t][j][e]);
          }
        }
      }
    }
  }

  __device__ uint64_t state_index(uint32_t pair) const {
    const PairsOf<Owner::pairs>& pairs = block_.kept().pairs;
    return pairs.row[pair] * block_.problem.q_heads + pairs.head[pair];
  }

  __device__ void forget() {
#pragma unroll
    for (uint32_t t = 0; t < tiles_max; ++t) {
#pragma unroll
      for (uint32_t j = 0; j < kTiles; ++j) {
#pragma unroll
        for (uint32_t e = 0; e < 4; ++e) {
          u_[t][j][e] = 0.0f;
        }
      }
    }
    for (uint32_t c = 0; c < 2; ++c) {
      l_[c] = 0.0f;
      m_[c] = -INFINITY;
    }
  }

  // Column c of the tile whose m and l this warp has.
  __device__ uint32_t own_pair(uint32_t c) const { return 8 * warp_ + 2 * (lane_ % 4) + c; }

  // Whether this thread speaks for that pair: eight have the same numbers.
  __device__ bool speaks_for(uint32_t pair) const {
    return lane_ < 4 && warp_ < kTiles && pair < block_.kept().count;
  }

  __device__ void load_state() {
    const StateView state = block_.kept().item.state;
#pragma unroll
    for (uint32_t c = 0; c < 2; ++c) {
      if (warp_ < kTiles && own_pair(c) < block_.kept().count) {
        const uint64_t at = state_index(own_pair(c));
        m_[c] = state.ml[2 * at];
        l_[c] = state.ml[2 * at + 1] * kWeightScale;
      }
    }
    const uint32_t size = block_.problem.head_size_v;
    for_each([&](uint32_t pair, uint32_t element, float& u) {
      u = state.u[state_index(pair) * size + element] * kWeightScale;
    });
  }

  __device__ void store_state() {
    const StateView state = block_.kept().item.state;
    const uint32_t size = block_.problem.head_size_v;
#pragma unroll
    for (uint32_t c = 0; c < 2; ++c) {
      if (speaks_for(own_pair(c))) {
        const uint64_t at = state_index(own_pair(c));
        state.ml[2 * at] = m_[c];
        state.ml[2 * at + 1] = l_[c] / kWeightScale;
      }
    }
    for_each([&](uint32_t pair, uint32_t element, float& u) {
      state.u[state_index(pair) * size + element] = u / kWeightScale;
    });
  }

  __device__ void sum(bool open) {
    typename Owner::Numbers& kept = block_.kept();
    ptx::wait(&kept.v_full[ring_.slot], ring_.parity);
    const uint64_t wanted = open ? ~0ull : kept.v_wanted[ring_.slot];
    const uint8_t* const slot = block_.v_slot(ring_.slot);
    Operand values(block_.problem, slot, block_.v_made(), warp_);
    uint64_t odd = 0;
    if (V::is_packed || !open) {
      odd = values.odd_tokens(wanted) & wanted;
    }
    if (!open || odd != 0) {
      values.keep(wanted & ~odd);
    }
    values.spread();
    const Weighed<Owner::pairs>& told = kept.weighed[weights_.slot];
    if constexpr (kTiles == 1) {  // there are registers for all operands: they are made meanwhile
      uint32_t all[kTokenTiles][tiles_max][4];
#pragma unroll
      for (uint32_t step = 0; step < kTokenTiles; ++step) {
        values.load(step, all[step]);
      }
      ptx::wait(&kept.p_full[weights_.slot], weights_.parity);
      rescale(told);
#pragma unroll
      for (uint32_t step = 0; step < kTokenTiles; ++step) {
        multiply(values, step, all[step]);
      }
    } else {
      ptx::wait(&kept.p_full[weights_.slot], weights_.parity);
      rescale(told);
#pragma unroll
      for (uint32_t step = 0; step < kTokenTiles; ++step) {
        uint32_t a[tiles_max][4];
        values.load(step, a);
        multiply(values, step, a);
      }
    }
    if (warp_ < kTiles) {
      sum_weights(told);
    }
    if (odd != 0) {
      add_odd(odd, slot, told);
    }
    __syncwarp();
    ptx::arrive_as_warp(&kept.v_empty[ring_.slot]);
    ptx::arrive_as_warp(&kept.p_empty[weights_.slot]);
    ring_.next(slots);
    weights_.next(Owner::Numbers::weight_slots);
  }

  // m and l of the tile of this warp: weights are summed as a product with ones.
  __device__ void sum_weights(const Weighed<Owner::pairs>& told) {
    const uint32_t one = V::is_bf16 ? 0x3F803F80u : 0x3C003C00u;
    const uint32_t ones[4] = {one, one, one, one};
    const uint32_t weights = ptx::shared_address(block_.p(weights_.slot)) +
                             (lane_ % 16) * Places::p_stride + 16 * warp_;
    float sums[4] = {};
#pragma unroll
    for (uint32_t step = 0; step < kTokenTiles; ++step) {
      uint32_t b[2];
      ptx::load_transposed(b, weights + 16 * step * Places::p_stride);
      ptx::multiply<V::is_bf16>(sums, ones, b[0], b[1]);
    }
    const float2 kept = *reinterpret_cast<const float2*>(&told.kept[own_pair(0)]);
    const float2 m = *reinterpret_cast<const float2*>(&told.m[own_pair(0)]);
    l_[0] = fmaf(l_[0], kept.x, sums[0]);
    l_[1] = fmaf(l_[1], kept.y, sums[1]);
    m_[0] = m.x;
    m_[1] = m.y;
  }

  // A product with 1 changes nothing, and most granules have no new maximum.
  __device__ void rescale(const Weighed<Owner::pairs>& told) {
    float2 kept[kTiles];
    bool any = false;
#pragma unroll
    for (uint32_t j = 0; j < kTiles; ++j) {
      kept[j] = *reinterpret_cast<const float2*>(&told.kept[8 * j + 2 * (lane_ % 4)]);
      any = any || kept[j].x != 1.0f || kept[j].y != 1.0f;
    }
    if (__any_sync(~0u, any ? 1 : 0) == 0) {
      return;
    }
#pragma unroll
    for (uint32_t t = 0; t < tiles_max; ++t) {
#pragma unroll
      for (uint32_t j = 0; j < kTiles; ++j) {
        u_[t][j][0] *= kept[j].x;
        u_[t][j][1] *= kept[j].y;
        u_[t][j][2] *= kept[j].x;
        u_[t][j][3] *= kept[j].y;
      }
    }
  }

  // Adds the products of step `step` of 16 tokens.
  __device__ void multiply(const Operand& values,
                           uint32_t step,
                           const uint32_t (&a)[tiles_max][4]) {
    // Rows of a matrix of weights are tokens: 0 to 7, then 8 to 15; then those of the next 8 pairs.
    const uint32_t at = ptx::shared_address(block_.p(weights_.slot)) +
                        (16 * step + lane_ % 16) * Places::p_stride + lane_ / 16 * 16;
#pragma unroll
    for (uint32_t j = 0; j + 1 < kTiles; j += 2) {
      uint32_t b[4];
      ptx::load_transposed(b, at + 16 * j);
      values.scale(step, b[0], b[1]);
      values.scale(step, b[2], b[3]);
#pragma unroll
      for (uint32_t t = 0; t < tiles_max; ++t) {
        ptx::multiply<V::is_bf16>(u_[t][j], a[t], b[0], b[1]);
        ptx::multiply<V::is_bf16>(u_[t][j + 1], a[t], b[2], b[3]);
      }
    }
    if constexpr (kTiles % 2 == 1) {
      uint32_t b[2];
      ptx::load_transposed(b, at - lane_ / 16 * 16 + 16 * (kTiles - 1));
      values.scale(step, b[0], b[1]);
#pragma unroll
      for (uint32_t t = 0; t < tiles_max; ++t) {
        ptx::multiply<V::is_bf16>(u_[t][kTiles - 1], a[t], b[0], b[1]);
      }
    }
  }

  // Tokens that were left out of the products, for the pairs that see them.
  __device__ void add_odd(uint64_t odd,
                          const uint8_t* slot,
                          const Weighed<Owner::pairs>& told) {
    const Problem& problem = block_.problem;
    const kvspan_type_t type = V::type(problem.v_in_k != 0 ? problem.k_type : problem.v_type);
    const uint32_t stride = V::stride(type, V::elements(problem.head_size_v));
    const uint8_t* const weights = block_.p(weights_.slot);
    for (uint64_t left = odd; left != 0; left &= left - 1) {
      const auto token = static_cast<uint32_t>(__ffsll(static_cast<long long>(left)) - 1);
      for_each([&](uint32_t pair, uint32_t element, float& u) {
        if ((told.bits[pair] >> token & 1) == 0) {
          return;
        }
        const auto* const at =
            reinterpret_cast<const uint16_t*>(weights + token * Places::p_stride + 2 * pair);
        const float weight = V::is_bf16 ? f32_from_bf16(*at) : __half2float(__ushort_as_half(*at));
        u = fmaf(weight, saturated(element_at(type, slot + token * stride, element)), u);
      });
    }
  }

  // The state of a split is over: into the accumulator, which lies in the item's state.
  __device__ void fold_split(bool has_accumulator) {
    typename Owner::Numbers& kept = block_.kept();
    const StateView state = kept.item.state;
#pragma unroll
    for (uint32_t c = 0; c < 2; ++c) {
      const uint32_t pair = own_pair(c);
      if (speaks_for(pair)) {
        kept.fold[pair] = fold_of(fold_m_[c], m_[c]);
        fold_m_[c] = kept.fold[pair].m;
        fold_l_[c] = folded(kept.fold[pair], fold_l_[c], l_[c] / kWeightScale);
      }
    }
    ptx::sync(kValueBarrier, kSumThreads);
    const uint32_t size = block_.problem.head_size_v;
    for_each([&](uint32_t pair, uint32_t element, float& u) {
      float& sum = state.u[state_index(pair) * size + element];
      sum = folded(kept.fold[pair], has_accumulator ? sum : 0.0f, u / kWeightScale);
    });
    ptx::sync(kValueBarrier, kSumThreads);
  }

  __device__ void write_outputs(bool has_accumulator) {
    typename Owner::Numbers& kept = block_.kept();
    const Problem& problem = block_.problem;
    const EntryView& entry = kept.entry;
#pragma unroll
    for (uint32_t c = 0; c < 2; ++c) {
      const uint32_t pair = own_pair(c);
      if (speaks_for(pair)) {
        const float* const sink =
            problem.sinks != nullptr ? problem.sinks + kept.pairs.head[pair] : nullptr;
        kept.finish[pair] = finish_of(fold_m_[c], fold_l_[c], sink);
        if (entry.lse != nullptr) {
          entry.lse[state_index(pair)] = kept.finish[pair].lse;
        }
      }
    }
    ptx::sync(kValueBarrier, kSumThreads);
    const StateView state = kept.item.state;
    const uint32_t bytes = entry.out.type == KVSPAN_TYPE_F32 ? 4 : 2;
    for_each([&](uint32_t pair, uint32_t element, float&) {
      const float sum =
          has_accumulator ? state.u[state_index(pair) * problem.head_size_v + element] : 0.0f;
      store_element(entry.out.type,
                    finished(kept.finish[pair], sum),
                    row_of(entry.out, kept.pairs.row[pair], kept.pairs.head[pair]) + element * bytes);
    });
  }

  const Owner block_;
  const uint32_t lane_;
  const uint32_t warp_;  // of the role
  Ring ring_;
  Ring weights_;
  float u_[tiles_max][kTiles][4];
  float l_[2];
  float m_[2];
  float fold_m_[2] = {-INFINITY, -INFINITY};
  float fold_l_[2] = {};
};

}  // namespace kvspan::cuda::tensor
