// SPDX-License-Identifier: Apache-2.0
// The codec table: rows of the engine to typed rows of a page, and back, a chunk of a row at a
// time. Bits are those of the C reference in kvspan/sdk/reference/quant.h. Read first: queue.hpp.
#include "codec.hpp"

#include "kvspan/attention_shape.h"
#include "kvspan/codec.h"
#include "kvspan/sdk/error.hpp"
#include "kvspan/sdk/fill.hpp"
#include "kvspan/sdk/guard.hpp"
#include "kvspan/sdk/reference/quant.h"
#include "kvspan/sdk/validate_submit.hpp"

#include "queue.hpp"

#include <cstring>

namespace kvspan::cpu {
namespace {

bool is_row_type(kvspan_type_t type) {
  return type == KVSPAN_TYPE_F32 || type == KVSPAN_TYPE_F16 || type == KVSPAN_TYPE_BF16;
}

// KVSPAN_WHY_* bits for which the question is refused; 0 = it is granted.
uint32_t why_not(kvspan_type_t row_type, kvspan_type_t type, uint32_t head_size) {
  uint32_t reasons = is_row_type(row_type) ? 0 : KVSPAN_WHY_ROW_TYPE;
  const kvspan_ref_block_t block = kvspan_ref_block(type);
  if (block.elements == 0) {
    reasons |= KVSPAN_WHY_K_TYPE | KVSPAN_WHY_V_TYPE;
  } else if (head_size == 0) {
    reasons |= KVSPAN_WHY_HEAD_SIZE;
  } else if (head_size % block.elements != 0) {
    reasons |= KVSPAN_WHY_BLOCK;
  }
  return reasons;
}

// One row of one head from one type to another, through f32.
void convert_row(kvspan_type_t from,
                 const uint8_t* source,
                 kvspan_type_t to,
                 uint8_t* target,
                 uint64_t elements) {
  constexpr uint64_t kChunk = 256;  // a multiple of every block
  float values[kChunk];
  while (elements > 0) {
    const uint64_t part = elements < kChunk ? elements : kChunk;
    source += kvspan_ref_decode_row(from, source, part, values);
    target += kvspan_ref_encode_row(to, values, part, target);
    elements -= part;
  }
}

enum class Direction { encode, decode };

template <Direction kDirection>
void convert_token(const CodecRows& item, uint32_t row) {
  const uint64_t token = item.first_token + row;
  uint64_t slot = 0;
  uint64_t within = token;
  if (item.plane.page_tokens != 0) {
    slot = token / item.plane.page_tokens;
    within = token % item.plane.page_tokens;
    slot = item.plane.page_list != nullptr ? item.plane.page_list[slot] : slot;
  }
  const uint64_t at = slot * item.plane.page_stride + within * item.plane.row_stride;
  for (uint32_t head = 0; head < item.head_count; ++head) {
    uint8_t* const untyped =
        item.rows.base + row * item.rows.row_stride + head * item.rows.head_stride;
    uint8_t* const typed = item.plane.base + at + head * item.plane.head_stride;
    if constexpr (kDirection == Direction::encode) {
      convert_row(item.rows.type, untyped, item.type, typed, item.head_size);
    } else {
      convert_row(item.type, typed, item.rows.type, untyped, item.head_size);
    }
  }
}

template <Direction kDirection>
kvspan_result_t run_codec(const Execution& execution, const void* body) {
  const CodecBody& codec = *static_cast<const CodecBody*>(body);
  execution.device.counters.launches.fetch_add(codec.count, std::memory_order_relaxed);
  for (uint64_t i = 0; i < codec.count; ++i) {
    if (execution.cancelled()) {
      return KVSPAN_E_CANCELLED;
    }
    for (uint32_t row = 0; row < codec.items[i].row_count; ++row) {
      convert_token<kDirection>(codec.items[i], row);
    }
  }
  return KVSPAN_OK;
}

using Items = sdk::List<kvspan_codec_item_t>;

class CodecTask final : public Task {
 public:
  CodecTask(Items items, Direction direction) : items_(items), direction_(direction) {
    uses_max = 2 * uint64_t{items.count};
    for (uint32_t i = 0; i < items.count; ++i) {
      pages_ += items.data[i].plane.page_list != nullptr ? items.data[i].plane.page_count : 0;
    }
  }

  [[nodiscard]] uint64_t pages() const { return pages_; }

  void lay_out(Cutter& cutter) override { cut_codec(cutter, arrays_, items_.count, pages_); }

  void fill(Packet& packet, Uses& uses) override {
    uint32_t* pages = arrays_.pages;
    for (uint32_t i = 0; i < items_.count; ++i) {
      const kvspan_codec_item_t& item = items_.data[i];
      const kvspan_plane_t& plane = item.plane;
      arrays_.items[i] = {
          {address_of(item.rows.memory, item.rows.offset),
           item.rows.row_stride,
           item.rows.head_stride,
           item.rows.type},
          sdk::view_of(plane, address_of(plane.memory, plane.offset), sdk::keep_list(plane, pages)),
          item.first_token,
          item.type,
          item.row_count,
          item.head_count,
          item.head_size};
    }
    for (uint32_t i = 0; i < items_.count; ++i) {
      uses.add(items_.data[i].rows.memory);
    }
    for (uint32_t i = 0; i < items_.count; ++i) {
      uses.add(items_.data[i].plane.memory);
    }
    *arrays_.body = {arrays_.items, items_.count};
    packet.body = arrays_.body;
    packet.bytes = 0;
    packet.execute = direction_ == Direction::encode ? run_codec<Direction::encode>
                                                     : run_codec<Direction::decode>;
  }

 private:
  Items items_;
  Direction direction_;
  uint64_t pages_ = 0;
  CodecArrays arrays_;
};

// What the query refuses, the slot refuses with the same reasons.
kvspan_result_t check_supported(const Items& items, kvspan_error_t* error, const char* where) {
  for (uint32_t i = 0; items.data != nullptr && i < items.count; ++i) {
    const kvspan_codec_item_t& item = items.data[i];
    const uint32_t reasons = why_not(item.rows.type, item.type, item.head_size);
    if ((reasons & KVSPAN_WHY_BLOCK) != 0) {
      return sdk::fail_argument(error,
                                {2, offsetof(kvspan_codec_item_t, head_size)},
                                where,
                                "item %u: a head size of %u is no multiple of the %u elements of a "
                                "block of type %u: choose f32, f16 or bf16, or another head size",
                                i,
                                item.head_size,
                                kvspan_ref_block(item.type).elements,
                                item.type);
    }
    if (reasons != 0) {
      return sdk::fail_reasons(error,
                               where,
                               reasons,
                               "item %u: rows of type %u to type %u at head size %u are not "
                               "offered: ask the codec's query",
                               i,
                               item.rows.type,
                               item.type,
                               item.head_size);
    }
  }
  return KVSPAN_OK;
}

kvspan_result_t submit_codec(kvspan_queue_t* handle,
                             Items items,
                             Direction direction,
                             const kvspan_submit_t* submit,
                             kvspan_error_t* error) {
  const char* const where = direction == Direction::encode ? "codec.encode" : "codec.decode";
  if (handle == nullptr) {
    return sdk::fail_argument(error, {1}, where, "the queue is NULL: pass one");
  }
  Queue& queue = *queue_of(handle);
  sdk::Context context(OwnBytes{&queue.device()});
  context.items_max = kCodecItemsMax;
  context.memory_alignment = kMemoryAlignment;
  context.spot.place.argument = 2;
  if (const kvspan_result_t bad = check_supported(items, error, where)) {
    return bad;
  }
  if (const kvspan_result_t bad = sdk::check_codec_items(items, context, error, where)) {
    return bad;
  }
  CodecTask task(items, direction);
  kvspan_result_t bad = check_prepared(
      queue.device(), &Limits::codec_items, items.count, "codec items", error, where);
  if (bad == KVSPAN_OK) {
    bad = check_prepared(
        queue.device(), &Limits::pages, task.pages(), "page list entries", error, where);
  }
  return bad != KVSPAN_OK ? bad : queue.submit(task, submit, 4, error, where);
}

kvspan_result_t KVSPAN_CALL codec_query(kvspan_device_t* handle,
                                        kvspan_type_t row_type,
                                        kvspan_type_t type,
                                        uint32_t head_size,
                                        kvspan_codec_caps_t* out_caps,
                                        kvspan_error_t* error) noexcept {
  constexpr const char* kWhere = "codec.query";
  if (handle == nullptr) {
    return sdk::fail_argument(error, {1}, kWhere, "the device is NULL: pass one");
  }
  kvspan_codec_caps_t caps{};
  caps.reasons = why_not(row_type, type, head_size);
  caps.encode_level = caps.reasons == 0 ? KVSPAN_LEVEL_NATIVE : KVSPAN_LEVEL_UNSUPPORTED;
  caps.decode_level = caps.encode_level;
  caps.items_max = kCodecItemsMax;
  return sdk::give(out_caps, caps, error, kWhere, 5);
}

kvspan_result_t KVSPAN_CALL codec_encode(kvspan_queue_t* queue,
                                         const kvspan_codec_item_t* items,
                                         uint32_t count,
                                         const kvspan_submit_t* submit,
                                         kvspan_error_t* error) noexcept {
  return sdk::guard(error, "codec.encode", [&] {
    return submit_codec(queue, {items, count}, Direction::encode, submit, error);
  });
}

kvspan_result_t KVSPAN_CALL codec_decode(kvspan_queue_t* queue,
                                         const kvspan_codec_item_t* items,
                                         uint32_t count,
                                         const kvspan_submit_t* submit,
                                         kvspan_error_t* error) noexcept {
  return sdk::guard(error, "codec.decode", [&] {
    return submit_codec(queue, {items, count}, Direction::decode, submit, error);
  });
}

}  // namespace

const kvspan_codec_table_t kCodecTable = {
    sizeof(kvspan_codec_table_t), 0, codec_query, codec_encode, codec_decode};

}  // namespace kvspan::cpu
