// SPDX-License-Identifier: Apache-2.0
// The transformer's attention through a kvspan session: rows go into buffers that the device can
// reach, the session encodes, publishes, streams and attends, outputs come back. One sequence. Not
// here: the session itself (core), the transformer (model/).
#pragma once

#include "kvspan/core/session/session.hpp"

#include "model/kv_attention.hpp"
#include "model/model_config.hpp"

#include <cstdint>
#include <memory>

namespace kvspan::host {

// Owns the buffers, borrows backend and session. One step of the session is open between begin()
// and commit().
class StreamedAttention final : public model::KvAttention {
 public:
  // Buffers for `rows_max` rows in the backend's host memory. Errors: host_memory.
  [[nodiscard]] static Result<std::unique_ptr<StreamedAttention>> create(
      const Backend& backend,
      Session& session,
      const model::ModelGeometry& geometry,
      std::uint32_t rows_max);

  // Starts the session's step of `rows` rows. Errors: Session::begin_step's.
  [[nodiscard]] Result<void> begin(std::uint32_t rows, Phase phase);

  // Writes and attends one layer and waits for its output. Errors: the session's.
  [[nodiscard]] Result<void> attend(std::uint32_t layer, const model::AttentionRows& rows) override;

  // Makes the step's rows visible. Errors: Session::commit's.
  [[nodiscard]] Result<void> commit();

 private:
  // [row, head, element] f32 in memory that host and device see.
  struct Buffer {
    DeviceMemory memory;
    float* address = nullptr;
    std::uint64_t row_floats = 0;
    std::uint64_t head_floats = 0;
  };

  StreamedAttention(Session& session, const model::ModelGeometry& geometry)
      : session_(session), geometry_(geometry) {}

  [[nodiscard]] static Result<Buffer> make_buffer(const Backend& backend,
                                                  std::uint32_t rows,
                                                  std::uint32_t heads,
                                                  std::uint32_t head_size);
  [[nodiscard]] static kvspan_rows_t rows_of(const Buffer& buffer);

  Session& session_;
  model::ModelGeometry geometry_;
  SequenceId sequence_ = 0;
  std::uint32_t step_rows_ = 0;
  Buffer q_;
  Buffer k_;
  Buffer v_;
  Buffer out_;
};

}  // namespace kvspan::host
