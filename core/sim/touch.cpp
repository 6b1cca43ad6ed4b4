// SPDX-License-Identifier: Apache-2.0
// The bytes that a work reads and writes, each range compared with every earlier access that is not
// known to be over. Read first: submit.cpp.
#include "kvspan/sdk/reference/quant.h"
#include "kvspan/sdk/reference/span.h"

#include "device.hpp"

#include <algorithm>

namespace kvspan::sim {

void Device::touch_rows(Work& work,
                        const Queue& queue,
                        const kvspan_rows_t& rows,
                        std::uint32_t count,
                        std::uint32_t heads,
                        std::uint32_t head_size,
                        bool writes) {
  if (count == 0) {
    return;
  }
  const std::uint64_t last = kvspan_ref_rows_offset(&rows, count - 1, heads - 1);
  touch(work,
        queue,
        memory_of(rows.memory),
        rows.offset,
        last + kvspan_ref_row_bytes(rows.type, head_size),
        writes);
}

void Device::touch_copy(Work& work, const Queue& queue) {
  const auto rows_of = [&](kvspan_memory_t* memory,
                           std::uint64_t offset,
                           const kvspan_segment_t& segment,
                           std::uint64_t pitch,
                           bool writes) {
    for (std::uint64_t row = 0; row < segment.rows; ++row) {
      const std::uint64_t begin = offset + row * pitch;
      touch(work, queue, memory_of(memory), begin, begin + segment.bytes, writes);
    }
  };
  for (const kvspan_segment_t& segment : work.call.segments) {
    rows_of(segment.source, segment.source_offset, segment, segment.source_pitch, false);
  }
  for (const kvspan_segment_t& segment : work.call.segments) {
    rows_of(segment.target, segment.target_offset, segment, segment.target_pitch, true);
  }
}

// Tokens [first, first + count) of a plane, all heads. What lies together is touched at once: a
// page's heads one behind the other, or its tokens.
void Device::touch_plane(Work& work,
                         const Queue& queue,
                         const PlaneRows& rows,
                         std::uint64_t first,
                         std::uint64_t count,
                         bool writes) {
  const kvspan_plane_t& plane = rows.plane;
  while (count != 0) {
    const std::uint64_t here =
        plane.page_tokens == 0
            ? count
            : std::min<std::uint64_t>(count, plane.page_tokens - first % plane.page_tokens);
    const std::uint64_t at = kvspan_ref_plane_offset(&plane, first, 0);
    const bool by_token = plane.row_stride == rows.heads * rows.bytes;
    const bool by_head = plane.row_stride == rows.bytes && plane.head_stride == here * rows.bytes;
    const bool together = by_token || by_head;
    for (std::uint32_t head = 0; head < (together ? 1 : rows.heads); ++head) {
      const std::uint64_t begin = at + head * plane.head_stride;
      const std::uint64_t end = together ? begin + here * rows.heads * rows.bytes
                                         : begin + (here - 1) * plane.row_stride + rows.bytes;
      touch(work, queue, memory_of(plane.memory), begin, end, writes);
    }
    first += here;
    count -= here;
  }
}

void Device::touch_encode(Work& work, const Queue& queue) {
  for (const kvspan_codec_item_t& item : work.call.codec_items) {
    touch_rows(work, queue, item.rows, item.row_count, item.head_count, item.head_size, false);
    touch_plane(work,
                queue,
                {item.plane, item.head_count, kvspan_ref_row_bytes(item.type, item.head_size)},
                item.first_token,
                item.row_count,
                true);
  }
}

// K and V of an entry's tokens [begin, end), as far as its spans hold them.
void Device::touch_tokens(Work& work,
                          const Queue& queue,
                          const EntryCopy& entry,
                          std::uint64_t begin,
                          std::uint64_t end) {
  const kvspan_attention_shape_t& shape = work.call.shape;
  const std::uint64_t k_bytes = kvspan_ref_row_bytes(shape.k_type, shape.head_size_k);
  const std::uint64_t v_bytes = kvspan_ref_row_bytes(shape.v_type, shape.head_size_v);
  for (const kvspan_span_t& span : entry.spans) {
    const std::uint64_t from = std::max(begin, span.first_token);
    const std::uint64_t to = std::min(end, span.first_token + span.token_count);
    if (from < to) {
      const std::uint64_t first = from - span.first_token;
      touch_plane(work, queue, {span.k, shape.kv_heads, k_bytes}, first, to - from, false);
      if ((shape.options & KVSPAN_OPTION_V_IN_K) == 0) {
        touch_plane(work, queue, {span.v, shape.kv_heads, v_bytes}, first, to - from, false);
      }
    }
  }
}

void Device::touch_state(
    Work& work, const Queue& queue, const kvspan_state_t& state, std::uint32_t rows, bool writes) {
  const kvspan_attention_shape_t& shape = work.call.shape;
  const std::uint64_t pairs = std::uint64_t{rows} * shape.q_heads;
  Memory* const memory = memory_of(state.memory);
  touch(work,
        queue,
        memory,
        state.u_offset,
        state.u_offset + pairs * shape.head_size_v * sizeof(float),
        writes);
  touch(work, queue, memory, state.ml_offset, state.ml_offset + pairs * 2 * sizeof(float), writes);
}

void Device::touch_attention(Work& work, const Queue& queue) {
  const Call& call = work.call;
  const kvspan_attention_shape_t& shape = call.shape;
  if (call.workspace.memory != nullptr) {
    touch(work,
          queue,
          memory_of(call.workspace.memory),
          call.workspace.offset,
          call.workspace.offset + call.workspace.bytes,
          true);
  }
  const bool reads = call.kind == CallKind::run || call.kind == CallKind::advance;
  const bool writes = call.kind == CallKind::run || call.kind == CallKind::finish;
  for (const EntryCopy& copy : call.entries) {
    const kvspan_entry_t& entry = copy.entry;
    if (reads) {
      touch_rows(work, queue, entry.q, entry.row_count, shape.q_heads, shape.head_size_k, false);
    }
    if (writes) {
      touch_rows(work, queue, entry.out, entry.row_count, shape.q_heads, shape.head_size_v, true);
    }
    if (call.kind == CallKind::run) {
      const std::uint64_t begin = copy.window_begin.empty() ? 0 : copy.window_begin.front();
      touch_tokens(work, queue, copy, begin, copy.visible_end.back());
    }
  }
  for (const kvspan_advance_item_t& item : call.advance_items) {
    const EntryCopy& copy = call.entries[item.entry];
    touch_state(work, queue, item.state, copy.entry.row_count, true);
    const std::uint64_t end = item.first_token + item.token_count;
    touch_tokens(work, queue, copy, item.first_token, std::min(end, copy.visible_end.back()));
  }
  for (const kvspan_fold_item_t& item : call.fold_items) {
    const std::uint32_t rows = call.entries[item.entry].entry.row_count;
    touch_state(work, queue, item.source, rows, false);
    touch_state(work, queue, item.accumulator, rows, true);
  }
}

}  // namespace kvspan::sim
