// SPDX-License-Identifier: Apache-2.0
// The instructions that the language has no name for, one function each; where a card lacks one, what
// stands in for it. Addresses of shared memory are 32-bit. Device code only.
#pragma once

#include "card.hpp"

#include <cstdint>
#include <cuda_fp16.h>
#include <type_traits>

namespace kvspan::cuda::ptx {

// What this pass of the compiler is for: 10 times the compute capability, 0 of the host.
#ifdef __CUDA_ARCH__
inline constexpr uint32_t kArchitecture = __CUDA_ARCH__;
#else
inline constexpr uint32_t kArchitecture = 0;
#endif

// Bulk copies, launches that overlap, barriers that are waited for in hardware.
inline constexpr bool kHasBulkCopies = kArchitecture >= 900;

// Registers that warps hand each other: of named kinds of card only.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || defined(__CUDA_ARCH_SPECIFIC__) || \
    defined(__CUDA_ARCH_FAMILY_SPECIFIC__)
inline constexpr bool kMovesRegisters = kHasBulkCopies;
#else
inline constexpr bool kMovesRegisters = false;
#endif

// Threads of a multiprocessor.
inline constexpr uint32_t kThreadsMax = kArchitecture == 0                            ? 2048
                                        : kArchitecture < 800                         ? 1024
                                        : kArchitecture > 800 && kArchitecture < 900  ? 1536
                                        : kArchitecture >= 1200                       ? 1536
                                                                                      : 2048;

// Shared memory that a block may have; 0 where there are no kernels on tensor cores.
inline constexpr uint32_t kShared =
    kArchitecture < 800                             ? 0
    : kArchitecture == 800 || kArchitecture == 870  ? kShared163KiB
    : kArchitecture < 900 || kArchitecture >= 1200 ? kShared99KiB
                                                    : kShared227KiB;

__device__ inline uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// ---- mbarriers ----

__device__ inline void init(uint64_t* barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)),
               "r"(arrivals)
               : "memory");
}

__device__ inline void arrive(uint64_t* barrier) {
#if __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier))
               : "memory");
#else
  [[maybe_unused]] uint64_t state = 0;
  asm volatile("mbarrier.arrive.shared.b64 %0, [%1];"
               : "=l"(state)
               : "r"(shared_address(barrier))
               : "memory");
#endif
}

// Arrivals of a warp at a barrier. The sanitizer's racecheck does not follow a lane that arrives for
// its warp behind __syncwarp, and reports what the other 31 did: built for it (KVSPAN_CUDA_RACECHECK),
// every lane arrives.
#ifdef KVSPAN_CUDA_RACECHECK
inline constexpr uint32_t kWarpArrivals = 32;
#else
inline constexpr uint32_t kWarpArrivals = 1;
#endif

// By all lanes of a warp, behind __syncwarp.
__device__ inline void arrive_as_warp(uint64_t* barrier) {
  if (kWarpArrivals == 32 || threadIdx.x % 32 == 0) {
    arrive(barrier);
  }
}

#if __CUDA_ARCH__ >= 900

// So many arrivals at once.
__device__ inline void arrive(uint64_t* barrier, uint32_t count) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
               "r"(count)
               : "memory");
}

// One arrival; the phase also waits for `bytes` of bulk copies.
__device__ inline void arrive_expecting(uint64_t* barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(
                   shared_address(barrier)),
               "r"(bytes)
               : "memory");
}

#endif

// Whether the phase of this parity is over; waits a little for it.
__device__ inline bool is_over(uint32_t address, uint32_t parity) {
  uint32_t over = 0;
  asm volatile(
      "{\n .reg .pred p;\n"
#if __CUDA_ARCH__ >= 900
      " mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
#else
      " mbarrier.test_wait.parity.shared.b64 p, [%1], %2;\n"
#endif
      " selp.u32 %0, 1, 0, p;\n}"
      : "=r"(over)
      : "r"(address), "r"(parity)
      : "memory");
  return over != 0;
}

// Until the phase of this parity is over.
__device__ inline void wait(uint64_t* barrier, uint32_t parity) {
  const uint32_t address = shared_address(barrier);
  while (!is_over(address, parity)) {
  }
}

// The same, asking seldom: for one that is mostly ahead, whose asking would take others' turns.
__device__ inline void wait_idly(uint64_t* barrier, uint32_t parity) {
  const uint32_t address = shared_address(barrier);
  while (!is_over(address, parity)) {
    __nanosleep(50);
  }
}

// Makes the barriers' beginning visible to bulk copies.
__device__ inline void fence_init() {
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}

// Orders ordinary accesses to shared memory before bulk copies that come later.
__device__ inline void fence_async() {
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

// ---- copies and barriers ----

#if __CUDA_ARCH__ >= 900

// `bytes`, `to` and `from` are multiples of 16.
__device__ inline void bulk_load(void* to, const void* from, uint32_t bytes, uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(shared_address(to)),
      "l"(from),
      "r"(bytes),
      "r"(shared_address(barrier))
      : "memory");
}

#endif

// Asks for `bytes` from `from` on, both multiples of 16, to be brought to the card's cache.
__device__ inline void fetch_near([[maybe_unused]] const void* from,
                                  [[maybe_unused]] uint32_t bytes) {
#if __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
#endif
}

// `kBytes` from a multiple of them to such: 16, 8 or 4.
template <uint32_t kBytes>
__device__ inline void load_unit(void* to, const void* from) {
#if __CUDA_ARCH__ < 800
  using Unit = std::conditional_t<kBytes == 16, uint4, std::conditional_t<kBytes == 8, uint2, uint32_t>>;
  static_assert(sizeof(Unit) == kBytes);
  *static_cast<Unit*>(to) = *static_cast<const Unit*>(from);
#else
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to)), "l"(from)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(shared_address(to)),
                 "l"(from),
                 "n"(kBytes)
                 : "memory");
  }
#endif
}

// All units that this thread began.
__device__ inline void wait_for_units() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

// One arrival, once all units that this thread began are there.
__device__ inline void arrive_behind_units(uint64_t* barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(
                   shared_address(barrier))
               : "memory");
}

// Counts as one of `threads` that sync() on the barrier, and goes on. Both instructions ask that a whole
// warp comes together; behind a branch of one lane it may have not, and the card then stops the kernel.
__device__ inline void arrive_at(uint32_t barrier, uint32_t threads) {
  __syncwarp();
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// Of `threads` threads of the block that name the same barrier; 0 is __syncthreads.
__device__ inline void sync(uint32_t barrier, uint32_t threads) {
  __syncwarp();
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// Until the kernel before this one in the stream is over and its writes are seen.
__device__ inline void wait_for_previous_kernel() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// The next kernel of the stream may be started now; it waits for the end of this one by itself.
__device__ inline void let_next_kernel_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Registers of a thread of this warpgroup from here on; `kBefore` before.
template <uint32_t kRegisters, uint32_t kBefore>
__device__ inline void set_registers() {
  __syncwarp();
  if constexpr (!kMovesRegisters) {
    return;  // each warp has what the block was started with
  } else if constexpr (kRegisters > kBefore) {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
  } else if constexpr (kRegisters < kBefore) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
  }
}

// ---- matrices: thread (g, q) of a warp is lane 4 g + q ----
// Loads are volatile, so that they stay between waits and arrivals, but bar no other load's way.

// Four 8 x 8 matrices of 16-bit elements, row i of matrix j at the address of lane 8 j + i.
__device__ inline void load_matrices(uint32_t (&out)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(address));
}

__device__ inline void load_transposed(uint32_t (&out)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(address));
}

// Two matrices; lanes 0 to 15 name the rows.
__device__ inline void load_transposed(uint32_t (&out)[2], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
               : "=r"(out[0]), "=r"(out[1])
               : "r"(address));
}

// c += a b; a is 16 x 16, b 16 x 8. kBf16: of elements in bf16, else f16.
template <bool kBf16>
__device__ inline void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  if constexpr (kBf16) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

// ---- numbers ----

__device__ inline float exp2_fast(float x) {
  float y = 0.0f;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// The larger; NaN where either is.
__device__ inline float max_nan(float x, float y) {
  float z = 0.0f;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y));
  return z;
}

// The smallest of a warp's numbers: its upper half, then the lower halves of those that have it.
__device__ inline uint64_t min_of_warp(uint64_t value) {
#if __CUDA_ARCH__ >= 800
  const auto upper = static_cast<uint32_t>(value >> 32);
  const uint32_t high = __reduce_min_sync(~0u, upper);
  const uint32_t low = __reduce_min_sync(~0u, upper == high ? static_cast<uint32_t>(value) : ~0u);
  return uint64_t{high} << 32 | low;
#else
  for (uint32_t apart = 16; apart != 0; apart /= 2) {
    const uint64_t other = __shfl_xor_sync(~0u, value, static_cast<int>(apart));
    value = other < value ? other : value;
  }
  return value;
#endif
}

// word & mask | bits, in one instruction: the compiler takes two where both are constants.
__device__ inline uint32_t masked_or(uint32_t word, uint32_t mask, uint32_t bits) {
  uint32_t out = 0;
  asm("lop3.b32 %0, %1, %2, %3, 0xEA;" : "=r"(out) : "r"(word), "r"(mask), "r"(bits));
  return out;
}

__device__ inline uint32_t bits_of(__half2 value) {
  return *reinterpret_cast<const uint32_t*>(&value);
}

__device__ inline __half2 half2_of(uint32_t bits) {
  return *reinterpret_cast<const __half2*>(&bits);
}

}  // namespace kvspan::cuda::ptx
