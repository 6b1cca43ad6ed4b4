// SPDX-License-Identifier: Apache-2.0
#include "attention/tensor/instances.hpp"
#include "attention/tensor/kernel.cuh"

namespace kvspan::cuda::tensor {

const Family kQ8Q8 = family_of<KVSPAN_TYPE_Q8_0, KVSPAN_TYPE_Q8_0>();

}  // namespace kvspan::cuda::tensor
