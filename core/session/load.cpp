// SPDX-License-Identifier: Apache-2.0
// Loading: a sequence's history from encoded pages that somebody kept. Host pages first, then the
// resident ones go up; a begun page that is not resident is fetched by the first write, as always.
#include "calls.hpp"
#include "memory/guarded_call.hpp"
#include "on_exit.hpp"
#include "state.hpp"

#include <algorithm>
#include <string>
#include <utility>

namespace kvspan {

Result<void> SessionState::check_load(std::uint32_t sequence, std::uint64_t tokens) const {
  const std::string who = "sequence " + std::to_string(sequence);
  if (auto known = check_sequence(sequence); !known) {
    return known;
  }
  if (auto between = check_between_steps(); !between) {
    return between;
  }
  if (sequences[sequence].history.committed_tokens() != 0) {
    return tl::unexpected(error_of(
        Errc::invalid_argument, who + " has tokens already; load into an empty one", "session"));
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

// The pages that a history of `tokens` tokens keeps, taken and filled by the host.
Result<void> SessionState::fill_pages(SequenceHistory& history,
                                      std::uint64_t tokens,
                                      const PageSource& source) {
  if (auto reserved = history.reserve(*host, tokens); !reserved) {
    return reserved;
  }
  const std::uint64_t pages = (tokens + page_tokens() - 1) / page_tokens();
  for (std::uint64_t page = 0; page < pages; ++page) {
    if (auto wanted = check_cancelled(); !wanted) {
      return wanted;
    }
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

Result<void> unguarded::load(SessionState& state,
                             SequenceId sequence,
                             std::uint64_t tokens,
                             const PageSource& source) {
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
  OnExit emptied([&] { history.release(*state.host); });
  history.release(*state.host, tokens);
  if (auto filled = state.fill_pages(history, tokens, source); !filled) {
    return filled;
  }
  history.load(tokens);
  state.sequences[sequence].observed_tokens = tokens;
  std::fill(state.sequences[sequence].missing.begin(),
            state.sequences[sequence].missing.end(),
            kAllPages);
  // Nothing is left in flight: pages that are given back are nobody's.
  auto brought = guarded_call("bringing resident pages", [&] {
    auto refilled = state.refill(sequence);
    return refilled && state.sequences[sequence].filled != 0
               ? state.lanes->wait(LaneId::upload, state.sequences[sequence].filled)
               : refilled;
  });
  if (!brought) {
    return tl::unexpected(state.fail_step(std::move(brought).error()));
  }
  emptied.dismiss();
  return {};
}

}  // namespace kvspan
