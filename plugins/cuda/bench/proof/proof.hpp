// SPDX-License-Identifier: Apache-2.0
// What is proven of a backend by doing it often: a part a function. Each gives counts, and throws
// Failure at the first thing that is wrong; what it had counted by then is kept.
#pragma once

#include "engine.hpp"

#include <nlohmann/json.hpp>

#include <cstdint>
#include <string>

namespace kvspan::cuda_proof {

struct Asked {
  std::string plugin;  // the file
  std::uint64_t seed = 1;
  bool small = false;  // small heads and histories, for a backend without a card
  std::uint32_t rounds = 1000;
  std::uint32_t kills = 10;
  double soak_seconds = 240.0;
};

using Counts = nlohmann::ordered_json;

// Cancels streamed steps from another thread at random moments; each time the session goes on, and
// its next rows have the bits of a run in which nobody cancelled.
void prove_cancellation(const Asked& asked, Counts& out);

// Outputs by memcmp with the resident run's: shares of resident pages, rings of many lengths, every
// size of a group.
void prove_placement(const Asked& asked, Counts& out);

// Mixed operations for some minutes: bits right, and nothing that a process holds grows.
void prove_soak(const Asked& asked, Counts& out);

// Kills a process of this program in the middle of a step; then another one gives right bits and
// the device has as much free memory as before.
void prove_kill(const Asked& asked, Counts& out);

// The process that is killed: writes "r" once it is ready and "s" as each step begins, and has no
// end. With `once`: three steps, their hash on standard output in hex, and an end. Returns the exit
// status.
int be_the_child(const Asked& asked, bool once);

// How long the other side waits at random moments: without sleeping, which is coarser than a step.
void spin_for(double seconds);

}  // namespace kvspan::cuda_proof
