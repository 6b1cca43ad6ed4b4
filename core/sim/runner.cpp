// SPDX-License-Identifier: Apache-2.0
// Operations of a scenario, the session's life, and the end at which everything is read once more
// and nothing may be left.
#include "runner.hpp"

#include <algorithm>
#include <utility>

namespace kvspan::sim {

namespace {

// Steps in flight whose outputs nobody read yet.
constexpr std::size_t kSets = 3;

PlanRequest plan_request(const SessionOptions& options, const Backend& backend) {
  PlanRequest request;
  request.geometry = options.geometry;
  request.context_tokens = options.context_tokens;
  request.sequences = options.sequences;
  request.prefill_rows_max = options.prefill_rows_max;
  request.prefill_rows_fixed = options.prefill_rows_fixed;
  request.decode_rows = options.decode_rows;
  request.capabilities = capabilities_of(backend, options);
  request.stream = options.stream;
  return request;
}

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
}

Outcome run(const Scenario& scenario, CallFilter* filter) {
  return Runner(scenario, filter).go();
}

Runner::Runner(const Scenario& scenario, CallFilter* filter)
    : scenario_(scenario), device_(scenario_, trouble_, filter), options_(scenario.session) {}

Runner::~Runner() = default;

// The arena's size, from the planner's own minimum up.
bool Runner::prepare() {
  PlanRequest request = plan_request(options_, device_.backend());
  const auto least = plan(request);
  request.arena_bytes = 1ULL << 40;
  const auto full = plan(request);
  if (!least || !full) {
    trouble_.report("scenario", (least ? full : least).error().message);
    return false;
  }
  const std::uint64_t minimum = least->minimum_arena_bytes;
  const std::uint64_t most = std::max(minimum, full->regions.total_bytes());
  options_.arena_bytes =
      minimum + (most - minimum) * scenario_.arena_percent / 100 + scenario_.device.prepared_bytes;
  if (scenario_.host_limit_percent != 0) {
    options_.host_bytes_max = least->history_bytes * scenario_.host_limit_percent / 100;
  }
  return true;
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
    make_engine_queue();
  }
}

void Runner::close_session() {
  device_.drop_timers();
  device_.faults = {};
  if (session_) {
    session_.reset();
  }
  cancel_pending_ = false;
  doubtful_ = false;
  works_before_ = device_.works_fired;
  old_points_.clear();
  lives_.clear();
  drop_engine_queue();
  sets_.clear();
  const std::string left = device_.leaks();
  if (!left.empty()) {
    trouble_.report("leak", "the session ended and left " + left);
  }
}

void Runner::make_engine_queue() {
  const Backend backend = device_.backend();
  kvspan_queue_options_t queue_options{};
  queue_options.struct_size = sizeof queue_options;
  device_.engine_calls(true);
  (void)backend.tables().queue->create(backend.device(), &queue_options, &engine_queue_, nullptr);
  (void)backend.tables().fence->create(backend.device(), 0, &engine_fence_, nullptr);
  device_.engine_calls(false);
  engine_value_ = 0;
}

void Runner::drop_engine_queue() {
  if (engine_queue_ == nullptr || stop()) {
    return;
  }
  const Backend backend = device_.backend();
  device_.engine_calls(true);
  const kvspan_point_t last{engine_fence_, engine_value_};
  (void)device_.wait({&last, 1}, UINT64_MAX, nullptr);
  (void)backend.tables().queue->destroy(engine_queue_, nullptr);
  (void)backend.tables().fence->destroy(engine_fence_, nullptr);
  device_.engine_calls(false);
  engine_queue_ = nullptr;
  engine_fence_ = nullptr;
}

Life* Runner::life_of(std::uint32_t who) {
  std::vector<Life*> living;
  for (const auto& life : lives_) {
    if (life != nullptr) {
      living.push_back(life.get());
    }
  }
  return living.empty() ? nullptr : living[who % living.size()];
}

void Runner::add_sequence() {
  const auto living = static_cast<std::size_t>(std::count_if(
      lives_.begin(), lives_.end(), [](const auto& life) { return life != nullptr; }));
  const auto added = session_->add_sequence();
  if (living == lives_.size()) {
    expect_refusal(
        "add_sequence", added ? Result<void>{} : tl::unexpected(added.error()), Errc::too_large);
  } else if (!added || *added >= lives_.size() || lives_[*added] != nullptr) {
    trouble_.report("unexpected", "add_sequence gave no free number");
  } else {
    lives_[*added] = std::make_unique<Life>(*added, ++streams_);
  }
}

void Runner::remove_sequence(std::uint32_t who) {
  Life* const life = life_of(who);
  if (life == nullptr) {
    return;
  }
  for (Set& set : sets_) {
    if (!read(set)) {
      return;
    }
  }
  const SequenceId sequence = life->sequence();
  if (called("remove_sequence", Strict::no, [&] { return session_->remove_sequence(sequence); })) {
    lives_[sequence].reset();
  }
}

void Runner::truncate(const Op& op) {
  Life* const life = life_of(op.who);
  if (life == nullptr) {
    return;
  }
  const std::uint64_t tokens = life->tokens() - op.rows % (life->tokens() + 1);
  if (called(
          "truncate", Strict::no, [&] { return session_->truncate(life->sequence(), tokens); })) {
    life->truncate(tokens);
    if (device_.filter() != nullptr) {
      device_.filter()->on_truncate();
    }
  }
}

void Runner::load(const Op& op) {
  Life* const life = life_of(op.who);
  if (life == nullptr || life->tokens() != 0) {
    return;
  }
  const std::uint64_t tokens = 1 + op.rows % options_.context_tokens;
  const std::uint32_t generation = ++generation_;
  const PageSource source =
      [&](std::uint32_t layer, std::uint64_t page, std::span<std::byte> bytes) -> Result<void> {
    device_.host_access_at(bytes.data(), bytes.size(), true);
    write_page(options_.geometry,
               scenario_.arithmetic,
               life->stream(),
               generation,
               layer,
               page,
               tokens,
               bytes);
    return {};
  };
  if (called(
          "load", Strict::yes, [&] { return session_->load(life->sequence(), tokens, source); })) {
    life->load(tokens, generation);
    doubtful_ = false;
  }
}

void Runner::cancel() {
  if (session_) {
    cancel_pending_ = true;
    ++cancels_;
    session_->cancel();
  }
}

// Calls that must be refused and change nothing.
void Runner::misuse(const Op& op) {
  const std::uint64_t beyond = options_.context_tokens + 1;
  switch (op.how % 6) {
    case 0:
      expect_refusal("write outside a step", session_->write(0, {}), Errc::invalid_argument);
      return;
    case 1:
      expect_refusal("commit outside a step", session_->commit({}), Errc::invalid_argument);
      return;
    case 2: {
      const auto point = session_->attend(0, {});
      expect_refusal("attend outside a step",
                     point ? Result<void>{} : tl::unexpected(point.error()),
                     Errc::invalid_argument);
      return;
    }
    case 3:
      if (Life* const life = life_of(op.who)) {
        expect_refusal("truncate beyond the end",
                       session_->truncate(life->sequence(), life->tokens() + 1),
                       Errc::invalid_argument);
      }
      return;
    case 4:
      expect_refusal(
          "remove_sequence of none", session_->remove_sequence(UINT32_MAX), Errc::not_found);
      return;
    default:
      if (Life* const life = life_of(op.who); life != nullptr && life->tokens() == 0) {
        const auto source = [](std::uint32_t, std::uint64_t, std::span<std::byte>) {
          return Result<void>{};
        };
        expect_refusal("load past the context",
                       session_->load(life->sequence(), beyond, source),
                       Errc::too_large);
      }
      return;
  }
}

void Runner::plant(const Op& op) {
  constexpr kvspan_result_t kCodes[] = {
      KVSPAN_E_INTERNAL, KVSPAN_E_DEVICE_MEMORY, KVSPAN_E_HOST_MEMORY, KVSPAN_E_FAILED};
  const kvspan_result_t code = kCodes[op.how % 4];
  if (op.kind == OpKind::refuse_submit) {
    device_.faults.submit_in = 1 + op.rows;
    device_.faults.submit_code = code;
  } else if (op.kind == OpKind::fail_work) {
    device_.faults.work_in = 1 + op.rows;
    device_.faults.work_code = code;
  } else {
    device_.faults.object_in = 1 + op.rows;
  }
}

bool Runner::wait(const kvspan_point_t& point) {
  const bool may_be_gone = tally_.recoveries != 0 || doubtful_ || tally_.failures != 0;
  bool gone = false;
  const auto waited = called("wait", Strict::no, [&]() -> Result<void> {
    auto result = session_->wait(point);
    // It fell with a failure that was told.
    gone = !result && result.error().code == Errc::wait_failed &&
           result.error().message.find("given up") != std::string::npos;
    return gone && may_be_gone ? Result<void>{} : std::move(result);
  });
  return waited.has_value() && !gone;
}

// A point of an earlier step: reached or failed, and the session says so.
void Runner::wait_old_point(const Op& op) {
  if (old_points_.empty()) {
    return;
  }
  (void)wait(old_points_[op.rows % old_points_.size()]);
}

void Runner::operate(const Op& op) {
  switch (op.kind) {
    case OpKind::step:
      return step(op, false);
    case OpKind::abandon:
      return step(op, true);
    case OpKind::truncate:
      return truncate(op);
    case OpKind::add_sequence:
      return add_sequence();
    case OpKind::remove_sequence:
      return remove_sequence(op.who);
    case OpKind::load:
      return load(op);
    case OpKind::verify:
      return verify();
    case OpKind::cancel:
      return cancel();
    case OpKind::cancel_later:
      return device_.after(op.rows, [this] { cancel(); });
    case OpKind::refuse_submit:
    case OpKind::fail_work:
    case OpKind::refuse_object:
      return plant(op);
    case OpKind::misuse:
      return misuse(op);
    case OpKind::idle:
      return device_.idle(op.rows);
    case OpKind::old_point:
      return wait_old_point(op);
    case OpKind::reopen:
      reopen();
      return;
  }
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
  device_.faults.object_in = scenario_.open_refusal;
  if (prepare()) {
    open_session();
  }
  for (op_ = 0; op_ < scenario_.ops.size() && session_ && !stop(); ++op_) {
    operate(scenario_.ops[op_]);
    check_idle();
  }
  if (session_ && !stop()) {
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
