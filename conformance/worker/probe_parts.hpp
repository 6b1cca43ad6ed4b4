// SPDX-License-Identifier: Apache-2.0
// The two grids of a probe: codec and attention. Read next: probe.hpp.
#ifndef KVSPAN_CONFORMANCE_WORKER_PROBE_PARTS_H
#define KVSPAN_CONFORMANCE_WORKER_PROBE_PARTS_H

#include "worker/calls.hpp"
#include "worker/tuple.hpp"

#include <nlohmann/json.hpp>

namespace kvspan::conformance {

/// Every row type x stored type x head size.
nlohmann::json codec_grid(const Tables& tables, kvspan_device_t* device);

/// Adds "attention", "attention_options" and "row_classes".
void add_attention(const Tables& tables, kvspan_device_t* device, nlohmann::json& found);

/// What to say when the plugin offers no attention for one of the tuples; empty when it offers all.
std::string absent_tuple(const Tables& tables,
                         kvspan_device_t* device,
                         const std::vector<Tuple>& tuples);

}  // namespace kvspan::conformance

#endif
