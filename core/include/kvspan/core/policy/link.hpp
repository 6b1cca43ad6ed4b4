// SPDX-License-Identifier: Apache-2.0
// What a link costs: a time before the first byte, then a rate. Measured by whoever holds the
// device, at probe time; here the numbers are inputs. Pure; any thread. Read next: step_time.hpp.
#pragma once

#include "kvspan/core/error.hpp"

#include <array>
#include <cstdint>
#include <span>

namespace kvspan {

struct Link {
  double copy_ns = 0.0;  // of a copy, before its first byte, however many pages it brings
  double bytes_s = 0.0;  // afterwards
};

// Time of one copy of `bytes`, nanoseconds. 0 bytes take no time. The link's rate is above 0.
[[nodiscard]] double copy_time_ns(const Link& link, std::uint64_t bytes);

// Part of the link's rate that copies of this size reach, 0 to 1.
[[nodiscard]] double copy_efficiency(const Link& link, std::uint64_t bytes);

// The copy that takes as long before its first byte as after: half the rate.
[[nodiscard]] std::uint64_t break_even_bytes(const Link& link);

// One timed copy.
struct CopySample {
  std::uint64_t bytes = 0;
  double ns = 0.0;
};

// The link behind timed copies of at least two sizes: the line through the fastest copy of each
// size, least squares of relative errors, so that a late copy or a large one does not rule.
// Errors: invalid_argument for fewer than two sizes, a time that is not above 0, or times that do
// not rise with the bytes; next: time more copies, of sizes further apart.
[[nodiscard]] Result<Link> fit_link(std::span<const CopySample> samples);

// What a device was measured to do, kept by the host under the device's id.
struct DeviceCalibration {
  std::array<std::uint8_t, 16> device_id{};
  Link upload;
  double jitter_ns = 0.0;       // by which a group was late at most
  double attend_bytes_s = 0.0;  // K/V bytes attended a second where they lie
  double wave_ns = 0.0;         // of an advance beyond its bytes
};

}  // namespace kvspan
