// SPDX-License-Identifier: Apache-2.0
// A small engine that steps a session of core over the plugin under test. K, V and Q of a row are a
// pure function of (tag, layer, token), so that any two runs can be compared byte by byte. Its rows
// lie in the plugin's host memory. Not here: what is compared (stream_test.cpp).
#ifndef KVSPAN_CONFORMANCE_CASES_STREAM_ENGINE_H
#define KVSPAN_CONFORMANCE_CASES_STREAM_ENGINE_H

#include "kvspan/core/session/session.hpp"

#include "worker/rig.hpp"

#include <cstdint>
#include <vector>

namespace kvspan::conformance {

/// The bytes of `out`, one element a layer and step: [row, q_head, head_size_v] in f32.
using StreamOutputs = std::vector<Bytes>;

/// One sequence's part of a step.
struct StreamPart {
  kvspan::SequenceId sequence = 0;
  uint64_t tag = 0;          // whose content: equal tags have equal K, V and Q
  uint64_t first_token = 0;  // as the engine counts
  uint32_t rows = 0;
};

class StreamEngine {
 public:
  /// All three outlive the engine.
  StreamEngine(Rig& rig, kvspan::Session& session, const kvspan::SessionOptions& options)
      : rig_(rig), session_(session), options_(options) {}

  StreamEngine(const StreamEngine&) = delete;
  StreamEngine& operator=(const StreamEngine&) = delete;
  StreamEngine(StreamEngine&&) = delete;
  StreamEngine& operator=(StreamEngine&&) = delete;
  ~StreamEngine() = default;  // memory that work may still name goes with the rig

  /// From now on no call waits for an output; settle() does.
  void never_wait() { waits_ = false; }

  /// Waits for what is open and appends its outputs in order.
  [[nodiscard]] kvspan::Result<void> settle(StreamOutputs& outputs);

  /// A whole step; its outputs are appended. On failure the step is given up.
  [[nodiscard]] kvspan::Result<void> step(const std::vector<StreamPart>& parts,
                                          kvspan::Phase phase,
                                          StreamOutputs* outputs);

  /// The calls of a step one by one. attend() waits for its output unless never_wait() was called.
  [[nodiscard]] kvspan::Result<void> begin(const std::vector<StreamPart>& parts,
                                           kvspan::Phase phase);
  [[nodiscard]] kvspan::Result<void> write(uint32_t layer);
  [[nodiscard]] kvspan::Result<void> attend(uint32_t layer, StreamOutputs* outputs);
  [[nodiscard]] kvspan::Result<void> commit();

 private:
  /// The rows of one layer and step, all in one memory.
  struct Rows {
    Buffer* buffer = nullptr;
    kvspan_rows_t q = {}, k = {}, v = {}, out = {};
    uint64_t out_bytes = 0;
    kvspan_point_t done = {};
  };

  Rows new_rows(const kvspan::LayerGeometry& layer, uint64_t count);
  void fill(const Rows& rows, uint32_t layer);
  Bytes output_of(const Rows& rows) const;

  Rig& rig_;
  kvspan::Session& session_;
  const kvspan::SessionOptions& options_;
  bool waits_ = true;
  std::vector<StreamPart> parts_;  // of the open step
  std::vector<Rows> open_;         // written, and maybe not read yet
};

}  // namespace kvspan::conformance

#endif
