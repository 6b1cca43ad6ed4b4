// SPDX-License-Identifier: Apache-2.0
// What devices were measured to do, kept in a JSON file under their ids: written by `bench link`,
// read by `plan`. Not here: measuring (kvspan/bench/copy_samples.hpp).
#pragma once

#include "kvspan/core/error.hpp"
#include "kvspan/core/policy/link.hpp"

#include <array>
#include <cstdint>
#include <string>

namespace kvspan::host {

// 32 hexadecimal digits.
[[nodiscard]] std::string device_id_text(const std::array<std::uint8_t, 16>& id);

// The calibration of one device. Errors: io (the file cannot be read), bad_file (it is no file of
// calibrations, or a number in it cannot be), not_found (the device is not in it; next: measure it
// with `kvspan bench link`).
[[nodiscard]] Result<DeviceCalibration> load_calibration(const std::string& path,
                                                         const std::array<std::uint8_t, 16>& id);

// Adds a device to the file, or replaces what it said of it; `device_name` is for readers. A file
// that does not exist is made. Errors: bad_file (what is there is something else: it stays), io.
[[nodiscard]] Result<void> store_calibration(const std::string& path,
                                             const DeviceCalibration& calibration,
                                             const std::string& device_name);

}  // namespace kvspan::host
