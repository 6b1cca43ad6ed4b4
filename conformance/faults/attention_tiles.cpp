// SPDX-License-Identifier: Apache-2.0
// Faults of a path for tiles alone: pages of 64 tokens with a head's rows one behind the other, as
// core lays them out. Every other span goes straight through, so that only cases which hand over
// tiles can see them. Not here: faults of any span (attention.cpp).
#include "edits.hpp"
#include "fault_list.hpp"

#include <algorithm>
#include <utility>

namespace kvspan::faults {
namespace {

constexpr uint32_t kTileTokens = 64;
constexpr uint32_t kListMax = 1u << 16;
constexpr std::size_t kLanes = 32;  // of a warp

bool is_tiled(const kvspan_plane_t& plane) {
  return plane.page_tokens == kTileTokens && plane.head_stride == kTileTokens * plane.row_stride;
}

bool is_listed(const kvspan_plane_t& plane) {
  return plane.page_list != nullptr && plane.page_count != 0 && plane.page_count <= kListMax;
}

/// Changes each span in tiles; those with V_IN_K have a V plane that nobody reads.
using TileEdit =
    std::function<bool(ArgsCopy& copy, const kvspan_entry_t& entry, kvspan_span_t& span)>;

void edit_tiles(Layer& layer, const TileEdit& edit) {
  edit_args(layer, kReaders, [edit](ArgsCopy& copy) {
    const bool latent = (copy.shape.options & KVSPAN_OPTION_V_IN_K) != 0;
    bool changed = false;
    for (std::size_t i = 0; i < copy.entries.size(); ++i) {
      for (kvspan_span_t& span : copy.arrays[i].spans) {
        if (span.token_count != 0 && is_tiled(span.k) && (latent || is_tiled(span.v))) {
          changed = edit(copy, copy.entries[i], span) || changed;
        }
      }
    }
    return changed;
  });
}

/// Both planes get lists that `edit` changed; says whether it changed one.
bool edit_lists(ArgsCopy& copy,
                kvspan_span_t& span,
                const std::function<void(std::vector<uint32_t>& list)>& edit) {
  bool changed = false;
  for (kvspan_plane_t* plane : {&span.k, &span.v}) {
    if (is_listed(*plane)) {
      std::vector<uint32_t> list(plane->page_list, plane->page_list + plane->page_count);
      edit(list);
      changed = changed || !std::equal(list.begin(), list.end(), plane->page_list);
      copy.lists.push_back(std::move(list));
      plane->page_list = copy.lists.back().data();
    }
  }
  return changed;
}

/// A warp loads 32 places of a list and hands each lane's first one on.
void takes_the_first_place_for_a_warp_of_tiles(Layer& layer) {
  edit_tiles(layer, [](ArgsCopy& copy, const kvspan_entry_t&, kvspan_span_t& span) {
    return edit_lists(copy, span, [](std::vector<uint32_t>& list) {
      std::fill_n(list.begin(), std::min(kLanes, list.size()), list.front());
    });
  });
}

/// A warp holds 32 places of a list and does not load the next 32.
void keeps_the_first_warp_of_places(Layer& layer) {
  edit_tiles(layer, [](ArgsCopy& copy, const kvspan_entry_t&, kvspan_span_t& span) {
    return edit_lists(copy, span, [](std::vector<uint32_t>& list) {
      for (std::size_t i = kLanes; i < list.size(); ++i) {
        list[i] = list[i % kLanes];
      }
    });
  });
}

/// One list is looked up for both sides.
void finds_v_by_the_list_of_k(Layer& layer) {
  edit_tiles(layer, [](ArgsCopy&, const kvspan_entry_t&, kvspan_span_t& span) {
    if (!is_listed(span.k) || !is_listed(span.v) || span.k.page_count != span.v.page_count) {
      return false;
    }
    const uint32_t* own = std::exchange(span.v.page_list, span.k.page_list);
    return !std::equal(own, own + span.v.page_count, span.k.page_list);
  });
}

/// The heads of V are taken to follow each other token by token.
void ignores_the_head_stride_of_v_in_tiles(Layer& layer) {
  edit_tiles(layer, [](ArgsCopy& copy, const kvspan_entry_t&, kvspan_span_t& span) {
    span.v.head_stride = span.v.row_stride;
    return copy.shape.kv_heads > 1 && (copy.shape.options & KVSPAN_OPTION_V_IN_K) == 0;
  });
}

/// Places step by whole tiles, whatever page_stride says: right where it is a tile.
void steps_by_whole_tiles(Layer& layer) {
  edit_tiles(layer, [](ArgsCopy& copy, const kvspan_entry_t&, kvspan_span_t& span) {
    if (!is_listed(span.k) || (copy.shape.options & KVSPAN_OPTION_V_IN_K) != 0) {
      return false;
    }
    const uint64_t heads = copy.shape.kv_heads;
    const uint64_t tile = heads * (span.k.head_stride + span.v.head_stride);
    if (span.k.page_stride >= tile) {
      return false;
    }
    const uint64_t step = std::max<uint64_t>(1, tile / span.k.page_stride);
    return edit_lists(copy, span, [step](std::vector<uint32_t>& list) {
      for (uint32_t& place : list) {
        place = static_cast<uint32_t>(place / step * step);
      }
    });
  });
}

/// Where every row's window begins behind the first tile of a list, it is read one entry late.
void reads_a_list_one_late_behind_a_window(Layer& layer) {
  edit_tiles(layer, [](ArgsCopy& copy, const kvspan_entry_t& entry, kvspan_span_t& span) {
    if (entry.window_begin == nullptr || entry.row_count == 0) {
      return false;
    }
    const uint64_t low =
        *std::min_element(entry.window_begin, entry.window_begin + entry.row_count);
    if (low < span.first_token + kTileTokens || low >= span.first_token + span.token_count) {
      return false;
    }
    const uint64_t first = (low - span.first_token) / kTileTokens;
    return edit_lists(copy, span, [first](std::vector<uint32_t>& list) {
      for (std::size_t i = first; i + 1 < list.size(); ++i) {
        list[i] = list[i + 1];
      }
    });
  });
}

constexpr Fault kFaults[] = {
    {"takes_the_first_place_for_a_warp_of_tiles", takes_the_first_place_for_a_warp_of_tiles},
    {"keeps_the_first_warp_of_places", keeps_the_first_warp_of_places},
    {"finds_v_by_the_list_of_k", finds_v_by_the_list_of_k},
    {"ignores_the_head_stride_of_v_in_tiles", ignores_the_head_stride_of_v_in_tiles},
    {"steps_by_whole_tiles", steps_by_whole_tiles},
    {"reads_a_list_one_late_behind_a_window", reads_a_list_one_late_behind_a_window},
};

}  // namespace

std::span<const Fault> attention_tile_faults() {
  return kFaults;
}

}  // namespace kvspan::faults
