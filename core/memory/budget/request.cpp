// SPDX-License-Identifier: Apache-2.0
// Checks before any arithmetic: after them every sum and product of the plan fits 64 bits and every
// count of pages or slots 32.
#include "memory/budget/request.hpp"

#include "kvspan/core/layout/checked.hpp"

#include "memory/budget/phases.hpp"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

namespace kvspan {

namespace {

constexpr std::uint32_t kDecodeRowsMax = 64;

tl::unexpected<Error> wrong_request(std::string message) {
  return tl::unexpected(error_of(Errc::invalid_argument, std::move(message), "plan"));
}

tl::unexpected<Error> too_much(std::string message, std::string component) {
  return tl::unexpected(error_of(Errc::too_large, std::move(message), std::move(component)));
}

Result<void> check_counts(const PlanRequest& request) {
  if (request.geometry.layers.empty()) {
    return wrong_request("the geometry has no layers; give at least one");
  }
  if (request.context_tokens == 0 || request.sequences == 0) {
    return wrong_request("context tokens and sequences must be at least 1");
  }
  if (request.decode_rows == 0 || request.decode_rows > kDecodeRowsMax) {
    return wrong_request("decode rows are 1 to " + std::to_string(kDecodeRowsMax) + ", not " +
                         std::to_string(request.decode_rows));
  }
  if (!request.capabilities) {
    return wrong_request("no capabilities were given; query a backend or hand in recorded ones");
  }
  const std::uint64_t pages = request.context_tokens / request.geometry.page_tokens + 1;
  if (pages > UINT32_MAX) {
    return wrong_request("a context of " + std::to_string(request.context_tokens) +
                         " tokens has more than " + std::to_string(UINT32_MAX) +
                         " pages; use larger pages");
  }
  return {};
}

}  // namespace

Result<kvspan_attention_caps_t> layer_capabilities(const PlanRequest& request,
                                                   std::size_t layer,
                                                   Phase phase,
                                                   std::uint32_t rows) {
  auto caps = request.capabilities(layer, phase, rows);
  if (!caps) {
    Error error = std::move(caps).error();
    error.message = "layer " + std::to_string(layer) + ", " + name(phase) + " of " +
                    std::to_string(rows) + (rows == 1 ? " row: " : " rows: ") + error.message;
    return tl::unexpected(std::move(error));
  }
  return caps;
}

namespace {

Result<void> check_granules(const PlanRequest& request) {
  for (std::size_t layer = 0; layer < request.geometry.layers.size(); ++layer) {
    const auto caps = layer_capabilities(request, layer, Phase::decode, request.decode_rows);
    if (!caps) {
      return tl::unexpected(caps.error());
    }
    if (request.geometry.page_tokens % caps->span_granule != 0) {
      return wrong_request("pages of " + std::to_string(request.geometry.page_tokens) +
                           " tokens are not a multiple of the backend's granule of " +
                           std::to_string(caps->span_granule) + " tokens; choose a multiple");
    }
  }
  return {};
}

// Sizes, after page_layouts: products of counts that fit each alone.
Result<void> check_sizes(const Basis& basis) {
  const PlanRequest& request = basis.request;
  const auto blocks = checked_mul(basis.pages_a_sequence, request.sequences);
  std::uint64_t block_bytes = 0;  // one page of every layer: of classes that fit each alone
  for (const HostClass& of : basis.host_classes) {
    block_bytes += of.chunk.block_bytes;
  }
  const auto bytes = blocks ? checked_mul(*blocks, block_bytes) : std::nullopt;
  if (!bytes || *bytes > kPlannedBytesMax) {
    return too_much("a history of " + std::to_string(request.sequences) + " sequences of " +
                        std::to_string(request.context_tokens) + " tokens is more than the " +
                        std::to_string(kPlannedBytesMax) +
                        " bytes that can be planned; use fewer sequences, layers or tokens",
                    "history");
  }
  const std::uint32_t rows =
      std::max({request.prefill_rows_max, request.prefill_rows_fixed, request.decode_rows});
  const auto tails = checked_mul(std::uint64_t{request.sequences} * basis.pages.size(),
                                 std::uint64_t{tail_pages(rows, request.geometry.page_tokens)});
  if (!tails || *tails > UINT32_MAX / 2) {
    return too_much("the tails of " + std::to_string(request.sequences) + " sequences with " +
                        std::to_string(basis.pages.size()) + " layers and " + std::to_string(rows) +
                        " rows are more than " + std::to_string(UINT32_MAX / 2) +
                        " slots; use fewer sequences, fewer rows or larger pages",
                    "tails");
  }
  return {};
}

// The overlap rule knows one kind of layer, one sequence and a link.
Result<void> check_rule(const PlanRequest& request) {
  if (request.stream.rule != PlacementRule::overlap) {
    return {};
  }
  if (request.sequences != 1 || request.stream.link_bytes_s == 0) {
    return wrong_request("the overlap rule places 1 sequence on a link whose rate is known, not " +
                         std::to_string(request.sequences) + " at " +
                         std::to_string(request.stream.link_bytes_s) +
                         " bytes a second; use the automatic rule");
  }
  for (std::size_t layer = 1; layer < request.geometry.layers.size(); ++layer) {
    const LayerGeometry& of = request.geometry.layers[layer];
    const LayerGeometry& first = request.geometry.layers.front();
    if (of.k_type != first.k_type || of.v_type != first.v_type ||
        of.head_size_k != first.head_size_k || of.head_size_v != first.head_size_v ||
        of.kv_heads != first.kv_heads || of.window_tokens != 0 || first.window_tokens != 0 ||
        of.v_in_k != first.v_in_k) {
      return wrong_request("the overlap rule places equal layers without windows, and layer " +
                           std::to_string(layer) +
                           " differs from the first; use the automatic rule");
    }
  }
  return {};
}

// Adds up what is taken in every phase; refuses names that would hide one of the plan's own.
Result<void> read_demands(Basis& basis) {
  std::uint64_t total = 0;
  for (const Demand& demand : basis.request.demands) {
    if (demand.component.empty()) {
      return wrong_request("a demand of " + std::to_string(demand.size_bytes) +
                           " bytes has no component; name what the bytes are for");
    }
    const bool taken = demand.component == kIdle ||
                       std::find(kOwnComponents.begin(), kOwnComponents.end(), demand.component) !=
                           kOwnComponents.end();
    if (taken) {
      return wrong_request("a demand is called " + demand.component +
                           " like a component of the plan's own; give it another name");
    }
    const auto sum = checked_add(total, demand.size_bytes);
    if (!sum || *sum > kPlannedBytesMax) {
      return too_much("the demand " + demand.component + " of " +
                          std::to_string(demand.size_bytes) + " bytes passes the " +
                          std::to_string(kPlannedBytesMax) + " bytes that can be planned",
                      demand.component);
    }
    total = *sum;
    basis.reserved_bytes += demand.phase.empty() ? demand.size_bytes : 0;
  }
  return {};
}

}  // namespace

Result<Basis> basis_of(const PlanRequest& request) {
  auto layouts = page_layouts(request.geometry);
  if (!layouts) {
    return tl::unexpected(std::move(layouts).error());
  }
  for (const auto check : {check_counts, check_granules, check_rule}) {
    if (auto checked = check(request); !checked) {
      return tl::unexpected(std::move(checked).error());
    }
  }
  Basis basis{request, std::move(*layouts), {}, {}, 0, 0, 0, 0};
  basis.cut_bytes = request.phases_take_turns ? kRegionAlignment : 0;
  const std::uint32_t page = request.geometry.page_tokens;
  basis.pages_a_sequence = static_cast<std::uint32_t>((request.context_tokens + page - 1) / page);
  std::vector<std::uint64_t> page_bytes;
  std::vector<std::uint64_t> windows;
  for (std::size_t layer = 0; layer < basis.pages.size(); ++layer) {
    page_bytes.push_back(basis.pages[layer].page_bytes);
    windows.push_back(request.geometry.layers[layer].window_tokens);
    basis.slot_bytes = std::max(basis.slot_bytes, page_bytes.back());
    basis.visible_pages.push_back(static_cast<std::uint32_t>(
        visible_pages(request.context_tokens, windows.back(), request.decode_rows, page)));
  }
  auto classes = host_classes({page_bytes,
                               windows,
                               request.context_tokens,
                               request.rewind_tokens,
                               request.import_alignment});
  if (!classes) {
    return tl::unexpected(std::move(classes).error());
  }
  basis.host_classes = std::move(*classes);
  if (auto checked = check_sizes(basis); !checked) {
    return tl::unexpected(std::move(checked).error());
  }
  if (auto demands = read_demands(basis); !demands) {
    return tl::unexpected(std::move(demands).error());
  }
  return basis;
}

std::vector<std::uint32_t> row_ladder(const PlanRequest& request) {
  if (request.prefill_rows_fixed != 0) {
    return {request.prefill_rows_fixed};
  }
  std::vector<std::uint32_t> ladder;
  const std::uint64_t most = std::min<std::uint64_t>(
      std::max(request.prefill_rows_max, 1U), std::max<std::uint64_t>(request.context_tokens, 1));
  std::uint32_t rows = 1;
  while (rows <= most / 2) {
    rows *= 2;
  }
  for (; rows >= 1; rows /= 2) {
    ladder.push_back(rows);
  }
  return ladder;
}

}  // namespace kvspan
