// SPDX-License-Identifier: Apache-2.0
// Parsing with strtod's locale-free sibling, and nothing beyond what the header says.
#include "amount.hpp"

#include <fmt/format.h>

#include <charconv>
#include <cmath>

namespace kvspan::host {

namespace {

struct Unit {
  std::string_view name;
  double factor;
};

constexpr Unit kUnits[] = {{"", 1.0},
                           {"B", 1.0},
                           {"kB", 1e3},
                           {"KiB", 1024.0},
                           {"MB", 1e6},
                           {"MiB", 1048576.0},
                           {"GB", 1e9},
                           {"GiB", 1073741824.0}};

Error refuse(std::string_view text) {
  return Error{Errc::invalid_argument,
               fmt::format("'{}' is no amount of memory; write bytes (6300000), a unit (6.3MB, 6MiB) "
                           "or a share of the history (25%)",
                           text),
               0, 0, 0, "amount"};
}

}  // namespace

Result<std::uint64_t> parse_bytes(std::string_view text, std::uint64_t whole_bytes) {
  double number = 0.0;
  const char* const end = text.data() + text.size();
  const auto [rest, failure] = std::from_chars(text.data(), end, number);
  if (failure != std::errc{} || !std::isfinite(number) || number < 0.0) {
    return tl::unexpected(refuse(text));
  }
  const std::string_view unit(rest, static_cast<std::size_t>(end - rest));
  double bytes = -1.0;
  if (unit == "%") {
    bytes = number / 100.0 * static_cast<double>(whole_bytes);
  }
  for (const Unit& known : kUnits) {
    if (unit == known.name) {
      bytes = number * known.factor;
    }
  }
  // 2^63: far above any memory, and the conversion below stays defined.
  if (bytes < 0.0 || bytes >= 9.2e18) {
    return tl::unexpected(refuse(text));
  }
  return static_cast<std::uint64_t>(bytes);
}

std::string bytes_text(std::uint64_t size_bytes) {
  const auto value = static_cast<double>(size_bytes);
  if (value >= 1e9) {
    return fmt::format("{:.2f} GB", value / 1e9);
  }
  if (value >= 1e6) {
    return fmt::format("{:.2f} MB", value / 1e6);
  }
  if (value >= 1e3) {
    return fmt::format("{:.1f} kB", value / 1e3);
  }
  return fmt::format("{} B", size_bytes);
}

}  // namespace kvspan::host
