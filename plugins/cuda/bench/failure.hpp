// SPDX-License-Identifier: Apache-2.0
// What ends a row of the benchmark: a sentence, thrown, caught where rows are run. Nothing else of
// this tree throws; a benchmark has no caller who could go on.
#pragma once

#include "kvspan/core/error.hpp"
#include "kvspan/error.h"

#include <cuda_runtime_api.h>
#include <stdexcept>
#include <string>
#include <utility>

namespace kvspan::cuda_bench {

class Failure : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

inline void check(cudaError_t native, const char* doing) {
  if (native != cudaSuccess) {
    throw Failure(std::string(doing) + ": " + cudaGetErrorString(native));
  }
}

inline void check(kvspan_result_t result, const kvspan_error_t& error, const char* doing) {
  if (result != KVSPAN_OK) {
    throw Failure(std::string(doing) + ": " + error.message);
  }
}

template <class T>
T take(Result<T>&& result, const char* doing) {
  if (!result) {
    throw Failure(std::string(doing) + ": " + result.error().message);
  }
  if constexpr (!std::is_void_v<T>) {
    return std::move(*result);
  }
}

}  // namespace kvspan::cuda_bench
