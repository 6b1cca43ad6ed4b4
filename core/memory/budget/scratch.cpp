// SPDX-License-Identifier: Apache-2.0
// Split states, accumulators and workspace: the maximum over layers, which run one after another.
#include "memory/budget/scratch.hpp"

#include "kvspan/core/layout/checked.hpp"

#include "memory/budget/request.hpp"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

namespace kvspan {

namespace {

// Splits that decode rows touch at most: N, one more where a row's first token lies inside a split,
// and with a window those that the last row sees further than the first.
std::uint32_t splits_open(const kvspan_attention_caps_t& caps,
                          std::uint64_t window_tokens,
                          std::uint32_t rows) {
  const std::uint64_t further =
      window_tokens == 0
          ? 0
          : (rows - 1) / split_tokens(window_tokens, caps.split_count, caps.span_granule) + 1;
  return caps.split_count + 1 + static_cast<std::uint32_t>(further);
}

// Planes u [row, head, d_v] and {m, l} [row, head] of a split, and the padding of each entry's.
// Nothing where all splits that may be open pass what can be planned.
std::optional<std::uint64_t> state_bytes(const LayerGeometry& geometry,
                                         const kvspan_attention_caps_t& caps,
                                         std::uint32_t rows) {
  const std::uint64_t alignment = std::max<std::uint64_t>(caps.state_alignment, 1);
  const std::uint64_t row_heads = std::uint64_t{rows} * geometry.q_heads;
  const auto planes = checked_mul(row_heads, (geometry.head_size_v + 2ULL) * sizeof(float));
  const auto padding =
      checked_mul(2 * alignment, entries_bound(rows, caps.split_count, caps.span_granule));
  const auto state = planes && padding ? checked_add(*planes, *padding) : std::nullopt;
  const auto all = state ? checked_mul(*state, caps.split_count + 2ULL + rows) : std::nullopt;
  return all && *all <= kPlannedBytesMax ? state : std::nullopt;
}

// What any layer asks for at most: layers run one after another, in the same places.
struct Most {
  std::uint32_t splits = 1;  // that rows touch
  std::uint64_t state_bytes = 0;
  std::uint64_t accumulators_bytes = 0;
  std::uint64_t workspace_bytes = 0;  // of calls over splits
  std::uint64_t run_bytes = 0;        // of the call that does all of a layer
};

Result<Most> most_of(const Basis& basis, Phase phase, std::uint32_t rows) {
  Most out;
  for (std::size_t layer = 0; layer < basis.pages.size(); ++layer) {
    const LayerGeometry& geometry = basis.request.geometry.layers[layer];
    const auto caps = layer_capabilities(basis.request, layer, phase, rows);
    if (!caps) {
      return tl::unexpected(caps.error());
    }
    const auto state = state_bytes(geometry, *caps, rows);
    if (!state) {
      return tl::unexpected(error_of(
          Errc::too_large,
          "layer " + std::to_string(layer) + ": split states of " + std::to_string(rows) +
              " rows of " + std::to_string(geometry.q_heads) + " query heads take more than " +
              std::to_string(kPlannedBytesMax) + " bytes; use fewer rows or heads",
          "split states"));
    }
    out.splits = std::max(out.splits, splits_open(*caps, geometry.window_tokens, rows));
    out.state_bytes = std::max(out.state_bytes, *state);
    out.accumulators_bytes = std::max(out.accumulators_bytes, align_up(*state, kRegionAlignment));
    const std::uint64_t workspace = std::max(
        {caps->advance_workspace_bytes, caps->fold_workspace_bytes, caps->finish_workspace_bytes});
    out.workspace_bytes = std::max(out.workspace_bytes, align_up(workspace, kRegionAlignment));
    out.run_bytes = std::max(out.run_bytes, align_up(caps->run_workspace_bytes, kRegionAlignment));
  }
  return out;
}

// With so many splits open. Where everything is on the device, one call does all of a layer: it
// uses the places of states and accumulators, which are not in use then, and what it needs beyond
// them.
Scratch laid_out(const Most& most, std::uint64_t splits) {
  Scratch out;
  out.splits_in_flight = static_cast<std::uint32_t>(splits);
  out.states_bytes = align_up(splits * most.state_bytes, kRegionAlignment);
  out.accumulators_bytes = most.accumulators_bytes;
  const std::uint64_t shared_bytes = out.states_bytes + out.accumulators_bytes;
  out.workspace_bytes =
      std::max(most.workspace_bytes, most.run_bytes - std::min(most.run_bytes, shared_bytes));
  return out;
}

Result<Scratch> scratch(const Basis& basis, Phase phase, std::uint32_t rows) {
  const auto most = most_of(basis, phase, rows);
  if (!most) {
    return tl::unexpected(most.error());
  }
  // Decode keeps all splits open, which costs little at so few rows and lets one wave feed every
  // split.
  if (phase == Phase::decode) {
    return laid_out(*most, most->splits);
  }
  // Prefill could walk one after another. It opens as many as have room in what the call that does
  // all of a layer needs anyhow: a group of pages then takes one submit where all that it touches
  // are open, not one for each, and narrow chunks keep more of the device busy.
  const Scratch one = laid_out(*most, 1);
  const std::uint64_t room = one.states_bytes + one.workspace_bytes - most->workspace_bytes;
  std::uint64_t splits = std::clamp<std::uint64_t>(
      room / std::max<std::uint64_t>(most->state_bytes, 1), 1, most->splits);
  while (splits > 1 && laid_out(*most, splits).total_bytes() > one.total_bytes()) {
    --splits;
  }
  return laid_out(*most, splits);
}

}  // namespace

Result<Candidate> candidate(const Basis& basis, std::uint32_t rows) {
  const PlanRequest& request = basis.request;
  const std::uint32_t page = request.geometry.page_tokens;
  auto prefill = scratch(basis, Phase::prefill, rows);
  if (!prefill) {
    return tl::unexpected(std::move(prefill).error());
  }
  auto decode = scratch(basis, Phase::decode, request.decode_rows);
  if (!decode) {
    return tl::unexpected(std::move(decode).error());
  }
  Candidate out{rows, *prefill, *decode, 0, 0, {}};
  // Prefill tails belong to the running layer only and are free once their host copy is complete;
  // decode tails of every layer stay, so that a token does not fetch its own page again.
  out.prefill_tails = request.sequences * tail_pages(rows, page);
  out.decode_tails = request.sequences * static_cast<std::uint32_t>(basis.pages.size()) *
                     tail_pages(request.decode_rows, page);
  return out;
}

}  // namespace kvspan
