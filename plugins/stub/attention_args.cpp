// SPDX-License-Identifier: Apache-2.0
// Copying arguments, arrays and all. Read next: attention_args.hpp.
#include "attention_args.hpp"

namespace kvspan::stub {

AttentionArgs::AttentionArgs(const kvspan_attention_args_t& args)
    : shape_(*args.shape), args_(args), entries_(args.entries, args.entries + args.entry_count) {
  args_.shape = &shape_;
  args_.entries = entries_.data();
  for (kvspan_entry_t& entry : entries_) {
    own_entry(entry);
  }
}

void AttentionArgs::own_list(kvspan_plane_t& plane) {
  if (plane.page_list != nullptr) {
    lists_.emplace_back(plane.page_list, plane.page_list + plane.page_count);
    plane.page_list = lists_.back().data();
  }
}

void AttentionArgs::own_entry(kvspan_entry_t& entry) {
  const auto own_words = [&](const std::uint64_t*& words) {
    if (words != nullptr) {
      words_.emplace_back(words, words + entry.row_count);
      words = words_.back().data();
    }
  };
  own_words(entry.visible_end);
  own_words(entry.window_begin);
  own_words(entry.suffix_mask);
  if (entry.positions != nullptr) {
    positions_.emplace_back(entry.positions, entry.positions + entry.row_count);
    entry.positions = positions_.back().data();
  }
  spans_.emplace_back(entry.spans, entry.spans + entry.span_count);
  for (kvspan_span_t& span : spans_.back()) {
    own_list(span.k);
    if ((shape_.options & KVSPAN_OPTION_V_IN_K) == 0) {
      own_list(span.v);
    }
  }
  entry.spans = spans_.back().data();
}

}  // namespace kvspan::stub
