// SPDX-License-Identifier: Apache-2.0
// Cuts a leased region into pieces for one phase's calls: bounded, in order, given up all at once.
// Not an allocator: it never grows by itself and never asks anybody for memory.
// Read next: lease.hpp; what a phase needs is budget.hpp's.
#pragma once

#include "kvspan/core/error.hpp"
#include "kvspan/core/memory/lease.hpp"

#include <cstdint>
#include <span>
#include <utility>

namespace kvspan {

struct WorkspacePiece {
  std::uint64_t bytes = 0;
  std::uint64_t alignment = 1;  // of its offset in the parent; a power of two
};

// Bytes of a region at `offset` that holds these pieces in this order, padding included.
// Errc::invalid_argument: 0 bytes, an alignment that is no power of two. Errc::too_large: past 64
// bits.
[[nodiscard]] Result<std::uint64_t> workspace_bytes(std::span<const WorkspacePiece> pieces,
                                                    std::uint64_t offset = 0);

enum class Grant : std::uint8_t {
  exact,    // the region has exactly the bytes that were planned
  at_least  // it may have more
};

// Invariants: 1. pieces do not overlap, are aligned and lie in the region; 2. a call that fails
// changes nothing; 3. while it is attached the region stays committed where it is.
// Move-only. Thread class: SYNC(workspace). It proves nothing about device work on the pieces.
class Workspace {
 public:
  // Holds nothing.
  Workspace() = default;

  Workspace(Workspace&& other) noexcept
      : lease_(std::move(other.lease_)), used_(std::exchange(other.used_, 0)) {}

  Workspace& operator=(Workspace&& other) noexcept;
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;
  ~Workspace() = default;

  // Takes the lease of a region that was planned with `planned_bytes`; on failure the caller keeps
  // it. Errc::busy: pieces of the present region are out; reset first. Errc::invalid_argument: an
  // empty lease, or with `exact` more bytes than planned. Errc::workspace: fewer bytes; required,
  // provided, missing.
  [[nodiscard]] Result<void> attach(Lease& lease, std::uint64_t planned_bytes, Grant grant);

  // The next piece. Errc::invalid_argument: nothing is attached, or as workspace_bytes().
  // Errc::workspace: it does not fit; required = bytes of the region with which it would.
  [[nodiscard]] Result<kvspan_range_t> take(const WorkspacePiece& piece);

  // Pieces given so far are nobody's any more: their work is over.
  void reset() { used_ = 0; }

  // Gives the lease back to the caller; pieces are nobody's any more. Empty where none is held.
  [[nodiscard]] Lease detach();

  [[nodiscard]] std::uint64_t capacity_bytes() const { return lease_.region().bytes; }

  // From the region's first byte to the end of the last piece.
  [[nodiscard]] std::uint64_t used_bytes() const { return used_; }

 private:
  Lease lease_;
  std::uint64_t used_ = 0;
};

}  // namespace kvspan
