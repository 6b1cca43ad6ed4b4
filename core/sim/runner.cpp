// SPDX-License-Identifier: Apache-2.0
// The session's life, and the end at which everything is read once more and nothing may be left.
#include "runner.hpp"

#include <algorithm>
#include <utility>

namespace kvspan::sim {

namespace {

// Steps in flight whose outputs nobody read yet.
constexpr std::size_t kSets = 3;

}  // namespace

void Tally::add(const Tally& other) {
  steps += other.steps;
  submits += other.submits;
  checked_rows += other.checked_rows;
  streamed_pages += other.streamed_pages;
  failures += other.failures;
  recoveries += other.recoveries;
  cancellations += other.cancellations;
  sessions += other.sessions;
  refused_opens += other.refused_opens;
  placements += other.placements;
  decisions += other.decisions;
  phases += other.phases;
  retired_pages += other.retired_pages;
}

Outcome run(const Scenario& scenario, CallFilter* filter) {
  return Runner(scenario, filter).go();
}

Runner::Runner(const Scenario& scenario, CallFilter* filter)
    : scenario_(scenario), device_(scenario_, trouble_, filter), options_(scenario.session) {}

Runner::~Runner() = default;

// The arena's size, from the planner's own minimum up, and what history may take where that is
// limited: exactly what a refusal asks for.
bool Runner::prepare() {
  const Backend backend = device_.backend();
  PlanRequest request = plan_request(backend, options_);
  request.backend_bytes = prepared_bytes_of(backend, options_);
  const auto least = plan(request);
  request.arena_bytes = 1ULL << 40;
  const auto full = plan(request);
  if (!least || !full) {
    trouble_.report("scenario", (least ? full : least).error().message);
    return false;
  }
  const std::uint64_t minimum = least->minimum_arena_bytes;
  const std::uint64_t most = std::max(minimum, full->total_bytes());
  options_.arena_bytes = minimum + (most - minimum) * scenario_.arena_percent / 100;
  if (scenario_.arena_percent == 0) {
    SessionOptions less = options_;
    --less.arena_bytes;
    (void)refused_amount(less, Errc::device_memory, minimum);
  }
  if (scenario_.host_limit_percent != 0) {
    device_.limit_host_bytes(least->history_bytes * scenario_.host_limit_percent / 100);
  } else if (scenario_.seed % 4 == 1) {
    SessionOptions none = options_;
    none.host_bytes_max = 0;
    options_.host_bytes_max = refused_amount(none, Errc::host_memory, 0);
    --(none.host_bytes_max = options_.host_bytes_max);
    (void)refused_amount(none, Errc::host_memory, options_.host_bytes_max);
  }
  return !stop();
}

// A session that must be refused: what it says it needs, `required` bytes if that is not 0.
std::uint64_t Runner::refused_amount(const SessionOptions& options,
                                     Errc code,
                                     std::uint64_t required) {
  const auto opened = Session::open(device_.backend(), options);
  const bool is_refused = !opened && opened.error().code == code &&
                          (required == 0 || opened.error().required == required);
  if (!is_refused) {
    trouble_.report("budget",
                    "a session with too little was " +
                        (opened ? std::string("opened") : "refused: " + opened.error().message));
  }
  return opened ? UINT64_MAX : opened.error().required;
}

void Runner::open_session() {
  device_.reset_peak();
  auto opened =
      called("open", Strict::no, [&] { return Session::open(device_.backend(), options_); });
  if (!opened && !stop()) {
    ++tally_.refused_opens;
    const std::string left = device_.leaks();
    if (!left.empty()) {
      trouble_.report("leak", "a refused open left " + left);
      return;
    }
    device_.faults = {};
    opened = called("open", Strict::no, [&] { return Session::open(device_.backend(), options_); });
  }
  if (!opened) {
    return;
  }
  ++tally_.sessions;
  session_.emplace(std::move(*opened));
  device_.ring.follow([this] {
    const Plan& plan = session_->plan();
    return RingPlace{plan.regions.resident_bytes, plan.slot_bytes, plan.ring_slots};
  });
  slots_base_ = 0;
  lives_.clear();
  lives_.resize(options_.sequences);
  const std::uint32_t rows =
      options_.sequences * std::max(session_->plan().prefill_rows, session_->plan().decode_rows);
  sets_.resize(kSets);
  for (Set& set : sets_) {
    set.rows = std::make_unique<Rows>(device_, scenario_.session.geometry, rows);
    set.open.clear();
  }
  if (scenario_.engine_queue) {
    make_line(writes_);
    make_line(reads_);
  }
}

void Runner::close_session() {
  device_.drop_timers();
  device_.faults = {};
  drop_line(reads_);  // what waits for points of the session has settled before it ends
  if (session_) {
    const Counters counted = session_->counters();
    tally_.placements += counted.placement_changes;
    tally_.phases += counted.phase_changes;
    tally_.retired_pages += counted.retired_pages;
    session_.reset();
  }
  cancel_pending_ = false;
  doubtful_ = false;
  works_before_ = device_.works_fired;
  old_points_.clear();
  lives_.clear();
  drop_line(writes_);
  sets_.clear();
  device_.open_again();
  const std::string left = device_.leaks();
  if (!left.empty()) {
    trouble_.report("leak", "the session ended and left " + left);
  }
}

void Runner::make_line(EngineLine& line) {
  const Backend backend = device_.backend();
  kvspan_queue_options_t queue_options{};
  queue_options.struct_size = sizeof queue_options;
  device_.engine_calls(true);
  (void)backend.tables().queue->create(backend.device(), &queue_options, &line.queue, nullptr);
  (void)backend.tables().fence->create(backend.device(), 0, &line.fence, nullptr);
  device_.engine_calls(false);
  line.value = 0;
}

void Runner::drop_line(EngineLine& line) {
  if (line.queue == nullptr || stop()) {
    return;
  }
  const Backend backend = device_.backend();
  device_.engine_calls(true);
  device_.empty(*queue_of(line.queue));
  (void)backend.tables().queue->destroy(line.queue, nullptr);
  (void)backend.tables().fence->destroy(line.fence, nullptr);
  device_.engine_calls(false);
  line = {};
}

void Runner::submit_to(EngineLine& line, Call call) {
  Queue& queue = *queue_of(line.queue);
  while (queue.works.size() == queue.depth && !stop()) {
    device_.idle(1000);
  }
  call.signals.push_back({line.fence, ++line.value});
  device_.engine_calls(true);
  kvspan_error_t error = empty_error();
  (void)device_.submit(queue, std::move(call), &error);
  device_.engine_calls(false);
}

// Reads everything, lets one work fail so that what was on the device only is gone, reads again.
void Runner::finale() {
  device_.drop_timers();
  device_.faults = {};
  constexpr int kTries = 4;  // a failure, a cancellation and a recovery may still be in the way
  for (int round = 0; round < kTries && !stop(); ++round) {
    verify();
  }
  if (scenario_.seed % 2 == 0 && !stop()) {
    device_.faults.work_in = 1 + static_cast<std::uint32_t>(scenario_.seed / 2 % 8);
    device_.faults.work_code = KVSPAN_E_FAILED;
    for (int round = 0; round < kTries && !stop(); ++round) {
      verify();
    }
  }
}

// What was planted may hit the new session as it opens.
void Runner::reopen() {
  const Faults planted = device_.faults;
  close_session();
  device_.faults = planted;
  if (!stop()) {
    open_session();
  }
}

Outcome Runner::go() {
  if (prepare()) {
    device_.faults.object_in = scenario_.open_refusal;
    open_session();
  }
  for (op_ = 0; op_ < scenario_.ops.size() && session_ && !stop(); ++op_) {
    operate(scenario_.ops[op_]);
    check_idle();
    if (device_.lost() && op_ % 3 == 0) {  // until then every call says so
      reopen();
    }
  }
  if (session_ && !stop() && !device_.lost()) {
    finale();
  }
  close_session();
  Outcome outcome;
  outcome.checker = trouble_.checker();
  outcome.what = trouble_.what();
  outcome.op = op_;
  tally_.submits = device_.submits;
  tally_.checked_rows = device_.checked_rows;
  outcome.tally = tally_;
  return outcome;
}

}  // namespace kvspan::sim
