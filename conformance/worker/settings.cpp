// SPDX-License-Identifier: Apache-2.0
// Keeps the settings of this worker and throws its dice. Read next: rig.hpp.
#include "worker/settings.hpp"

#include <algorithm>

namespace kvspan::conformance {
namespace {

Settings& adopted() {
  static Settings settings;
  return settings;
}

}  // namespace

const Settings& worker_settings() {
  return adopted();
}

void adopt(const Settings& settings) {
  adopted() = settings;
}

uint32_t cases(const Settings& settings, uint32_t full, uint32_t least) {
  const uint64_t scaled = uint64_t{full} * settings.effort_percent / 100;
  return static_cast<uint32_t>(std::max<uint64_t>(scaled, least));
}

uint32_t soaked(const Settings& settings, uint32_t full, uint32_t least) {
  const uint64_t scaled = uint64_t{cases(settings, full, least)} * settings.soak;
  return static_cast<uint32_t>(std::min<uint64_t>(scaled, UINT32_MAX / 2));
}

uint64_t Dice::next() {
  state_ += 0x9E3779B97F4A7C15ull;
  uint64_t z = state_;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}

float Dice::uniform() {
  return static_cast<float>(static_cast<int64_t>(next() >> 40) - (int64_t{1} << 23)) / 8388608.0F;
}

float Dice::normal() {
  float sum = 0.0F;
  for (int i = 0; i < 3; ++i) {
    const uint64_t word = next();
    for (uint32_t part = 0; part < 64; part += 16) {
      sum += static_cast<float>((word >> part) & 0xFFFFu) / 65536.0F - 0.5F;
    }
  }
  return sum;
}

}  // namespace kvspan::conformance
