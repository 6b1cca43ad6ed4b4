// SPDX-License-Identifier: Apache-2.0
// The instances of the tensor-core kernel. Each pair of types is compiled in a file of its own, for
// head sizes 128 and 256; `loaded` takes everything else.
#pragma once

#include "attention/kernel.hpp"

namespace kvspan::cuda::tensor {

struct Instance {
  cudaError_t (*launch)(cudaStream_t stream, const HeldCall& call);
  cudaError_t (*prepare)();  // loads its kernels
};

// Of one pair of types.
struct Family {
  kvspan_type_t k_type;
  kvspan_type_t v_type;
  Instance size_128;
  Instance size_256;
};

// Instances of the kernel for wide rows of one pair of types (wide/).
struct WideFamily {
  kvspan_type_t k_type;
  kvspan_type_t v_type;
  Instance size_128;
  Instance size_256;
};

extern const Family kQ8Q4;
extern const Family kQ8Q8;
extern const Family kQ4Q4;
extern const Family kF16;
extern const Family kBf16;

extern const WideFamily kWideQ8Q4;
extern const WideFamily kWideQ8Q8;
extern const WideFamily kWideQ4Q4;

// By whether K and V are bf16.
extern const Instance kLoaded[2][2];

}  // namespace kvspan::cuda::tensor
