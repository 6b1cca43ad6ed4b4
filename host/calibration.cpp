// SPDX-License-Identifier: Apache-2.0
// {"kvspan_calibrations": 1, "devices": {"<id>": {...}}}: one object a device.
#include "calibration.hpp"

#include "json_file.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>
#include <utility>

namespace kvspan::host {

namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kVersionKey = "kvspan_calibrations";
constexpr int kVersion = 1;
constexpr double kNumberMax = 1e18;  // bytes a second, and nanoseconds: fits 64 bits

std::string text_of(std::ifstream& file) {
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

tl::unexpected<Error> bad_calibrations(const std::string& path, const std::string& why) {
  return tl::unexpected(error_of(Errc::bad_file,
                                 fmt::format("{} is no file of calibrations: {}; write one with "
                                             "`kvspan bench link --calibration FILE`",
                                             path,
                                             why),
                                 "calibration"));
}

Result<Json> parse_calibrations(const std::string& path, const std::string& text) {
  Json document = Json::parse(text, nullptr, false);
  if (document.is_discarded() || !document.is_object()) {
    return bad_calibrations(path, "it is not a JSON object");
  }
  const auto version = document.find(kVersionKey);
  if (version == document.end() || *version != kVersion) {
    return bad_calibrations(path, fmt::format("it has no {} of {}", kVersionKey, kVersion));
  }
  const auto devices = document.find("devices");
  if (devices == document.end() || !devices->is_object()) {
    return bad_calibrations(path, "it has no devices");
  }
  return document;
}

// What the file has, or an empty one where there is none.
Result<Json> known_calibrations(const std::string& path) {
  if (std::ifstream file(path, std::ios::binary); file) {
    return parse_calibrations(path, text_of(file));
  }
  return Json{{kVersionKey, kVersion}, {"devices", Json::object()}};
}

// "ab.. (A card), cd.." for the message that a device is not among them.
std::string names_of(const Json& devices) {
  std::string names;
  for (const auto& [id, numbers] : devices.items()) {
    const auto name = numbers.is_object() ? numbers.find("name") : numbers.end();
    names += names.empty() ? "" : ", ";
    names += name != numbers.end() && name->is_string()
                 ? fmt::format("{} ({})", id, name->get<std::string>())
                 : id;
  }
  return names.empty() ? "none" : names;
}

Json numbers_of(const DeviceCalibration& calibration) {
  return {{"copy_ns", calibration.upload.copy_ns},
          {"link_bytes_s", calibration.upload.bytes_s},
          {"jitter_ns", calibration.jitter_ns},
          {"attend_bytes_s", calibration.attend_bytes_s},
          {"wave_ns", calibration.wave_ns}};
}

Result<double> number_of(const std::string& path, const Json& device, const char* key) {
  const auto found = device.find(key);
  if (found == device.end() || !found->is_number()) {
    return bad_calibrations(path, fmt::format("a device has no number {}", key));
  }
  const double value = found->get<double>();
  if (!std::isfinite(value) || value < 0.0 || value > kNumberMax) {
    return bad_calibrations(
        path, fmt::format("{} is {}, not from 0 to {}; calibrate again", key, value, kNumberMax));
  }
  return value;
}

}  // namespace

std::string device_id_text(const std::array<std::uint8_t, 16>& id) {
  std::string text;
  for (const std::uint8_t byte : id) {
    text += fmt::format("{:02x}", byte);
  }
  return text;
}

Result<DeviceCalibration> load_calibration(const std::string& path, const Backend& backend) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    return tl::unexpected(
        error_of(Errc::io, fmt::format("{} cannot be read; check the path", path), "calibration"));
  }
  const auto document = parse_calibrations(path, text_of(file));
  if (!document) {
    return tl::unexpected(document.error());
  }
  std::array<std::uint8_t, 16> id{};
  std::copy_n(backend.info().id, id.size(), id.begin());
  const Json& devices = (*document)["devices"];
  const auto device = devices.find(device_id_text(id));
  if (device == devices.end() || !device->is_object()) {
    return tl::unexpected(error_of(
        Errc::not_found,
        fmt::format("{} has no device {} ({}), but: {}; measure it with `kvspan bench link "
                    "--calibration FILE`",
                    path,
                    device_id_text(id),
                    backend.info().name,
                    names_of(devices)),
        "calibration"));
  }
  DeviceCalibration out;
  out.device_id = id;
  const std::pair<const char*, double*> numbers[] = {{"copy_ns", &out.upload.copy_ns},
                                                     {"link_bytes_s", &out.upload.bytes_s},
                                                     {"jitter_ns", &out.jitter_ns},
                                                     {"attend_bytes_s", &out.attend_bytes_s},
                                                     {"wave_ns", &out.wave_ns}};
  for (const auto& [key, target] : numbers) {
    const auto value = number_of(path, *device, key);
    if (!value) {
      return tl::unexpected(value.error());
    }
    *target = *value;
  }
  if (out.upload.bytes_s < 1.0) {
    return bad_calibrations(path, "link_bytes_s is below 1");
  }
  return out;
}

Result<std::optional<DeviceCalibration>> load_if_named(const std::string& path,
                                                       const Backend& backend) {
  if (path.empty()) {
    return std::optional<DeviceCalibration>();
  }
  auto known = load_calibration(path, backend);
  return known ? Result<std::optional<DeviceCalibration>>(*known)
               : tl::unexpected(std::move(known).error());
}

void apply_calibration(const DeviceCalibration& calibration, StreamOptions& stream) {
  stream.link_bytes_s = static_cast<std::uint64_t>(calibration.upload.bytes_s);
  stream.copy_ns = static_cast<std::uint64_t>(calibration.upload.copy_ns);
  stream.jitter_ns = static_cast<std::uint64_t>(calibration.jitter_ns);
  stream.attend_bytes_s = static_cast<std::uint64_t>(calibration.attend_bytes_s);
  stream.wave_ns = static_cast<std::uint64_t>(calibration.wave_ns);
}

Json calibration_json(const std::optional<DeviceCalibration>& calibration) {
  return calibration ? numbers_of(*calibration) : Json();
}

Result<void> check_calibration_file(const std::string& path) {
  const auto known = known_calibrations(path);
  return known ? Result<void>{} : tl::unexpected(known.error());
}

Result<void> store_calibration(const std::string& path,
                               const DeviceCalibration& calibration,
                               const std::string& device_name) {
  auto document = known_calibrations(path);
  if (!document) {
    return tl::unexpected(std::move(document).error());
  }
  Json device = {{"name", device_name}};
  device.update(numbers_of(calibration));
  (*document)["devices"][device_id_text(calibration.device_id)] = std::move(device);
  auto out = JsonFile::open(path);
  return out ? out->write(*document) : tl::unexpected(out.error());
}

}  // namespace kvspan::host
