// SPDX-License-Identifier: Apache-2.0
// The calls of a Session, each behind one guard: what is thrown inside, out of memory mostly, is an
// error of the call. Read first: calls.hpp.
#include "calls.hpp"

#include "memory/guarded_call.hpp"
#include "state.hpp"

#include <utility>

namespace kvspan {

namespace {

template <class Call>
auto guarded(SessionState& state, const char* doing, Call&& call) -> decltype(call()) {
  const std::uint64_t falls_before = state.falls;
  try {
    return std::forward<Call>(call)();
  } catch (...) {
    return tl::unexpected(state.fail_thrown(thrown_error(doing), falls_before));
  }
}

}  // namespace

Result<Session> Session::open(const Backend& backend, const SessionOptions& options) {
  auto opened =
      guarded_call("opening a session", [&] { return unguarded::open(backend, options); });
  if (!opened) {
    return tl::unexpected(std::move(opened).error());
  }
  return Session(std::move(*opened));
}

Result<SequenceId> Session::add_sequence() {
  return guarded(*state_, "adding a sequence", [&] { return unguarded::add_sequence(*state_); });
}

Result<void> Session::remove_sequence(SequenceId sequence) {
  return guarded(*state_, "removing a sequence", [&] {
    return unguarded::remove_sequence(*state_, sequence);
  });
}

Result<void> Session::truncate(SequenceId sequence, std::uint64_t tokens) {
  return guarded(*state_, "cutting a sequence", [&] {
    return unguarded::truncate(*state_, sequence, tokens);
  });
}

Result<void> Session::load(SequenceId sequence, std::uint64_t tokens, const PageSource& source) {
  return guarded(*state_, "loading a sequence", [&] {
    return unguarded::load(*state_, sequence, tokens, source);
  });
}

Result<void> Session::enter(Phase phase) {
  return guarded(*state_, "entering a phase", [&] { return unguarded::enter(*state_, phase); });
}

Result<void> Session::place(const Placement& placement) {
  return guarded(
      *state_, "changing the placement", [&] { return unguarded::place(*state_, placement); });
}

Result<Decision> Session::observe(const StepObservation& seen) {
  return guarded(*state_, "observing a step", [&] { return unguarded::observe(*state_, seen); });
}

Result<void> Session::begin_step(std::span<const StepRows> rows, Phase phase) {
  return guarded(
      *state_, "beginning a step", [&] { return unguarded::begin_step(*state_, rows, phase); });
}

Result<void> Session::write(std::uint32_t layer, const WriteRows& rows) {
  return guarded(
      *state_, "writing a layer", [&] { return unguarded::write(*state_, layer, rows); });
}

Result<kvspan_point_t> Session::attend(std::uint32_t layer, const AttendRows& rows) {
  return guarded(
      *state_, "attending a layer", [&] { return unguarded::attend(*state_, layer, rows); });
}

Result<void> Session::wait(const kvspan_point_t& point) {
  return guarded(*state_, "waiting", [&] { return unguarded::wait(*state_, point); });
}

Result<void> Session::commit(std::span<const std::uint32_t> accepted) {
  return guarded(
      *state_, "committing a step", [&] { return unguarded::commit(*state_, accepted); });
}

}  // namespace kvspan
