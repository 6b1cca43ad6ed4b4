// SPDX-License-Identifier: Apache-2.0
// Times of copies, and the line through measured ones.
#include "kvspan/core/policy/link.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <string>

namespace kvspan {

namespace {

constexpr double kNanoseconds = 1e9;

tl::unexpected<Error> no_line(std::string message) {
  return tl::unexpected(error_of(Errc::invalid_argument, std::move(message), "link"));
}

// The fastest copy of each size.
Result<std::map<std::uint64_t, double>> fastest(std::span<const CopySample> samples) {
  std::map<std::uint64_t, double> best;
  for (const CopySample& sample : samples) {
    if (!std::isfinite(sample.ns) || sample.ns <= 0.0) {
      return no_line("a copy of " + std::to_string(sample.bytes) + " bytes took " +
                     std::to_string(sample.ns) +
                     " ns, which is not above 0; time it again with a finer clock");
    }
    const auto [at, fresh] = best.try_emplace(sample.bytes, sample.ns);
    at->second = fresh ? sample.ns : std::min(at->second, sample.ns);
  }
  if (best.size() < 2) {
    return no_line("a link is fitted to copies of at least 2 sizes, not " +
                   std::to_string(best.size()) + "; time larger copies too");
  }
  return best;
}

}  // namespace

double copy_time_ns(const Link& link, std::uint64_t bytes) {
  return bytes == 0 ? 0.0 : link.copy_ns + static_cast<double>(bytes) / link.bytes_s * kNanoseconds;
}

double copy_efficiency(const Link& link, std::uint64_t bytes) {
  if (bytes == 0) {
    return 0.0;
  }
  return static_cast<double>(bytes) / link.bytes_s * kNanoseconds / copy_time_ns(link, bytes);
}

std::uint64_t break_even_bytes(const Link& link) {
  return static_cast<std::uint64_t>(std::llround(link.copy_ns * link.bytes_s / kNanoseconds));
}

Result<Link> fit_link(std::span<const CopySample> samples) {
  const auto best = fastest(samples);
  if (!best) {
    return tl::unexpected(best.error());
  }
  // Weighted by 1 / time^2: a relative error counts alike at every size.
  double weight = 0.0;
  double x = 0.0;
  double y = 0.0;
  double xx = 0.0;
  double xy = 0.0;
  for (const auto& [bytes, ns] : *best) {
    const double w = 1.0 / (ns * ns);
    const auto size = static_cast<double>(bytes);
    weight += w;
    x += w * size;
    y += w * ns;
    xx += w * size * size;
    xy += w * size * ns;
  }
  const double spread = weight * xx - x * x;
  const double slope = spread > 0.0 ? (weight * xy - x * y) / spread : 0.0;
  if (!(slope > 0.0)) {
    return no_line(
        "larger copies were not slower than smaller ones; time copies whose sizes are further "
        "apart");
  }
  return Link{std::max(0.0, (y - slope * x) / weight), kNanoseconds / slope};
}

}  // namespace kvspan
