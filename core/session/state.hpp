// SPDX-License-Identifier: Apache-2.0
// The inside of a Session: what it holds, and the open step. Private to core/session.
// Read next: session.cpp (life of a session), step.cpp (demand, commit), layer_step.cpp (a layer's
// bytes).
#pragma once

#include "kvspan/core/history/host_pages.hpp"
#include "kvspan/core/history/sequence_history.hpp"
#include "kvspan/core/memory/arena.hpp"
#include "kvspan/core/memory/transition.hpp"
#include "kvspan/core/memory/workspace.hpp"
#include "kvspan/core/session/session.hpp"
#include "kvspan/core/stream/prefetch.hpp"
#include "kvspan/core/stream/row_groups.hpp"
#include "kvspan/core/stream/slot_ring.hpp"
#include "kvspan/core/stream/tail_slots.hpp"

#include "backend/checked_calls.hpp"
#include "session/past_points.hpp"

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

namespace kvspan {

// Regions of the arena. They lie in the order kept, resident, slots, scratch: what keeps its
// contents is placed first.
enum RegionId : std::uint64_t {
  kResidentRegion = 1,  // resident pages that one phase has beside those that all keep
  kSlotsRegion,
  kScratchRegion,  // states, accumulators, workspace
  // Resident pages that stay where they are in every phase. As many other pages are another
  // resource: ids from here on.
  kKeptRegion
};

// Pages [begin, end) of a layer.
struct PageRange {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

inline constexpr PageRange kAllPages{0, UINT64_MAX};

struct Sequence {
  SequenceHistory history;
  std::vector<Hazard> resident;    // [layer, place]: the arena's resident pages of this sequence
  std::vector<PageRange> missing;  // [layer] pages that are not in their resident places
  std::uint64_t filled = 0;        // of the upload lane: behind it came those that were not
  bool live = false;
  std::uint64_t observed_tokens = 0;  // by the last observation, and of prompts since
  double growth_tokens = 0.0;         // of a decode step, as observed
  std::uint32_t rows = 0;             // of its last step; before the first a whole chunk
};

// One sequence's part of the open step.
struct StepPart {
  std::uint32_t sequence = 0;
  std::uint32_t rows = 0;
  std::uint32_t first_row = 0;        // in the engine's row buffers
  std::uint64_t first_token = 0;      // committed tokens when the step began
  std::uint64_t complete_tokens = 0;  // of those, on their way to the host or there
};

// A step's work, under way while this lives.
class StepWork {
 public:
  StepWork() = default;

  StepWork(Transition& transition, std::uint64_t work) : transition_(&transition), work_(work) {}

  StepWork(StepWork&& other) noexcept
      : transition_(std::exchange(other.transition_, nullptr)), work_(other.work_) {}

  StepWork& operator=(StepWork&& other) noexcept {
    std::swap(transition_, other.transition_);
    std::swap(work_, other.work_);
    return *this;
  }

  StepWork(const StepWork&) = delete;
  StepWork& operator=(const StepWork&) = delete;

  ~StepWork() {
    if (transition_ != nullptr) {
      (void)transition_->finish(work_);
    }
  }

 private:
  Transition* transition_ = nullptr;
  std::uint64_t work_ = 0;
};

struct Step {
  StepWork work;
  Phase phase = Phase::decode;
  std::vector<StepPart> parts;
  std::uint32_t layers_written = 0;
  std::uint32_t layers_attended = 0;
  Moment published;      // at which the host has every row that was written
  bool streams = false;  // some layer's pages come up
};

// Where one page lies on the device, and its hazard.
struct DevicePage {
  std::uint64_t offset = 0;  // bytes in the arena's parent
  Hazard* hazard = nullptr;
};

// Rows [first_row, first_row + rows) of one page, appended by a step.
struct PageRows {
  PageKey key;
  DevicePage device;
  std::uint64_t first_row = 0;  // in the page
  std::uint32_t rows = 0;
  std::uint32_t engine_row = 0;  // in the engine's buffers
};

// Slots and places of resident pages as a plan has them, with nothing in them.
struct Places {
  std::unique_ptr<SlotRing> ring;
  std::unique_ptr<TailSlots> tails;
  std::unique_ptr<Prefetcher> prefetch;
  std::vector<std::uint32_t> resident_firsts;  // [layer] index of its first resident hazard
  std::uint32_t resident_count = 0;            // of a sequence
};

class LayerAttention;  // attend.cpp
class Deal;            // deal.hpp
class Turns;           // turns.hpp
class Wave;
struct Tokens;
struct PagePlaces;  // byte_runs.hpp

// Fetched pages that one submit reads at most: what fits_at_once() allows, and what is prepared.
[[nodiscard]] std::uint32_t pages_at_once(const Plan& plan);

// Groups that are one copy where a part is attended at once.
inline constexpr std::uint32_t kAtOnceGroups = 2;

// Runs in which a layer's resident pages lie at most: two where a window rolls in them or where
// phases cut them, three where both.
[[nodiscard]] std::uint32_t resident_runs_max(const SessionOptions& options);

// Further spans that a wave's tail takes where its tiles fill a span's list.
[[nodiscard]] std::uint32_t tail_lists_max(const SessionOptions& options);

// Of the placements that a session may get: what the backend is prepared for.
[[nodiscard]] std::uint32_t group_pages_max(const Plan& plan, const PlacementOptions& options);

// What a backend was asked for a layer in a phase, and its answer.
struct AskedShape {
  kvspan_attention_shape_t shape;
  kvspan_attention_caps_t caps;
};

struct SessionState {
  SessionState(Backend device_backend, SessionOptions session_options);

  SessionState(const SessionState&) = delete;
  SessionState& operator=(const SessionState&) = delete;
  SessionState(SessionState&&) = delete;
  SessionState& operator=(SessionState&&) = delete;
  ~SessionState();

  // ---- session.cpp
  Result<void> lay_out();
  Result<std::uint64_t> prepare_device(const Plan& of);
  Result<void> check_alignment();
  Result<void> make_arena();
  Result<void> make_streams();
  Places places_of(const Plan& of);
  void swap_places(Places& other);
  void make_calls();
  Result<void> recover();
  void replace_lanes(Lanes fresh);
  void give_back_fences();
  Error fail_step(Error error);
  Error fail_thrown(Error error, std::uint64_t falls_before);
  static Error cancelled_or(Error error);
  // cancelled: cancel() was called and nobody was told; the step is over then, as by fail_step().
  Result<void> check_cancelled();
  // not_found: the session has no such sequence. busy: a step is open.
  [[nodiscard]] Result<void> check_sequence(std::uint32_t sequence) const;
  [[nodiscard]] Result<void> check_between_steps() const;

  // ---- load.cpp
  Result<void> check_load(std::uint32_t sequence, std::uint64_t tokens) const;
  Result<void> fill_pages(SequenceHistory& history, std::uint64_t tokens, const PageSource& source);

  // ---- kept.cpp
  [[nodiscard]] Moment reached() const;
  Result<void> retire(SequenceHistory& history, std::uint64_t tokens, Moment& settled);
  [[nodiscard]] std::uint64_t blocks_ahead(std::size_t of_class) const;
  [[nodiscard]] std::uint64_t blocks_max(std::size_t of_class) const;
  void reserve_blocks();
  void reserve_ahead();
  void reserve_beside(std::uint32_t layer);
  Result<HostPage> host_page(std::uint32_t sequence, std::uint32_t layer, std::uint64_t page) const;

  // ---- resident.cpp
  [[nodiscard]] bool rolls(std::size_t layer) const;
  [[nodiscard]] std::uint64_t resident_end(std::size_t layer) const;
  DevicePage resident_page(std::uint32_t sequence, std::uint32_t layer, std::uint64_t page);
  void note_rolled(std::uint32_t sequence, std::size_t layer, std::uint64_t page);
  Result<void> bring_resident(std::uint32_t sequence, std::uint32_t layer, PageRange pages);
  Result<void> refill(std::uint32_t sequence);
  PageRange wanted(std::uint32_t sequence, std::uint32_t layer) const;

  // ---- place.cpp
  Result<void> place(const Placement& placement);
  Result<void> enter(Phase phase);
  Result<void> settled_or(Result<void> changed);

  // ---- observe.cpp
  Result<void> count_link(const StepObservation& seen);
  Result<Decision> observe(const StepObservation& seen);
  void observe_growth();
  [[nodiscard]] Observation observation_of(const StepObservation& seen) const;
  [[nodiscard]] bool fits(Placement& wanted) const;
  [[nodiscard]] Pool pool_of(const StepLoad& load) const;

  // ---- demand.cpp
  std::vector<RowGroup> groups_of(std::uint32_t layer, const StepPart& part, Phase phase) const;
  std::uint64_t order_split_tokens(std::uint32_t layer, const StepPart& part, Phase phase) const;
  [[nodiscard]] std::uint32_t copied_pages(std::size_t units) const;
  std::vector<PageGroup> demanded(const std::vector<StepPart>& parts,
                                  Phase phase,
                                  std::size_t enough) const;
  std::vector<PageGroup> demanded_next(const Step& of) const;
  std::uint64_t first_visible_token(std::size_t layer, std::uint64_t first_token) const;
  std::uint64_t first_visible_page(std::size_t layer, std::uint64_t first_token) const;

  // ---- step.cpp
  Result<void> check_health();
  Error fail_behind(Error error);
  Result<void> check_step(std::span<const StepRows> rows, Phase phase) const;
  void add_part(std::vector<kvspan_segment_t>& segments,
                const PageLayout& layout,
                const PageUnit& unit,
                const PagePlaces& places) const;
  Result<std::uint64_t> fetch(const PageGroup& group, const std::vector<std::uint32_t>& slots);
  void drop_primed();

  // ---- layer_step.cpp
  Result<DevicePage> tail_page(const StepPart& part, std::uint32_t layer, std::uint64_t page);
  Result<void> refetch_tail(const PageKey& key, std::uint32_t slot, std::uint64_t rows);
  DevicePage device_page(const PageKey& key, std::uint32_t slot);
  Result<std::uint64_t> copy(LaneId lane,
                             const Waits& waits,
                             const std::vector<kvspan_segment_t>& segments);
  Result<std::vector<PageRows>> pages_to_write(std::uint32_t layer);
  Result<std::uint64_t> encode(std::uint32_t layer,
                               const WriteRows& rows,
                               const std::vector<PageRows>& pages);
  [[nodiscard]] LaneId publishing_lane() const;
  Result<Moment> publish(std::uint32_t layer, const std::vector<PageRows>& pages);
  Result<void> write_layer(std::uint32_t layer, const WriteRows& rows);

  // ---- pieces.cpp
  [[nodiscard]] PageRange streamed_pages(std::uint32_t layer, const StepPart& part) const;
  [[nodiscard]] bool streams(std::uint32_t layer, const StepPart& part) const;
  [[nodiscard]] PageRange resident_range(std::uint32_t layer, const StepPart& part) const;
  [[nodiscard]] PageRange tail_range(std::uint32_t layer, const StepPart& part) const;
  void add_resident(Wave& wave, std::uint32_t layer, const StepPart& part);
  void map_resident(Wave& wave, std::uint32_t layer, const StepPart& part, const PageRange& pages);
  void meet_resident(Wave& wave, std::uint32_t layer, const StepPart& part, const Tokens& tokens);
  void add_groups(Wave& wave, std::span<const FetchedGroup> fetched);
  Result<void> add_tail(Wave& wave, std::uint32_t layer, const StepPart& part);
  void read_resident(std::uint32_t layer, const StepPart& part, std::uint64_t value);
  void read_tail(std::uint32_t layer, const StepPart& part, std::uint64_t value);

  // ---- attend.cpp
  [[nodiscard]] Wave wave_of(std::uint32_t layer, std::size_t slots_max) const;
  [[nodiscard]] Result<void> check_own(const kvspan_point_t& point) const;
  [[nodiscard]] bool fits_at_once(std::uint32_t layer, const PartAhead& ahead) const;
  Result<std::uint64_t> attend_at_once(LayerAttention& attention,
                                       std::uint32_t layer,
                                       const StepPart& part);
  [[nodiscard]] std::optional<Deal> dealt(const LayerAttention& attention,
                                          std::uint32_t layer,
                                          const StepPart& part,
                                          std::uint64_t waves) const;
  Result<void> attend_resident(LayerAttention& attention,
                               std::uint32_t layer,
                               const StepPart& part);
  Result<std::uint64_t> attend_wave(LayerAttention& attention,
                                    std::uint32_t layer,
                                    const StepPart& part,
                                    const FetchedGroup& fetched,
                                    std::optional<Deal>& deal);
  Result<std::uint64_t> attend_in_waves(LayerAttention& attention,
                                        std::uint32_t layer,
                                        const StepPart& part,
                                        std::uint64_t waves);
  Result<std::uint64_t> attend_sequence(std::uint32_t layer,
                                        const AttendRows& rows,
                                        const StepPart& part);

  [[nodiscard]] std::uint32_t page_tokens() const { return options.geometry.page_tokens; }

  [[nodiscard]] std::uint32_t phase_rows(Phase phase) const {
    return phase == Phase::prefill ? plan.prefill_rows : plan.decode_rows;
  }

  // What a call of `run` may use: states and accumulators of split calls included, which are never
  // in use then.
  [[nodiscard]] kvspan_range_t run_workspace() const {
    return {parent, states.offset, plan.regions.scratch_bytes()};
  }

  [[nodiscard]] const AskedShape& asked(std::uint32_t layer, Phase phase) const {
    return phase == Phase::prefill ? prefill_shapes[layer] : decode_shapes[layer];
  }

  Backend backend;
  SessionOptions options;
  Plan plan;
  kvspan_copy_limits_t limits{};
  std::uint64_t prepared_device_bytes = 0;
  std::vector<AskedShape> prefill_shapes;  // [layer]
  std::vector<AskedShape> decode_shapes;   // [layer]

  std::optional<Arena> arena;
  Lease kept_lease;
  Lease resident_lease;
  Lease slots_lease;
  Workspace scratch;
  kvspan_range_t states{};  // pieces of scratch
  kvspan_range_t accumulators{};
  kvspan_range_t workspace{};
  kvspan_memory_t* parent = nullptr;

  std::optional<CheckedCalls> calls;
  std::optional<HostPages> host;
  std::vector<Sequence> sequences;  // [SequenceId]
  std::unique_ptr<SlotRing> ring;
  std::unique_ptr<TailSlots> tails;
  std::unique_ptr<Prefetcher> prefetch;
  std::vector<std::uint32_t> resident_firsts;  // [layer] index of the layer's first resident hazard
  std::unique_ptr<Turns> turns;
  const Plan* next_plan = nullptr;  // of the change under way
  std::optional<Step> step;
  bool failed = false;
  PastPoints past_points;
  std::uint64_t recoveries = 0;
  std::uint64_t falls = 0;           // sequences that lost commits in a recovery, in all
  Phase last_phase = Phase::decode;  // of the last step
  std::uint64_t groups_attended = 0;
  std::uint64_t groups_observed = 0;  // of those, told the policy
  std::uint64_t decode_steps = 0;     // since the last observation
  std::uint64_t untrue_observations = 0;
  LinkCounters link_counters;
  PolicyState policy;
  Counters counters;

  // cancel() against recover(): who may name the lanes now. Never held over a call of the backend.
  mutable std::mutex lanes_mutex;
  std::optional<Lanes> lanes;
  std::vector<kvspan_fence_t*> named_fences;  // of lanes before, that work of the engine waits for
  std::atomic<bool> cancel_untold{false};     // cancel() was called, and no call has said so yet
};

}  // namespace kvspan
