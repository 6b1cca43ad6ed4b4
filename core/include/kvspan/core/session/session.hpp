// SPDX-License-Identifier: Apache-2.0
// A session: sequences whose K/V history is larger than the device arena, attended to exactly. The
// engine steps it: begin_step, then for every layer in order write and attend, then commit. One
// device, one plan, no device allocation after open. Read next: memory/budget.hpp (the plan),
// docs/CODEMAP.md (a byte of K on its way).
#pragma once

#include "kvspan/core/backend/backend.hpp"
#include "kvspan/core/backend/lane.hpp"
#include "kvspan/core/error.hpp"
#include "kvspan/core/memory/budget.hpp"
#include "kvspan/core/session/counters.hpp"
#include "kvspan/core/session/observation.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

namespace kvspan {

using SequenceId = std::uint32_t;

struct SessionState;  // core/session/state.hpp

struct SessionOptions {
  Geometry geometry;
  std::uint64_t context_tokens = 0;  // longest history of a sequence
  std::uint32_t sequences = 1;       // at most, at once
  std::uint32_t prefill_rows_max = 1024;
  std::uint32_t prefill_rows_fixed = 0;  // not 0: exactly this chunk, or refuse
  std::uint32_t decode_rows = 1;         // 1..64
  // Newest tokens that truncate() can always take back. Layers with a window keep as many more
  // behind it; what lies further back is given up. context_tokens or more: nothing is.
  std::uint64_t rewind_tokens = 64;
  std::uint64_t arena_bytes = 0;  // device memory that core may hold, everything counted
  std::uint64_t host_bytes_max = UINT64_MAX;
  kvspan_type_t q_type = KVSPAN_TYPE_F32;
  kvspan_type_t out_type = KVSPAN_TYPE_F32;
  std::uint32_t error_class = KVSPAN_ERROR_E1;
  std::uint32_t attention_options =
      0;  // KVSPAN_OPTION_* that attend() will be given; windows come from geometry
  StreamOptions stream;
  PlacementOptions placement;
  LaneOptions lanes;
  Checks checks = Checks::calls;
};

// Rows of one sequence in a step. All sequences' rows lie behind each other in the engine's row
// buffers.
struct StepRows {
  SequenceId sequence = 0;
  std::uint32_t rows = 0;
};

// The engine's new K and V of one layer: k [row, kv_head, head_size_k], v [row, kv_head,
// head_size_v], K already rotated. Memory belongs to the engine and stays untouched until the
// step's last attend point is reached.
struct WriteRows {
  kvspan_rows_t k{};
  kvspan_rows_t v{};
  std::span<const kvspan_point_t> ready{};  // reached when the rows are; empty = they are there
};

// One layer's queries and outputs: q [row, q_head, head_size_k], out [row, q_head, head_size_v].
struct AttendRows {
  kvspan_rows_t q{};
  kvspan_rows_t out{};
  float scale = 0.0F;
  float soft_cap = 0.0F;    // > 0 with KVSPAN_OPTION_SOFT_CAP
  kvspan_range_t lse{};     // f32 [row, q_head], with KVSPAN_OPTION_LSE
  kvspan_range_t sinks{};   // f32 [q_head], with KVSPAN_OPTION_SINKS
  kvspan_range_t slopes{};  // f32 [q_head], with KVSPAN_OPTION_ALIBI
  std::span<const kvspan_point_t> ready{};
};

// Fills one page of one layer, in the plan's PageLayout; rows past the history's end may hold
// anything. Its error ends the load, and so does what it throws.
using PageSource = std::function<Result<void>(
    std::uint32_t layer, std::uint64_t page, std::span<std::byte> page_bytes)>;

// Thread class: SYNC(session) for everything but cancel(), which is ANY.
// Invariants: between steps every sequence is at a commit; a step that fails or is cancelled leaves
// every sequence at its last commit whose host copies are complete, and the next begin_step works.
// No call throws: where host memory runs out it is Errc::host_memory, where a PageSource throws
// Errc::internal with its words. An open step is over then; without one the call may be tried
// again. Next: ask tokens() and go on from there.
class Session {
 public:
  // Plans, allocates once, prepares the backend. The backend's plugin and device outlive the
  // session. Errors: plan()'s (too small an arena names phase, component, shortfall),
  // device_memory, host_memory.
  [[nodiscard]] static Result<Session> open(const Backend& backend, const SessionOptions& options);

  Session(Session&&) noexcept;
  Session& operator=(Session&&) noexcept;
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;
  ~Session();

  // An empty sequence. Errors: too_large when options.sequences exist.
  [[nodiscard]] Result<SequenceId> add_sequence();

  // Forgets a sequence; waits for work that reads it. Errors: not_found; busy inside a step.
  [[nodiscard]] Result<void> remove_sequence(SequenceId sequence);

  // Gives an empty sequence `tokens` tokens of encoded rows that were kept elsewhere: asks `source`
  // for every page that a later step may see, in all layers (behind a window for none), brings the
  // resident ones to the device and commits. Blocks until
  // they are there. Errors: not_found; busy inside a step; invalid_argument when the sequence has
  // tokens; too_large past the context; host_memory; the source's own; the sequence is empty then.
  [[nodiscard]] Result<void> load(SequenceId sequence,
                                  std::uint64_t tokens,
                                  const PageSource& source);

  // Committed tokens. Errors: not_found.
  [[nodiscard]] Result<std::uint64_t> tokens(SequenceId sequence) const;

  // Drops tokens from the end. Errors: not_found; invalid_argument beyond the end; too_large where
  // a window would see what was given up: `required` are the fewest tokens that can be left, but
  // for 0, which always can be (next: that many, or load what was kept elsewhere); busy inside a
  // step; to 0, where pages were given up, the device's own.
  [[nodiscard]] Result<void> truncate(SequenceId sequence, std::uint64_t tokens);

  // The fewest tokens, but for none, that truncate() leaves a sequence: at most rewind_tokens and a
  // page below its commits, whatever the device's pace. Errors: not_found.
  [[nodiscard]] Result<std::uint64_t> truncation_limit(SequenceId sequence) const;

  // Where phases take turns: gives the arena to a phase, between two steps. Waits for what is in
  // flight, lays out that phase's placement and scratch, and moves no bit. Pages that both phases
  // keep stay; others come when the next step of their sequence begins. begin_step() of the other
  // phase does the same; call this where the time is better, as behind a prompt's last chunk.
  // Nothing where phases lie beside each other, or in the same phase. Errors: busy inside a step;
  // the cause of work that failed before, as begin_step; the phase is the old one then. internal:
  // what failed could not be taken back; end the session.
  [[nodiscard]] Result<void> enter(Phase phase);

  // Starts a step. `phase` is told, not guessed: it chooses the row class, and so the bits. Grows
  // the host history ahead of the step's work, in layers with a window by pages that retired: where
  // more than a step's rows are still on their way down it waits for the oldest. Errors: not_found
  // (no such sequence), invalid_argument (one twice, 0 or too many rows: the message names the
  // limit), too_large (past the context), host_memory, busy (a step is open); or the cause of work
  // that failed behind an earlier commit: then ask tokens() and go on from there.
  [[nodiscard]] Result<void> begin_step(std::span<const StepRows> rows, Phase phase);

  // Encodes a layer's new rows into their tail pages and sends them down to the host. Layers
  // ascend. Errors: invalid_argument (order), nothing happened; the backend's own, cancelled; the
  // step is over then (cancel_step is implied).
  [[nodiscard]] Result<void> write(std::uint32_t layer, const WriteRows& rows);

  // Attends over the whole history, the step's own rows included, after write of the same layer.
  // Returns the point at which `out` is complete: wait for it with wait(), or in the engine's own
  // work, which has settled before the session ends. Errors: as write; invalid_argument for a range
  // of lse that is too small, which leaves the step as it was.
  [[nodiscard]] Result<kvspan_point_t> attend(std::uint32_t layer, const AttendRows& rows);

  // Blocks until a point of attend is reached. Errors: invalid_argument for what no attend of this
  // session returned, wait_failed for a point of work that fell with a failure told before: nothing
  // else happens then; the cause of failed work, cancelled: as write.
  [[nodiscard]] Result<void> wait(const kvspan_point_t& point);

  // Makes the first accepted[i] rows of each sequence visible to later steps, in all layers
  // together. Does not block. Errors: invalid_argument (layers missing, more accepted than
  // written), nothing happened; cancelled, as write: no row was accepted.
  [[nodiscard]] Result<void> commit(std::span<const std::uint32_t> accepted);

  // Gives the open step up: its rows are dead. Nothing without one.
  void cancel_step();

  // Asks everything in flight to stop, from any thread at any time, and returns at once. The
  // running call or the next returns `cancelled`, once, of begin_step, write, attend, wait, commit,
  // load, enter, place and an observe that changes something; others go on. A commit that came
  // before it stands, and the next call tells. The begin_step after that works again.
  // Latency: the call that tells returns when everything in flight has settled, which nothing is
  // added to but the submit that is under way: at most the queues' depth of each lane, the engine's
  // own points that they wait for included, and one submit. A backend that sees cancel words
  // (kvspan_device_info_t.cancel) ends those before they start, or between their items.
  void cancel();

  // Another placement in the arena that is there, between two steps: waits for what is in flight,
  // lays out anew, and moves no bit. Pages that are not in their places any more are copied up when
  // the next step of their sequence begins; those that are resident no longer stream. Errors: busy
  // inside a step; invalid_argument without placement.changes, or what the plan cannot be;
  // device_memory where it does not fit, with what is missing; too_large groups; the cause of work
  // that failed before, as begin_step. On each of them the placement is the old one.
  [[nodiscard]] Result<void> place(const Placement& placement);

  // Tells the policy about the steps since the last call, and changes the placement when it
  // decides so (policy.hpp: never often, never for little). Once a step is enough; a session that
  // is never told keeps its placement. A step is priced for the sequences that there are, as long
  // as they will be half way through the time in which a change must pay; after a step of prefill
  // nothing changes. Errors: as place; invalid_argument where the link is not
  // known or the stream's options fix what the policy would choose; policy_step()'s.
  [[nodiscard]] Result<Decision> observe(const StepObservation& seen);

  // As it is now.
  [[nodiscard]] const Plan& plan() const;
  [[nodiscard]] Counters counters() const;

 private:
  explicit Session(std::unique_ptr<SessionState> state);
  std::unique_ptr<SessionState> state_;
};

// A geometry with its alignments raised to what the backend needs; those that are enough stay.
// Errors: the plugin's, asked for the limits of its copies.
[[nodiscard]] Result<Geometry> aligned_for(const Backend& backend, Geometry geometry);

// What attention a session with these options would ask of a backend: for plan() without opening
// anything. `backend` outlives the lookup.
[[nodiscard]] CapabilityLookup capabilities_of(const Backend& backend,
                                               const SessionOptions& options);

// What a session with these options plans by, but for its arena: as it is, plan() tells the
// minimum. `backend` outlives the request.
[[nodiscard]] PlanRequest plan_request(const Backend& backend, const SessionOptions& options);

// The shape that is asked about for a layer in a phase, for steps that make up to `entries` entries
// of a sequence's rows.
[[nodiscard]] kvspan_attention_shape_t attention_shape(const SessionOptions& options,
                                                       std::size_t layer,
                                                       Phase phase,
                                                       std::uint32_t rows,
                                                       std::uint32_t entries = 1);

}  // namespace kvspan
