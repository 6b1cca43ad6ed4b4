// SPDX-License-Identifier: Apache-2.0
// Faults of the codec: which rows are written, and where. Not here: values (codec_values.cpp).
#include "kvspan/sdk/reference/quant.h"
#include "kvspan/sdk/reference/span.h"

#include "edits.hpp"
#include "fault_list.hpp"

#include <algorithm>
#include <vector>

namespace kvspan::faults {
namespace {

using Items = std::vector<kvspan_codec_item_t>;

/// Replaces the items of encode and decode, as with_edited() does.
void edit_items(Layer& layer, uint32_t slots, const std::function<bool(Items& items)>& edit) {
  const auto around = [&layer, edit](const auto& next) {
    return [&layer, edit, next](kvspan_queue_t* queue,
                                const kvspan_codec_item_t* items,
                                uint32_t count,
                                const kvspan_submit_t* submit,
                                kvspan_error_t* error) {
      return with_edited(layer, items, count, edit, [&](const auto* own, uint32_t left) {
        return next(queue, own, left, submit, error);
      });
    };
  };
  if ((slots & kEncode) != 0) {
    layer.calls.encode = around(layer.calls.encode);
  }
  if ((slots & kDecode) != 0) {
    layer.calls.decode = around(layer.calls.decode);
  }
}

void edit_each_item(Layer& layer, uint32_t slots, bool (*edit)(kvspan_codec_item_t& item)) {
  edit_items(layer, slots, [edit](Items& items) {
    bool changed = false;
    for (kvspan_codec_item_t& item : items) {
      changed = edit(item) || changed;
    }
    return changed;
  });
}

void encode_leaves_the_last_row(Layer& layer) {
  edit_each_item(layer, kEncode, [](kvspan_codec_item_t& item) {
    const bool some = item.row_count > 1;
    item.row_count -= some ? 1u : 0u;
    return some;
  });
}

void decode_leaves_the_last_head(Layer& layer) {
  edit_each_item(layer, kDecode, [](kvspan_codec_item_t& item) {
    const bool some = item.head_count > 1;
    item.head_count -= some ? 1u : 0u;
    return some;
  });
}

/// Heads of a token are taken for dense, whatever the plane's stride says.
void codec_takes_heads_for_dense(Layer& layer) {
  edit_each_item(layer, kEncode | kDecode, [](kvspan_codec_item_t& item) {
    const uint64_t dense = kvspan_ref_row_bytes(item.type, item.head_size);
    const bool differs = item.head_count > 1 && item.plane.head_stride != dense;
    item.plane.head_stride = dense;
    return differs;
  });
}

/// Slots are taken in order, as if there were no page list.
void codec_ignores_the_page_list(Layer& layer) {
  edit_each_item(layer, kEncode | kDecode, [](kvspan_codec_item_t& item) {
    const bool listed = item.plane.page_list != nullptr && item.row_count != 0;
    item.plane.page_list = nullptr;
    item.plane.page_count = 0;
    return listed;
  });
}

/// The first row goes to the first row of its page.
void encode_starts_at_the_page(Layer& layer) {
  edit_each_item(layer, kEncode, [](kvspan_codec_item_t& item) {
    const uint64_t page = item.plane.page_tokens;
    const uint64_t within = page != 0 ? item.first_token % page : 0;
    item.first_token -= within;
    return within != 0 && item.row_count != 0;
  });
}

void codec_drops_the_last_item(Layer& layer) {
  edit_items(layer, kEncode | kDecode, [](Items& items) {
    const bool more = items.size() > 1 && items.back().row_count != 0;
    if (more) {
      items.pop_back();
    }
    return more;
  });
}

/// Clears the row behind the last one: a page is written in pairs of rows.
void encode_writes_a_dead_row(Layer& layer) {
  layer.calls.encode = [&layer, next = layer.calls.encode](kvspan_queue_t* queue,
                                                           const kvspan_codec_item_t* items,
                                                           uint32_t count,
                                                           const kvspan_submit_t* submit,
                                                           kvspan_error_t* error) {
    const kvspan_result_t result = next(queue, items, count, submit, error);
    for (uint32_t i = 0; result == KVSPAN_OK && i < count; ++i) {
      const kvspan_codec_item_t& item = items[i];
      const uint64_t token = item.first_token + item.row_count;
      const uint64_t page = item.plane.page_tokens;
      const uint64_t bytes = kvspan_ref_row_bytes(item.type, item.head_size);
      if (item.row_count == 0 || (page != 0 && token % page == 0)) {
        continue;
      }
      const uint64_t offset = kvspan_ref_plane_offset(&item.plane, token, 0);
      fill_silently(layer, queue, {item.plane.memory, offset, bytes}, 0, 1);
    }
    return result;
  };
}

void empty_encode_never_signals(Layer& layer) {
  const auto around = [&layer](const auto& next) {
    return [&layer, next](kvspan_queue_t* queue,
                          const kvspan_codec_item_t* items,
                          uint32_t count,
                          const kvspan_submit_t* submit,
                          kvspan_error_t* error) -> kvspan_result_t {
      const bool nothing = count == 0 && submit != nullptr && submit->signal_count != 0;
      if (!nothing || queue == nullptr) {
        return next(queue, items, count, submit, error);
      }
      layer.ran();
      return KVSPAN_OK;
    };
  };
  layer.calls.encode = around(layer.calls.encode);
  layer.calls.decode = around(layer.calls.decode);
}

/// Changes what the codec says it can do.
void edit_codec_caps(Layer& layer,
                     bool (*edit)(kvspan_type_t row_type,
                                  kvspan_type_t type,
                                  uint32_t head_size,
                                  kvspan_codec_caps_t& caps)) {
  layer.calls.codec_query = [&layer, edit, next = layer.calls.codec_query](kvspan_device_t* device,
                                                                           kvspan_type_t row_type,
                                                                           kvspan_type_t type,
                                                                           uint32_t head_size,
                                                                           kvspan_codec_caps_t* out,
                                                                           kvspan_error_t* error) {
    const kvspan_result_t result = next(device, row_type, type, head_size, out, error);
    if (result == KVSPAN_OK && out->struct_size == sizeof *out &&
        edit(row_type, type, head_size, *out)) {
      layer.ran();
    }
    return result;
  };
}

/// Says yes to head sizes that its blocks do not divide, and refuses them when they come.
void codec_query_says_yes(Layer& layer) {
  edit_codec_caps(layer, [](auto, auto, uint32_t, kvspan_codec_caps_t& caps) {
    const bool refused = caps.encode_level == KVSPAN_LEVEL_UNSUPPORTED;
    if (refused) {
      caps.encode_level = caps.decode_level = KVSPAN_LEVEL_NATIVE;
      caps.reasons = 0;
    }
    return refused;
  });
}

/// Says no to what it does.
void codec_query_says_no(Layer& layer) {
  edit_codec_caps(layer, [](auto, kvspan_type_t type, uint32_t, kvspan_codec_caps_t& caps) {
    const bool works = caps.encode_level != KVSPAN_LEVEL_UNSUPPORTED && type == KVSPAN_TYPE_Q5_1;
    if (works) {
      caps.encode_level = caps.decode_level = KVSPAN_LEVEL_UNSUPPORTED;
      caps.reasons = KVSPAN_WHY_K_TYPE;
    }
    return works;
  });
}

constexpr Fault kFaults[] = {
    {"encode_leaves_the_last_row", encode_leaves_the_last_row},
    {"decode_leaves_the_last_head", decode_leaves_the_last_head},
    {"codec_takes_heads_for_dense", codec_takes_heads_for_dense},
    {"codec_ignores_the_page_list", codec_ignores_the_page_list},
    {"encode_starts_at_the_page", encode_starts_at_the_page},
    {"codec_drops_the_last_item", codec_drops_the_last_item},
    {"encode_writes_a_dead_row", encode_writes_a_dead_row},
    {"empty_encode_never_signals", empty_encode_never_signals},
    {"codec_query_says_yes", codec_query_says_yes},
    {"codec_query_says_no", codec_query_says_no},
};

}  // namespace

std::span<const Fault> codec_faults() {
  return kFaults;
}

}  // namespace kvspan::faults
