// SPDX-License-Identifier: Apache-2.0
// Which cases a worker without a parent leaves out, and why. With a parent it is empty: the parent
// asks only for cases that the plugin has everything for, and a case that is skipped all the same
// is a mistake of the suite.
#ifndef KVSPAN_CONFORMANCE_WORKER_PLAN_H
#define KVSPAN_CONFORMANCE_WORKER_PLAN_H

#include <map>
#include <string>

namespace kvspan::conformance {

/// Case id -> the fact for which it is skipped. Told once, before the first case.
void plan_skips(std::map<std::string, std::string> skips);

/// The fact for which a case is skipped; empty when it runs.
std::string planned_skip(const std::string& id);

}  // namespace kvspan::conformance

#endif
