// SPDX-License-Identifier: Apache-2.0
// What a session keeps on the host: pages that rows may still see, and how the others are given
// back. Read first: history/sequence_history.hpp.
#include "memory/guarded_call.hpp"
#include "state.hpp"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

namespace kvspan {

// A page of the history that is about to be read.
Result<HostPage> SessionState::host_page(std::uint32_t sequence,
                                         std::uint32_t layer,
                                         std::uint64_t page) const {
  const SequenceHistory& history = sequences[sequence].history;
  if (page < history.first_page(layer)) {
    return tl::unexpected(error_of(Errc::internal,
                                   "page " + std::to_string(page) + " of layer " +
                                       std::to_string(layer) +
                                       " was given up although a row sees it; report this bug",
                                   "history"));
  }
  return host->page(history.block(layer, page), layer);
}

Moment SessionState::reached() const {
  Moment reached;
  for (const LaneId lane : kLanes) {
    reached.merge(Moment::at(lane, lanes->reached(lane)));
  }
  return reached;
}

// Gives back what no later row sees, as far as work has settled; waits for work only where the
// history would hold more than the plan gave it.
Result<void> SessionState::retire(SequenceHistory& history, std::uint64_t tokens, Moment& settled) {
  for (;; settled = reached()) {
    history.prove(settled);
    counters.retired_pages += history.retire(*host, settled);
    if (history.fits(tokens, plan.host_pages)) {
      return {};
    }
    const std::optional<Moment> awaited = history.awaited();
    if (!awaited) {
      return tl::unexpected(error_of(Errc::internal,
                                     "a history of " + std::to_string(tokens) +
                                         " tokens holds more host pages than the plan gave it; "
                                         "report this bug",
                                     "history"));
    }
    for (const LaneId lane : kLanes) {
      if (awaited->of(lane) != 0) {
        if (auto waited = lanes->wait(lane, awaited->of(lane)); !waited) {
          return waited;
        }
      }
    }
  }
}

// Host pages for the next step of every sequence, as wide as its last one: chunks are zeroed and
// made reachable between two steps, so that none does it under way. Never more of a class than full
// sequences take: there pages behind windows go back first. An extra: what fails here the step's
// beginning tries again, and tells.
void SessionState::reserve_ahead() {
  if (step) {
    return;
  }
  (void)guarded_call("making host pages ready", [this] {
    for (std::size_t of_class = 0; of_class < plan.host_pages.size(); ++of_class) {
      std::uint64_t blocks = 0;
      for (const Sequence& sequence : sequences) {
        const std::uint64_t tokens = sequence.history.committed_tokens() + sequence.rows;
        blocks += sequence.live ? sequence.history.missing_blocks(
                                      of_class, std::min(tokens, options.context_tokens))
                                : 0;
      }
      const std::uint64_t most = std::uint64_t{options.sequences} * plan.host_pages[of_class];
      if (auto made = host->reserve(of_class, blocks, most); !made) {
        return made;
      }
    }
    return Result<void>();
  });
}

}  // namespace kvspan
