// SPDX-License-Identifier: Apache-2.0
// Where a layer's tokens are on the device when it is attended: resident run, ring slots, tail
// slots; and who reads them.
#include "state.hpp"
#include "wave.hpp"

#include <algorithm>
#include <string>
#include <utility>

namespace kvspan {

// Complete pages that the rows of a step see and that are not resident.
PageRange SessionState::streamed_pages(std::uint32_t layer, const StepPart& part) const {
  const std::uint64_t end = part.first_token / page_tokens();
  const std::uint64_t first =
      std::max<std::uint64_t>(resident_end(layer), first_visible_page(layer, part.first_token));
  return {std::min(first, end), end};
}

bool SessionState::streams(std::uint32_t layer, const StepPart& part) const {
  const PageRange pages = streamed_pages(layer, part);
  return pages.begin != pages.end;
}

// Resident pages that the rows of a step see, the step's own rows included.
PageRange SessionState::resident_range(std::uint32_t layer, const StepPart& part) const {
  const std::uint64_t total = part.first_token + part.rows;
  const std::uint64_t end =
      std::min<std::uint64_t>(resident_end(layer), (total + page_tokens() - 1) / page_tokens());
  return {std::min(first_visible_page(layer, part.first_token), end), end};
}

// The begun page and those after it, as far as they are not resident.
PageRange SessionState::tail_range(std::uint32_t layer, const StepPart& part) const {
  const std::uint64_t total = part.first_token + part.rows;
  const std::uint64_t end = (total + page_tokens() - 1) / page_tokens();
  const std::uint64_t first =
      std::max<std::uint64_t>(resident_end(layer), part.first_token / page_tokens());
  return {std::min(first, end), end};
}

// Spans of resident pages: up to the end of the part that phases keep, or of the layer's places; a
// window that rolls goes on at their beginning.
void SessionState::map_resident(Wave& wave,
                                std::uint32_t layer,
                                const StepPart& part,
                                const PageRange& pages) {
  const std::uint64_t each = page_tokens();
  const std::uint64_t total = part.first_token + part.rows;
  const std::uint64_t count = plan.resident_pages[layer];
  const std::uint64_t kept = plan.kept_pages[layer];
  for (std::uint64_t page = pages.begin; page < pages.end;) {
    const std::uint64_t place = page % count;
    const std::uint64_t end = std::min(pages.end, page + (place < kept ? kept : count) - place);
    wave.add_run({page * each, std::min(end * each, total)},
                 resident_page(part.sequence, layer, page).offset);
    page = end;
  }
}

// The wave reads these tokens of resident pages.
void SessionState::meet_resident(Wave& wave,
                                 std::uint32_t layer,
                                 const StepPart& part,
                                 const Tokens& tokens) {
  const std::uint64_t each = page_tokens();
  for (std::uint64_t page = tokens.begin / each; page * each < tokens.end; ++page) {
    wave.wait_for(resident_page(part.sequence, layer, page).hazard->before_read());
    // A page that comes in pieces counts once, with its first tokens.
    const std::uint64_t whole = page * each >= tokens.begin ? 1 : 0;
    counters.attended_pages += whole;
    counters.resident_attended_pages += whole;
  }
}

// All that the rows see of it.
void SessionState::add_resident(Wave& wave, std::uint32_t layer, const StepPart& part) {
  const PageRange pages = resident_range(layer, part);
  map_resident(wave, layer, part, pages);
  meet_resident(wave, layer, part, {pages.begin * page_tokens(), pages.end * page_tokens()});
}

void SessionState::read_resident(std::uint32_t layer, const StepPart& part, std::uint64_t value) {
  const PageRange pages = resident_range(layer, part);
  const Moment read = Moment::at(LaneId::compute, value);
  for (std::uint64_t page = pages.begin; page < pages.end; ++page) {
    resident_page(part.sequence, layer, page).hazard->read.merge(read);
  }
}

// In ascending order, whatever the order in which they were fetched.
void SessionState::add_groups(Wave& wave, std::span<const FetchedGroup> fetched) {
  struct Fetched {
    PageUnit unit;
    std::uint32_t slot;
  };

  groups_attended += fetched.size();
  std::vector<Fetched> order;
  for (const FetchedGroup& group : fetched) {
    for (std::size_t index = 0; index < group.slots.size(); ++index) {
      order.push_back({group.group.units[index], group.slots[index]});
    }
    wave.wait_for(Moment::at(LaneId::upload, group.ready));
  }
  std::sort(order.begin(), order.end(), [](const Fetched& a, const Fetched& b) {
    return a.unit.page != b.unit.page ? a.unit.page < b.unit.page
                                      : a.unit.first_row < b.unit.first_row;
  });
  for (const auto& [unit, slot] : order) {
    const PageLayout& layout = plan.pages[fetched.front().group.layer];
    wave.add_slot(unit, slot, slots_lease.range().offset, plan.slot_bytes);
    // A page that comes in parts counts once, with its last row.
    const std::uint64_t whole = unit.first_row + unit.rows == page_tokens() ? 1 : 0;
    counters.attended_pages += whole;
    counters.streamed_pages += whole;
    counters.streamed_bytes += unit.rows == page_tokens()
                                   ? layout.page_bytes
                                   : unit.rows * (layout.k_token_bytes + layout.v_token_bytes);
  }
}

Result<void> SessionState::add_tail(Wave& wave, std::uint32_t layer, const StepPart& part) {
  const PageRange pages = tail_range(layer, part);
  for (std::uint64_t page = pages.begin; page < pages.end; ++page) {
    const auto slot = tails->find({part.sequence, layer, page});
    if (!slot) {
      return tl::unexpected(error_of(Errc::internal,
                                     "the tail page " + std::to_string(page) + " of layer " +
                                         std::to_string(layer) +
                                         " left the device; report this bug",
                                     "tails"));
    }
    wave.add_slot({page, 0, page_tokens()}, *slot, slots_lease.range().offset, plan.slot_bytes);
    wave.wait_for(tails->hazard(*slot).before_read());
  }
  if (pages.begin != pages.end) {
    wave.trim(part.first_token + part.rows);
  }
  counters.attended_pages += pages.end - pages.begin;
  return {};
}

void SessionState::read_tail(std::uint32_t layer, const StepPart& part, std::uint64_t value) {
  const PageRange pages = tail_range(layer, part);
  for (std::uint64_t page = pages.begin; page < pages.end; ++page) {
    if (const auto slot = tails->find({part.sequence, layer, page})) {
      tails->hazard(*slot).read.merge(Moment::at(LaneId::compute, value));
    }
  }
}

}  // namespace kvspan
