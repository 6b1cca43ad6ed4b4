// SPDX-License-Identifier: Apache-2.0
// From a seed to a scenario. Small numbers on purpose: what is wrong shows where pages, splits and
// rings are few and steps many.
#include "kvspan/sim/scenario.hpp"

#include "kvspan/sim/random.hpp"

#include <algorithm>

namespace kvspan::sim {

namespace {

// One in this many seeds computes with real numbers.
constexpr std::uint64_t kArithmeticEvery = 50;

// Whether a seed's phases take turns: two in eight do, which leaves the scenarios of recorded seeds
// what they were.
bool turns(std::uint64_t seed) {
  return seed % 8 == 5 || seed % 8 == 7;
}

DeviceTraits traits_of(Random& random) {
  DeviceTraits traits;
  traits.granule = random.one_of({1U, 1U, 2U, 4U, 8U});
  traits.decode_splits = random.between(1, 6);
  traits.prefill_splits = random.between(1, 4);
  traits.state_alignment = random.one_of({16U, 16U, 64U, 256U});
  traits.memory_alignment = random.one_of({16U, 64U, 256U});
  traits.copy_alignment = random.one_of({1U, 1U, 1U, 4U, 16U});
  traits.workspace_bytes = random.percent(30) ? 16 * random.between(1, 40) : 0;
  traits.prepared_bytes = random.percent(30) ? random.between(1, 5000) : 0;
  traits.depth = random.one_of({1U, 2U, 4U, 16U, 64U, 64U});
  traits.host_call_ns = random.one_of({0U, 10U, 200U, 5000U});
  traits.copy_ns = random.one_of({1U, 100U, 100U, 1000U});
  traits.compute_ns = random.one_of({1U, 100U, 100U, 1000U});
  traits.cancel_percent = random.one_of({0U, 30U, 100U});
  traits.aliased = random.one_of({0U, 0U, 0U, 1U, 2U});
  traits.imports = random.percent(20);
  traits.undefined_on_failure = random.percent(70);
  return traits;
}

LayerGeometry layer_of(Random& random) {
  struct Kind {
    kvspan_type_t type;
    std::uint32_t sizes[2];
  };

  constexpr Kind kKinds[] = {{KVSPAN_TYPE_F16, {8, 16}},
                             {KVSPAN_TYPE_F32, {4, 8}},
                             {KVSPAN_TYPE_BF16, {8, 24}},
                             {KVSPAN_TYPE_Q8_0, {32, 32}},
                             {KVSPAN_TYPE_Q4_0, {32, 64}}};
  const Kind k = kKinds[random.below(5)];
  const Kind v = kKinds[random.below(5)];
  LayerGeometry layer;
  layer.k_type = k.type;
  layer.head_size_k = k.sizes[random.below(2)];
  layer.v_type = v.type;
  layer.head_size_v = v.sizes[random.below(2)];
  if (random.percent(15)) {
    layer.v_in_k = true;
    layer.v_type = layer.k_type;
    layer.head_size_v = layer.head_size_k;
  }
  layer.kv_heads = random.between(1, 2);
  layer.q_heads = layer.kv_heads * random.between(1, 2);
  layer.window_tokens = random.percent(20) ? random.between(1, 40) : 0;
  return layer;
}

SessionOptions session_of(Random& random, const DeviceTraits& traits, bool arithmetic) {
  SessionOptions options;
  const std::uint32_t layers = random.between(1, arithmetic ? 2 : 4);
  const LayerGeometry common = layer_of(random);
  for (std::uint32_t layer = 0; layer < layers; ++layer) {
    options.geometry.layers.push_back(random.percent(50) ? common : layer_of(random));
  }
  options.geometry.page_tokens = traits.granule * random.one_of({1U, 2U, 3U, 4U, 8U});
  options.geometry.page_tokens = std::min(options.geometry.page_tokens, 4 * traits.granule + 8);
  options.geometry.page_tokens -= options.geometry.page_tokens % traits.granule;
  options.geometry.alignment = std::max({traits.memory_alignment, traits.copy_alignment, 16U});
  options.geometry.row_alignment = traits.copy_alignment;
  options.context_tokens = random.between(8, arithmetic ? 60 : 160);
  options.sequences = random.one_of({1U, 1U, 2U, 3U});
  options.prefill_rows_max = random.between(1, 24);
  options.prefill_rows_fixed = random.percent(40) ? options.prefill_rows_max : 0;
  options.decode_rows = random.one_of({1U, 1U, 2U, 5U});
  options.error_class = KVSPAN_ERROR_E0;
  options.stream.group_pages = random.percent(50) ? random.between(1, 5) : 0;
  if (random.percent(20)) {
    options.stream.resident_pages_max = random.between(0, 3);
  }
  if (random.percent(20)) {
    options.stream.gap_ns = 1000;
    options.stream.link_bytes_s = 1'000'000'000;
  }
  options.lanes.waits = random.percent(25) ? WaitMode::strict : WaitMode::normal;
  options.checks = random.percent(25) ? Checks::calls : Checks::none;
  options.geometry.tile_tokens_max = random.one_of({1U, 2U, 8U, 64U});
  return options;
}

// Short windows that a long history leaves far behind, by small steps.
void outlive_windows(Random& random, SessionOptions& options) {
  for (LayerGeometry& layer : options.geometry.layers) {
    layer.window_tokens = random.percent(70) ? random.between(1, 20) : layer.window_tokens;
  }
  options.context_tokens = random.between(100, 400);
  options.prefill_rows_max = random.between(1, 8);
  options.prefill_rows_fixed = random.percent(40) ? options.prefill_rows_max : 0;
  options.rewind_tokens = random.one_of({0U, 0U, 1U, 5U, 30U});
}

// Other placements among the operations, at any time.
void move_about(Random& random, Scenario& scenario) {
  scenario.session.placement.changes = true;
  if (random.percent(40)) {  // the policy's to choose
    scenario.session.stream = {};
    scenario.session.stream.link_bytes_s = 1'000'000'000;
    scenario.session.stream.gap_ns = random.one_of({0U, 1000U, 20000U});
    scenario.session.placement.measures_copies = random.percent(50);
  }
  for (std::uint32_t count = random.between(1, 12); count != 0; --count) {
    const Op op{OpKind::place,
                0,
                static_cast<std::uint32_t>(random.below(1U << 20)),
                static_cast<std::uint32_t>(random.below(128)),
                static_cast<std::uint32_t>(random.below(64))};
    const auto at = static_cast<std::ptrdiff_t>(random.below(scenario.ops.size()));
    scenario.ops.insert(scenario.ops.begin() + at + 1, op);
  }
}

// Windows that lie on the device, and steps in flight when something takes them back: a copy to the
// host that fails, or a truncation. Copies are slow and nobody waits for them, so that a page
// leaves its window, or has another in its place, before the rows that did that have come to the
// host.
void take_back_in_flight(Random& random, Scenario& scenario) {
  const bool fails = random.percent(50);
  scenario.session.rewind_tokens = fails ? 0 : random.between(5, 60);
  scenario.arena_percent = random.between(fails ? 20 : 85, 100);
  scenario.device.copy_ns = random.one_of({1000U, 10000U});
  scenario.device.compute_ns = 100;
  scenario.device.host_call_ns = random.one_of({10U, 200U});
  scenario.device.depth = 64;
  for (std::uint32_t count = fails ? random.between(1, 3) : random.between(3, 8); count != 0;
       --count) {
    std::vector<Op> ops;
    const auto steps = [&](std::uint32_t more) {
      for (; more != 0; --more) {  // prefill, nothing rejected, outputs are read later
        ops.push_back({OpKind::step, 0, static_cast<std::uint32_t>(random.below(1024)), 3, 1});
      }
    };
    steps(random.between(1, 3));
    ops.push_back(fails ? Op{OpKind::fail_work, 0, random.between(0, 7), 0, kOnlyPublications}
                        : Op{OpKind::truncate, random.between(0, 2), random.between(1, 20), 0, 0});
    steps(random.between(2, 4));
    const auto at = static_cast<std::ptrdiff_t>(random.below(scenario.ops.size()));
    scenario.ops.insert(scenario.ops.begin() + at + 1, ops.begin(), ops.end());
  }
}

// Prefill and decode have the arena in turns, and are entered at any time.
void take_turns(Random& random, Scenario& scenario) {
  scenario.session.placement.phases_take_turns = true;
  for (std::uint32_t count = random.between(1, 12); count != 0; --count) {
    const Op op{OpKind::enter, 0, 0, static_cast<std::uint32_t>(random.below(128)), 0};
    const auto at = static_cast<std::ptrdiff_t>(random.below(scenario.ops.size()));
    scenario.ops.insert(scenario.ops.begin() + at + 1, op);
  }
}

OpKind kind_of(Random& random) {
  struct Weight {
    OpKind kind;
    std::uint32_t weight;
  };

  constexpr Weight kWeights[] = {{OpKind::step, 60},
                                 {OpKind::truncate, 8},
                                 {OpKind::add_sequence, 3},
                                 {OpKind::remove_sequence, 3},
                                 {OpKind::load, 5},
                                 {OpKind::verify, 2},
                                 {OpKind::abandon, 4},
                                 {OpKind::cancel, 2},
                                 {OpKind::cancel_later, 3},
                                 {OpKind::refuse_submit, 3},
                                 {OpKind::fail_work, 3},
                                 {OpKind::lose_device, 1},
                                 {OpKind::refuse_object, 1},
                                 {OpKind::misuse, 2},
                                 {OpKind::idle, 3},
                                 {OpKind::old_point, 2},
                                 {OpKind::reopen, 1}};
  std::uint32_t total = 0;
  for (const Weight& weight : kWeights) {
    total += weight.weight;
  }
  auto left = static_cast<std::uint32_t>(random.below(total));
  for (const Weight& weight : kWeights) {
    if (left < weight.weight) {
      return weight.kind;
    }
    left -= weight.weight;
  }
  return OpKind::step;
}

// How far ahead a failure or a cancellation lies: mostly near.
std::uint32_t ahead(Random& random, OpKind kind) {
  if (kind == OpKind::cancel_later) {
    return static_cast<std::uint32_t>(random.heavy_ns(random.one_of({10U, 300U, 3000U})));
  }
  if (kind == OpKind::refuse_object) {
    return random.between(0, 12);
  }
  return random.percent(70) ? random.between(0, 12) : random.between(0, 150);
}

Op op_of(Random& random) {
  Op op;
  op.kind = kind_of(random);
  op.who = static_cast<std::uint32_t>(random.below(32));
  op.how = static_cast<std::uint32_t>(random.below(128));
  op.extra = static_cast<std::uint32_t>(random.below(64));
  const bool plants = op.kind == OpKind::cancel_later || op.kind == OpKind::refuse_submit ||
                      op.kind == OpKind::fail_work || op.kind == OpKind::lose_device ||
                      op.kind == OpKind::refuse_object;
  if (plants) {
    op.rows = ahead(random, op.kind);
  } else if (op.kind == OpKind::truncate) {
    op.rows = random.percent(70) ? random.between(0, 6) : random.between(0, 200);
  } else if (op.kind == OpKind::idle) {
    op.rows = random.between(1, 20000);
  } else {
    op.rows = static_cast<std::uint32_t>(random.below(1024));
  }
  return op;
}

}  // namespace

const char* name(OpKind kind) {
  constexpr const char* kNames[] = {"step",
                                    "truncate",
                                    "add_sequence",
                                    "remove_sequence",
                                    "load",
                                    "verify",
                                    "abandon",
                                    "cancel",
                                    "cancel_later",
                                    "refuse_submit",
                                    "fail_work",
                                    "lose_device",
                                    "refuse_object",
                                    "misuse",
                                    "idle",
                                    "old_point",
                                    "reopen",
                                    "place",
                                    "enter"};
  return kNames[static_cast<std::size_t>(kind)];
}

Scenario scenario_of(std::uint64_t seed) {
  Random random(seed);
  Scenario scenario;
  scenario.seed = seed;
  scenario.arithmetic = seed % kArithmeticEvery == kArithmeticEvery - 1;
  scenario.device = traits_of(random);
  scenario.session = session_of(random, scenario.device, scenario.arithmetic);
  Random apart(~seed);  // numbers of its own: what was drawn before it existed stays
  scenario.session.rewind_tokens = apart.one_of({0U, 0U, 1U, 3U, 10U, 64U, 1000U});
  const bool outlives = !scenario.arithmetic && apart.percent(25);
  if (outlives) {
    outlive_windows(apart, scenario.session);
  }
  scenario.arena_percent = random.percent(35)   ? 0
                           : random.percent(80) ? random.between(1, 60)
                                                : random.between(60, 100);
  scenario.host_limit_percent = random.percent(10) ? random.between(20, 100) : 0;
  scenario.open_refusal = random.percent(10) ? random.between(1, 12) : 0;
  scenario.engine_queue = random.percent(40);
  scenario.ops.push_back({OpKind::add_sequence, 0, 0, 0, 0});
  if (random.percent(50)) {
    scenario.ops.push_back({OpKind::load, 0, random.between(0, 200), 0, 0});
  }
  const std::uint32_t count = random.between(10, scenario.arithmetic ? 25 : 90);
  for (std::uint32_t index = 0; index < count; ++index) {
    const Op op = op_of(random);
    scenario.ops.push_back(op);
    // A new sequence often begins with a step that is given up, and often with a load.
    if (op.kind == OpKind::add_sequence && random.percent(40)) {
      scenario.ops.push_back({OpKind::abandon, 0, op.rows, op.how, op.extra});
    }
    for (std::uint32_t who = 0; op.kind == OpKind::add_sequence && who < 3; ++who) {
      if (random.percent(50)) {
        scenario.ops.push_back({OpKind::load, who, random.between(0, 40), 0, 0});
      }
    }
  }
  if (apart.percent(35)) {
    move_about(apart, scenario);
  }
  if (outlives && apart.percent(50)) {
    take_back_in_flight(apart, scenario);
  }
  if (turns(seed)) {
    take_turns(apart, scenario);
  }
  if (scenario.device.prepared_bytes != 0 && apart.percent(60)) {
    scenario.device.prepared_entry_bytes = apart.between(1, 200);
  }
  scenario.device.copy_kib_ns = apart.one_of({0U, 0U, 0U, 100U, 1000U, 20000U});
  return scenario;
}

std::string text(const Scenario& scenario) {
  const DeviceTraits& device = scenario.device;
  const SessionOptions& session = scenario.session;
  const auto number = [](std::uint64_t value) { return std::to_string(value); };
  std::string out =
      "seed " + number(scenario.seed) + (scenario.arithmetic ? ", real numbers\n" : ", tags\n");
  out += "device: granule " + number(device.granule) + ", splits " + number(device.decode_splits) +
         "/" + number(device.prefill_splits) + ", depth " + number(device.depth) + ", call " +
         number(device.host_call_ns) + " ns, copy " + number(device.copy_ns) + " ns and " +
         number(device.copy_kib_ns) + " a KiB, compute " + number(device.compute_ns) +
         " ns, copies aligned to " + number(device.copy_alignment) +
         (device.aliased == 0   ? ""
          : device.aliased == 1 ? ", one line of work"
                                : ", one line of copies") +
         ", cancel seen in " + number(device.cancel_percent) + "%\n";
  out += "session: pages of " + number(session.geometry.page_tokens) + " in tiles of at most " +
         number(session.geometry.tile_tokens_max) + ", context " + number(session.context_tokens) +
         ", sequences " + number(session.sequences) + ", prefill rows " +
         number(session.prefill_rows_max) + (session.prefill_rows_fixed != 0 ? " fixed" : "") +
         ", decode rows " + number(session.decode_rows) + ", groups of " +
         number(session.stream.group_pages) + ", arena " + number(scenario.arena_percent) +
         "% above the minimum, rewinds of " + number(session.rewind_tokens) +
         (session.lanes.waits == WaitMode::strict ? ", strict waits" : "") +
         (session.placement.phases_take_turns ? ", phases in turns" : "") +
         (scenario.engine_queue ? ", rows behind the engine's points" : "") + "\n";
  for (std::size_t layer = 0; layer < session.geometry.layers.size(); ++layer) {
    const LayerGeometry& of = session.geometry.layers[layer];
    out += "layer " + number(layer) + ": types " + number(of.k_type) + "/" + number(of.v_type) +
           ", sizes " + number(of.head_size_k) + "/" + number(of.head_size_v) + ", heads " +
           number(of.kv_heads) + "/" + number(of.q_heads) + ", window " + number(of.window_tokens) +
           (of.v_in_k ? ", V in K\n" : "\n");
  }
  for (std::size_t index = 0; index < scenario.ops.size(); ++index) {
    const Op& op = scenario.ops[index];
    out += number(index) + ". " + name(op.kind) + " who " + number(op.who) + " rows " +
           number(op.rows) + " how " + number(op.how) + " extra " + number(op.extra) + "\n";
  }
  return out;
}

}  // namespace kvspan::sim
