// SPDX-License-Identifier: Apache-2.0
// Asks a plugin what it is and what it offers, without any work: the facts from which the parent
// plans, draws its capability matrix and decides what is skipped. The record's fields: record.hpp.
#ifndef KVSPAN_CONFORMANCE_WORKER_PROBE_H
#define KVSPAN_CONFORMANCE_WORKER_PROBE_H

#include "worker/settings.hpp"

#include <nlohmann/json.hpp>

namespace kvspan::conformance {

/// Loads, asks, closes. "ok" false where that stops half way; the plugin is closed then too, as far
/// as it can be.
nlohmann::json probe(const Settings& settings);

}  // namespace kvspan::conformance

#endif
