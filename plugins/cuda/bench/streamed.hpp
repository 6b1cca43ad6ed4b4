// SPDX-License-Identifier: Apache-2.0
// A session of core over random history, stepped as an engine steps it, and its time. Not here:
// what is made of the times.
#pragma once

#include "kvspan/core/session/session.hpp"

#include "pages.hpp"
#include "rig.hpp"
#include "row.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace kvspan::cuda_bench {

struct StreamCase {
  std::string geometry = "A";
  std::uint32_t layers = 16;
  std::uint64_t tokens = 0;  // of the history before the first step
  std::uint32_t rows = 1;    // a step
  std::uint64_t steps = 32;  // that will be made
  std::uint64_t arena_bytes = std::uint64_t{64} << 30;
  StreamOptions stream;
  bool wait_each_layer = false;  // the engine needs a layer's output before it goes on
  double gap_seconds = 0.0;      // what the engine does between two layers, on the host's clock
};

class Streamed {
 public:
  Streamed(const Rig& rig, const RandomPages& pages, const StreamCase& asked);

  // One step; returns its seconds, from begin_step to the last layer's output and commit.
  double step();

  [[nodiscard]] const Session& session() const { return session_; }

  // Outputs of the last step, [layer, row, head, element].
  [[nodiscard]] std::vector<float> outputs();

 private:
  void place_rows();
  void layer(std::uint32_t index);

  const Rig& rig_;
  const RandomPages& pages_;
  StreamCase case_;
  Session session_;
  SequenceId sequence_ = 0;
  std::uint64_t tokens_ = 0;
  std::uint64_t q_bytes_ = 0;  // of one layer, like those below
  std::uint64_t k_bytes_ = 0;
  std::uint64_t v_bytes_ = 0;
  std::uint64_t out_bytes_ = 0;
  std::uint64_t out_offset_ = 0;  // outputs of all layers lie behind the other rows
  HostMemory host_rows_;
  DeviceMemory rows_;
  kvspan_point_t last_{};
};

}  // namespace kvspan::cuda_bench
