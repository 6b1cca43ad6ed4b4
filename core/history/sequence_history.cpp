// SPDX-License-Identifier: Apache-2.0
// SequenceHistory: commits that do not block, and what a failure makes of them.
#include "kvspan/core/history/sequence_history.hpp"

#include "on_exit.hpp"

#include <algorithm>

namespace kvspan {

namespace {

bool is_reached(const Moment& moment, const Moment& reached) {
  for (std::size_t lane = 0; lane < kLaneCount; ++lane) {
    if (moment.values[lane] > reached.values[lane]) {
      return false;
    }
  }
  return true;
}

}  // namespace

SequenceHistory::SequenceHistory(const std::vector<HostClass>& classes, std::uint32_t page_tokens)
    : page_tokens_(page_tokens) {
  std::size_t layers = 0;
  for (const HostClass& of : classes) {
    kept_.push_back({of.window_tokens, of.kept_tokens, of.layers, 0, 0, {}});
    layers += of.layers.size();
  }
  class_of_.resize(layers);
  hazards_.resize(layers);
  for (std::uint32_t index = 0; index < classes.size(); ++index) {
    for (const std::uint32_t layer : classes[index].layers) {
      class_of_[layer] = index;
    }
  }
}

Result<void> SequenceHistory::reserve(HostPages& pages, std::uint64_t tokens) {
  const std::uint64_t needed = (tokens + page_tokens_ - 1) / page_tokens_;
  for (std::size_t index = 0; index < kept_.size(); ++index) {
    Kept& kept = kept_[index];
    while (kept.first_page + kept.blocks.size() < needed) {
      for (const std::uint32_t layer : kept.layers) {
        hazards_[layer].resize(kept.blocks.size() + 1);  // before the block, whose they are then
      }
      const auto block = pages.acquire(index);
      if (!block) {
        return tl::unexpected(block.error());
      }
      OnExit undone([&] { pages.release(*block); });
      kept.blocks.push_back(*block);
      undone.dismiss();
    }
  }
  if (unproven_.size() == unproven_.capacity()) {
    unproven_.reserve(2 * unproven_.size() + 1);
  }
  return {};
}

void SequenceHistory::release(HostPages& pages, std::uint64_t tokens) {
  for (Kept& kept : kept_) {
    for (const HostBlock block : kept.blocks) {
      pages.release(block);
    }
    kept.blocks.clear();
    kept.first_page = kept.promised_page = first_kept_page(tokens, kept.kept_tokens, page_tokens_);
  }
  for (std::deque<Hazard>& of_layer : hazards_) {
    of_layer.clear();
  }
  unproven_.clear();
  committed_tokens_ = 0;
  durable_tokens_ = 0;
}

// Behind this page lies what a row after the last complete commit, or after a truncation, may see.
std::uint64_t SequenceHistory::retired_before(const Kept& kept) const {
  return std::min(kept.promised_page,
                  first_kept_page(durable_tokens_, kept.kept_tokens, page_tokens_));
}

// Who touched the oldest page of a class last.
Moment SequenceHistory::before_reuse(const Kept& kept) const {
  Moment moment;
  for (const std::uint32_t layer : kept.layers) {
    moment.merge(hazards_[layer].front().before_write());
  }
  return moment;
}

std::uint64_t SequenceHistory::retire(HostPages& pages, const Moment& reached) {
  std::uint64_t retired = 0;
  for (Kept& kept : kept_) {
    const std::uint64_t before = retired_before(kept);
    while (kept.first_page < before && !kept.blocks.empty() &&
           is_reached(before_reuse(kept), reached)) {
      pages.release(kept.blocks.front());
      kept.blocks.pop_front();
      for (const std::uint32_t layer : kept.layers) {
        hazards_[layer].pop_front();
      }
      ++kept.first_page;
      retired += kept.layers.size();
    }
  }
  return retired;
}

bool SequenceHistory::fits(std::uint64_t tokens, std::span<const std::uint32_t> pages_max) const {
  const std::uint64_t needed = (tokens + page_tokens_ - 1) / page_tokens_;
  for (std::size_t index = 0; index < kept_.size(); ++index) {
    const Kept& kept = kept_[index];
    if (std::max(needed, kept.first_page + kept.blocks.size()) - kept.first_page >
        pages_max[index]) {
      return false;
    }
  }
  return true;
}

std::optional<Moment> SequenceHistory::awaited() const {
  for (const Kept& kept : kept_) {
    if (kept.first_page < retired_before(kept) && !kept.blocks.empty()) {
      return before_reuse(kept);
    }
  }
  return unproven_.empty() ? std::nullopt : std::optional(unproven_.front().published);
}

bool SequenceHistory::has_retired() const {
  return std::any_of(
      kept_.begin(), kept_.end(), [](const Kept& kept) { return kept.first_page != 0; });
}

std::uint64_t SequenceHistory::truncation_limit() const {
  std::uint64_t tokens = 0;
  for (const Kept& kept : kept_) {
    if (kept.promised_page != 0) {
      tokens = std::max(tokens, kept.promised_page * page_tokens_ + kept.window_tokens - 1);
    }
  }
  return tokens;
}

void SequenceHistory::commit(std::uint64_t tokens, const Moment& published) {
  unproven_.push_back({committed_tokens_ + tokens, published});
  committed_tokens_ += tokens;
  promise();
}

// What a commit leaves behind the window stays behind it, but for a failure.
void SequenceHistory::promise() {
  for (Kept& kept : kept_) {
    kept.promised_page = std::max(
        kept.promised_page, first_kept_page(committed_tokens_, kept.kept_tokens, page_tokens_));
  }
}

void SequenceHistory::load(std::uint64_t tokens) {
  unproven_.clear();
  committed_tokens_ = tokens;
  durable_tokens_ = tokens;
  promise();
}

void SequenceHistory::prove(const Moment& reached) {
  auto newer = unproven_.begin();
  for (; newer != unproven_.end() && is_reached(newer->published, reached); ++newer) {
    durable_tokens_ = newer->tokens;
  }
  unproven_.erase(unproven_.begin(), newer);
}

void SequenceHistory::truncate(std::uint64_t tokens) {
  committed_tokens_ = std::min(committed_tokens_, tokens);
  durable_tokens_ = std::min(durable_tokens_, committed_tokens_);
  for (Commit& commit : unproven_) {
    commit.tokens = std::min(commit.tokens, committed_tokens_);
  }
  for (Kept& kept : kept_) {
    kept.promised_page = tokens == 0 ? kept.first_page : kept.promised_page;
  }
}

void SequenceHistory::fall_back(const Moment& reached) {
  prove(reached);
  committed_tokens_ = durable_tokens_;
  unproven_.clear();
  for (Kept& kept : kept_) {
    kept.promised_page = kept.first_page;
  }
  promise();
  for (std::deque<Hazard>& of_layer : hazards_) {
    std::fill(of_layer.begin(), of_layer.end(), Hazard{});
  }
}

}  // namespace kvspan
