// SPDX-License-Identifier: Apache-2.0
// The matrix instructions of a warpgroup of compute capability 9.0, which read their second operand,
// or both, from shared memory while the threads go on. Accumulators are 64 x n: thread (g, q) of warp w
// is lane 4 g + q and has rows 16 w + g and 16 w + g + 8 of columns 8 i + 2 q and 8 i + 2 q + 1, at
// d[4 i] to d[4 i + 3]. Sources: PTX ISA, "Asynchronous warpgroup level matrix instructions". Device
// code only.
#pragma once

#include <cstdint>

namespace kvspan::cuda::wgmma {

// Operands lie in panels: 64 elements of 16 bits, 128 bytes, of each row; eight rows are a group of 1024
// bytes, aligned to that, in which unit i of 16 bytes of row r is at unit i ^ (r % 8) of the row.
inline constexpr uint32_t kPanelElements = 64;
inline constexpr uint32_t kPanelRowBytes = 128;
inline constexpr uint32_t kGroupBytes = 1024;

// Where unit `unit` of 16 bytes of a panel's row lies.
__device__ inline uint32_t unit_place(uint32_t row, uint32_t unit) {
  return row * kPanelRowBytes + 16 * (unit ^ row % 8);
}

// What names an operand is 64 bits. The lower half says where it begins and moves with it, by units of 16
// bytes; the upper is the same for all. `panel_bytes`: from a panel to the next, of operands whose rows
// are the dimension that is summed over; the others stay in one panel. A number that a whole warp has
// alike, and that the compiler knows to be so (uniform()), costs no instructions a product.
__device__ inline uint32_t operand(uint32_t address, uint32_t panel_bytes) {
  return panel_bytes / 16 << 16 | address / 16;
}

__device__ inline uint32_t uniform(uint32_t value) {
  return __shfl_sync(~0u, value, 0);
}

__device__ inline uint64_t whole(uint32_t operand) {
  constexpr uint32_t kSwizzled128 = 1u << 30;
  uint64_t out = 0;
  asm("mov.b64 %0, {%1, %2};" : "=l"(out) : "r"(operand), "r"(kSwizzled128 | kGroupBytes / 16));
  return out;
}

// Before the first of a series, and after registers that they use were written otherwise.
__device__ inline void begin() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ inline void commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Until at most kMore groups, the last ones, are not over.
template <uint32_t kMore>
__device__ inline void wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kMore) : "memory");
}

// Keeps the compiler from reading accumulators before wait(), or writing them after begin().
template <uint32_t kCount>
__device__ inline void pin(float (&d)[kCount]) {
#pragma unroll
  for (uint32_t i = 0; i < kCount; ++i) {
    asm volatile("" : "+f"(d[i])::"memory");
  }
}

// d = a b of 64 x 16 by 16 x 32, both with the dimension summed over along their rows; kAdds: d += a b.
template <bool kAdds>
__device__ inline void multiply(float (&d)[16], uint32_t a, uint32_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, %16, %17, %18, 1, 1, 0, 0;"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
        "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]),
        "+f"(d[14]), "+f"(d[15])
      : "l"(whole(a)), "l"(whole(b)), "n"(kAdds ? 1 : 0));
}

// d += a b of 64 x 16 by 16 x 128: a in registers, of b rows are the dimension summed over.
__device__ inline void multiply(float (&d)[64], const uint32_t (&a)[4], uint32_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
      "{%64, %65, %66, %67}, %68, 1, 1, 1, 1;"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
        "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]),
        "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]),
        "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]),
        "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]),
        "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]),
        "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]),
        "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
        "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]),
        "+f"(d[63])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(whole(b)));
}

}  // namespace kvspan::cuda::wgmma
