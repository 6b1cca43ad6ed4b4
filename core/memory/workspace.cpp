// SPDX-License-Identifier: Apache-2.0
// Planning and cutting are one sum, so that what was planned fits.
#include "kvspan/core/memory/workspace.hpp"

#include "kvspan/core/layout/checked.hpp"

#include <string>

namespace kvspan {
namespace {

// Where a piece ends that begins at or behind `at`. Errors: workspace_bytes()'s.
Result<std::uint64_t> end_of(std::uint64_t at, const WorkspacePiece& piece) {
  if (piece.bytes == 0 || !is_power_of_two(piece.alignment)) {
    return tl::unexpected(Error{Errc::invalid_argument,
                                "a workspace piece of " + std::to_string(piece.bytes) +
                                    " bytes aligned to " + std::to_string(piece.alignment) +
                                    "; give bytes, and a power of two"});
  }
  const auto begin = checked_align_up(at, piece.alignment);
  const auto end = begin ? checked_add(*begin, piece.bytes) : std::nullopt;
  if (!end) {
    return tl::unexpected(Error{
        Errc::too_large, "a workspace piece ends beyond what 64 bits can count; ask for less"});
  }
  return *end;
}

Error too_small(const char* what, std::uint64_t required, std::uint64_t provided) {
  return Error{Errc::workspace,
               std::string(what) + " needs a workspace of " + std::to_string(required) +
                   " bytes, but it has " + std::to_string(provided) + "; " +
                   std::to_string(required - provided) + " are missing",
               required,
               provided,
               required - provided,
               "workspace"};
}

}  // namespace

Result<std::uint64_t> workspace_bytes(std::span<const WorkspacePiece> pieces,
                                      std::uint64_t offset) {
  std::uint64_t at = offset;
  for (const WorkspacePiece& piece : pieces) {
    auto end = end_of(at, piece);
    if (!end) {
      return end;
    }
    at = *end;
  }
  return at - offset;
}

Workspace& Workspace::operator=(Workspace&& other) noexcept {
  lease_ = std::move(other.lease_);
  used_ = std::exchange(other.used_, 0);
  return *this;
}

Result<void> Workspace::attach(Lease& lease, std::uint64_t planned_bytes, Grant grant) {
  if (used_ != 0) {
    return tl::unexpected(
        Error{Errc::busy, "pieces of the workspace are out; reset it when their work is over"});
  }
  if (!lease) {
    return tl::unexpected(
        Error{Errc::invalid_argument, "an empty lease is no workspace; acquire its region first"});
  }
  const std::uint64_t provided = lease.region().bytes;
  if (provided < planned_bytes) {
    return tl::unexpected(too_small("the plan", planned_bytes, provided));
  }
  if (provided > planned_bytes && grant == Grant::exact) {
    return tl::unexpected(Error{Errc::invalid_argument,
                                "a workspace of " + std::to_string(provided) + " bytes where " +
                                    std::to_string(planned_bytes) +
                                    " were planned; allow more, or give what was planned"});
  }
  lease_ = std::move(lease);
  return {};
}

Result<kvspan_range_t> Workspace::take(const WorkspacePiece& piece) {
  if (!lease_) {
    return tl::unexpected(
        Error{Errc::invalid_argument, "no workspace is attached; attach one first"});
  }
  const kvspan_range_t region = lease_.range();
  const auto end = end_of(region.offset + used_, piece);
  if (!end) {
    return tl::unexpected(end.error());
  }
  const std::uint64_t needed = *end - region.offset;
  if (needed > region.bytes) {
    return tl::unexpected(too_small("the next piece", needed, region.bytes));
  }
  used_ = needed;
  return kvspan_range_t{region.memory, *end - piece.bytes, piece.bytes};
}

Lease Workspace::detach() {
  used_ = 0;
  return std::exchange(lease_, Lease());
}

}  // namespace kvspan
