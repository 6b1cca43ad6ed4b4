// SPDX-License-Identifier: Apache-2.0
// StreamedAttention: copies of the transformer's rows, then two calls of the session a layer.
#include "streamed_attention.hpp"

#include <algorithm>
#include <utility>

namespace kvspan::host {

Result<StreamedAttention::Buffer> StreamedAttention::make_buffer(const Backend& backend,
                                                                 std::uint32_t rows,
                                                                 std::uint32_t heads,
                                                                 std::uint32_t head_size) {
  Buffer buffer;
  buffer.head_floats = head_size;
  buffer.row_floats = static_cast<std::uint64_t>(heads) * head_size;
  auto memory = backend.allocate(KVSPAN_MEMORY_HOST, rows * buffer.row_floats * sizeof(float));
  if (!memory) {
    return tl::unexpected(std::move(memory).error());
  }
  const auto address = backend.map(*memory);
  if (!address) {
    return tl::unexpected(address.error());
  }
  buffer.memory = std::move(*memory);
  buffer.address = static_cast<float*>(*address);
  return buffer;
}

kvspan_rows_t StreamedAttention::rows_of(const Buffer& buffer) {
  kvspan_rows_t rows{};
  rows.memory = buffer.memory.get();
  rows.row_stride = buffer.row_floats * sizeof(float);
  rows.head_stride = buffer.head_floats * sizeof(float);
  rows.type = KVSPAN_TYPE_F32;
  return rows;
}

Result<std::unique_ptr<StreamedAttention>> StreamedAttention::create(
    const Backend& backend,
    Session& session,
    const model::ModelGeometry& geometry,
    std::uint32_t rows_max) {
  std::unique_ptr<StreamedAttention> made(new StreamedAttention(session, geometry));
  const auto sequence = session.add_sequence();
  if (!sequence) {
    return tl::unexpected(sequence.error());
  }
  made->sequence_ = *sequence;
  const auto fill =
      [&](Buffer& into, std::uint32_t heads, std::uint32_t head_size) -> Result<void> {
    auto buffer = make_buffer(backend, rows_max, heads, head_size);
    if (!buffer) {
      return tl::unexpected(std::move(buffer).error());
    }
    into = std::move(*buffer);
    return {};
  };
  auto filled = fill(made->q_, geometry.q_heads, geometry.head_size_k);
  if (filled) {
    filled = fill(made->k_, geometry.kv_heads, geometry.head_size_k);
  }
  if (filled) {
    filled = fill(made->v_, geometry.kv_heads, geometry.head_size_v);
  }
  if (filled) {
    filled = fill(made->out_, geometry.q_heads, geometry.head_size_v);
  }
  if (!filled) {
    return tl::unexpected(std::move(filled).error());
  }
  return made;
}

Result<void> StreamedAttention::begin(std::uint32_t rows, Phase phase) {
  step_rows_ = rows;
  const StepRows part{sequence_, rows};
  return session_.begin_step({&part, 1}, phase);
}

Result<void> StreamedAttention::attend(std::uint32_t layer, const model::AttentionRows& rows) {
  std::copy_n(rows.q, rows.rows * q_.row_floats, q_.address);
  std::copy_n(rows.k, rows.rows * k_.row_floats, k_.address);
  std::copy_n(rows.v, rows.rows * v_.row_floats, v_.address);
  WriteRows write;
  write.k = rows_of(k_);
  write.v = rows_of(v_);
  if (auto written = session_.write(layer, write); !written) {
    return written;
  }
  AttendRows attend;
  attend.q = rows_of(q_);
  attend.out = rows_of(out_);
  attend.scale = geometry_.scale;
  auto done = session_.attend(layer, attend);
  if (!done) {
    return tl::unexpected(std::move(done).error());
  }
  if (auto reached = session_.wait(*done); !reached) {
    return reached;
  }
  std::copy_n(out_.address, rows.rows * out_.row_floats, rows.out);
  return {};
}

Result<void> StreamedAttention::commit() {
  return session_.commit({&step_rows_, 1});
}

}  // namespace kvspan::host
