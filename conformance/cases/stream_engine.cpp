// SPDX-License-Identifier: Apache-2.0
// Makes rows, steps the session, reads outputs. Read next: stream_engine.hpp.
#include "stream_engine.hpp"

#include <cmath>
#include <cstring>

namespace kvspan::conformance {
namespace {

/// A number in [-1, 1) from a place in a run.
float content(uint64_t what, uint64_t tag, uint64_t layer, uint64_t token, uint64_t element) {
  const uint64_t place = ((what * 8 + layer) * 4096 + tag) * 65536 + token;
  return Dice(place * 8192 + element).uniform();
}

constexpr uint64_t kAlignment = 256;

}  // namespace

StreamEngine::Rows StreamEngine::new_rows(const kvspan::LayerGeometry& layer, uint64_t count) {
  Rows made;
  uint64_t used = 0;
  const auto lay_out = [&](kvspan_rows_t& rows, uint32_t heads, uint32_t head_size) {
    rows.type = KVSPAN_TYPE_F32;
    rows.head_stride = uint64_t{head_size} * 4;
    rows.row_stride = rows.head_stride * heads;
    rows.offset = used;
    used += (rows.row_stride * count + kAlignment - 1) / kAlignment * kAlignment;
  };
  lay_out(made.q, layer.q_heads, layer.head_size_k);
  lay_out(made.k, layer.kv_heads, layer.head_size_k);
  lay_out(made.v, layer.kv_heads, layer.head_size_v);
  lay_out(made.out, layer.q_heads, layer.head_size_v);
  made.out_bytes = made.out.row_stride * count;
  made.buffer = rig_.allocate(KVSPAN_MEMORY_HOST, used);
  if (made.buffer != nullptr) {
    made.q.memory = made.k.memory = made.v.memory = made.out.memory = made.buffer->memory;
  }
  return made;
}

void StreamEngine::fill(const Rows& rows, uint32_t layer) {
  const kvspan_rows_t* const sides[] = {&rows.q, &rows.k, &rows.v};
  uint64_t row = 0;
  for (const StreamPart& part : parts_) {
    for (uint64_t i = 0; i < part.rows; ++i, ++row) {
      for (uint64_t what = 0; what < 3; ++what) {
        const kvspan_rows_t& side = *sides[what];
        uint8_t* const target = rows.buffer->mapped + side.offset + row * side.row_stride;
        for (uint64_t element = 0; element < side.row_stride / 4; ++element) {
          const float value = content(what, part.tag, layer, part.first_token + i, element);
          std::memcpy(target + 4 * element, &value, 4);
        }
      }
    }
  }
}

Bytes StreamEngine::output_of(const Rows& rows) const {
  const uint8_t* const begin = rows.buffer->mapped + rows.out.offset;
  return Bytes(begin, begin + rows.out_bytes);
}

kvspan::Result<void> StreamEngine::settle(StreamOutputs& outputs) {
  for (const Rows& rows : open_) {
    if (auto waited = session_.wait(rows.done); !waited) {
      return waited;
    }
    outputs.push_back(output_of(rows));
  }
  return {};
}

kvspan::Result<void> StreamEngine::begin(const std::vector<StreamPart>& parts,
                                         kvspan::Phase phase) {
  parts_ = parts;
  std::vector<kvspan::StepRows> rows;
  for (const StreamPart& part : parts) {
    rows.push_back({part.sequence, part.rows});
  }
  return session_.begin_step(rows, phase);
}

kvspan::Result<void> StreamEngine::write(uint32_t layer) {
  uint64_t count = 0;
  for (const StreamPart& part : parts_) {
    count += part.rows;
  }
  open_.push_back(new_rows(options_.geometry.layers[layer], count));
  if (open_.back().buffer == nullptr) {
    open_.pop_back();
    return tl::unexpected(kvspan::Error{kvspan::Errc::host_memory, "no memory for the rows"});
  }
  fill(open_.back(), layer);
  kvspan::WriteRows rows;
  rows.k = open_.back().k;
  rows.v = open_.back().v;
  return session_.write(layer, rows);
}

kvspan::Result<void> StreamEngine::attend(uint32_t layer, StreamOutputs* outputs) {
  Rows& own = open_.back();
  kvspan::AttendRows rows;
  rows.q = own.q;
  rows.out = own.out;
  const kvspan::LayerGeometry& geometry = options_.geometry.layers[layer];
  rows.scale = 1.0F / std::sqrt(static_cast<float>(geometry.head_size_k));
  const auto point = session_.attend(layer, rows);
  if (!point) {
    return tl::unexpected(point.error());
  }
  own.done = *point;
  if (!waits_) {
    return {};
  }
  if (auto waited = session_.wait(*point); !waited) {
    return waited;
  }
  if (outputs != nullptr) {
    outputs->push_back(output_of(own));
  }
  return {};
}

kvspan::Result<void> StreamEngine::commit() {
  std::vector<uint32_t> accepted;
  for (const StreamPart& part : parts_) {
    accepted.push_back(part.rows);
  }
  auto done = session_.commit(accepted);
  if (waits_ && done) {  // then nothing names them any more
    for (const Rows& rows : open_) {
      rig_.release(rows.buffer);
    }
  }
  if (waits_) {
    open_.clear();
  }
  return done;
}

kvspan::Result<void> StreamEngine::step(const std::vector<StreamPart>& parts,
                                        kvspan::Phase phase,
                                        StreamOutputs* outputs) {
  if (auto begun = begin(parts, phase); !begun) {
    return begun;
  }
  for (uint32_t layer = 0; layer < options_.geometry.layers.size(); ++layer) {
    auto done = write(layer);
    if (done) {
      done = attend(layer, outputs);
    }
    if (!done) {
      session_.cancel_step();
      return done;
    }
  }
  return commit();
}

}  // namespace kvspan::conformance
