// SPDX-License-Identifier: Apache-2.0
// A session of core over random history, stepped as an engine steps it, and its time. Not here:
// what is made of the times.
#pragma once

#include "kvspan/core/session/session.hpp"

#include "rows.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace kvspan::cuda_bench {

struct StreamCase {
  std::string geometry = "A";
  std::uint32_t layers = 16;
  std::uint64_t tokens = 0;      // of the history before the first step
  std::uint32_t rows_max = 8;    // a step
  std::uint64_t appended = 512;  // tokens that steps may add
  std::uint64_t arena_bytes = std::uint64_t{64} << 30;
  StreamOptions stream;
  bool wait_each_layer = false;  // the engine needs a layer's output before it goes on
  double gap_seconds = 0.0;      // what the engine does between two layers, on the host's clock
};

class Streamed {
 public:
  Streamed(const Bench& bench, const StreamCase& asked);

  // One step of `rows` rows; returns its seconds, from begin_step to the last layer's output and
  // commit.
  double step(std::uint32_t rows);

  [[nodiscard]] const Session& session() const { return session_; }

  // Bytes that the next step has to stream.
  [[nodiscard]] std::uint64_t step_bytes() const;

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
  std::uint32_t rows_of_step_ = 0;
  std::uint64_t q_bytes_ = 0;  // of one layer, like those below
  std::uint64_t k_bytes_ = 0;
  std::uint64_t v_bytes_ = 0;
  std::uint64_t out_bytes_ = 0;
  std::uint64_t out_offset_ = 0;  // outputs of all layers lie behind the other rows
  HostMemory host_rows_;
  DeviceMemory rows_;
  kvspan_point_t last_{};
};

// Steps of one width, one to warm up before those that are timed.
struct Steps {
  std::uint32_t rows;
  int timed;
};

struct StepTimes {
  std::uint32_t rows = 0;
  Spread seconds;
  std::uint64_t bytes = 0;  // streamed, a step
  std::uint64_t pages = 0;
  CpuTime cpu;                 // a streamed page
  std::vector<float> outputs;  // of the step that warmed up
};

struct StreamTimes {
  Plan plan;
  std::vector<StepTimes> steps;
};

// Runs the steps in a session of their own, whose bytes are counted against the plan. The session
// ends inside: a device is prepared for another only when nothing of it is in flight.
[[nodiscard]] StreamTimes time_steps(const Bench& bench,
                                     const StreamCase& asked,
                                     const std::vector<Steps>& steps);

// The same steps with everything resident.
[[nodiscard]] StreamTimes time_resident(const Bench& bench,
                                        const StreamCase& asked,
                                        const std::vector<Steps>& steps);

// That both have the same outputs bit for bit; what was compared. Throws Failure.
[[nodiscard]] std::string compare(const StepTimes& streamed, const StepTimes& resident);

}  // namespace kvspan::cuda_bench
