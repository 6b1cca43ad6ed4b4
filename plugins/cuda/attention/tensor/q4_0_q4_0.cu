// SPDX-License-Identifier: Apache-2.0
#include "attention/tensor/instances.hpp"
#include "attention/tensor/kernel.cuh"

namespace kvspan::cuda::tensor {

const Family kQ4Q4 = family_of<KVSPAN_TYPE_Q4_0, KVSPAN_TYPE_Q4_0>();

}  // namespace kvspan::cuda::tensor
