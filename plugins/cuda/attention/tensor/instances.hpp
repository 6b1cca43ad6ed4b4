// SPDX-License-Identifier: Apache-2.0
// The instances of the tensor-core kernel. Each pair of types is compiled in a file of its own, for
// head sizes 128 and 256; `loaded` takes everything else.
#pragma once

#include "attention/kernel.hpp"

namespace kvspan::cuda::tensor {

struct Instance {
  cudaError_t (*launch)(cudaStream_t stream, const HeldCall& call);
  cudaError_t (*prepare)();  // loads its kernels
  uint32_t tiles;            // bit n: a block may take n tiles of 8 pairs
};

// By what a block may have of shared memory: 227, 163 or 99 KiB.
inline constexpr uint32_t kRoomCount = 3;

struct Sizes {
  Instance with[kRoomCount];
};

// Of one pair of types.
struct Family {
  kvspan_type_t k_type;
  kvspan_type_t v_type;
  Sizes size_128;
  Sizes size_256;
};

// Of the kernel for wide rows (wide/), which has at most as many blocks as the card
// multiprocessors.
struct WideInstance {
  cudaError_t (*launch)(cudaStream_t stream, const HeldCall& call, uint32_t multiprocessors);
  cudaError_t (*prepare)();
};

// Its instances of one pair of types.
struct WideFamily {
  kvspan_type_t k_type;
  kvspan_type_t v_type;
  WideInstance size_128;
  WideInstance size_256;
};

extern const Family kQ8Q4;
extern const Family kQ8Q8;
extern const Family kQ4Q4;
extern const Family kF16;
extern const Family kBf16;

extern const WideFamily kWideQ8Q4;
extern const WideFamily kWideQ8Q8;
extern const WideFamily kWideQ4Q4;

// By whether K and V are bf16; of 227 KiB.
extern const Instance kLoaded[2][2];

}  // namespace kvspan::cuda::tensor
