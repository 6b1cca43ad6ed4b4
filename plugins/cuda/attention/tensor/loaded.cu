// SPDX-License-Identifier: Apache-2.0
// Every pair of types and every head size that has no instance of its own.
#include "attention/tensor/instances.hpp"
#include "attention/tensor/kernel.cuh"

namespace kvspan::cuda::tensor {

const Instance kLoaded[2][2] = {
    {loaded_of<false, false>(), loaded_of<false, true>()},
    {loaded_of<true, false>(), loaded_of<true, true>()},
};

}  // namespace kvspan::cuda::tensor
