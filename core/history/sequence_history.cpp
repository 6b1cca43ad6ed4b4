// SPDX-License-Identifier: Apache-2.0
// SequenceHistory: commits that do not block, and what a failure makes of them.
#include "kvspan/core/history/sequence_history.hpp"

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

Result<void> SequenceHistory::reserve(HostPages& pages, std::uint64_t tokens) {
  const std::uint64_t needed = (tokens + page_tokens_ - 1) / page_tokens_;
  while (blocks_.size() < needed) {
    const auto block = pages.acquire();
    if (!block) {
      return tl::unexpected(block.error());
    }
    blocks_.push_back(*block);
    hazards_.resize(blocks_.size() * layers_);
  }
  return {};
}

void SequenceHistory::release(HostPages& pages) {
  for (const HostBlock block : blocks_) {
    pages.release(block);
  }
  blocks_.clear();
  hazards_.clear();
  unproven_.clear();
  committed_tokens_ = 0;
  durable_tokens_ = 0;
}

void SequenceHistory::commit(std::uint64_t tokens, const Moment& published) {
  committed_tokens_ += tokens;
  unproven_.push_back({committed_tokens_, published});
}

void SequenceHistory::load(std::uint64_t tokens) {
  unproven_.clear();
  committed_tokens_ = tokens;
  durable_tokens_ = tokens;
}

void SequenceHistory::prove(const Moment& reached) {
  while (!unproven_.empty() && is_reached(unproven_.front().published, reached)) {
    durable_tokens_ = unproven_.front().tokens;
    unproven_.pop_front();
  }
}

void SequenceHistory::truncate(std::uint64_t tokens) {
  committed_tokens_ = std::min(committed_tokens_, tokens);
  durable_tokens_ = std::min(durable_tokens_, committed_tokens_);
  for (Commit& commit : unproven_) {
    commit.tokens = std::min(commit.tokens, committed_tokens_);
  }
}

void SequenceHistory::fall_back(const Moment& reached) {
  prove(reached);
  committed_tokens_ = durable_tokens_;
  unproven_.clear();
  std::fill(hazards_.begin(), hazards_.end(), Hazard{});
}

}  // namespace kvspan
