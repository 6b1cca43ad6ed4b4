// SPDX-License-Identifier: Apache-2.0
// Delta debugging over the list of operations, then one number after another.
#include "kvspan/sim/shrink.hpp"

#include <algorithm>
#include <utility>
#include <vector>

namespace kvspan::sim {

namespace {

constexpr std::uint32_t kRunsMax = 3000;

class Shrinker {
 public:
  Shrinker(const Scenario& failing, const RunScenario& run)
      : run_(run), best_{failing, run(failing), 1} {}

  Shrunk go() {
    if (best_.outcome.passed()) {
      return best_;
    }
    for (std::size_t before = SIZE_MAX; before != size() && best_.runs < kRunsMax;) {
      before = size();
      cut_operations();
      reduce_session();
      reduce_device();
      reduce_operations();
    }
    return best_;
  }

 private:
  // What shrinking makes smaller, as one number: the loop ends when nothing does.
  [[nodiscard]] std::size_t size() const {
    std::size_t total = best_.scenario.ops.size() + best_.scenario.session.geometry.layers.size() +
                        best_.scenario.session.context_tokens;
    for (const Op& op : best_.scenario.ops) {
      total += op.rows + op.how + op.extra + op.who;
    }
    return total;
  }

  bool keep(Scenario smaller) {
    if (best_.runs >= kRunsMax) {
      return false;
    }
    ++best_.runs;
    Outcome outcome = run_(smaller);
    if (outcome.checker != best_.outcome.checker) {
      return false;
    }
    best_.scenario = std::move(smaller);
    best_.outcome = std::move(outcome);
    return true;
  }

  template <class Change>
  bool attempt(const Change& change) {
    Scenario smaller = best_.scenario;
    change(smaller);
    return keep(std::move(smaller));
  }

  void cut_operations() {
    // What comes after the failure is no part of it.
    attempt([this](Scenario& smaller) {
      smaller.ops.resize(std::min(smaller.ops.size(), best_.outcome.op + 1));
    });
    for (std::size_t chunk = std::max<std::size_t>(best_.scenario.ops.size() / 2, 1); chunk != 0;
         chunk /= 2) {
      for (std::size_t at = 0; at < best_.scenario.ops.size();) {
        const bool cut = attempt([&](Scenario& smaller) {
          const std::size_t end = std::min(at + chunk, smaller.ops.size());
          smaller.ops.erase(smaller.ops.begin() + static_cast<std::ptrdiff_t>(at),
                            smaller.ops.begin() + static_cast<std::ptrdiff_t>(end));
        });
        at += cut ? 0 : chunk;
      }
    }
  }

  void reduce_session() {
    while (best_.scenario.session.geometry.layers.size() > 1 &&
           attempt([](Scenario& smaller) { smaller.session.geometry.layers.pop_back(); })) {
    }
    attempt([](Scenario& smaller) { smaller.session.sequences = 1; });
    attempt([](Scenario& smaller) { smaller.session.decode_rows = 1; });
    attempt([](Scenario& smaller) { smaller.session.stream = StreamOptions{}; });
    attempt([](Scenario& smaller) { smaller.session.lanes.waits = WaitMode::normal; });
    attempt([](Scenario& smaller) { smaller.session.placement = {}; });
    attempt([](Scenario& smaller) { smaller.engine_queue = false; });
    attempt([](Scenario& smaller) { smaller.host_limit_percent = 0; });
    attempt([](Scenario& smaller) { smaller.open_refusal = 0; });
    attempt([](Scenario& smaller) { smaller.arena_percent = 0; });
    while (best_.scenario.session.context_tokens > 8 &&
           attempt([](Scenario& smaller) { smaller.session.context_tokens /= 2; })) {
    }
    while (best_.scenario.session.prefill_rows_max > 1 && attempt([](Scenario& smaller) {
             smaller.session.prefill_rows_max /= 2;
             if (smaller.session.prefill_rows_fixed != 0) {
               smaller.session.prefill_rows_fixed = smaller.session.prefill_rows_max;
             }
           })) {
    }
    for (std::size_t layer = 0; layer < best_.scenario.session.geometry.layers.size(); ++layer) {
      attempt([layer](Scenario& smaller) {
        LayerGeometry& of = smaller.session.geometry.layers[layer];
        of.k_type = of.v_type = KVSPAN_TYPE_F16;
        of.head_size_k = of.head_size_v = 8;
        of.v_in_k = false;
      });
      attempt([layer](Scenario& smaller) {
        LayerGeometry& of = smaller.session.geometry.layers[layer];
        of.kv_heads = of.q_heads = 1;
      });
      attempt(
          [layer](Scenario& smaller) { smaller.session.geometry.layers[layer].window_tokens = 0; });
    }
  }

  void reduce_device() {
    attempt([](Scenario& smaller) { smaller.device.workspace_bytes = 0; });
    attempt([](Scenario& smaller) { smaller.device.prepared_bytes = 0; });
    attempt([](Scenario& smaller) { smaller.device.prepared_entry_bytes = 0; });
    attempt([](Scenario& smaller) { smaller.device.copy_kib_ns = 0; });
    attempt([](Scenario& smaller) { smaller.device.copy_alignment = 1; });
    attempt([](Scenario& smaller) { smaller.device.imports = false; });
    attempt([](Scenario& smaller) { smaller.device.host_call_ns = 0; });
    attempt([](Scenario& smaller) { smaller.device.depth = 64; });
    attempt([](Scenario& smaller) { smaller.device.copy_ns = smaller.device.compute_ns = 100; });
  }

  void reduce_operations() {
    for (std::size_t index = 0; index < best_.scenario.ops.size(); ++index) {
      for (std::uint32_t Op::*const number : {&Op::who, &Op::how, &Op::extra, &Op::rows}) {
        while (best_.scenario.ops[index].*number != 0 &&
               (attempt([&](Scenario& smaller) { smaller.ops[index].*number = 0; }) ||
                attempt([&](Scenario& smaller) { smaller.ops[index].*number /= 2; }) ||
                attempt([&](Scenario& smaller) { --(smaller.ops[index].*number); }))) {
        }
      }
    }
  }

  const RunScenario& run_;
  Shrunk best_;
};

}  // namespace

Shrunk shrink(const Scenario& failing, const RunScenario& run) {
  return Shrinker(failing, run).go();
}

}  // namespace kvspan::sim
