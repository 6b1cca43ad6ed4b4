// SPDX-License-Identifier: Apache-2.0
// Reads and writes durations for people. Read next: duration.hpp.
#include "duration.hpp"

#include <fmt/format.h>

#include <charconv>
#include <system_error>

namespace kvspan::runner {

std::optional<Nanoseconds> parse_duration(std::string_view text) {
  constexpr std::int64_t kHoursMax = 1000;
  std::int64_t count = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, problem] = std::from_chars(text.data(), end, count);
  if (problem != std::errc() || count <= 0 || count > kHoursMax * 3600 * 1000) {
    return std::nullopt;
  }
  const std::string_view unit(rest, static_cast<std::size_t>(end - rest));
  Nanoseconds duration{};
  if (unit == "ms") {
    duration = std::chrono::milliseconds(count);
  } else if (unit == "s" && count <= kHoursMax * 3600) {
    duration = std::chrono::seconds(count);
  } else if (unit == "m" && count <= kHoursMax * 60) {
    duration = std::chrono::minutes(count);
  } else if (unit == "h" && count <= kHoursMax) {
    duration = std::chrono::hours(count);
  } else {
    return std::nullopt;
  }
  return duration;
}

std::string spoken(Nanoseconds duration) {
  const double seconds = std::chrono::duration<double>(duration).count();
  if (seconds < 1) {
    return fmt::format("{:.0f} ms", seconds * 1e3);
  }
  if (seconds < 120) {
    return fmt::format("{:.1f} s", seconds);
  }
  const auto whole = std::chrono::duration_cast<std::chrono::seconds>(duration).count();
  return fmt::format("{} min {:02} s", whole / 60, whole % 60);
}

}  // namespace kvspan::runner
