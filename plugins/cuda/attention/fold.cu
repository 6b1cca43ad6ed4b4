// SPDX-License-Identifier: Apache-2.0
// The kernels of fold and finish: a warp a pair (row, query head), each lane with its own elements of
// u. Pairs are numbered over all entries, row * q_heads + head inside one. Not here: the second half
// of run (run_fold.cu). Read first: kernel.hpp, fold.cuh.
#include "attention/fold.cuh"
#include "attention/held.cuh"
#include "cancel.cuh"
#include "divide.cuh"
#include "plane.cuh"
#include "typed_block.cuh"

namespace kvspan::cuda {
namespace {

constexpr uint32_t kWarps = 4;
constexpr uint32_t kLaneFours = kHeadSizeMax / 128;
constexpr uint64_t kBlocksMax = uint64_t{1} << 20;

// One warp's pair.
struct Pair {
  const EntryView* entry;
  uint64_t entry_index;
  uint64_t index;  // in its entry
};

__device__ Pair pair_of(const HeldCall& call, uint64_t pair) {
  const EntryView* const entries = reach(call, call.view.entries);
  const uint64_t low = find_last(
      call.view.entry_count, pair, [&](uint64_t index) { return entries[index].first_pair; });
  return {entries + low, low, pair - entries[low].first_pair};
}

// A state in registers: four elements of u from 4 * lane + 128 * i on. Head sizes are multiples of
// 16, and states lie at multiples of 64 bytes (kStateAlignment).
struct Accumulator {
  float m = -INFINITY;
  float l = 0.0f;
  float4 u[kLaneFours] = {};
};

__device__ Accumulator load(const StateView& state, uint64_t pair, uint32_t size, uint32_t lane) {
  Accumulator loaded;
  loaded.m = state.ml[2 * pair];
  loaded.l = state.ml[2 * pair + 1];
  const auto* const u = reinterpret_cast<const float4*>(state.u + pair * size);
#pragma unroll
  for (uint32_t i = 0; i < kLaneFours; ++i) {
    const uint32_t four = lane + 32 * i;
    loaded.u[i] = 4 * four < size ? u[four] : float4{};
  }
  return loaded;
}

__device__ void store(
    const Accumulator& from, const StateView& state, uint64_t pair, uint32_t size, uint32_t lane) {
  __syncwarp();  // every lane has read {m, l}
  if (lane == 0) {
    state.ml[2 * pair] = from.m;
    state.ml[2 * pair + 1] = from.l;
  }
  auto* const u = reinterpret_cast<float4*>(state.u + pair * size);
#pragma unroll
  for (uint32_t i = 0; i < kLaneFours; ++i) {
    const uint32_t four = lane + 32 * i;
    if (4 * four < size) {
      u[four] = from.u[i];
    }
  }
  __syncwarp();  // the next item may read what lane 0 wrote
}

__device__ void fold_in(Accumulator& into, const Accumulator& source) {
  const Fold fold = fold_of(into.m, source.m);
  into.m = fold.m;
  into.l = folded(fold, into.l, source.l);
#pragma unroll
  for (uint32_t i = 0; i < kLaneFours; ++i) {
    into.u[i].x = folded(fold, into.u[i].x, source.u[i].x);
    into.u[i].y = folded(fold, into.u[i].y, source.u[i].y);
    into.u[i].z = folded(fold, into.u[i].z, source.u[i].z);
    into.u[i].w = folded(fold, into.u[i].w, source.u[i].w);
  }
}

__device__ void store_four(kvspan_type_t type, const float4& values, uint8_t* out) {
  if (type == KVSPAN_TYPE_F32 && reinterpret_cast<uint64_t>(out) % sizeof(float4) == 0) {
    *reinterpret_cast<float4*>(out) = values;
    return;
  }
  const uint32_t bytes = type == KVSPAN_TYPE_F32 ? 4 : 2;
  store_element(type, values.x, out);
  store_element(type, values.y, out + bytes);
  store_element(type, values.z, out + 2 * bytes);
  store_element(type, values.w, out + 3 * bytes);
}

__device__ void write_output(const AttentionCallView& call,
                             const Pair& pair,
                             const Accumulator& from,
                             uint32_t lane) {
  const Problem& problem = call.problem;
  const uint64_t row = divided(pair.index, problem.q_heads);
  const auto head = static_cast<uint32_t>(pair.index - row * problem.q_heads);
  const float* const sink = problem.sinks != nullptr ? problem.sinks + head : nullptr;
  const Finish finish = finish_of(from.m, from.l, sink);
  const RowsView& rows = pair.entry->out;
  uint8_t* const out = row_of(rows, row, head);
  const uint32_t bytes = rows.type == KVSPAN_TYPE_F32 ? 4 : 2;
#pragma unroll
  for (uint32_t i = 0; i < kLaneFours; ++i) {
    const uint32_t e = 4 * lane + 128 * i;
    if (e < problem.head_size_v) {
      const float4 of = {finished(finish, from.u[i].x),
                         finished(finish, from.u[i].y),
                         finished(finish, from.u[i].z),
                         finished(finish, from.u[i].w)};
      store_four(rows.type, of, out + e * bytes);
    }
  }
  if (lane == 0 && pair.entry->lse != nullptr) {
    pair.entry->lse[pair.index] = finish.lse;
  }
}

// Items of an entry as a warp reads them: 32 at a time, one a lane, since each lies in host memory.
class Items {
 public:
  __device__ Items(const FoldWork* items, uint64_t count, uint32_t lane)
      : items_(items), count_(count), lane_(lane) {}

  // Item `index`, asked for in ascending order by the whole warp.
  __device__ FoldWork at(uint64_t index) {
    if (index % 32 == 0 && index + lane_ < count_) {
      mine_ = items_[index + lane_];
    }
    const auto from = static_cast<int>(index % 32);
    FoldWork item{};
    item.source.u = shuffled(mine_.source.u, from);
    item.source.ml = shuffled(mine_.source.ml, from);
    item.accumulator.u = shuffled(mine_.accumulator.u, from);
    item.accumulator.ml = shuffled(mine_.accumulator.ml, from);
    item.fresh = __shfl_sync(~0u, mine_.fresh, from);
    return item;
  }

 private:
  __device__ static float* shuffled(float* pointer, int from) {
    const auto bits = reinterpret_cast<unsigned long long>(pointer);
    return reinterpret_cast<float*>(__shfl_sync(~0u, bits, from));
  }

  const FoldWork* items_;
  uint64_t count_;
  uint32_t lane_;
  FoldWork mine_{};
};

enum class Work { fold, finish };

// Sources that are on their way at once: of few pairs, whose folds of many splits wait for memory;
// and of so many that others' loads fill the time, for which fewer registers are better.
constexpr uint32_t kAheadOfFew = 6;
constexpr uint32_t kAheadOfMany = 1;
constexpr uint64_t kManyPairs = 4096;

// Whether an item before number `i`, or the one held, has its source as accumulator: then what was
// fetched ahead is old.
template <uint32_t kAhead>
__device__ bool is_old(const FoldWork (&items)[kAhead], uint32_t i, const StateView& held) {
  bool old = items[i].source.u == held.u;
  for (uint32_t before = 0; before < i; ++before) {
    old = old || items[i].source.u == items[before].accumulator.u;
  }
  return old;
}

// Items of one accumulator usually follow each other: it stays in registers until another comes.
template <uint32_t kAhead>
__device__ void fold_pair(const HeldCall& call, const Pair& pair, uint32_t lane) {
  const uint32_t size = call.view.problem.head_size_v;
  const uint64_t count = pair.entry->fold_count;
  Items items(reach(call, call.view.folds) + pair.entry->first_fold, count, lane);
  Accumulator into;
  StateView held{};
  for (uint64_t first = 0; first < count; first += kAhead) {
    FoldWork next[kAhead];
    Accumulator sources[kAhead];
#pragma unroll
    for (uint32_t i = 0; i < kAhead; ++i) {
      if (first + i < count) {
        next[i] = items.at(first + i);
        sources[i] = load(next[i].source, pair.index, size, lane);
      }
    }
#pragma unroll
    for (uint32_t i = 0; i < kAhead; ++i) {
      if (first + i >= count) {
        break;
      }
      if (is_old(next, i, held)) {
        if (held.u != nullptr) {
          store(into, held, pair.index, size, lane);
        }
        sources[i] = load(next[i].source, pair.index, size, lane);
      }
      const StateView& accumulator = next[i].accumulator;
      if (accumulator.u != held.u || accumulator.ml != held.ml) {
        if (held.u != nullptr) {
          store(into, held, pair.index, size, lane);
        }
        held = accumulator;
        into = next[i].fresh != 0 ? Accumulator() : load(held, pair.index, size, lane);
      } else if (next[i].fresh != 0) {
        into = Accumulator();
      }
      fold_in(into, sources[i]);
    }
  }
  if (held.u != nullptr) {
    store(into, held, pair.index, size, lane);
  }
}

template <Work kWork, uint32_t kAhead>
__global__ void __launch_bounds__(kWarps * 32)
    pair_kernel(const __grid_constant__ HeldCall call) {
  const AttentionCallView& view = call.view;
  if (short_block_is_cancelled(view.cancel)) {
    return;
  }
  const uint32_t lane = threadIdx.x % 32;
  const uint64_t step = uint64_t{gridDim.x} * kWarps;
  for (uint64_t at = uint64_t{blockIdx.x} * kWarps + threadIdx.x / 32; at < view.pairs;
       at += step) {
    const Pair pair = pair_of(call, at);
    if constexpr (kWork == Work::finish) {
      const StateView& state = reach(call, view.accumulators)[pair.entry_index];
      write_output(view, pair, load(state, pair.index, view.problem.head_size_v, lane), lane);
    } else {
      fold_pair<kAhead>(call, pair, lane);
    }
  }
}

template <Work kWork, uint32_t kAhead>
cudaError_t launch(cudaStream_t stream, const HeldCall& call) {
  const uint64_t blocks = (call.view.pairs + kWarps - 1) / kWarps;
  const auto grid = static_cast<uint32_t>(blocks < kBlocksMax ? blocks : kBlocksMax);
  pair_kernel<kWork, kAhead><<<grid, kWarps * 32, 0, stream>>>(call);
  return cudaGetLastError();
}

}  // namespace

cudaError_t load_fold_kernels() {
  cudaFuncAttributes unused{};
  cudaError_t bad = cudaFuncGetAttributes(&unused, pair_kernel<Work::fold, kAheadOfFew>);
  bad = bad != cudaSuccess
            ? bad
            : cudaFuncGetAttributes(&unused, pair_kernel<Work::fold, kAheadOfMany>);
  return bad != cudaSuccess ? bad : cudaFuncGetAttributes(&unused, pair_kernel<Work::finish, 1>);
}

cudaError_t launch_fold(cudaStream_t stream, const HeldCall& call) {
  return call.view.pairs < kManyPairs ? launch<Work::fold, kAheadOfFew>(stream, call)
                                      : launch<Work::fold, kAheadOfMany>(stream, call);
}

cudaError_t launch_finish(cudaStream_t stream, const HeldCall& call) {
  return launch<Work::finish, 1>(stream, call);
}

}  // namespace kvspan::cuda
