// SPDX-License-Identifier: Apache-2.0
#include "attention/tensor/instances.hpp"
#include "attention/tensor/kernel.cuh"

namespace kvspan::cuda::tensor {

const Family kF16 = family_of<KVSPAN_TYPE_F16, KVSPAN_TYPE_F16>();

}  // namespace kvspan::cuda::tensor
