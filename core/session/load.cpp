// SPDX-License-Identifier: Apache-2.0
// Loading: a sequence's history from encoded pages that somebody kept. Host pages first, then the
// resident ones go up; a begun page that is not resident is fetched by the first write, as always.
#include "state.hpp"

#include <algorithm>
#include <string>
#include <utility>

namespace kvspan {

Result<void> SessionState::check_load(std::uint32_t sequence, std::uint64_t tokens) const {
  const auto refuse = [](Errc code, std::string message) {
    return tl::unexpected(Error{code, std::move(message), 0, 0, 0, "session"});
  };
  const std::string who = "sequence " + std::to_string(sequence);
  if (sequence >= sequences.size() || !sequences[sequence].live) {
    return refuse(Errc::not_found, "there is no " + who);
  }
  if (step) {
    return refuse(Errc::busy, "a step is open; commit or cancel it first");
  }
  if (sequences[sequence].history.committed_tokens() != 0) {
    return refuse(Errc::invalid_argument, who + " has tokens already; load into an empty one");
  }
  if (tokens > options.context_tokens) {
    return tl::unexpected(Error{Errc::too_large,
                                who + " cannot take " + std::to_string(tokens) +
                                    " tokens: the context is " +
                                    std::to_string(options.context_tokens),
                                tokens,
                                options.context_tokens,
                                tokens - options.context_tokens,
                                "context"});
  }
  return {};
}

// As many pages a submit as the backend was prepared for.
Result<void> SessionState::upload_resident(std::uint32_t sequence, std::uint64_t pages) {
  SequenceHistory& history = sequences[sequence].history;
  const std::uint64_t each = std::max(1U, plan.group_pages);
  for (std::uint32_t layer = 0; layer < plan.pages.size(); ++layer) {
    const std::uint64_t end = std::min<std::uint64_t>(plan.resident_pages[layer], pages);
    for (std::uint64_t first = history.first_page(layer); first < end; first += each) {
      std::vector<kvspan_segment_t> segments;
      Waits waits;
      for (std::uint64_t page = first; page < std::min(end, first + each); ++page) {
        const HostPage source = host->page(history.block(layer, page), layer);
        const DevicePage target = resident_page(sequence, layer, page);
        segments.push_back({source.memory,
                            parent,
                            source.offset,
                            target.offset,
                            plan.pages[layer].page_bytes,
                            1,
                            0,
                            0});
        waits.moment.merge(target.hazard->before_write());
      }
      auto value = copy(LaneId::upload, waits, segments);
      if (!value) {
        return tl::unexpected(std::move(value).error());
      }
      const Moment done = Moment::at(LaneId::upload, *value);
      for (std::uint64_t page = first; page < std::min(end, first + each); ++page) {
        history.hazard(layer, page).read.merge(done);
        *resident_page(sequence, layer, page).hazard = Hazard{done, {}};
      }
    }
  }
  return lanes->last(LaneId::upload) == 0
             ? Result<void>{}
             : lanes->wait(LaneId::upload, lanes->last(LaneId::upload));
}

// The pages that a history of `tokens` tokens keeps, taken and filled by the host.
Result<void> SessionState::fill_pages(SequenceHistory& history,
                                      std::uint64_t tokens,
                                      const PageSource& source) {
  if (auto reserved = history.reserve(*host, tokens); !reserved) {
    return reserved;
  }
  const std::uint64_t pages = (tokens + page_tokens() - 1) / page_tokens();
  for (std::uint64_t page = 0; page < pages; ++page) {
    for (std::uint32_t layer = 0; layer < plan.pages.size(); ++layer) {
      if (page < history.first_page(layer)) {
        continue;
      }
      const HostPage target = host->page(history.block(layer, page), layer);
      const std::size_t page_bytes = plan.pages[layer].page_bytes;
      if (auto filled = source(layer, page, {target.address, page_bytes}); !filled) {
        return filled;
      }
    }
  }
  return {};
}

Result<void> Session::load(SequenceId sequence, std::uint64_t tokens, const PageSource& source) {
  SessionState& state = *state_;
  if (auto checked = state.check_load(sequence, tokens); !checked) {
    return checked;
  }
  if (auto healthy = state.check_health(); !healthy) {
    return healthy;
  }
  // The host is about to write pages that work of a truncated past may still touch.
  if (auto drained = state.lanes->drain(); !drained) {
    return drained;
  }
  state.drop_primed();
  state.tails->forget(sequence, 0);  // rows of a step that was given up may lie there
  SequenceHistory& history = state.sequences[sequence].history;
  history.release(*state.host, tokens);
  auto filled = state.fill_pages(history, tokens, source);
  if (filled) {
    const std::uint64_t page = state.page_tokens();
    filled = state.upload_resident(sequence, (tokens + page - 1) / page);
    if (!filled) {
      filled = tl::unexpected(state.fail_step(std::move(filled).error()));
    }
  }
  if (!filled) {
    history.release(*state.host);
    return filled;
  }
  history.load(tokens);
  return {};
}

}  // namespace kvspan
