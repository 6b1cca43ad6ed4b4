// SPDX-License-Identifier: Apache-2.0
// The codec table: rows of the engine to typed rows of a page, and back, by a kernel. Bits are
// those of the C reference in kvspan/sdk/reference/quant.h. Read first: queue.hpp.
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

namespace kvspan::cuda {
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

enum class Direction { encode, decode };

template <Direction kDirection>
cudaError_t issue_codec(const Issue& issue, const void* opaque) {
  const CodecBody& body = *static_cast<const CodecBody*>(opaque);
  if (body.chunks == 0) {
    return cudaSuccess;
  }
  issue.device.counters.launches.fetch_add(1, std::memory_order_relaxed);
  const bool hold = issue.room != nullptr;  // a graph's recording has none
  return kDirection == Direction::encode ? launch_encode(issue.stream, body, issue.cancel, hold)
                                         : launch_decode(issue.stream, body, issue.cancel, hold);
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
    CodecBody& body = *arrays_.body;
    body = {arrays_.items, 0, 0};
    for (uint32_t i = 0; i < items_.count; ++i) {
      const kvspan_codec_item_t& item = items_.data[i];
      const uint64_t chunks =
          uint64_t{item.row_count} * item.head_count * chunks_of(item.head_size);
      if (chunks != 0) {
        arrays_.items[body.count++] = view_of(item, body.chunks, pages);
        body.chunks += chunks;
      }
    }
    for (uint32_t i = 0; i < items_.count; ++i) {
      uses.add(items_.data[i].rows.memory);
    }
    for (uint32_t i = 0; i < items_.count; ++i) {
      uses.add(items_.data[i].plane.memory);
    }
    packet.body = arrays_.body;
    packet.body_bytes = sizeof *arrays_.body;
    packet.bytes = 0;
    packet.issue = direction_ == Direction::encode ? issue_codec<Direction::encode>
                                                   : issue_codec<Direction::decode>;
  }

 private:
  // The item with addresses; its page list goes to `pages`, which moves on.
  static CodecRows view_of(const kvspan_codec_item_t& item,
                           uint64_t first_chunk,
                           uint32_t*& pages) {
    const kvspan_plane_t& plane = item.plane;
    return {
        {address_of(item.rows.memory, item.rows.offset),
         item.rows.row_stride,
         item.rows.head_stride,
         item.rows.type},
        sdk::view_of(plane, address_of(plane.memory, plane.offset), sdk::keep_list(plane, pages)),
        item.first_token,
        first_chunk,
        item.type,
        item.row_count,
        item.head_count,
        item.head_size};
  }

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

}  // namespace kvspan::cuda
