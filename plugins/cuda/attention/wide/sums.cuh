// SPDX-License-Identifier: Apache-2.0
// What an attending thread sums up: u, l and m of its two pairs, and how they come from an item's state
// and leave to it, to an accumulator or to outputs. The four lanes of a quad have the same two pairs, a
// fourth of u's columns each. Device code only. Read next: attend.cuh.
#pragma once

#include "attention/fold.cuh"
#include "attention/tensor/open.cuh"
#include "attention/wide/block.cuh"
#include "plane.cuh"
#include "typed_block.cuh"

namespace kvspan::cuda::wide {

// `block`: as the attending warp sees it, with the item that is open.
template <class K, class V>
class Sums {
 public:
  using Owner = Block<K, V>;
  static constexpr uint32_t size = Owner::Places::size;
  static constexpr uint32_t parts = size / 128;  // of u, as products take them
  // The same bits as the division by it, which the compiler would spell out for each number: what is
  // done once an item is code that is fetched anew each time, 128 bytes a trip.
  static constexpr float kUnscale = 1.0f / tensor::kWeightScale;

  __device__ void forget() {
#pragma unroll
    for (uint32_t part = 0; part < parts; ++part) {
#pragma unroll
      for (uint32_t i = 0; i < 64; ++i) {
        u[part][i] = 0.0f;
      }
    }
    for (uint32_t r = 0; r < 2; ++r) {
      l[r] = 0.0f;
      m[r] = -INFINITY;
    }
  }

  // Calls visit(r, element, u of it, u of the next element) for all that this thread has.
  template <class Visit>
  __device__ void for_each_two(const Owner& block, Visit&& visit) {
#pragma unroll
    for (uint32_t r = 0; r < 2; ++r) {
      if (!is_there(block, r)) {
        continue;
      }
#pragma unroll
      for (uint32_t part = 0; part < parts; ++part) {
#pragma unroll
        for (uint32_t i = 0; i < 16; ++i) {
          visit(r, 128 * part + 8 * i + 2 * quad, u[part][4 * i + 2 * r], u[part][4 * i + 2 * r + 1]);
        }
      }
    }
  }

  // Asks for the item's state; nothing waits before scale().
  __device__ void fetch(const Owner& block) {
    const StateRows rows = state_rows(block);
    for (uint32_t r = 0; r < 2; ++r) {
      if (is_there(block, r)) {
        m[r] = rows.ml[2 * rows.index[r]];
        l[r] = rows.ml[2 * rows.index[r] + 1];
      }
    }
    for_each_two(block, [&](uint32_t r, uint32_t element, float& a, float& b) {
      const float2 from = *reinterpret_cast<const float2*>(rows.u[r] + element);
      a = from.x;
      b = from.y;
    });
  }

  // As sums are kept while they grow; zeros stay.
  __device__ void scale() {
    l[0] *= tensor::kWeightScale;
    l[1] *= tensor::kWeightScale;
    pin();  // not before
#pragma unroll
    for (uint32_t part = 0; part < parts; ++part) {
#pragma unroll
      for (uint32_t i = 0; i < 64; ++i) {
        u[part][i] *= tensor::kWeightScale;
      }
    }
  }

  // As the item's state.
  __device__ void store(const Owner& block) {
    const StateRows rows = state_rows(block);
    for (uint32_t r = 0; r < 2; ++r) {
      if (is_there(block, r) && quad == 0) {
        rows.ml[2 * rows.index[r]] = m[r];
        rows.ml[2 * rows.index[r] + 1] = l[r] * kUnscale;
      }
    }
    for_each_two(block, [&](uint32_t r, uint32_t element, float a, float b) {
      *reinterpret_cast<float2*>(rows.u[r] + element) = make_float2(a * kUnscale, b * kUnscale);
    });
  }

  __device__ void pin() {
#pragma unroll
    for (uint32_t part = 0; part < parts; ++part) {
      wgmma::pin(u[part]);
    }
  }

  __device__ void rescale(const float (&kept)[2]) {
#pragma unroll
    for (uint32_t part = 0; part < parts; ++part) {
#pragma unroll
      for (uint32_t i = 0; i < 64; ++i) {
        u[part][i] *= kept[i / 2 % 2];
      }
    }
  }

  // The state of a split is over: into the accumulator.
  __device__ void fold(const Owner& block, bool has_accumulator) {
    const StateRows rows = state_rows(block);
    Fold folds[2];
    float sums[2];
#pragma unroll
    for (uint32_t r = 0; r < 2; ++r) {
      const float2 before = accumulated(block, rows, r, has_accumulator);
      folds[r] = fold_of(before.x, m[r]);
      sums[r] = folded(folds[r], before.y, l[r] * kUnscale);
    }
    __syncwarp();  // all four lanes have read {m, l}
    for (uint32_t r = 0; r < 2; ++r) {
      if (is_there(block, r) && quad == 0) {
        *reinterpret_cast<float2*>(rows.ml + 2 * rows.index[r]) = make_float2(folds[r].m, sums[r]);
      }
    }
    __syncwarp();
    for_each_two(block, [&](uint32_t r, uint32_t element, float a, float b) {
      auto* const to = reinterpret_cast<float2*>(rows.u[r] + element);
      const float2 sum = has_accumulator ? *to : make_float2(0.0f, 0.0f);
      *to = make_float2(folded(folds[r], sum.x, a * kUnscale), folded(folds[r], sum.y, b * kUnscale));
    });
  }

  __device__ void write_outputs(const Owner& block, bool has_accumulator) const {
    const Problem& problem = block.problem;
    const EntryView& entry = block.opened().entry;
    const StateRows rows = state_rows(block);
    Finish finish[2];
#pragma unroll
    for (uint32_t r = 0; r < 2; ++r) {
      const float* const sink =
          problem.sinks != nullptr ? problem.sinks + place(block, r).head : nullptr;
      const float2 of_all = accumulated(block, rows, r, has_accumulator);
      finish[r] = finish_of(of_all.x, of_all.y, sink);
      if (is_there(block, r) && quad == 0 && entry.lse != nullptr) {
        entry.lse[rows.index[r]] = finish[r].lse;
      }
    }
    const uint32_t bytes = entry.out.type == KVSPAN_TYPE_F32 ? 4 : 2;
#pragma unroll
    for (uint32_t r = 0; r < 2; ++r) {
      if (!is_there(block, r)) {
        continue;
      }
      const float* const from = rows.u[r];
      const tensor::PairPlace at = place(block, r);
      uint8_t* const to = row_of(entry.out, at.row, at.head);
#pragma unroll 1
      for (uint32_t element = 2 * quad; element < size; element += 8) {
        const float2 sum = has_accumulator ? *reinterpret_cast<const float2*>(from + element)
                                           : make_float2(0.0f, 0.0f);
        store_element(entry.out.type, finished(finish[r], sum.x), to + element * bytes);
        store_element(entry.out.type, finished(finish[r], sum.y), to + (element + 1) * bytes);
      }
    }
  }

  const uint32_t quad = threadIdx.x % 4;  // lane of the four that share two pairs
  float u[parts][64];
  float l[2];
  float m[2];

 private:
  [[nodiscard]] __device__ static bool is_there(const Owner& block, uint32_t r) {
    return own_pair(r) < block.opened().count;
  }

  [[nodiscard]] __device__ static tensor::PairPlace place(const Owner& block, uint32_t r) {
    return tensor::place_of(block.opened(), block.problem, own_pair(r));
  }

  // Where a thread's pairs are in the item's state: found once, a division each.
  struct StateRows {
    float* ml;          // of the state
    uint64_t index[2];  // row * q_heads + head
    float* u[2];
  };

  [[nodiscard]] __device__ static StateRows state_rows(const Owner& block) {
    StateRows out;
    out.ml = block.opened().item.state.ml;
#pragma unroll
    for (uint32_t r = 0; r < 2; ++r) {
      const tensor::PairPlace at = place(block, r);
      out.index[r] = at.row * block.problem.q_heads + at.head;
      out.u[r] = block.opened().item.state.u + out.index[r] * size;
    }
    return out;
  }

  // {m, l} of the accumulator, which lies in the item's state.
  [[nodiscard]] __device__ static float2 accumulated(const Owner& block,
                                                     const StateRows& rows,
                                                     uint32_t r,
                                                     bool there) {
    return there && is_there(block, r) ? *reinterpret_cast<const float2*>(rows.ml + 2 * rows.index[r])
                                       : make_float2(-INFINITY, 0.0f);
  }
};

}  // namespace kvspan::cuda::wide
