// SPDX-License-Identifier: Apache-2.0
// Read first: attend_rate.hpp.
#include "kvspan/bench/attend_rate.hpp"

#include "kvspan/bench/decode_steps.hpp"

#include <algorithm>

namespace kvspan::bench {

namespace {

constexpr std::uint32_t kLayers = 2;
constexpr int kTimed = 7;
constexpr std::uint32_t kFewTokens = 16;
constexpr std::uint64_t kPagesMin = 2;  // of the shorter steps
constexpr std::uint64_t kLonger = 4;
constexpr std::uint64_t kTokensMax = 131072;
constexpr double kDifferenceSeconds = 4e-3;

// Seconds of a layer behind so many tokens.
Result<double> layer_seconds(const Backend& backend,
                             const RandomPages& pages,
                             std::uint64_t tokens) {
  StepCase asked;
  asked.layers = kLayers;
  asked.tokens = tokens;
  asked.appended = kTimed + 1;
  asked.rows_max = 1;
  const auto times = time_resident(backend, pages, asked, {{1, kTimed}});
  return times ? Result<double>(times->steps.front().seconds.median / kLayers)
               : tl::unexpected(times.error());
}

}  // namespace

Result<AttendRate> attend_rate(const Backend& backend, const RandomPages& pages) {
  const std::uint64_t page_tokens = pages.layout().page_tokens;
  std::uint64_t count = kPagesMin;
  auto near = layer_seconds(backend, pages, count * page_tokens);
  for (;;) {
    const auto far = near ? layer_seconds(backend, pages, count * kLonger * page_tokens) : near;
    if (!far) {
      return tl::unexpected(far.error());
    }
    const double more_seconds = *far - *near;
    const std::uint64_t next_tokens = count * kLonger * kLonger * page_tokens;
    if (more_seconds * kLayers < kDifferenceSeconds && next_tokens <= kTokensMax) {
      count *= kLonger;
      near = far;
      continue;
    }
    if (more_seconds <= 0.0) {
      return tl::unexpected(error_of(Errc::internal,
                                     "attention of more pages took no longer; the machine does "
                                     "something else: measure again",
                                     "bench"));
    }
    const auto page_bytes = static_cast<double>(pages.layout().page_bytes);
    const double page_seconds = more_seconds / static_cast<double>(count * (kLonger - 1));
    // Not where the line meets no pages: a short history lies in caches, which bends it.
    const auto few = layer_seconds(backend, pages, kFewTokens);
    if (!few) {
      return tl::unexpected(few.error());
    }
    const double token_seconds = page_seconds / static_cast<double>(page_tokens);
    return AttendRate{page_bytes / page_seconds,
                      std::max(0.0, *few - kFewTokens * token_seconds) * 1e9};
  }
}

}  // namespace kvspan::bench
