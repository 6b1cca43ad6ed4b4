// SPDX-License-Identifier: Apache-2.0
// Faults that move bits: right within the error class, but a function of more than the contract
// allows. Each nudges the scale by one unit in the last place where its condition holds.
#include "edits.hpp"
#include "fault_list.hpp"

#include <atomic>
#include <cmath>
#include <memory>
#include <thread>

namespace kvspan::faults {
namespace {

void nudge(ArgsCopy& copy) {
  copy.args.scale = std::nextafter(copy.args.scale, 2.0F * copy.args.scale);
}

/// Nudges where `when` holds for the arguments.
void nudge_when(Layer& layer,
                uint32_t slots,
                const std::function<bool(const ArgsCopy& copy)>& when) {
  edit_args(layer, slots, [when](ArgsCopy& copy) {
    if (!when(copy)) {
      return false;
    }
    nudge(copy);
    return true;
  });
}

/// Another kernel for more than one sequence.
void neighbours_move_bits(Layer& layer) {
  nudge_when(layer, kReaders, [](const ArgsCopy& copy) { return copy.entries.size() > 1; });
}

/// Another kernel for a single row.
void one_row_has_a_path_of_its_own(Layer& layer) {
  nudge_when(layer, kReaders, [](const ArgsCopy& copy) {
    bool one = false;
    for (const kvspan_entry_t& entry : copy.entries) {
      one = one || entry.row_count == 1;
    }
    return one;
  });
}

/// Another order of sums where a history lies in more than one span.
void spans_move_bits(Layer& layer) {
  nudge_when(layer, kReaders, [](const ArgsCopy& copy) {
    bool several = false;
    for (const kvspan_entry_t& entry : copy.entries) {
      several = several || entry.span_count > 1;
    }
    return several;
  });
}

/// Page lists go through a gather with its own rounding.
void page_lists_move_bits(Layer& layer) {
  nudge_when(layer, kReaders, [](const ArgsCopy& copy) {
    bool listed = false;
    for (const ArgsCopy::Arrays& own : copy.arrays) {
      for (const kvspan_span_t& span : own.spans) {
        listed = listed || span.k.page_list != nullptr;
      }
    }
    return listed;
  });
}

/// Sums in the order of arrival: every third launch comes out differently.
void launches_move_bits(Layer& layer) {
  auto launches = std::make_shared<std::atomic<uint32_t>>(0);
  nudge_when(layer, kReaders, [launches](const ArgsCopy&) { return ++*launches % 3 == 0; });
}

/// The thread that opened the plugin gets one result, all others another.
void threads_move_bits(Layer& layer) {
  nudge_when(layer, kReaders, [first = std::this_thread::get_id()](const ArgsCopy&) {
    return std::this_thread::get_id() != first;
  });
}

/// run is not the code that advance is.
void run_has_bits_of_its_own(Layer& layer) {
  nudge_when(layer, kRun, [](const ArgsCopy&) { return true; });
}

/// Splits of run follow the processor, not the caller.
void run_chooses_its_own_splits(Layer& layer) {
  edit_args(layer, kRun, [](ArgsCopy& copy) {
    for (kvspan_entry_t& entry : copy.entries) {
      entry.split_tokens *= 2;
    }
    return true;
  });
}

/// A mask costs a little accuracy, even where it says what causality says.
void masks_move_bits(Layer& layer) {
  nudge_when(layer, kReaders, [](const ArgsCopy& copy) {
    bool masked = false;
    for (const ArgsCopy::Arrays& own : copy.arrays) {
      masked = masked || !own.suffix_mask.empty();
    }
    return masked;
  });
}

/// Advances that resume a split continue a rounding of their own.
void cuts_move_bits(Layer& layer) {
  layer.calls.advance = [&layer, next = layer.calls.advance](auto* queue,
                                                             const kvspan_attention_args_t* args,
                                                             const kvspan_advance_item_t* items,
                                                             uint32_t count,
                                                             const auto* submit,
                                                             auto* error) {
    bool resumes = false;
    for (uint32_t i = 0; items != nullptr && i < count && i < 65536; ++i) {
      resumes = resumes || (items[i].flags & KVSPAN_ITEM_FRESH) == 0;
    }
    if (!resumes || !readable(args)) {
      return next(queue, args, items, count, submit, error);
    }
    ArgsCopy copy(*args);
    nudge(copy);
    layer.ran();
    return next(queue, &copy.args, items, count, submit, error);
  };
}

constexpr Fault kFaults[] = {
    {"neighbours_move_bits", neighbours_move_bits},
    {"one_row_has_a_path_of_its_own", one_row_has_a_path_of_its_own},
    {"spans_move_bits", spans_move_bits},
    {"page_lists_move_bits", page_lists_move_bits},
    {"launches_move_bits", launches_move_bits},
    {"threads_move_bits", threads_move_bits},
    {"run_has_bits_of_its_own", run_has_bits_of_its_own},
    {"run_chooses_its_own_splits", run_chooses_its_own_splits},
    {"masks_move_bits", masks_move_bits},
    {"cuts_move_bits", cuts_move_bits},
};

}  // namespace

std::span<const Fault> attention_bits_faults() {
  return kFaults;
}

}  // namespace kvspan::faults
