// SPDX-License-Identifier: Apache-2.0
// How large a packet's slab is: of one submit, and of any submit that prepare() was told of.
// Read next: queue.hpp (Packet), layout.cpp.
#pragma once

#include "device.hpp"
#include "queue.hpp"

#include <cstdint>

namespace kvspan::cuda {

struct PacketCounts {
  uint64_t waits;
  uint64_t signals;
  uint64_t memories;
};

// Cuts what every packet has; the task's own arrays come after it.
inline void cut_packet(Cutter& cutter, Packet& packet, const PacketCounts& counts) {
  cutter.cut(packet.waits, counts.waits);
  cutter.cut(packet.signals, counts.signals);
  cutter.cut(packet.memories, counts.memories);
  cutter.cut(packet.cancel_seen, 1);
}

// Bytes in which every submit within the limits fits, with kPreparedPoints waits and signals.
uint64_t prepared_slab_bytes(const Limits& limits);

}  // namespace kvspan::cuda
