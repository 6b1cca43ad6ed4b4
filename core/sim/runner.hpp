// SPDX-License-Identifier: Apache-2.0
// The engine of a simulation: does a scenario's operations on a session, knows after each what must
// be, and ends by reading everything once more. Private to core/sim. Read next: operations.cpp,
// steps.cpp, after.cpp (what a call's result must be).
#pragma once

#include "kvspan/core/session/session.hpp"
#include "kvspan/sim/run.hpp"

#include "device.hpp"
#include "life.hpp"
#include "rows.hpp"

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace kvspan::sim {

// How an operation wants its step done.
struct StepStyle {
  Phase phase = Phase::decode;
  std::uint32_t rejected = 0;  // rows of each sequence, at most
  std::uint32_t give_up = 0;   // not 0: cancel_step() after so many calls
  bool wait_each_layer = false;
  bool wait_later = false;  // outputs are read when the buffers are needed again
};

class Runner {
 public:
  // Both outlive it; `filter` may be null.
  Runner(const Scenario& scenario, CallFilter* filter);
  ~Runner();
  Runner(const Runner&) = delete;
  Runner& operator=(const Runner&) = delete;
  Runner(Runner&&) = delete;
  Runner& operator=(Runner&&) = delete;

  Outcome go();

 private:
  // A layer's output that was not read yet.
  struct Open {
    std::uint32_t layer = 0;
    kvspan_point_t point{};
  };

  // Buffers of one step, and what is still to be read in them.
  struct Set {
    std::unique_ptr<Rows> rows;
    std::vector<RowsPart> parts;
    std::vector<Open> open;
    bool consumed = false;  // work of the engine's own may still read the outputs
  };

  // A queue of the engine's own, with its timeline.
  struct EngineLine {
    kvspan_queue_t* queue = nullptr;
    kvspan_fence_t* fence = nullptr;
    std::uint64_t value = 0;
  };

  // ---- runner.cpp
  bool prepare();
  std::uint64_t refused_amount(const SessionOptions& options, Errc code, std::uint64_t required);
  void open_session();
  void close_session();
  void reopen();
  void operate(const Op& op);
  void finale();
  void add_sequence();
  void remove_sequence(std::uint32_t who);
  void truncate(const Op& op);
  void load(const Op& op);
  void place(const Op& op);
  void enter(const Op& op);
  bool observe(const Op& op);
  void cancel();
  void misuse(const Op& op);
  void plant(const Op& op);
  void wait_old_point(const Op& op);
  // Waits for a point; false: nothing came of it.
  bool wait(const kvspan_point_t& point);
  [[nodiscard]] Life* life_of(std::uint32_t who);
  void make_line(EngineLine& line);
  void drop_line(EngineLine& line);
  void submit_to(EngineLine& line, Call call);

  // ---- steps.cpp
  void step(const Op& op, bool give_up);
  void verify();
  bool do_step(const std::vector<std::pair<Life*, std::uint32_t>>& parts, const StepStyle& style);
  bool layer_of(std::uint32_t layer, Set& set, const StepStyle& style, std::uint32_t* calls);
  bool read(Set& set);
  // The engine's own work reads outputs behind their point, without the host; and has done so.
  void consume(std::uint32_t layer, Set& set, const kvspan_point_t& point);
  void consumed(Set& set);
  std::optional<kvspan_point_t> fill(std::uint32_t layer, Set& set);
  void commit(const std::vector<std::pair<Life*, std::uint32_t>>& parts,
              const StepStyle& style,
              std::uint32_t generation,
              const Counters& before);
  void check_counted(const std::vector<std::pair<Life*, std::uint32_t>>& parts,
                     const Counters& before);

  // ---- after.cpp
  // Calls the session and judges the answer. What a call must answer that came before it: nothing,
  // a cancellation, or a lost device too.
  enum class Strict { no, cancel, yes };

  template <class Call>
  auto called(const char* name, Strict strict, const Call& call) {
    const Before before{name, strict, cancel_pending_, device_.lost(), cancels_, device_.fired};
    device_.calls = 0;
    calling_ = true;
    auto result = call();
    calling_ = false;
    judge(before, result ? nullptr : &result.error());
    return result;
  }

  struct Before {
    const char* call;
    Strict strict;
    bool cancel_pending;
    bool lost;
    std::uint64_t cancels;
    std::uint64_t fired;
  };

  void judge(const Before& before, const Error* error);
  void check_cancel(const Before& before, bool cancelled);
  void fall(const Before& before, const Error& error);
  void expect_refusal(const char* call, const Result<void>& result, Errc code);
  void check_begun();
  void learn_limits();
  void check_held(const Counters& now);
  void check_idle();
  void check_slots(const Counters& now);

  [[nodiscard]] bool stop() const { return trouble_.found(); }

  const Scenario& scenario_;
  Trouble trouble_;
  Device device_;
  SessionOptions options_;
  std::optional<Session> session_;
  std::vector<std::unique_ptr<Life>> lives_;  // of the open session, by sequence
  std::vector<Set> sets_;
  std::size_t next_set_ = 0;
  std::uint32_t streams_ = 0;
  std::uint32_t generation_ = 0;
  bool cancel_pending_ = false;  // and nobody was told
  bool cancel_twice_ = false;    // somebody was told, and may be told once more
  std::uint64_t cancels_ = 0;
  std::uint64_t works_at_cancel_ = 0;  // that the session may have submitted until it tells
  bool calling_ = false;               // the session is in a call that is judged
  bool doubtful_ = false;              // a recovery may have been left half done
  std::uint64_t works_before_ = 0;     // planted failures of work whose effects are over
  std::vector<kvspan_point_t> old_points_;
  EngineLine writes_;                 // rows
  EngineLine reads_;                  // outputs
  std::uint64_t slots_base_ = 0;      // unread in the device's eyes, that core does not count
  std::uint64_t slots_failures_ = 0;  // of calls, when the base was taken
  std::size_t op_ = 0;
  Tally tally_;
};

}  // namespace kvspan::sim
