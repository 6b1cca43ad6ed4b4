// SPDX-License-Identifier: Apache-2.0
// A function that every other plugin of the process may bump into.
#include <cstdint>

extern "C" __attribute__((visibility("default"))) uint32_t crc32_update(uint32_t crc,
                                                                        uint8_t byte) {
  return (crc >> 8) ^ (crc & 0xFFu) ^ byte;
}
