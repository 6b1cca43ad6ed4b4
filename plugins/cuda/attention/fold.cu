// SPDX-License-Identifier: Apache-2.0
// The kernels of fold, finish, and the second half of run: a warp a pair (row, query head), each
// lane with its own elements of u. Pairs are numbered over all entries, row * q_heads + head inside
// one. Read first: kernel.hpp, fold.cuh.
#include "attention/fold.cuh"
#include "attention/kernel.hpp"
#include "cancel.cuh"
#include "plane.cuh"
#include "search.cuh"
#include "typed_block.cuh"

namespace kvspan::cuda {
namespace {

constexpr uint32_t kWarps = 4;
constexpr uint32_t kLaneElements = kHeadSizeMax / 32;
constexpr uint64_t kBlocksMax = uint64_t{1} << 20;

// One warp's pair.
struct Pair {
  const EntryView* entry;
  uint64_t entry_index;
  uint64_t index;  // in its entry
};

__device__ Pair pair_of(const AttentionCallView& call, uint64_t pair) {
  const uint64_t low = find_last(
      call.entry_count, pair, [&](uint64_t index) { return call.entries[index].first_pair; });
  return {call.entries + low, low, pair - call.entries[low].first_pair};
}

// A state in registers: element lane + 32 * i of u.
struct Accumulator {
  float m = -INFINITY;
  float l = 0.0f;
  float u[kLaneElements] = {};
};

__device__ Accumulator load(const StateView& state, uint64_t pair, uint32_t size, uint32_t lane) {
  Accumulator loaded;
  loaded.m = state.ml[2 * pair];
  loaded.l = state.ml[2 * pair + 1];
#pragma unroll
  for (uint32_t i = 0; i < kLaneElements; ++i) {
    const uint32_t e = lane + 32 * i;
    loaded.u[i] = e < size ? state.u[pair * size + e] : 0.0f;
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
#pragma unroll
  for (uint32_t i = 0; i < kLaneElements; ++i) {
    const uint32_t e = lane + 32 * i;
    if (e < size) {
      state.u[pair * size + e] = from.u[i];
    }
  }
  __syncwarp();  // the next item may read what lane 0 wrote
}

__device__ void fold_in(Accumulator& into, const Accumulator& source) {
  const Fold fold = fold_of(into.m, source.m);
  into.m = fold.m;
  into.l = folded(fold, into.l, source.l);
#pragma unroll
  for (uint32_t i = 0; i < kLaneElements; ++i) {
    into.u[i] = folded(fold, into.u[i], source.u[i]);
  }
}

__device__ void write_output(const AttentionCallView& call,
                             const Pair& pair,
                             const Accumulator& from,
                             uint32_t lane) {
  const Problem& problem = call.problem;
  const auto head = static_cast<uint32_t>(pair.index % problem.q_heads);
  const uint64_t row = pair.index / problem.q_heads;
  const float* const sink = problem.sinks != nullptr ? problem.sinks + head : nullptr;
  const Finish finish = finish_of(from.m, from.l, sink);
  const RowsView& rows = pair.entry->out;
  uint8_t* const out = row_of(rows, row, head);
  const uint32_t bytes = rows.type == KVSPAN_TYPE_F32 ? 4 : 2;
#pragma unroll
  for (uint32_t i = 0; i < kLaneElements; ++i) {
    const uint32_t e = lane + 32 * i;
    if (e < problem.head_size_v) {
      store_element(rows.type, finished(finish, from.u[i]), out + e * bytes);
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

enum class Work { fold, finish, fold_and_finish };

template <Work kWork>
__device__ void do_pair(const AttentionCallView& call, const Pair& pair, uint32_t lane) {
  const uint32_t size = call.problem.head_size_v;
  if constexpr (kWork == Work::finish) {
    const StateView& state = call.accumulators[pair.entry_index];
    write_output(call, pair, load(state, pair.index, size, lane), lane);
    return;
  }
  const uint64_t count = pair.entry->fold_count;
  Items items(call.folds + pair.entry->first_fold, count, lane);
  Accumulator into;
  for (uint64_t i = 0; i < count; ++i) {
    const FoldWork item = items.at(i);
    if constexpr (kWork == Work::fold) {
      into = item.fresh == 0 ? load(item.accumulator, pair.index, size, lane) : Accumulator();
    }
    fold_in(into, load(item.source, pair.index, size, lane));
    if constexpr (kWork == Work::fold) {
      store(into, item.accumulator, pair.index, size, lane);
    }
  }
  if constexpr (kWork == Work::fold_and_finish) {
    write_output(call, pair, into, lane);
  }
}

template <Work kWork>
__global__ void pair_kernel(const __grid_constant__ AttentionCallView call) {
  if (block_is_cancelled(call.cancel_word, call.cancel_seen)) {
    return;
  }
  const uint32_t lane = threadIdx.x % 32;
  const uint64_t step = uint64_t{gridDim.x} * kWarps;
  for (uint64_t at = uint64_t{blockIdx.x} * kWarps + threadIdx.x / 32; at < call.pairs;
       at += step) {
    do_pair<kWork>(call, pair_of(call, at), lane);
  }
}

template <Work kWork>
cudaError_t launch(cudaStream_t stream, const AttentionCallView& call) {
  const uint64_t blocks = (call.pairs + kWarps - 1) / kWarps;
  const auto grid = static_cast<uint32_t>(blocks < kBlocksMax ? blocks : kBlocksMax);
  pair_kernel<kWork><<<grid, kWarps * 32, 0, stream>>>(call);
  return cudaGetLastError();
}

}  // namespace

cudaError_t load_fold_kernels() {
  cudaFuncAttributes unused{};
  cudaError_t bad = cudaFuncGetAttributes(&unused, pair_kernel<Work::fold>);
  bad = bad != cudaSuccess ? bad : cudaFuncGetAttributes(&unused, pair_kernel<Work::finish>);
  return bad != cudaSuccess ? bad
                            : cudaFuncGetAttributes(&unused, pair_kernel<Work::fold_and_finish>);
}

cudaError_t launch_fold(cudaStream_t stream, const AttentionCallView& call) {
  return launch<Work::fold>(stream, call);
}

cudaError_t launch_finish(cudaStream_t stream, const AttentionCallView& call) {
  return launch<Work::finish>(stream, call);
}

cudaError_t launch_fold_and_finish(cudaStream_t stream, const AttentionCallView& call) {
  return launch<Work::fold_and_finish>(stream, call);
}

}  // namespace kvspan::cuda
