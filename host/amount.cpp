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

// Far above any memory; conversions from double stay defined.
constexpr std::uint64_t kAmountLimit = 1ULL << 62;

Error refuse(std::string_view text) {
  return error_of(
      Errc::invalid_argument,
      fmt::format("'{}' is no amount of memory; write bytes (6300000), a unit (6.3MB, 6MiB) "
                  "or a share of the history (25%)",
                  text),
      "amount");
}

}  // namespace

Result<std::uint64_t> parse_bytes(std::string_view text, std::uint64_t whole_bytes) {
  const char* const end = text.data() + text.size();
  std::uint64_t whole = 0;  // exact also above 2^53
  const auto [behind, no_whole] = std::from_chars(text.data(), end, whole);
  if (no_whole == std::errc{} && behind == end && whole < kAmountLimit) {
    return whole;
  }
  double number = 0.0;
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
  if (bytes < 0.0 || bytes >= static_cast<double>(kAmountLimit)) {
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
