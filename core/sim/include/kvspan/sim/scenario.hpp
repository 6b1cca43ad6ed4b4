// SPDX-License-Identifier: Apache-2.0
// What a seed makes: a device, a session and what an engine does with it, as plain values that can
// be cut and reduced (shrink.hpp). Read next: run.hpp.
#pragma once

#include "kvspan/core/session/session.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace kvspan::sim {

// What the simulated device is like.
struct DeviceTraits {
  std::uint32_t granule = 1;
  std::uint32_t decode_splits = 4;
  std::uint32_t prefill_splits = 2;
  std::uint32_t state_alignment = 16;
  std::uint32_t memory_alignment = 16;
  std::uint32_t copy_alignment = 1;  // of offsets and bytes
  std::uint32_t workspace_bytes = 0;
  std::uint32_t prepared_bytes = 0;        // that prepare() takes for itself
  std::uint32_t prepared_entry_bytes = 0;  // and for each entry of a page list or a copy
  std::uint32_t depth = 64;
  std::uint32_t host_call_ns = 0;  // time that passes with every call; 0 = only waiting takes time
  std::uint32_t copy_ns = 100;     // usual time of a submit
  std::uint32_t copy_kib_ns = 0;   // and for each KiB that it copies
  std::uint32_t compute_ns = 100;
  std::uint32_t cancel_percent = 100;  // of works that see a set cancel word and stop
  std::uint32_t aliased = 0;           // 1: all roles share one in-order line of work; 2: copies do
  bool imports = false;                // host pages of the caller can be used
  bool undefined_on_failure = true;    // failed work spoils its destinations
};

enum class OpKind : std::uint8_t {
  step,             // who: sequences, rows, how: phase and waits, extra: rejected rows
  truncate,         // who, rows: how far
  add_sequence,     //
  remove_sequence,  // who
  load,             // who, rows
  verify,           // a decode step of every sequence whose rows are all rejected
  abandon,          // a step that is given up after `extra` calls
  cancel,           // now, between two calls
  cancel_later,     // from another thread, `rows` nanoseconds from now
  refuse_submit,    // the rows-th submit from now returns an error
  fail_work,        // the rows-th submit from now fails behind its signal; with `extra` at
                    // kOnlyPublications the rows-th copy to the host
  lose_device,      // the rows-th submit from now loses it; the engine ends the session and opens
                    // another
  refuse_object,    // the rows-th memory, queue or fence from now is refused
  misuse,           // a call out of order, which must change nothing
  idle,             // the host does other things for `rows` nanoseconds
  old_point,        // waits for a point of an earlier step
  reopen,           // the session ends and begins again
  place,            // another placement: rows, how, extra say which
  enter,            // how: a phase, ahead of its step
};
inline constexpr std::size_t kOpKindCount = 19;
inline constexpr std::uint32_t kOnlyPublications = 64;

[[nodiscard]] const char* name(OpKind kind);

// Numbers are taken modulo what there is when the operation runs, so that every cut of a scenario
// is a scenario.
struct Op {
  OpKind kind = OpKind::step;
  std::uint32_t who = 0;
  std::uint32_t rows = 0;
  std::uint32_t how = 0;
  std::uint32_t extra = 0;
};

struct Scenario {
  std::uint64_t seed = 0;
  bool arithmetic = false;  // real numbers against an oracle, instead of tags
  DeviceTraits device;
  SessionOptions session;                // without arena_bytes
  std::uint32_t arena_percent = 0;       // from the minimum (0) to everything resident (100)
  std::uint32_t host_limit_percent = 0;  // of the whole history: more the machine has no memory
                                         // for, whatever the options allow; 0 = it has
  std::uint32_t open_refusal = 0;  // not 0: the so-manieth object of the first open is refused
  bool engine_queue = false;       // rows come from the engine's own queue, behind points
  std::vector<Op> ops;
};

// The scenario of a seed.
[[nodiscard]] Scenario scenario_of(std::uint64_t seed);

// The scenario in lines of text, for a person.
[[nodiscard]] std::string text(const Scenario& scenario);

}  // namespace kvspan::sim
