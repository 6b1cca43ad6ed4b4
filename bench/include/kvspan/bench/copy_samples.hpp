// SPDX-License-Identifier: Apache-2.0
// Timed copies of many sizes to the device, for the policy's cost model. Not here: the line through
// them (kvspan/core/policy/link.hpp).
#pragma once

#include "kvspan/core/backend/backend.hpp"
#include "kvspan/core/error.hpp"
#include "kvspan/core/policy/link.hpp"

#include <vector>

namespace kvspan::bench {

// Copies of 4 KiB to 64 MiB, each size several times, submitted back to back so that a sample is
// what a copy among others costs. Errors: memory, the copies'.
[[nodiscard]] Result<std::vector<CopySample>> copy_samples(const Backend& backend);

// What a device was measured to do: the line through copy_samples(), and the slowest large copy
// over the usual one as jitter. Attention is not measured: its fields stay 0. Errors: those of
// both.
[[nodiscard]] Result<DeviceCalibration> calibrate(const Backend& backend);

}  // namespace kvspan::bench
