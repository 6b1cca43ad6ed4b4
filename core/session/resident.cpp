// SPDX-License-Identifier: Apache-2.0
// Resident pages: where they lie, and how they come from the host's history. A run from the first
// page on; where a window slides off it, a ring in which the window rolls: page p lies where page
// p - count lay, which no row sees any more.
#include "state.hpp"

#include <algorithm>
#include <utility>

namespace kvspan {

bool SessionState::rolls(std::size_t layer) const {
  return plan.rolling_pages[layer] != 0 && plan.resident_pages[layer] >= plan.rolling_pages[layer];
}

// Pages of a layer before this one are resident when some row sees them.
std::uint64_t SessionState::resident_end(std::size_t layer) const {
  return rolls(layer) ? UINT64_MAX : plan.resident_pages[layer];
}

DevicePage SessionState::resident_page(std::uint32_t sequence,
                                       std::uint32_t layer,
                                       std::uint64_t page) {
  const std::uint64_t slot = page % plan.resident_pages[layer];
  const std::uint64_t kept = plan.kept_pages[layer];
  const std::uint64_t page_bytes = plan.pages[layer].page_bytes;
  const std::uint64_t offset =
      slot < kept ? kept_lease.range().offset + sequence * plan.kept_sequence_bytes +
                        plan.kept_offsets[layer] + slot * page_bytes
                  : resident_lease.range().offset + sequence * plan.resident_sequence_bytes +
                        plan.resident_offsets[layer] + (slot - kept) * page_bytes;
  return {offset, &sequences[sequence].resident[resident_firsts[layer] + slot]};
}

// A row goes to this resident page: what rolled out of its place is gone.
void SessionState::note_rolled(std::uint32_t sequence, std::size_t layer, std::uint64_t page) {
  const std::uint64_t count = plan.resident_pages[layer];
  std::uint64_t& end = sequences[sequence].missing[layer].end;
  end = rolls(layer) && page >= count ? std::max(end, page + 1 - count) : end;
}

// Copies pages up, as many a submit as the backend was prepared for.
Result<void> SessionState::bring_resident(std::uint32_t sequence,
                                          std::uint32_t layer,
                                          PageRange pages) {
  SequenceHistory& history = sequences[sequence].history;
  const std::uint64_t each = std::max(1U, plan.group_pages);
  for (std::uint64_t first = pages.begin; first < pages.end; first += each) {
    const std::uint64_t end = std::min(pages.end, first + each);
    std::vector<kvspan_segment_t> segments;
    Waits waits;
    for (std::uint64_t page = first; page < end; ++page) {
      const auto source = host_page(sequence, layer, page);
      if (!source) {
        return tl::unexpected(source.error());
      }
      const DevicePage target = resident_page(sequence, layer, page);
      segments.push_back({source->memory,
                          parent,
                          source->offset,
                          target.offset,
                          plan.pages[layer].page_bytes,
                          1,
                          0,
                          0});
      waits.moment.merge(history.hazard(layer, page).before_read());
      waits.moment.merge(target.hazard->before_write());
    }
    auto value = copy(LaneId::upload, waits, segments);
    if (!value) {
      return tl::unexpected(std::move(value).error());
    }
    const Moment done = Moment::at(LaneId::upload, *value);
    for (std::uint64_t page = first; page < end; ++page) {
      history.hazard(layer, page).read.merge(done);
      *resident_page(sequence, layer, page).hazard = Hazard{done, {}};
    }
  }
  return {};
}

// Resident pages of a layer that hold committed rows, as far as a row sees them or may after a
// truncation; of a window what is seen, since no more has room.
PageRange SessionState::wanted(std::uint32_t sequence, std::uint32_t layer) const {
  const SequenceHistory& history = sequences[sequence].history;
  const std::uint64_t tokens = history.committed_tokens();
  const std::uint64_t first =
      rolls(layer) ? first_visible_page(layer, tokens) : history.first_page(layer);
  const std::uint64_t pages = (tokens + page_tokens() - 1) / page_tokens();
  return {first, std::max(first, std::min(resident_end(layer), pages))};
}

// Brings what is missing: a window begins before pages that had rolled on, after a truncation or a
// failure; or resident pages have other places than before.
Result<void> SessionState::refill(std::uint32_t sequence) {
  for (std::uint32_t layer = 0; layer < plan.pages.size(); ++layer) {
    PageRange& missing = sequences[sequence].missing[layer];
    const PageRange seen = wanted(sequence, layer);
    const std::uint64_t first = std::max(seen.begin, missing.begin);
    const PageRange pages{first, std::max(first, std::min(seen.end, missing.end))};
    if (pages.begin != pages.end) {
      if (auto brought = bring_resident(sequence, layer, pages); !brought) {
        return brought;
      }
      sequences[sequence].filled = lanes->last(LaneId::upload);
      counters.moved_bytes += (pages.end - pages.begin) * plan.pages[layer].page_bytes;
    }
    missing = {0, rolls(layer) ? std::min(missing.end, seen.begin) : 0};
  }
  return {};
}

}  // namespace kvspan
