// SPDX-License-Identifier: Apache-2.0
// From one stage's memory to the next's, over several consumers and arenas: each step is done by
// all of them before anybody does the next. What fails before activation leaves the old stage
// usable; what fails later is taken back as a whole, or everything is closed. Never half a layout.
// Not the work of a stage, and not what a consumer keeps in its regions.
// Read next: stage_layout.hpp, docs/design/memory.md.
#pragma once

#include "kvspan/core/error.hpp"
#include "kvspan/core/memory/arena.hpp"
#include "kvspan/core/memory/executor.hpp"
#include "kvspan/core/memory/stage_layout.hpp"

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kvspan {

// In this order. Consumers are asked for all but `prepare` (a call of its own) and `commit` (the
// arenas').
enum class TransitionStep : std::uint8_t {
  prepare,
  quiesce,     // close your admission; wait for nothing
  drain,       // wait until your work on the memory is over
  invalidate,  // retire executables that address what changes; save what taking back needs
  release,     // give back the leases of what changes
  commit,
  acquire,  // lease what you need of the other layout
  bind,     // put the addresses where work reads them; make contents
  activate  // open your admission
};

[[nodiscard]] const char* name(TransitionStep step);

enum class TransitionDirection : std::uint8_t {
  forward,  // to the target
  back      // to the former layout, after something failed
};

// One arena and what becomes of its regions. The same in both directions; generations differ.
struct ArenaChange {
  std::uint64_t domain = 0;
  MemoryKind kind = MemoryKind::device;
  Arena* arena = nullptr;
  std::vector<Region> former;
  std::vector<Region> target;

  // Whether the region is the same before and after, persistent: only such a one keeps its leases,
  // its contents and what was captured on it.
  [[nodiscard]] bool stays(const Region& region) const;

  // The regions of both layouts that do not stay, as Executor::retire() wants them.
  [[nodiscard]] std::vector<Binding> changing() const;
};

struct StageChange {
  std::uint64_t stage = 0;  // the target's
  TransitionDirection direction = TransitionDirection::forward;
  std::vector<ArenaChange> arenas;

  // The arena of a kind in a domain; NULL where none is registered.
  [[nodiscard]] const ArenaChange* find(std::uint64_t domain, MemoryKind kind) const;
};

// What a consumer made ready for a change. Destroying it discards what was not put to use.
class Preparation {
 public:
  Preparation() = default;
  Preparation(const Preparation&) = delete;
  Preparation& operator=(const Preparation&) = delete;
  Preparation(Preparation&&) = delete;
  Preparation& operator=(Preparation&&) = delete;
  virtual ~Preparation() = default;

  // One step, forward or back. Going back begins again at `quiesce` and reaches every preparation,
  // however far it came, so each step does what is left to do. May throw.
  [[nodiscard]] virtual Result<void> step(TransitionStep step, const StageChange& change) = 0;

  // Whether the former state can be had again, as far as it is known now. May throw.
  [[nodiscard]] virtual Result<void> can_restore() const = 0;
};

// Somebody who has leases of the arenas. Borrowed; outlives the transition.
class TransitionConsumer {
 public:
  TransitionConsumer() = default;
  TransitionConsumer(const TransitionConsumer&) = delete;
  TransitionConsumer& operator=(const TransitionConsumer&) = delete;
  TransitionConsumer(TransitionConsumer&&) = delete;
  TransitionConsumer& operator=(TransitionConsumer&&) = delete;
  virtual ~TransitionConsumer() = default;

  // For reports; not empty, no two alike.
  [[nodiscard]] virtual std::string_view name() const = 0;

  // Makes ready for a change, leaving what runs as it is; NULL says that the change means nothing
  // here. May throw.
  [[nodiscard]] virtual Result<std::unique_ptr<Preparation>> prepare(const StageChange& change) = 0;
};

struct TransitionArena {
  std::uint64_t domain = 0;
  MemoryKind kind = MemoryKind::device;
  Arena* arena = nullptr;            // borrowed; outlives the transition
  std::uint64_t base_alignment = 0;  // of the parent's first byte; 0: the arena's own
};

enum class TransitionState : std::uint8_t {
  idle,
  executing,
  preparing,
  prepared,
  activating,
  failed,  // closed; recover()
  recovering,
  invalid  // closed for good
};

[[nodiscard]] const char* name(TransitionState state);

enum class Prepared : std::uint8_t { unchanged, ready };

// Where the first thing went wrong. `consumer` is empty where it was an arena or the layout.
struct TransitionFailure {
  TransitionStep step = TransitionStep::prepare;
  TransitionDirection direction = TransitionDirection::forward;
  std::string consumer;
  Error error;
};

struct TransitionData;  // private to core/memory/transition/

// Thread class: SYNC(transition). From inside a consumer every call but cancel() and the const ones
// is Errc::busy.
class Transition {
 public:
  // Errc::invalid_argument: a null or repeated arena or consumer, two arenas of one kind in one
  // domain, a name that is empty or taken, a base alignment that is no power of two.
  [[nodiscard]] static Result<Transition> create(std::vector<TransitionArena> arenas,
                                                 std::vector<TransitionConsumer*> consumers);

  Transition(Transition&&) noexcept;
  Transition& operator=(Transition&&) noexcept;
  Transition(const Transition&) = delete;
  Transition& operator=(const Transition&) = delete;

  // Discards preparations, the last first; arenas stay as they are.
  ~Transition();

  // Begins the work of the present stage, one at a time; returns its number, which only grows.
  // Errc::busy: work is under way, or a change is; finish or cancel it.
  [[nodiscard]] Result<std::uint64_t> admit();

  // Errc::invalid_argument: this work is not under way (any more).
  [[nodiscard]] Result<void> finish(std::uint64_t work);

  // Lays the stage out beside what is kept and lets the consumers, in order, make ready. Everything
  // is copied. `unchanged`: the layout is the committed one and every consumer said so; idle again.
  // Errors: busy; lay_out()'s, without asking a consumer; Errc::unsupported: a region needs a
  // better aligned parent; a consumer's own; Errc::cancelled. Preparations are discarded then, the
  // last first, and the old stage goes on.
  [[nodiscard]] Result<Prepared> prepare(const LiveStage& stage, LayoutSizes sizes);

  // Makes the change. Errc::busy where an arena was meanwhile changed, closed or is being planned:
  // nothing was touched and it is still prepared; mend that and call again, or cancel. Any other
  // error: failed, admission and arenas closed; recover(). Errc::invalid_argument: not prepared.
  [[nodiscard]] Result<void> activate();

  // Takes a failed change back: idle in the former layout. Any error leaves it invalid for good,
  // closed, preparations discarded; the first failure stays the one that is told. Errc::busy: an
  // arena was changed by somebody else and is left alone. Errc::invalid_argument: not failed.
  [[nodiscard]] Result<void> recover();

  // Gives a prepared change up; from inside a consumer, the change under way as soon as that
  // returns (before activation: idle, in it: failed). Errc::invalid_argument: there is none.
  // Errc::busy: it is being taken back, which is not interrupted.
  [[nodiscard]] Result<void> cancel();

  [[nodiscard]] TransitionState state() const;

  // The stage whose layout is committed; 0 before the first.
  [[nodiscard]] std::uint64_t stage() const;

  // Of the newest change, kept until the next prepare().
  [[nodiscard]] const std::optional<TransitionFailure>& failure() const;

 private:
  explicit Transition(std::unique_ptr<TransitionData> data);
  std::unique_ptr<TransitionData> data_;
};

}  // namespace kvspan
