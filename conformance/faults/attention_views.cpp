// SPDX-License-Identifier: Apache-2.0
// Faults of which tokens a row sees and how they score: visibility, window, mask, cap, ALiBi,
// scale. Not here: where the bytes of a token lie (attention.cpp).
#include "edits.hpp"
#include "fault_list.hpp"

#include <algorithm>
#include <cmath>

namespace kvspan::faults {
namespace {

/// Changes each row's view; `row` counts within the entry.
void edit_views(
    Layer& layer,
    const std::function<bool(kvspan_entry_t& entry, ArgsCopy::Arrays& own, std::size_t row)>&
        edit) {
  edit_args(layer, kReaders, [edit](ArgsCopy& copy) {
    bool changed = false;
    for (std::size_t i = 0; i < copy.entries.size(); ++i) {
      for (std::size_t row = 0; row < copy.entries[i].row_count; ++row) {
        changed = edit(copy.entries[i], copy.arrays[i], row) || changed;
      }
    }
    return changed;
  });
}

/// The loop over spans ends one early; rows see what is left.
void drops_the_last_span(Layer& layer) {
  edit_args(layer, kRun, [](ArgsCopy& copy) {
    bool changed = false;
    for (ArgsCopy::Arrays& own : copy.arrays) {
      if (own.spans.size() < 2) {
        continue;
      }
      const uint64_t end = own.spans.back().first_token;
      own.spans.pop_back();
      for (uint64_t& visible : own.visible_end) {
        changed = changed || visible > end;
        visible = std::min(visible, end);
      }
    }
    return changed;
  });
}

/// A row sees the token behind its last, live or not.
void reads_one_token_past_the_end(Layer& layer) {
  edit_views(layer, [](kvspan_entry_t& entry, ArgsCopy::Arrays& own, std::size_t row) {
    uint64_t& end = own.visible_end[row];
    if (end == 0 || own.spans.empty()) {
      return false;
    }
    if (++end > entry.token_total) {
      entry.token_total = end;
      own.spans.back().token_count += 1;
    }
    return true;
  });
}

void misses_the_newest_token(Layer& layer) {
  edit_views(layer, [](kvspan_entry_t&, ArgsCopy::Arrays& own, std::size_t row) {
    const bool some = own.visible_end[row] > 1;
    own.visible_end[row] -= some ? 1u : 0u;
    return some;
  });
}

void window_is_one_short(Layer& layer) {
  edit_views(layer, [](kvspan_entry_t&, ArgsCopy::Arrays& own, std::size_t row) {
    if (own.window_begin.empty() || own.window_begin[row] == 0 ||
        own.window_begin[row] + 1 >= own.visible_end[row]) {
      return false;
    }
    ++own.window_begin[row];
    return true;
  });
}

/// Bit 0 is taken for the newest token.
void suffix_mask_is_reversed(Layer& layer) {
  edit_views(layer, [](kvspan_entry_t& entry, ArgsCopy::Arrays& own, std::size_t row) {
    if (own.suffix_mask.empty()) {
      return false;
    }
    uint64_t reversed = 0;
    for (uint32_t bit = 0; bit < entry.suffix_count; ++bit) {
      reversed |= (own.suffix_mask[row] >> bit & 1u) << (entry.suffix_count - 1 - bit);
    }
    const uint64_t used =
        entry.suffix_count < 64 ? (uint64_t{1} << entry.suffix_count) - 1 : UINT64_MAX;
    const bool differs = reversed != (own.suffix_mask[row] & used);
    own.suffix_mask[row] = reversed;
    return differs;
  });
}

/// A cap so high that tanh is a straight line.
void forgets_the_soft_cap(Layer& layer) {
  edit_args(layer, kReaders, [](ArgsCopy& copy) {
    const bool capped = copy.args.soft_cap > 0.0F;
    copy.args.soft_cap = capped ? 1.0e9F : copy.args.soft_cap;
    return capped;
  });
}

/// ALiBi's distance counts rows of the call, not positions.
void alibi_counts_rows(Layer& layer) {
  edit_args(layer, kReaders, [](ArgsCopy& copy) {
    if ((copy.shape.options & KVSPAN_OPTION_ALIBI) == 0) {
      return false;
    }
    for (std::size_t i = 0; i < copy.entries.size(); ++i) {
      copy.arrays[i].positions.assign(copy.entries[i].row_count, 0);
      for (uint32_t row = 0; row < copy.entries[i].row_count; ++row) {
        copy.arrays[i].positions[row] = row;
      }
    }
    return true;
  });
}

/// The caller's positions are not looked at.
void alibi_ignores_positions(Layer& layer) {
  edit_args(layer, kReaders, [](ArgsCopy& copy) {
    bool changed = false;
    for (std::size_t i = 0; i < copy.entries.size(); ++i) {
      changed = changed || !copy.arrays[i].positions.empty();
      copy.arrays[i].positions.clear();
    }
    return changed && (copy.shape.options & KVSPAN_OPTION_ALIBI) != 0;
  });
}

/// 1 / sqrt of the wrong head size.
void scales_by_the_size_of_v(Layer& layer) {
  edit_args(layer, kReaders, [](ArgsCopy& copy) {
    const auto k = static_cast<float>(copy.shape.head_size_k);
    const auto v = static_cast<float>(copy.shape.head_size_v);
    copy.args.scale *= std::sqrt(k / v);
    return copy.shape.head_size_k != copy.shape.head_size_v;
  });
}

constexpr Fault kFaults[] = {
    {"drops_the_last_span", drops_the_last_span},
    {"reads_one_token_past_the_end", reads_one_token_past_the_end},
    {"misses_the_newest_token", misses_the_newest_token},
    {"window_is_one_short", window_is_one_short},
    {"suffix_mask_is_reversed", suffix_mask_is_reversed},
    {"forgets_the_soft_cap", forgets_the_soft_cap},
    {"alibi_counts_rows", alibi_counts_rows},
    {"alibi_ignores_positions", alibi_ignores_positions},
    {"scales_by_the_size_of_v", scales_by_the_size_of_v},
};

}  // namespace

std::span<const Fault> attention_view_faults() {
  return kFaults;
}

}  // namespace kvspan::faults
