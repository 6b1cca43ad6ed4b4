// SPDX-License-Identifier: Apache-2.0
// The codec table: rows to typed rows and back, one row at a time by the C reference of the SDK.
// Read next: kvspan/sdk/reference/quant.h.
#include "kvspan/codec.h"

#include "kvspan/attention_shape.h"
#include "kvspan/sdk/error.hpp"
#include "kvspan/sdk/fill.hpp"
#include "kvspan/sdk/guard.hpp"
#include "kvspan/sdk/reference/quant.h"
#include "kvspan/sdk/reference/span.h"
#include "kvspan/sdk/validate_submit.hpp"

#include "queue.hpp"

#include <algorithm>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace kvspan::stub {
namespace {

enum class Direction { encode, decode };

bool is_row_type(kvspan_type_t type) {
  return type == KVSPAN_TYPE_F32 || type == KVSPAN_TYPE_F16 || type == KVSPAN_TYPE_BF16;
}

/// KVSPAN_WHY_* bits for which the question is refused; 0 = it is granted.
std::uint32_t why_not(kvspan_type_t row_type, kvspan_type_t type, std::uint32_t head_size) {
  std::uint32_t reasons = is_row_type(row_type) ? 0 : KVSPAN_WHY_ROW_TYPE;
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

class CodecBody final : public Body {
 public:
  CodecBody(const kvspan_codec_item_t* items, std::uint32_t count, Direction direction)
      : items_(items, items + count), direction_(direction) {
    for (kvspan_codec_item_t& item : items_) {
      const kvspan_plane_t& plane = item.plane;
      const std::uint32_t* list = plane.page_list;
      lists_.emplace_back(list, list == nullptr ? list : list + plane.page_count);
      item.plane.page_list = list == nullptr ? nullptr : lists_.back().data();
    }
  }

  void finish() override {
    for (const kvspan_codec_item_t& item : items_) {
      std::vector<float> row(item.head_size);
      for (std::uint32_t r = 0; r < item.row_count; ++r) {
        for (std::uint32_t head = 0; head < item.head_count; ++head) {
          move_row(item, r, head, row.data());
        }
      }
    }
  }

 private:
  void move_row(const kvspan_codec_item_t& item, std::uint32_t r, std::uint32_t head, float* row) {
    std::byte* const untyped =
        address_of(item.rows.memory, kvspan_ref_rows_offset(&item.rows, r, head));
    std::byte* const typed = address_of(
        item.plane.memory, kvspan_ref_plane_offset(&item.plane, item.first_token + r, head));
    if (direction_ == Direction::encode) {
      kvspan_ref_decode_row(item.rows.type, untyped, item.head_size, row);
      kvspan_ref_encode_row(item.type, row, item.head_size, typed);
    } else {
      kvspan_ref_decode_row(item.type, typed, item.head_size, row);
      kvspan_ref_encode_row(item.rows.type, row, item.head_size, untyped);
    }
  }

  std::vector<kvspan_codec_item_t> items_;
  std::vector<std::vector<std::uint32_t>> lists_;
  const Direction direction_;
};

kvspan_result_t KVSPAN_CALL codec_query(kvspan_device_t* handle,
                                        kvspan_type_t row_type,
                                        kvspan_type_t type,
                                        std::uint32_t head_size,
                                        kvspan_codec_caps_t* out_caps,
                                        kvspan_error_t* error) noexcept {
  constexpr const char* kWhere = "codec.query";
  if (handle == nullptr) {
    return sdk::fail_argument(error, sdk::Place{1}, kWhere, "the device is NULL: pass one");
  }
  const std::uint32_t reasons = why_not(row_type, type, head_size);
  const std::uint32_t level = reasons == 0 ? KVSPAN_LEVEL_NATIVE : KVSPAN_LEVEL_UNSUPPORTED;
  const kvspan_codec_caps_t caps = {
      sizeof(kvspan_codec_caps_t), level, level, reasons, kCodecItemsMax, 0};
  return sdk::give(out_caps, caps, error, kWhere, 5);
}

/// What query refuses the slots refuse for the same reasons, before anything else is looked at.
kvspan_result_t check_granted(const kvspan_codec_item_t* items,
                              std::uint32_t count,
                              kvspan_error_t* error,
                              const char* where) {
  for (std::uint32_t i = 0; items != nullptr && i < count; ++i) {
    const kvspan_codec_item_t& item = items[i];
    const std::uint32_t reasons = why_not(item.rows.type, item.type, item.head_size);
    if (reasons == KVSPAN_WHY_BLOCK || reasons == KVSPAN_WHY_HEAD_SIZE) {
      return sdk::fail_argument(error,
                                {2, offsetof(kvspan_codec_item_t, head_size)},
                                where,
                                "item %u: a head of %u elements is not whole blocks of type %u: "
                                "use F32, F16 or BF16, or another head size",
                                i,
                                item.head_size,
                                item.type);
    }
    if (reasons != 0) {
      return sdk::fail_reasons(error,
                               where,
                               reasons,
                               "item %u: rows of type %u to a plane of type %u are not offered: "
                               "ask query for types that are",
                               i,
                               item.rows.type,
                               item.type);
    }
  }
  return KVSPAN_OK;
}

std::uint64_t bytes_of(const kvspan_codec_item_t& item) {
  const std::uint64_t rows = std::uint64_t{item.row_count} * item.head_count;
  return rows * (kvspan_ref_row_bytes(item.type, item.head_size) +
                 kvspan_ref_row_bytes(item.rows.type, item.head_size));
}

kvspan_result_t submit_items(Queue& queue,
                             const sdk::List<kvspan_codec_item_t>& list,
                             Direction direction,
                             const kvspan_submit_t* submit,
                             kvspan_error_t* error) {
  const char* const where = direction == Direction::encode ? "codec.encode" : "codec.decode";
  sdk::Context context(OwnBytes{&queue.device});
  context.spot.place.argument = 2;
  context.memory_alignment = kMemoryAlignment;
  context.items_max = kCodecItemsMax;
  kvspan_result_t bad = check_granted(list.data, list.count, error, where);
  if (bad == KVSPAN_OK) {
    bad = sdk::check_codec_items(list, context, error, where);
  }
  if (bad == KVSPAN_OK) {
    bad = check_prepared(queue.device,
                         {&kvspan_prepare_t::codec_items_max, "codec items"},
                         list.count,
                         error,
                         where);
  }
  if (bad != KVSPAN_OK) {
    return bad;
  }
  Job job;
  std::uint64_t pages = 0;
  for (std::uint32_t i = 0; i < list.count; ++i) {
    const kvspan_codec_item_t& item = list.data[i];
    pages += item.plane.page_count;
    job.bytes += bytes_of(item);
    job.memories.push_back(item.row_count == 0 ? nullptr : item.rows.memory);
    job.memories.push_back(item.row_count == 0 ? nullptr : item.plane.memory);
  }
  bad = check_prepared(
      queue.device, {&kvspan_prepare_t::page_list_max, "page list entries"}, pages, error, where);
  if (bad != KVSPAN_OK) {
    return bad;
  }
  job.body = std::make_unique<CodecBody>(list.data, list.count, direction);
  return enqueue(queue, std::move(job), submit, 4, error, where);
}

kvspan_result_t KVSPAN_CALL codec_encode(kvspan_queue_t* handle,
                                         const kvspan_codec_item_t* items,
                                         std::uint32_t count,
                                         const kvspan_submit_t* submit,
                                         kvspan_error_t* error) noexcept {
  constexpr const char* kWhere = "codec.encode";
  return sdk::guard(error, kWhere, [&]() -> kvspan_result_t {
    if (handle == nullptr) {
      return sdk::fail_argument(error, sdk::Place{1}, kWhere, "the queue is NULL: pass one");
    }
    Queue& queue = *queue_of(handle);
    const std::lock_guard lock(queue.device.plugin.mutex);
    return submit_items(queue, {items, count}, Direction::encode, submit, error);
  });
}

kvspan_result_t KVSPAN_CALL codec_decode(kvspan_queue_t* handle,
                                         const kvspan_codec_item_t* items,
                                         std::uint32_t count,
                                         const kvspan_submit_t* submit,
                                         kvspan_error_t* error) noexcept {
  constexpr const char* kWhere = "codec.decode";
  return sdk::guard(error, kWhere, [&]() -> kvspan_result_t {
    if (handle == nullptr) {
      return sdk::fail_argument(error, sdk::Place{1}, kWhere, "the queue is NULL: pass one");
    }
    Queue& queue = *queue_of(handle);
    const std::lock_guard lock(queue.device.plugin.mutex);
    return submit_items(queue, {items, count}, Direction::decode, submit, error);
  });
}

}  // namespace

const kvspan_codec_table_t kCodecTable = {
    sizeof(kvspan_codec_table_t), 0, codec_query, codec_encode, codec_decode};

}  // namespace kvspan::stub
