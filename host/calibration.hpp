// SPDX-License-Identifier: Apache-2.0
// What devices were measured to do, kept in a JSON file under their ids: written by `bench link`,
// read by `plan`, `generate` and `bench`. Not here: measuring (kvspan/bench/copy_samples.hpp).
#pragma once

#include "kvspan/core/backend/backend.hpp"
#include "kvspan/core/error.hpp"
#include "kvspan/core/memory/budget.hpp"
#include "kvspan/core/policy/link.hpp"

#include <nlohmann/json_fwd.hpp>

#include <array>
#include <cstdint>
#include <optional>
#include <string>

namespace kvspan::host {

// 32 hexadecimal digits.
[[nodiscard]] std::string device_id_text(const std::array<std::uint8_t, 16>& id);

// The calibration of the backend's device. Errors: io (the file cannot be read), bad_file (it is no
// file of calibrations, or a number in it cannot be), not_found (it is of other devices, which the
// message names; next: measure this one with `kvspan bench link`).
[[nodiscard]] Result<DeviceCalibration> load_calibration(const std::string& path,
                                                         const Backend& backend);

// The same, or none where no file is named.
[[nodiscard]] Result<std::optional<DeviceCalibration>> load_if_named(const std::string& path,
                                                                     const Backend& backend);

// Sets what the calibration says of link and attention, and nothing else.
void apply_calibration(const DeviceCalibration& calibration, StreamOptions& stream);

// The numbers, or null.
[[nodiscard]] nlohmann::ordered_json calibration_json(
    const std::optional<DeviceCalibration>& calibration);

// Whether a device can be added to the file: it is one, or does not exist. Errors: bad_file.
[[nodiscard]] Result<void> check_calibration_file(const std::string& path);

// Adds a device to the file, or replaces what it said of it; `device_name` is for readers. A file
// that does not exist is made. Errors: bad_file (what is there is something else: it stays), io.
[[nodiscard]] Result<void> store_calibration(const std::string& path,
                                             const DeviceCalibration& calibration,
                                             const std::string& device_name);

}  // namespace kvspan::host
