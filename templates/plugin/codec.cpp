// SPDX-License-Identifier: Apache-2.0
// The codec table: the engine's rows into typed rows of a plane, and back, one row at a time by the
// C reference of the SDK. Replace convert_row by your kernels: bytes stay equal to the reference's,
// for every input. Offer fewer types in why_not: query, encode and decode all follow it.
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
#include <cstddef>
#include <mutex>
#include <utility>
#include <vector>

namespace mine {
namespace {

namespace sdk = kvspan::sdk;

enum class Direction { encode, decode };

// KVSPAN_WHY_* for which the question is refused; 0: it is granted.
uint32_t why_not(kvspan_type_t row_type, kvspan_type_t type, uint32_t head_size) {
  const bool rows =
      row_type == KVSPAN_TYPE_F32 || row_type == KVSPAN_TYPE_F16 || row_type == KVSPAN_TYPE_BF16;
  const uint32_t reasons = rows ? 0 : KVSPAN_WHY_ROW_TYPE;
  const kvspan_ref_block_t block = kvspan_ref_block(type);
  if (block.elements == 0) {
    return reasons | KVSPAN_WHY_K_TYPE | KVSPAN_WHY_V_TYPE;
  }
  if (head_size == 0) {
    return reasons | KVSPAN_WHY_HEAD_SIZE;
  }
  return reasons | (head_size % block.elements == 0 ? 0 : KVSPAN_WHY_BLOCK);
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
  const uint32_t reasons = why_not(row_type, type, head_size);
  const uint32_t level = reasons == 0 ? KVSPAN_LEVEL_NATIVE : KVSPAN_LEVEL_UNSUPPORTED;
  const kvspan_codec_caps_t caps{
      sizeof(kvspan_codec_caps_t), level, level, reasons, kCodecItemsMax, 0};
  return sdk::give(out_caps, caps, error, kWhere, 5);
}

// An item with a page list of its own: the caller's is borrowed for the call.
struct Kept {
  kvspan_codec_item_t item;
  std::vector<uint32_t> pages;
};

// Row `row`, head `head` of an item; `f32` has room for a head.
void convert_row(
    const kvspan_codec_item_t& item, uint32_t row, uint32_t head, Direction direction, float* f32) {
  std::byte* const plain =
      address_of(item.rows.memory, kvspan_ref_rows_offset(&item.rows, row, head));
  std::byte* const typed = address_of(
      item.plane.memory, kvspan_ref_plane_offset(&item.plane, item.first_token + row, head));
  if (direction == Direction::encode) {
    kvspan_ref_decode_row(item.rows.type, plain, item.head_size, f32);
    kvspan_ref_encode_row(item.type, f32, item.head_size, typed);
  } else {
    kvspan_ref_decode_row(item.type, typed, item.head_size, f32);
    kvspan_ref_encode_row(item.rows.type, f32, item.head_size, plain);
  }
}

void convert(std::vector<Kept>& list, Direction direction, float* f32) {
  for (Kept& kept : list) {
    kvspan_codec_item_t& item = kept.item;
    item.plane.page_list = item.plane.page_list == nullptr ? nullptr : kept.pages.data();
    for (uint32_t row = 0; row < item.row_count; ++row) {
      for (uint32_t head = 0; head < item.head_count; ++head) {
        convert_row(item, row, head, direction, f32);
      }
    }
  }
}

Job codec_job(const sdk::List<kvspan_codec_item_t>& items, Direction direction) {
  Job job;
  std::vector<Kept> list;
  uint32_t head_size_max = 0;
  for (uint32_t i = 0; i < items.count; ++i) {
    const kvspan_codec_item_t& item = items.data[i];
    const uint32_t* const pages = item.plane.page_list;
    if (item.row_count == 0) {  // its pointers mean nothing
      continue;
    }
    list.push_back({item, {pages, pages == nullptr ? pages : pages + item.plane.page_count}});
    job.memories.push_back(item.rows.memory);
    job.memories.push_back(item.plane.memory);
    head_size_max = std::max(head_size_max, item.head_size);
  }
  std::vector<float> f32(head_size_max);
  job.body = [list = std::move(list), f32 = std::move(f32), direction]() mutable {
    convert(list, direction, f32.data());
  };
  return job;
}

// What query refuses is refused for the same reasons, before anything else is looked at; but a head
// of no whole blocks is a mistake, not a question.
kvspan_result_t check_granted(const sdk::List<kvspan_codec_item_t>& items,
                              kvspan_error_t* error,
                              const char* where) {
  for (uint32_t i = 0; items.data != nullptr && i < items.count; ++i) {
    const kvspan_codec_item_t& item = items.data[i];
    const uint32_t reasons = why_not(item.rows.type, item.type, item.head_size);
    if (reasons == KVSPAN_WHY_BLOCK || reasons == KVSPAN_WHY_HEAD_SIZE) {
      return sdk::fail_argument(error,
                                {2, offsetof(kvspan_codec_item_t, head_size)},
                                where,
                                "item %u: a head of %u elements is not whole blocks of type %u",
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

kvspan_result_t check_limits(const Device& device,
                             const sdk::List<kvspan_codec_item_t>& items,
                             kvspan_error_t* error,
                             const char* where) {
  uint64_t pages = 0;
  for (uint32_t i = 0; i < items.count; ++i) {
    pages += items.data[i].plane.page_count;
  }
  const PreparedLimit item_limit{&kvspan_prepare_t::codec_items_max, "codec items"};
  const PreparedLimit page_limit{&kvspan_prepare_t::page_list_max, "page list entries"};
  const kvspan_result_t bad = check_prepared(device, item_limit, items.count, error, where);
  return bad != KVSPAN_OK ? bad : check_prepared(device, page_limit, pages, error, where);
}

kvspan_result_t submit_items(kvspan_queue_t* handle,
                             const sdk::List<kvspan_codec_item_t>& items,
                             Direction direction,
                             const kvspan_submit_t* submit,
                             kvspan_error_t* error) noexcept {
  const char* const where = direction == Direction::encode ? "codec.encode" : "codec.decode";
  return sdk::guard(error, where, [&]() -> kvspan_result_t {
    if (handle == nullptr) {
      return sdk::fail_argument(error, {1}, where, "the queue is NULL: pass one");
    }
    Queue& queue = *queue_of(handle);
    const std::lock_guard lock(queue.device.mutex);
    sdk::Context context(OwnBytes{&queue.device});
    context.spot.place.argument = 2;
    context.memory_alignment = kMemoryAlignment;
    context.items_max = kCodecItemsMax;
    kvspan_result_t bad = check_granted(items, error, where);
    if (bad == KVSPAN_OK) {
      bad = sdk::check_codec_items(items, context, error, where);
    }
    if (bad == KVSPAN_OK) {
      bad = check_limits(queue.device, items, error, where);
    }
    return bad != KVSPAN_OK ? bad
                            : enqueue(queue, codec_job(items, direction), submit, 4, error, where);
  });
}

kvspan_result_t KVSPAN_CALL codec_encode(kvspan_queue_t* queue,
                                         const kvspan_codec_item_t* items,
                                         uint32_t count,
                                         const kvspan_submit_t* submit,
                                         kvspan_error_t* error) noexcept {
  return submit_items(queue, {items, count}, Direction::encode, submit, error);
}

kvspan_result_t KVSPAN_CALL codec_decode(kvspan_queue_t* queue,
                                         const kvspan_codec_item_t* items,
                                         uint32_t count,
                                         const kvspan_submit_t* submit,
                                         kvspan_error_t* error) noexcept {
  return submit_items(queue, {items, count}, Direction::decode, submit, error);
}

}  // namespace

const kvspan_codec_table_t kCodecTable = {
    sizeof(kvspan_codec_table_t), 0, codec_query, codec_encode, codec_decode};

}  // namespace mine
