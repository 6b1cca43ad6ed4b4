// SPDX-License-Identifier: Apache-2.0
// Numbers from a seed: everything that a simulation decides comes from here, so that a seed says
// all. Source: the splitmix64 generator.
#pragma once

#include <cstdint>

namespace kvspan::sim {

[[nodiscard]] constexpr std::uint64_t mix(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

// Thread class: SYNC(random).
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(mix(seed + 0x9e3779b97f4a7c15ULL)) {}

  std::uint64_t next() { return mix(state_ += 0x9e3779b97f4a7c15ULL); }

  // In [0, end); end is not 0.
  std::uint64_t below(std::uint64_t end) { return next() % end; }

  // In [first, last].
  std::uint32_t between(std::uint32_t first, std::uint32_t last) {
    return first + static_cast<std::uint32_t>(below(std::uint64_t{last} - first + 1));
  }

  bool percent(std::uint32_t chance) { return below(100) < chance; }

  // One of the values.
  template <class T, std::size_t N>
  T one_of(const T (&values)[N]) {
    return values[below(N)];
  }

  // A duration around `usual_ns` with a heavy tail: one in eight is about ten times as long, one in
  // sixty-four a hundred times.
  std::uint64_t heavy_ns(std::uint64_t usual_ns) {
    const std::uint64_t luck = below(64);
    const std::uint64_t factor = luck == 0 ? 100 : luck < 8 ? 10 : 1;
    return usual_ns * factor / 2 + below(usual_ns * factor + 1);
  }

 private:
  std::uint64_t state_;
};

}  // namespace kvspan::sim
