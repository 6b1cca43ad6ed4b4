// SPDX-License-Identifier: Apache-2.0
// The rows of the report, a family a function. Each measures what it says, counts bytes, checks
// values in the same run and throws Failure where it cannot.
#pragma once

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
};

// One measurement, run when it was chosen. `what` names it in the table even when it fails.
struct Task {
  std::string id;
  std::string what;
  std::function<Row(const Bench&)> run;
};

// P1: scattered pages through the copy table.
void add_transport(std::vector<Task>& tasks);

// P7..P11: decode over resident pages, one layer a submit of `run`.
void add_resident(std::vector<Task>& tasks);

// P2, P3: decode through core with the whole history on the host.
void add_streamed(std::vector<Task>& tasks);

}  // namespace kvspan::cuda_bench
