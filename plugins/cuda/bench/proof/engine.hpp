// SPDX-License-Identifier: Apache-2.0
// An engine without a model whose rows are a function of (text, layer, token): what a decode row
// gives is then one of (text, token) alone, whatever was cancelled, truncated, moved or killed on
// the way there, and can be compared with a run in which nothing was. Not here: what is done to it
// (cancel.cpp, placement.cpp, soak.cpp, kill.cpp).
#pragma once

#include "kvspan/bench/random_pages.hpp"
#include "kvspan/core/session/session.hpp"

#include "rig.hpp"

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace kvspan::cuda_proof {

using cuda_bench::Rig;

// A text begins with loaded pages; its other rows are written by steps.
struct Text {
  std::uint64_t id = 0;
  std::uint64_t loaded_tokens = 0;

  [[nodiscard]] bool operator<(const Text& other) const { return id < other.id; }
};

struct EngineCase {
  std::uint32_t layers = 4;
  std::uint64_t context_tokens = 0;
  std::uint32_t sequences = 1;
  std::uint32_t prefill_rows = 64;
  std::optional<std::uint64_t> arena_bytes;  // none: all that the stream's options ask for
  StreamOptions stream;
  bool moves = false;  // place() works
};

inline constexpr std::uint32_t kDecodeRows = 8;

// When the engine waits for outputs: behind the last layer, with all of them in flight, or behind
// each.
enum class Pace : std::uint8_t { ahead, by_layer };

// Numbers of a splitmix64 stream: the same everywhere, unlike those of <random>'s distributions.
class Dice {
 public:
  explicit Dice(std::uint64_t seed) : state_(seed) {}

  std::uint64_t next();

  // 0 .. bound - 1; bound > 0.
  std::uint64_t below(std::uint64_t bound) { return next() % bound; }

  // low .. high, both included.
  std::uint64_t between(std::uint64_t low, std::uint64_t high) {
    return low + below(high - low + 1);
  }

  // [0, 1).
  double part() { return static_cast<double>(next() >> 11) * 0x1p-53; }

 private:
  std::uint64_t state_;
};

// What all engines of a process share: pages of one geometry and rows.
class Material {
 public:
  // Geometry A of the benchmark in pages of 256 tokens, or small heads in pages of 64. Throws
  // Failure.
  static Material make(bool small);

  [[nodiscard]] const bench::RandomPages& pages() const { return pages_; }

  [[nodiscard]] std::uint64_t page_tokens() const { return pages_.layout().page_tokens; }

  // `count` floats of a row, `kind` 0 = K, 1 = V, 2 = queries.
  void copy_row(const Text& text,
                std::uint32_t layer,
                std::uint64_t token,
                std::uint32_t kind,
                std::span<float> to) const;

 private:
  explicit Material(bench::RandomPages pages);

  bench::RandomPages pages_;
  std::vector<float> noise_;
};

// Throws Failure for everything but what step() returns.
class Engine {
 public:
  Engine(const Rig& rig, const Material& material, const EngineCase& asked);

  [[nodiscard]] Session& session() { return session_; }

  // A sequence with the text's loaded pages.
  SequenceId add(const Text& text);

  void remove(SequenceId sequence);

  // Brings the rows that follow each sequence's tokens to the device, and makes outputs NaN.
  void prepare(std::span<const StepRows> parts);

  // Those rows through every layer, committed. Its error is the session's: where it is `cancelled`,
  // the next step works.
  [[nodiscard]] Result<void> run(std::span<const StepRows> parts, Phase phase);

  // Both.
  [[nodiscard]] Result<void> step(std::span<const StepRows> parts, Phase phase) {
    prepare(parts);
    return run(parts, phase);
  }

  // Both, for one sequence.
  [[nodiscard]] Result<void> step(SequenceId sequence, std::uint32_t rows, Phase phase) {
    const StepRows part{sequence, rows};
    return step({&part, 1}, phase);
  }

  // Of the steps from now on; ahead unless told.
  void set_pace(Pace pace) { pace_ = pace; }

  // Layers that the last step had attended to when it ended.
  [[nodiscard]] std::uint32_t layers_done() const { return layers_done_; }

  // Outputs of the last step, [layer, row, head, element].
  [[nodiscard]] std::vector<float> outputs();

  // 64 bits for each row of the last step, of its outputs' bytes in all layers.
  [[nodiscard]] std::vector<std::uint64_t> row_hashes();

  // Pages that a decode step of a sequence has to bring.
  [[nodiscard]] std::uint64_t pages_to_stream(SequenceId sequence) const;

 private:
  Result<void> layer(std::uint32_t index);
  void read_back();

  const Rig& rig_;
  const Material& material_;
  EngineCase case_;
  std::uint64_t rows_max_ = 0;
  std::uint64_t q_floats_ = 0;  // of a row
  std::uint64_t k_floats_ = 0;
  std::uint64_t v_floats_ = 0;
  std::uint64_t out_floats_ = 0;
  cuda_bench::HostMemory host_rows_;  // [layer][q rows | k rows | v rows], rows_max_ each
  cuda_bench::HostMemory host_out_;   // [layer, row, head, element]
  DeviceMemory rows_;
  DeviceMemory out_;
  cuda_bench::Line up_;
  cuda_bench::Line down_;
  Session session_;
  std::map<SequenceId, Text> texts_;
  std::uint32_t rows_of_step_ = 0;
  std::uint32_t layers_done_ = 0;
  Pace pace_ = Pace::ahead;
  kvspan_point_t last_{};
};

// What decode rows of a text give where nothing happens to them: everything resident, eight rows a
// step. [token - loaded_tokens], as Engine::row_hashes().
[[nodiscard]] std::vector<std::uint64_t> undisturbed(const Rig& rig,
                                                     const Material& material,
                                                     std::uint32_t layers,
                                                     const Text& text,
                                                     std::uint64_t tokens);

}  // namespace kvspan::cuda_proof
