// SPDX-License-Identifier: Apache-2.0
// The same work with real numbers: the SDK's C reference on the bytes that lie in the device.
#include "kvspan/sdk/reference/advance.h"
#include "kvspan/sdk/reference/fold.h"
#include "kvspan/sdk/reference/quant.h"
#include "kvspan/sdk/reference/span.h"

#include "device.hpp"

#include <algorithm>
#include <cstring>
#include <vector>

namespace kvspan::sim {

void encode_numbers(const kvspan_codec_item_t& item) {
  const auto* const rows = reinterpret_cast<const std::byte*>(memory_of(item.rows.memory)->data);
  std::byte* const plane = memory_of(item.plane.memory)->data;
  std::vector<float> row(item.head_size);
  for (std::uint32_t index = 0; index < item.row_count; ++index) {
    for (std::uint32_t head = 0; head < item.head_count; ++head) {
      std::memcpy(row.data(),
                  rows + kvspan_ref_rows_offset(&item.rows, index, head),
                  row.size() * sizeof(float));
      const std::uint64_t at = kvspan_ref_plane_offset(&item.plane, item.first_token + index, head);
      (void)kvspan_ref_encode_row(
          item.type, row.data(), item.head_size, reinterpret_cast<std::uint8_t*>(plane + at));
    }
  }
}

namespace {

// One entry's rows of one KV head, by token.
struct Source {
  Device* device;
  const EntryCopy* copy;
  const kvspan_attention_shape_t* shape;
  std::uint32_t kv_head;
};

const float* row_of(const Source& source, std::uint64_t token, bool of_k, float* scratch) {
  const std::vector<kvspan_span_t>& spans = source.copy->spans;
  const auto count = static_cast<std::uint32_t>(spans.size());
  const std::uint32_t index = kvspan_ref_span_of(spans.data(), count, token);
  if (index == count) {
    source.device->content("no span has token " + std::to_string(token));
    scratch[0] = 0.0F;
    return scratch;
  }
  const kvspan_span_t& span = spans[index];
  const kvspan_plane_t& plane = of_k ? span.k : span.v;
  const std::uint64_t at =
      kvspan_ref_plane_offset(&plane, token - span.first_token, source.kv_head);
  (void)kvspan_ref_decode_row(
      of_k ? source.shape->k_type : source.shape->v_type,
      reinterpret_cast<const std::uint8_t*>(memory_of(plane.memory)->data + at),
      of_k ? source.shape->head_size_k : source.shape->head_size_v,
      scratch);
  return scratch;
}

const float* k_row(void* context, std::uint64_t token, float* scratch) {
  return row_of(*static_cast<const Source*>(context), token, true, scratch);
}

const float* v_row(void* context, std::uint64_t token, float* scratch) {
  return row_of(*static_cast<const Source*>(context), token, false, scratch);
}

class NumberAttention {
 public:
  NumberAttention(Device& device, const Call& call)
      : device_(device),
        call_(call),
        granule_(device.traits().granule),
        k_(call.shape.head_size_k),
        v_(std::max(call.shape.head_size_k, call.shape.head_size_v)),
        q_(call.shape.head_size_k),
        sums_(call.shape.head_size_v) {}

  void go() {
    if (call_.kind == CallKind::run) {
      for (const EntryCopy& copy : call_.entries) {
        run(copy);
      }
    }
    for (const kvspan_advance_item_t& item : call_.advance_items) {
      const EntryCopy& copy = call_.entries[item.entry];
      pairs(copy, [&](std::uint32_t row, std::uint32_t head) {
        float* const ml = ml_of(item.state, row, head);
        float* const u = u_of(item.state, row, head);
        if ((item.flags & KVSPAN_ITEM_FRESH) != 0) {
          kvspan_ref_state_clear(ml, u, call_.shape.head_size_v);
        }
        advance(copy, row, head, item.first_token, item.first_token + item.token_count, ml, u);
      });
    }
    for (const kvspan_fold_item_t& item : call_.fold_items) {
      pairs(call_.entries[item.entry], [&](std::uint32_t row, std::uint32_t head) {
        float* const ml = ml_of(item.accumulator, row, head);
        float* const u = u_of(item.accumulator, row, head);
        if ((item.flags & KVSPAN_ITEM_FRESH) != 0) {
          kvspan_ref_state_clear(ml, u, call_.shape.head_size_v);
        }
        kvspan_ref_state_fold(ml,
                              u,
                              ml_of(item.source, row, head),
                              u_of(item.source, row, head),
                              call_.shape.head_size_v);
      });
    }
    for (std::size_t index = 0; index < call_.accumulators.size(); ++index) {
      const kvspan_state_t& state = call_.accumulators[index];
      pairs(call_.entries[index], [&](std::uint32_t row, std::uint32_t head) {
        output(call_.entries[index], row, head, ml_of(state, row, head), u_of(state, row, head));
      });
    }
  }

 private:
  template <class Visit>
  void pairs(const EntryCopy& copy, const Visit& visit) {
    for (std::uint32_t row = 0; row < copy.entry.row_count; ++row) {
      for (std::uint32_t head = 0; head < call_.shape.q_heads; ++head) {
        visit(row, head);
      }
    }
  }

  float* floats(const kvspan_memory_t* memory, std::uint64_t offset) const {
    return reinterpret_cast<float*>(memory_of(memory)->data + offset);
  }

  float* u_of(const kvspan_state_t& state, std::uint32_t row, std::uint32_t head) const {
    const std::uint64_t pair = std::uint64_t{row} * call_.shape.q_heads + head;
    return floats(state.memory, state.u_offset) + pair * call_.shape.head_size_v;
  }

  float* ml_of(const kvspan_state_t& state, std::uint32_t row, std::uint32_t head) const {
    const std::uint64_t pair = std::uint64_t{row} * call_.shape.q_heads + head;
    return floats(state.memory, state.ml_offset) + pair * 2;
  }

  void advance(const EntryCopy& copy,
               std::uint32_t row,
               std::uint32_t head,
               std::uint64_t begin,
               std::uint64_t end,
               float* ml,
               float* u) {
    const kvspan_attention_shape_t& shape = call_.shape;
    Source source{&device_, &copy, &shape, head / (shape.q_heads / shape.kv_heads)};
    std::memcpy(q_.data(),
                floats(copy.entry.q.memory, kvspan_ref_rows_offset(&copy.entry.q, row, head)),
                q_.size() * sizeof(float));
    kvspan_ref_advance_t args{};
    args.q = q_.data();
    args.k = k_row;
    args.v = (shape.options & KVSPAN_OPTION_V_IN_K) != 0 ? k_row : v_row;
    args.context = &source;
    args.k_scratch = k_.data();
    args.v_scratch = v_.data();
    args.sums = sums_.data();
    args.visibility = kvspan_ref_visibility_of(&copy.entry, row);
    args.head_size_k = shape.head_size_k;
    args.head_size_v = shape.head_size_v;
    args.granule = granule_;
    args.scale = call_.scale;
    (void)kvspan_ref_advance(&args, begin, end, ml, u);
  }

  void output(const EntryCopy& copy,
              std::uint32_t row,
              std::uint32_t head,
              const float* ml,
              const float* u) {
    float* const out =
        floats(copy.entry.out.memory, kvspan_ref_rows_offset(&copy.entry.out, row, head));
    (void)kvspan_ref_state_finish(ml, u, call_.shape.head_size_v, nullptr, out);
  }

  // Splits in ascending order, each folded when it is complete.
  void run(const EntryCopy& copy) {
    const std::uint32_t size = call_.shape.head_size_v;
    const std::uint64_t split = copy.entry.split_tokens;
    std::vector<float> state(2 + std::size_t{size});
    std::vector<float> total(2 + std::size_t{size});
    pairs(copy, [&](std::uint32_t row, std::uint32_t head) {
      kvspan_ref_state_clear(total.data(), total.data() + 2, size);
      const std::uint64_t first = copy.window_begin.empty() ? 0 : copy.window_begin[row];
      for (std::uint64_t at = first / split * split; at < copy.visible_end[row]; at += split) {
        kvspan_ref_state_clear(state.data(), state.data() + 2, size);
        const std::uint64_t begin = std::max(at, first / granule_ * granule_);
        advance(copy,
                row,
                head,
                begin,
                std::min(at + split, copy.visible_end[row]),
                state.data(),
                state.data() + 2);
        kvspan_ref_state_fold(total.data(), total.data() + 2, state.data(), state.data() + 2, size);
      }
      output(copy, row, head, total.data(), total.data() + 2);
    });
  }

  Device& device_;
  const Call& call_;
  std::uint32_t granule_;
  std::vector<float> k_;
  std::vector<float> v_;
  std::vector<float> q_;
  std::vector<double> sums_;
};

}  // namespace

void attend_numbers(Device& device, const Call& call) {
  NumberAttention(device, call).go();
}

}  // namespace kvspan::sim
