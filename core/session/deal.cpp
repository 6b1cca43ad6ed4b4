// SPDX-License-Identifier: Apache-2.0
// Read first: deal.hpp.
#include "deal.hpp"

#include <algorithm>

namespace kvspan {

std::vector<std::vector<Tokens>> deal(const Tokens& resident,
                                      std::uint64_t split_tokens,
                                      std::uint64_t waves) {
  std::vector<std::vector<Tokens>> out(waves);
  // Splits that end with the residents or before; the one behind them streams on.
  const std::uint64_t first = resident.begin / split_tokens;
  const std::uint64_t behind = resident.end / split_tokens;
  const std::uint64_t count = behind > first ? behind - first : 0;
  const std::uint64_t hands = waves - 1;
  for (std::uint64_t wave = 0; wave < hands; ++wave) {
    const std::uint64_t from = first + wave * count / hands;
    const std::uint64_t to = first + (wave + 1) * count / hands;
    if (from != to) {
      out[wave].push_back({std::max(resident.begin, from * split_tokens), to * split_tokens});
    }
  }
  const std::uint64_t rest = std::max(resident.begin, behind * split_tokens);
  if (rest < resident.end) {
    if (!out[0].empty() && out[0].back().end == rest) {
      out[0].back().end = resident.end;
    } else {
      out[0].push_back({rest, resident.end});
    }
  }
  return out;
}

}  // namespace kvspan
