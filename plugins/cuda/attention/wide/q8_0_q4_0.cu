// SPDX-License-Identifier: Apache-2.0
#include "attention/tensor/instances.hpp"
#include "attention/wide/kernel.cuh"

namespace kvspan::cuda::tensor {

const WideFamily kWideQ8Q4 = wide::family_of<KVSPAN_TYPE_Q8_0, KVSPAN_TYPE_Q4_0>();

}  // namespace kvspan::cuda::tensor
