// SPDX-License-Identifier: Apache-2.0
// The rows of the report, a family a function. Each measures what it says, counts bytes, checks
// values in the same run and throws Failure where it cannot.
#pragma once

#include "kvspan/bench/decode_steps.hpp"

#include "limits.hpp"
#include "pages.hpp"
#include "rig.hpp"
#include "row.hpp"

#include <functional>
#include <string>
#include <vector>

namespace kvspan::cuda_bench {

struct Bench {
  const Rig& rig;
  const Limits& limits;
  PagePool& pages;
  const Plug& plug;
  bool small = false;  // a dry run: newer rows take histories of a few pages
};

// What is measured together, run when a row of it was chosen. `what` names it in the list, and in
// the table when it fails.
struct Task {
  std::string ids;  // "P7 P10 P11"
  std::string what;
  std::function<std::vector<Row>(const Bench&)> run;
};

// bench::time_steps, time_resident and compare over geometry A, which throw where those return an
// error.
[[nodiscard]] bench::DecodeTimes timed(const Bench& bench,
                                       const bench::StepCase& asked,
                                       const std::vector<bench::Steps>& steps);
[[nodiscard]] bench::DecodeTimes timed_resident(const Bench& bench,
                                                const bench::StepCase& asked,
                                                const std::vector<bench::Steps>& steps);
[[nodiscard]] std::string same(const bench::StepTimes& streamed, const bench::StepTimes& resident);

// P1: scattered pages through the copy table.
void add_transport(std::vector<Task>& tasks);

// P2, P3, P15, P18: decode through core with the whole history on the host.
void add_streaming(std::vector<Task>& tasks);

// P4: the same beside other work of the engine.
void add_gaps(std::vector<Task>& tasks);

// P5, P13, P22: a part of the history resident.
void add_mixed(std::vector<Task>& tasks);

// P6..P11: decode of one layer through `run`, pages resident or mapped.
void add_layers(std::vector<Task>& tasks);

// P14: what is exact without a clock.
void add_exact(std::vector<Task>& tasks);

// P16: wide rows over a long history.
void add_prefill(std::vector<Task>& tasks);

// P17: chunks of a prompt through core, and both directions of the link at once.
void add_chunks(std::vector<Task>& tasks);

// P24: what plan() predicts against what is measured.
void add_predictions(std::vector<Task>& tasks);

}  // namespace kvspan::cuda_bench
