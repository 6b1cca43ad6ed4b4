// SPDX-License-Identifier: Apache-2.0
// The second half of run: the states of an entry's splits folded by ascending split, outputs
// written. A block takes one pair (row, query head), a warp an eighth of its elements at most; every
// warp folds {m, l} for itself. The same arithmetic as fold.cu, step by step, so the same bits.
// Read first: kernel.hpp, fold.cuh.
#include "attention/fold.cuh"
#include "attention/held.cuh"
#include "attention/tensor/ptx.cuh"
#include "plane.cuh"
#include "typed_block.cuh"

namespace kvspan::cuda {
namespace {

constexpr uint32_t kWarps = 4;
constexpr uint32_t kWarpElements = kHeadSizeMax / kWarps;
constexpr uint32_t kLaneElements = kWarpElements / 32;
constexpr uint32_t kAhead = 16;  // states whose u is fetched together
constexpr uint32_t kChunks = 4;  // so many times, all but the last at once
constexpr uint32_t kRound = kChunks * kAhead;
static_assert(kRound == 64);  // splits that the lanes know two of each

// The folds of 32 splits of a pair, split i in lane i. What a fold does to l and u depends on the
// maxima alone, and the maximum of all splits before is a running one: so all lanes know theirs
// after five exchanges, instead of one fold after another.
struct Folds {
  Fold fold;
  float l;  // of the split
};

// The lane's split, `there` or not; `before`: the maximum of all splits before these 32, which
// becomes that of all up to the last of them.
__device__ Folds folds_of(bool there, float2 ml, float& before) {
  const uint32_t lane = threadIdx.x % 32;
  float top = there ? ml.x : -INFINITY;
  top = lane == 0 ? larger_or_nan(before, top) : top;
  for (uint32_t step = 1; step < 32; step *= 2) {
    const float other = __shfl_up_sync(~0u, top, step);
    top = lane >= step ? larger_or_nan(other, top) : top;
  }
  const float of_others = __shfl_up_sync(~0u, top, 1);
  const float mine = lane == 0 ? before : of_others;
  before = __shfl_sync(~0u, top, 31);
  return {fold_of(mine, there ? ml.x : -INFINITY), ml.y};
}

// The fold that lane `from` knows.
__device__ Fold shuffled(const Fold& fold, int from) {
  return {static_cast<FoldKind>(__shfl_sync(~0u, static_cast<uint32_t>(fold.kind), from)),
          0.0f,
          __shfl_sync(~0u, fold.ours, from),
          __shfl_sync(~0u, fold.theirs, from)};
}

// folded() without branches.
__device__ float chosen(const Fold& fold, float mine, float source) {
  const float both = merged(fold, mine, source);
  return fold.kind == FoldKind::keep ? mine : fold.kind == FoldKind::take ? source : both;
}

// Folds the splits that lanes from `lane` on know, whose u is `ahead`. A split that is not there has
// a neutral maximum and is kept out by that.
__device__ void fold_chunk(const Folds& folds,
                           uint32_t lane,
                           const float (&ahead)[kAhead][kLaneElements],
                           float& l,
                           float (&u)[kLaneElements]) {
#pragma unroll
  for (uint32_t a = 0; a < kAhead; ++a) {
    const auto from = static_cast<int>(lane + a);
    const Fold fold = shuffled(folds.fold, from);
    l = chosen(fold, l, __shfl_sync(~0u, folds.l, from));
#pragma unroll
    for (uint32_t i = 0; i < kLaneElements; ++i) {
      u[i] = chosen(fold, u[i], ahead[a][i]);
    }
  }
}

// A pair's states, of which a lane has elements first, first + 32, ...
struct Source {
  const EntryView& entry;
  uint64_t pair;
  uint32_t size;
  uint32_t first;

  // Whether there is the lane's one of the 32 splits from `begin` on.
  __device__ bool has(uint64_t begin) const {
    return begin + threadIdx.x % 32 < entry.run_count;
  }

  // Its {m, l}.
  __device__ float2 numbers(uint64_t begin) const {
    const uint64_t split = begin + threadIdx.x % 32;
    const uint8_t* const at = entry.run_states + split * entry.run_stride + entry.run_ml;
    return has(begin) ? reinterpret_cast<const float2*>(at)[pair] : float2{};
  }

  // u of the kAhead splits from `begin` on.
  __device__ void load(uint64_t begin, float (&u)[kAhead][kLaneElements]) const {
#pragma unroll
    for (uint32_t a = 0; a < kAhead; ++a) {
      const auto* const state =
          reinterpret_cast<const float*>(entry.run_states + (begin + a) * entry.run_stride);
#pragma unroll
      for (uint32_t i = 0; i < kLaneElements; ++i) {
        const uint32_t e = first + 32 * i;
        u[a][i] = begin + a < entry.run_count && e < size ? state[pair * size + e] : 0.0f;
      }
    }
  }
};

struct Numbers {
  float m = -INFINITY;
  float l = 0.0f;
};

__device__ void write(const HeldCall& call,
                      const EntryView& entry,
                      uint64_t index,
                      const Numbers& numbers,
                      const float (&u)[kLaneElements],
                      uint32_t first) {
  const Problem& problem = call.view.problem;
  const auto head = static_cast<uint32_t>(index % problem.q_heads);
  const float* const sink = problem.sinks != nullptr ? problem.sinks + head : nullptr;
  const Finish finish = finish_of(numbers.m, numbers.l, sink);
  uint8_t* const out = row_of(entry.out, index / problem.q_heads, head);
  const uint32_t bytes = entry.out.type == KVSPAN_TYPE_F32 ? 4 : 2;
#pragma unroll
  for (uint32_t i = 0; i < kLaneElements; ++i) {
    const uint32_t e = first + 32 * i;
    if (e < problem.head_size_v) {
      store_element(entry.out.type, finished(finish, u[i]), out + e * bytes);
    }
  }
  if (threadIdx.x == 0 && entry.lse != nullptr) {
    entry.lse[index] = finish.lse;
  }
}

__global__ void __launch_bounds__(32 * kWarps)
    run_fold_kernel(const __grid_constant__ HeldCall call) {
  const EntryView* const entries = reach(call, call.view.entries);
  const uint64_t at = find_last(call.view.entry_count, blockIdx.x, [&](uint64_t index) {
    return entries[index].first_pair;
  });
  const EntryView entry = entries[at];
  const uint64_t index = blockIdx.x - entry.first_pair;
  const uint32_t size = call.view.problem.head_size_v;
  const uint32_t first = threadIdx.x / 32 * kWarpElements + threadIdx.x % 32;
  ptx::wait_for_previous_kernel();
  const Source source{entry, index, size, first};
  Numbers into;
  float u[kLaneElements] = {};
  for (uint64_t begin = 0; begin < entry.run_count; begin += kRound) {
    const float2 ml[2] = {source.numbers(begin), source.numbers(begin + 32)};
    float ahead[kChunks - 1][kAhead][kLaneElements];
#pragma unroll
    for (uint32_t chunk = 0; chunk + 1 < kChunks; ++chunk) {
      source.load(begin + kAhead * chunk, ahead[chunk]);
    }
    Folds folds{};
#pragma unroll
    for (uint32_t chunk = 0; chunk < kChunks; ++chunk) {
      const uint64_t split = begin + kAhead * chunk;
      if (split >= entry.run_count) {
        break;
      }
      if (chunk % 2 == 0) {
        folds = folds_of(source.has(begin + 16 * chunk), ml[chunk / 2], into.m);
      }
      fold_chunk(folds, kAhead * (chunk % 2), ahead[chunk % (kChunks - 1)], into.l, u);
      if (chunk == 0) {
        source.load(begin + kAhead * (kChunks - 1), ahead[0]);
      }
    }
  }
  write(call, entry, index, into, u, first);
}

}  // namespace

cudaError_t load_run_fold_kernel() {
  cudaFuncAttributes unused{};
  return cudaFuncGetAttributes(&unused, run_fold_kernel);
}

// Starts while the kernel that makes the states still runs, and waits for it on the device; not
// where it is recorded, since what a graph keeps of it is a kernel and its arguments.
cudaError_t launch_fold_and_finish(cudaStream_t stream, const HeldCall& call) {
  cudaStreamCaptureStatus recorded = cudaStreamCaptureStatusNone;
  if (const cudaError_t bad = cudaStreamIsCapturing(stream, &recorded)) {
    return bad;
  }
  cudaLaunchAttribute overlap{};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = static_cast<uint32_t>(call.view.pairs);
  config.blockDim = 32 * kWarps;
  config.stream = stream;
  config.attrs = &overlap;
  config.numAttrs = recorded == cudaStreamCaptureStatusNone ? 1 : 0;
  return cudaLaunchKernelEx(&config, run_fold_kernel, call);
}

}  // namespace kvspan::cuda
