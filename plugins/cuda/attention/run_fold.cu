// SPDX-License-Identifier: Apache-2.0
// The second half of run: the states of an entry's splits folded by ascending split, outputs written.
// A block takes 128 or 256 elements of one pair (row, query head), a thread each. Their states come to
// shared memory all at once; meanwhile a warp works out what each fold does. The same arithmetic as
// fold.cu, step by step, so the same bits. Loops are short ones: a launch fetches its code anew, and
// unrolled for 64 splits that took longer than the folds. What a block knows lies in shared memory, for
// want of registers.
// Read first: kernel.hpp, fold.cuh.
#include "attention/fold.cuh"
#include "attention/held.cuh"
#include "attention/tensor/ptx.cuh"
#include "divide.cuh"
#include "plane.cuh"
#include "search.cuh"
#include "typed_block.cuh"

#include <algorithm>

namespace kvspan::cuda {
namespace {

// Threads of a block, each with an element. The small one fits beside a block of the kernel that makes
// the states of one tile of pairs: a warp of 32 registers a thread for each quarter of a
// multiprocessor. Of more pairs there are so many blocks that fewer, larger ones are faster.
constexpr uint32_t kSmall = 128;
constexpr uint32_t kLarge = kHeadSizeMax;
template <uint32_t kThreads>
constexpr uint32_t kBlocksMin =
    std::min(kThreads == kSmall ? 16u : 4u, ptx::kThreadsMax / kThreads);  // a multiprocessor
constexpr uint32_t kRound = 44;  // splits that fit shared memory, at most two a lane
static_assert(kRound <= 64);

// What a fold does, and l of its split.
struct Step {
  float ours;
  float theirs;
  float l;
  FoldKind kind;
};

// A state of zeros.
__device__ const float kNothing[kHeadSizeMax] = {};

// A pair's states.
struct Source {
  const uint8_t* states;
  uint64_t stride;    // bytes from a state to the next
  uint64_t ml_bytes;  // from a state's beginning to its {m, l}
  uint64_t first;     // element of u, over all pairs
  uint32_t count;     // splits
  uint32_t pair;
  uint32_t elements;  // from `first` on, at most one a thread

  // The same splits and elements, elsewhere: others may still look how many there are.
  __device__ void point_at(const Source& other) {
    states = other.states;
    stride = other.stride;
    ml_bytes = other.ml_bytes;
    first = other.first;
    pair = other.pair;
  }

  // {m, l} of a split.
  __device__ float2 numbers(uint32_t split) const {
    return reinterpret_cast<const float2*>(states + split * stride + ml_bytes)[pair];
  }
};

// Where a pair's output goes, and its sink.
struct Target {
  uint8_t* out;  // of the block's first element
  const float* sink;
  float* lse;  // nullptr in all blocks of a pair but one
  kvspan_type_t type;

  __device__ void write(float m, float l, float u) const {
    const Finish finish = finish_of(m, l, sink);
    store_element(type, finished(finish, u), out + threadIdx.x * (type == KVSPAN_TYPE_F32 ? 4 : 2));
    if (threadIdx.x == 0 && lse != nullptr) {
      *lse = finish_of(m, l, sink).lse;
    }
  }
};

// What a block knows, whatever its size.
struct Known {
  alignas(16) Step steps[kRound];
  Source source;
  Target target;
  float m;  // of all splits so far
};

template <uint32_t kThreads>
struct Kept : Known {
  alignas(16) float u[kRound][kThreads];

  // Begins to bring u of the `some` splits from `begin` on; a warp takes every fourth.
  __device__ void fetch(uint32_t begin, uint32_t some) {
    for (uint32_t split = threadIdx.x / 32; split < some; split += kThreads / 32) {
      const auto* const from =
          reinterpret_cast<const float*>(source.states + (begin + split) * source.stride) +
          source.first;
      for (uint32_t e = 2 * (threadIdx.x % 32); e < source.elements; e += 64) {
        ptx::load_unit<8>(&u[split][e], from + e);
      }
    }
  }
};

// By a warp: what the folds of the `some` splits of the round do, two neighbours a lane. That depends on
// the maxima alone, and the maximum of all splits before is a running one: so all lanes know theirs
// after five exchanges, instead of one fold after another. `before` is the maximum of all splits
// before; returns that of all up to the last of these.
__device__ float work_out(const float2 (&ml)[2], uint32_t some, float before, Known& kept) {
  const uint32_t lane = threadIdx.x % 32;
  float top = larger_or_nan(ml[0].x, ml[1].x);
  top = lane == 0 ? larger_or_nan(before, top) : top;
  for (uint32_t step = 1; step < 32; step *= 2) {
    const float other = __shfl_up_sync(~0u, top, step);
    top = lane >= step ? larger_or_nan(other, top) : top;
  }
  const float of_others = __shfl_up_sync(~0u, top, 1);
  Fold fold{FoldKind::keep, lane == 0 ? before : of_others, 0.0f, 0.0f};
#pragma unroll
  for (uint32_t i = 0; i < 2; ++i) {
    fold = fold_of(fold.m, ml[i].x);
    if (2 * lane + i < some) {
      kept.steps[2 * lane + i] = {fold.ours, fold.theirs, ml[i].y, fold.kind};
    }
  }
  return __shfl_sync(~0u, top, 31);
}

// folded() without branches.
__device__ float chosen(const Step& step, float mine, float source) {
  const float both = merged({step.kind, 0.0f, step.ours, step.theirs}, mine, source);
  return step.kind == FoldKind::keep ? mine : step.kind == FoldKind::take ? source : both;
}

// The element of this thread after all splits, and l.
struct Folded {
  float l = 0.0f;
  float u = 0.0f;
};

// Folds all splits of kept.source; kept.m becomes their maximum.
template <uint32_t kThreads>
__device__ Folded fold_all(Kept<kThreads>& kept) {
  Folded out;
  float m = -INFINITY;  // the first warp's
  for (uint32_t begin = 0; begin < kept.source.count; begin += kRound) {
    const uint32_t left = kept.source.count - begin;
    const uint32_t some = left < kRound ? left : kRound;
    float2 ml[2];
    if (threadIdx.x < 32) {
      for (uint32_t i = 0; i < 2; ++i) {
        const uint32_t split = 2 * threadIdx.x + i;
        ml[i] = split < some ? kept.source.numbers(begin + split) : float2{-INFINITY, 0.0f};
      }
    }
    kept.fetch(begin, some);
    if (threadIdx.x < 32) {
      m = work_out(ml, some, m, kept);
      kept.m = m;
    }
    ptx::wait_for_units();
    __syncthreads();
#pragma unroll 4
    for (uint32_t split = 0; split < some; ++split) {
      const Step step = kept.steps[split];
      out.l = chosen(step, out.l, step.l);
      out.u = chosen(step, out.u, kept.u[split][threadIdx.x]);
    }
    __syncthreads();
  }
  return out;
}

// By one thread: what a block does, as far as it is known before the states are.
__device__ void begin(const HeldCall& call, uint32_t threads, Known& kept) {
  const EntryView* const entries = reach(call, call.view.entries);
  const EntryView& entry = entries[find_last_alone(
      call.view.entry_count, blockIdx.x, [&](uint64_t at) { return entries[at].first_pair; })];
  const Problem& problem = call.view.problem;
  const uint64_t pair = blockIdx.x - entry.first_pair;
  const uint64_t row = divided(pair, problem.q_heads);
  const auto head = static_cast<uint32_t>(pair - row * problem.q_heads);
  const uint32_t first = blockIdx.y * threads;
  const uint32_t left = problem.head_size_v - first;
  kept.source = {entry.run_states,
                 entry.run_stride,
                 entry.run_ml,
                 pair * problem.head_size_v + first,
                 static_cast<uint32_t>(entry.run_count),
                 static_cast<uint32_t>(pair),
                 left < threads ? left : threads};
  kept.target = {row_of(entry.out, row, head) + first * (entry.out.type == KVSPAN_TYPE_F32 ? 4 : 2),
                 problem.sinks != nullptr ? problem.sinks + head : nullptr,
                 first == 0 && entry.lse != nullptr ? entry.lse + pair : nullptr,
                 entry.out.type};
  kept.m = -INFINITY;
}

// grid (pairs, parts of the head size)
template <uint32_t kThreads>
__global__ void __launch_bounds__(kThreads, kBlocksMin<kThreads>)
    run_fold_kernel(const __grid_constant__ HeldCall call) {
  __shared__ Kept<kThreads> kept;
  Source source{};
  if (threadIdx.x == 0) {
    begin(call, kThreads, kept);
    source = kept.source;
    Source nothing{};
    nothing.states = reinterpret_cast<const uint8_t*>(kNothing);
    kept.source.point_at(nothing);
  }
  __syncthreads();
  // Twice: first over nothing, while the kernel before still runs, so that the code is on its
  // multiprocessor when it counts.
  Folded folded;
#pragma unroll 1
  for (uint32_t pass = 0; pass < 2; ++pass) {
    folded = fold_all(kept);
    if (pass == 0) {
      if (threadIdx.x == 0) {
        kept.source.point_at(source);
      }
      __syncthreads();
      ptx::wait_for_previous_kernel();
    }
  }
  if (threadIdx.x < kept.source.elements) {
    kept.target.write(kept.m, folded.l, folded.u);
  }
}

}  // namespace

// Blocks of two kernels are on a multiprocessor together only where both divide its memory alike.
cudaError_t load_run_fold_kernel() {
  const auto load = [](auto* kernel) {
    return cudaFuncSetAttribute(
        kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
  };
  const cudaError_t bad = load(run_fold_kernel<kSmall>);
  return bad != cudaSuccess ? bad : load(run_fold_kernel<kLarge>);
}

// Starts while the kernel that makes the states still runs, and waits for it on the device; not
// where it is recorded, since what a graph keeps of it is a kernel and its arguments, nor on cards
// that cannot.
cudaError_t launch_fold_and_finish(cudaStream_t stream, const HeldCall& call, const Card& card) {
  cudaStreamCaptureStatus recorded = cudaStreamCaptureStatusNone;
  if (const cudaError_t bad = cudaStreamIsCapturing(stream, &recorded)) {
    return bad;
  }
  cudaLaunchAttribute overlap{};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  const bool small = call.view.tile_pairs == 8;
  const uint32_t threads = small ? kSmall : kLarge;
  config.gridDim = dim3(static_cast<uint32_t>(call.view.pairs),
                        (call.view.problem.head_size_v + threads - 1) / threads);
  config.blockDim = threads;
  config.stream = stream;
  config.attrs = &overlap;
  config.numAttrs = recorded == cudaStreamCaptureStatusNone && card.capability >= 90 ? 1 : 0;
  return cudaLaunchKernelEx(
      &config, small ? run_fold_kernel<kSmall> : run_fold_kernel<kLarge>, call);
}

}  // namespace kvspan::cuda
