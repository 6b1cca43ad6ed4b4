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
constexpr uint32_t kAhead = 8;  // states whose u is on its way

struct Numbers {
  float m = -INFINITY;
  float l = 0.0f;
};

// {m, l} of the splits of a pair: split i in lane i % 32, fetched together.
class SplitNumbers {
 public:
  __device__ SplitNumbers(const EntryView& entry, uint64_t pair) : entry_(entry), pair_(pair) {}

  // Of split `split`, asked for in ascending order by the whole warp.
  __device__ Numbers at(uint64_t split) {
    const uint32_t lane = threadIdx.x % 32;
    if (split % 32 == 0 && split + lane < entry_.run_count) {
      const auto* const ml = reinterpret_cast<const float2*>(
          entry_.run_states + (split + lane) * entry_.run_stride + entry_.run_ml);
      mine_ = ml[pair_];
    }
    const auto from = static_cast<int>(split % 32);
    return {__shfl_sync(~0u, mine_.x, from), __shfl_sync(~0u, mine_.y, from)};
  }

 private:
  const EntryView& entry_;
  uint64_t pair_;
  float2 mine_{};
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
  SplitNumbers splits(entry, index);
  Numbers into;
  float u[kLaneElements] = {};
  for (uint64_t begin = 0; begin < entry.run_count; begin += kAhead) {
    float ahead[kAhead][kLaneElements];
#pragma unroll
    for (uint32_t a = 0; a < kAhead; ++a) {
      const auto* const state = reinterpret_cast<const float*>(
          entry.run_states + (begin + a) * entry.run_stride);
#pragma unroll
      for (uint32_t i = 0; i < kLaneElements; ++i) {
        const uint32_t e = first + 32 * i;
        ahead[a][i] = begin + a < entry.run_count && e < size ? state[index * size + e] : 0.0f;
      }
    }
#pragma unroll
    for (uint32_t a = 0; a < kAhead; ++a) {
      if (begin + a >= entry.run_count) {
        break;
      }
      const Numbers source = splits.at(begin + a);
      const Fold fold = fold_of(into.m, source.m);
      into.m = fold.m;
      into.l = folded(fold, into.l, source.l);
#pragma unroll
      for (uint32_t i = 0; i < kLaneElements; ++i) {
        u[i] = folded(fold, u[i], ahead[a][i]);
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
