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

// Blocks of a class that the next step of every sequence takes, as wide as its last one. An open
// step has its own already; the one behind it begins where that ends.
std::uint64_t SessionState::blocks_ahead(std::size_t of_class) const {
  const auto missing = [&](const Sequence& sequence, std::uint64_t tokens) {
    return sequence.history.missing_blocks(of_class, std::min(tokens, options.context_tokens));
  };
  std::uint64_t blocks = 0;
  for (const Sequence& sequence : sequences) {
    const std::uint64_t tokens = sequence.history.committed_tokens() + sequence.rows;
    blocks += sequence.live ? missing(sequence, tokens) : 0;
  }
  for (std::size_t index = 0; step && index < step->parts.size(); ++index) {
    const StepPart& part = step->parts[index];
    blocks += missing(sequences[part.sequence], part.first_token + 2 * std::uint64_t{part.rows});
  }
  return blocks;
}

// Never more of a class than full sequences take: there pages behind windows go back first.
std::uint64_t SessionState::blocks_max(std::size_t of_class) const {
  return std::uint64_t{options.sequences} * plan.host_pages[of_class];
}

// Host pages for the next step, made reachable between two steps where the last one did not get to
// it. An extra: what fails here the step's beginning tries again, and tells.
void SessionState::reserve_ahead() {
  if (!step) {
    reserve_blocks();
  }
}

void SessionState::reserve_blocks() {
  (void)guarded_call("making host pages ready", [this] {
    for (std::size_t of_class = 0; of_class < plan.host_pages.size(); ++of_class) {
      if (auto made = host->reserve(of_class, blocks_ahead(of_class), blocks_max(of_class));
          !made) {
        return made;
      }
    }
    return Result<void>();
  });
}

// The same in a step, behind what a layer submitted: zeroed a part a layer, and made reachable with
// the last, while the device has that to do.
void SessionState::reserve_beside(std::uint32_t layer) {
  const auto layers = static_cast<std::uint32_t>(plan.pages.size());
  (void)guarded_call("zeroing host pages", [&] {
    for (std::size_t of_class = 0; of_class < plan.host_pages.size(); ++of_class) {
      host->touch_ahead(
          of_class, blocks_ahead(of_class), blocks_max(of_class), {layers - layer, layers});
    }
    return Result<void>();
  });
  if (layer + 1 == layers) {
    reserve_blocks();
  }
}

}  // namespace kvspan
