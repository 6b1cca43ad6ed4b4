// SPDX-License-Identifier: Apache-2.0
// Faults of the cancel word. A set word makes work settle CANCELLED or complete; the word itself
// and everything outside the destinations stay as they are.
#include "edits.hpp"
#include "fault_list.hpp"

#include <atomic>
#include <cstring>
#include <memory>
#include <mutex>
#include <set>

namespace kvspan::faults {
namespace {

/// The address of the submit's cancel word; NULL where it has none that can be read.
uint8_t* cancel_word(Layer& layer, const kvspan_submit_t& submit) {
  void* address = nullptr;
  if (submit.cancel_memory == nullptr || !inside(submit.cancel_memory, submit.cancel_offset, 4) ||
      layer.base.memory->map(submit.cancel_memory, &address, nullptr) != KVSPAN_OK) {
    return nullptr;
  }
  return static_cast<uint8_t*>(address) + submit.cancel_offset;
}

bool is_set(const uint8_t* word) {
  uint32_t value = 0;
  if (word != nullptr) {
    std::memcpy(&value, word, sizeof value);
  }
  return value != 0;
}

/// Nothing runs on a queue any more once one of its submits was cancelled.
void queue_is_wedged_after_cancel(Layer& layer) {
  struct Wedged {
    std::mutex mutex;
    std::set<const kvspan_queue_t*> queues;
  };

  auto wedged = std::make_shared<Wedged>();
  around_submits(
      layer,
      kEverySlot,
      [&layer, wedged](auto* queue, const kvspan_submit_t* submit, auto* error, const Go& go) {
        const std::lock_guard lock(wedged->mutex);
        if (wedged->queues.count(queue) != 0) {
          layer.ran();
          return kvspan_result_t{KVSPAN_OK};
        }
        if (is_set(cancel_word(layer, *submit))) {
          wedged->queues.insert(queue);
        }
        return go(submit, error);
      });
  layer.calls.destroy_queue = [wedged, next = layer.calls.destroy_queue](auto* queue, auto* error) {
    const std::lock_guard lock(wedged->mutex);
    wedged->queues.erase(queue);
    return next(queue, error);
  };
}

/// Clears the word once it has been seen.
void cancel_word_is_cleared(Layer& layer) {
  around_submits(layer, kEverySlot, [&layer](auto*, auto* submit, auto* error, const Go& go) {
    uint8_t* const word = cancel_word(layer, *submit);
    const bool set = is_set(word);
    const kvspan_result_t result = go(submit, error);
    if (set && result == KVSPAN_OK) {
      std::memset(word, 0, 4);
      layer.ran();
    }
    return result;
  });
}

/// Says that it stops between items, and never looks.
void cancel_is_never_seen(Layer& layer) {
  edit_submits(layer, kEverySlot, [&layer](kvspan_queue_t*, kvspan_submit_t& submit) {
    const bool set = is_set(cancel_word(layer, submit));
    submit.cancel_memory = nullptr;
    return set;
  });
  layer.calls.describe = [next = layer.calls.describe](
                             void* self, uint32_t index, kvspan_device_info_t* out, auto* error) {
    const kvspan_result_t result = next(self, index, out, error);
    if (result == KVSPAN_OK && out->struct_size == sizeof *out) {
      out->cancel = KVSPAN_CANCEL_ITEM;
    }
    return result;
  };
}

/// Cancelled work says that it is done.
void cancelled_work_says_done(Layer& layer) {
  around_submits(layer, kEverySlot, [&layer](auto* queue, auto* submit, auto* error, const Go& go) {
    if (!is_set(cancel_word(layer, *submit))) {
      return go(submit, error);
    }
    layer.ran();
    return signal_only(layer, queue, *submit, error);
  });
}

/// Half of a cancelled fill is written behind its range, as a tile that was cut wrongly.
void cancelled_fill_writes_outside(Layer& layer) {
  layer.calls.fill = [&layer, next = layer.calls.fill](kvspan_queue_t* queue,
                                                       const kvspan_range_t* range,
                                                       uint64_t pattern,
                                                       uint32_t pattern_bytes,
                                                       const kvspan_submit_t* submit,
                                                       kvspan_error_t* error) {
    const bool cancelled = submit != nullptr && submit->struct_size == sizeof *submit &&
                           range != nullptr && is_set(cancel_word(layer, *submit));
    if (cancelled) {
      const kvspan_range_t behind = {range->memory, range->offset + range->bytes, 8};
      fill_silently(layer, queue, behind, pattern, pattern_bytes);
    }
    return next(queue, range, pattern, pattern_bytes, submit, error);
  };
}

/// A cancelled advance still writes a state of its own, one float too far.
void cancelled_advance_writes_outside(Layer& layer) {
  layer.calls.advance = [&layer, next = layer.calls.advance](auto* queue,
                                                             auto* args,
                                                             const kvspan_advance_item_t* items,
                                                             uint32_t count,
                                                             const kvspan_submit_t* submit,
                                                             auto* error) {
    if (readable(args) && count != 0 && items != nullptr && submit != nullptr &&
        submit->struct_size == sizeof *submit && is_set(cancel_word(layer, *submit))) {
      const kvspan_state_t& state = items[count - 1].state;
      const kvspan_attention_shape_t& shape = *args->shape;
      const uint64_t end =
          state.u_offset + uint64_t{4} * shape.rows_max * shape.q_heads * shape.head_size_v;
      fill_silently(layer, queue, {state.memory, end, 4}, 0x7F, 1);
    }
    return next(queue, args, items, count, submit, error);
  };
}

/// Says that it looks between items, and looks once, when the work is submitted.
void cancel_is_seen_at_the_start_only(Layer& layer) {
  edit_submits(layer, kAdvance, [&layer](kvspan_queue_t*, kvspan_submit_t& submit) {
    if (submit.cancel_memory == nullptr || is_set(cancel_word(layer, submit))) {
      return false;
    }
    submit.cancel_memory = nullptr;
    return true;
  });
}

/// A cancelled advance counts as one that took place: the next one resumes where it believes to be,
/// though it is told to begin afresh.
void cancelled_advance_is_resumed(Layer& layer) {
  auto pending = std::make_shared<std::atomic<bool>>(false);
  layer.calls.advance = [&layer, pending, next = layer.calls.advance](
                            auto* queue,
                            auto* args,
                            const kvspan_advance_item_t* items,
                            uint32_t count,
                            const kvspan_submit_t* submit,
                            auto* error) {
    const bool cancelled = submit != nullptr && submit->struct_size == sizeof *submit &&
                           is_set(cancel_word(layer, *submit));
    if (cancelled || !pending->exchange(false)) {
      *pending = *pending || cancelled;
      return next(queue, args, items, count, submit, error);
    }
    return with_edited<kvspan_advance_item_t>(
        layer,
        items,
        count,
        [](std::vector<kvspan_advance_item_t>& own) {
          bool fresh = false;
          for (kvspan_advance_item_t& item : own) {
            fresh = fresh || (item.flags & KVSPAN_ITEM_FRESH) != 0;
            item.flags &= ~KVSPAN_ITEM_FRESH;
          }
          return fresh;
        },
        [&](const auto* own, uint32_t left) {
          return next(queue, args, own, left, submit, error);
        });
  };
}

constexpr Fault kFaults[] = {
    {"queue_is_wedged_after_cancel", queue_is_wedged_after_cancel},
    {"cancel_word_is_cleared", cancel_word_is_cleared},
    {"cancel_is_never_seen", cancel_is_never_seen},
    {"cancelled_work_says_done", cancelled_work_says_done},
    {"cancelled_fill_writes_outside", cancelled_fill_writes_outside},
    {"cancelled_advance_writes_outside", cancelled_advance_writes_outside},
    {"cancel_is_seen_at_the_start_only", cancel_is_seen_at_the_start_only},
    {"cancelled_advance_is_resumed", cancelled_advance_is_resumed},
};

}  // namespace

std::span<const Fault> cancel_faults() {
  return kFaults;
}

}  // namespace kvspan::faults
