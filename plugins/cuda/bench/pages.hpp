// SPDX-License-Identifier: Apache-2.0
// Geometries of the benchmark, each with its random pages.
#pragma once

#include "kvspan/bench/random_pages.hpp"

#include <cstdint>
#include <map>
#include <string>

namespace kvspan::cuda_bench {

inline constexpr std::uint32_t kPageTokens = 256;

// "A" = 24 query heads, 4 KV heads, head size 256; "B" = 32, 8, 128; q8_0 K and q4_0 V.
// Made when first asked for. Throws Failure for another name.
class PagePool {
 public:
  [[nodiscard]] const bench::RandomPages& of(const std::string& geometry);

 private:
  std::map<std::string, bench::RandomPages> made_;
};

}  // namespace kvspan::cuda_bench
