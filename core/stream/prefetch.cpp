// SPDX-License-Identifier: Apache-2.0
// Prefetcher: see the header; the only state is two queues.
#include "kvspan/core/stream/prefetch.hpp"

#include "on_exit.hpp"

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

namespace kvspan {

void Prefetcher::demand(std::vector<PageGroup> groups, std::vector<PageGroup> ahead) {
  groups.insert(
      groups.end(), std::make_move_iterator(ahead.begin()), std::make_move_iterator(ahead.end()));
  const bool primed_right =
      fetched_.size() <= groups.size() &&
      std::equal(fetched_.begin(),
                 fetched_.end(),
                 groups.begin(),
                 [](const FetchedGroup& a, const PageGroup& b) { return a.group == b; });
  const auto primed = static_cast<std::ptrdiff_t>(primed_right ? fetched_.size() : 0);
  std::deque<PageGroup> waiting(std::make_move_iterator(groups.begin() + primed),
                                std::make_move_iterator(groups.end()));
  if (!primed_right) {
    cancel();
  }
  waiting_.swap(waiting);
}

Result<void> Prefetcher::pump() {
  while (!waiting_.empty() && waiting_.front().units.size() <= ring_->free()) {
    // Its place first: behind the fetch nothing may fail.
    fetched_.push_back({waiting_.front(), {}, 0});
    FetchedGroup& next = fetched_.back();
    OnExit undone([&] {
      ring_->untake(static_cast<std::uint32_t>(next.slots.size()));
      fetched_.pop_back();
    });
    next.slots.reserve(next.group.units.size());
    for (std::size_t unit = 0; unit < next.group.units.size(); ++unit) {
      next.slots.push_back(ring_->take());
    }
    auto ready = fetch_(next.group, next.slots);
    if (!ready) {
      return tl::unexpected(std::move(ready).error());
    }
    undone.dismiss();
    next.ready = *ready;
    waiting_.pop_front();
  }
  return {};
}

Result<FetchedGroup> Prefetcher::next(std::uint32_t sequence, std::uint32_t layer) {
  if (fetched_.empty()) {
    if (auto pumped = pump(); !pumped) {
      return tl::unexpected(std::move(pumped).error());
    }
  }
  const bool is_next = !fetched_.empty() && fetched_.front().group.sequence == sequence &&
                       fetched_.front().group.layer == layer;
  if (!is_next) {
    return tl::unexpected(error_of(Errc::internal,
                                   "a wave of layer " + std::to_string(layer) + ", sequence " +
                                       std::to_string(sequence) +
                                       " was asked for that is not the next; report this bug",
                                   "prefetch"));
  }
  FetchedGroup group = std::move(fetched_.front());
  fetched_.pop_front();
  handed_out_slots_ += static_cast<std::uint32_t>(group.slots.size());
  return group;
}

PartAhead Prefetcher::part_ahead(std::uint32_t tile_tokens) const {
  PartAhead out;
  bool here = true;  // else in the part behind
  for (std::size_t index = 0; index < fetched_.size() + waiting_.size(); ++index) {
    const PageGroup& group =
        index < fetched_.size() ? fetched_[index].group : waiting_[index - fetched_.size()];
    (here ? out.units : out.next_units) += group.units.size();
    if (here) {
      ++out.groups;
      out.cut_units += static_cast<std::uint64_t>(
          std::count_if(group.units.begin(), group.units.end(), [&](const PageUnit& unit) {
            return unit.first_row % tile_tokens != 0 || unit.rows % tile_tokens != 0;
          }));
    }
    if (group.last && !std::exchange(here, false)) {
      break;
    }
  }
  return out;
}

void Prefetcher::release(const FetchedGroup& group, const Moment& read) {
  for (const std::uint32_t slot : group.slots) {
    ring_->hazard(slot).read.merge(read);
  }
  const auto slots = static_cast<std::uint32_t>(group.slots.size());
  ring_->give_back(slots);
  handed_out_slots_ -= slots;
}

std::uint32_t Prefetcher::in_flight() const {
  std::uint32_t slots = handed_out_slots_;
  for (const FetchedGroup& group : fetched_) {
    slots += static_cast<std::uint32_t>(group.slots.size());
  }
  return slots;
}

void Prefetcher::cancel() {
  ring_->give_back(in_flight());
  handed_out_slots_ = 0;
  waiting_.clear();
  fetched_.clear();
}

}  // namespace kvspan
