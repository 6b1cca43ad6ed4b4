// SPDX-License-Identifier: Apache-2.0
// The two grids of a probe: codec and attention. Read next: probe.hpp.
#ifndef KVSPAN_CONFORMANCE_WORKER_PROBE_PARTS_H
#define KVSPAN_CONFORMANCE_WORKER_PROBE_PARTS_H

#include "worker/calls.hpp"

#include <nlohmann/json.hpp>

namespace kvspan::conformance {

/// Every row type x stored type x head size.
nlohmann::json codec_grid(const Tables& tables, kvspan_device_t* device);

/// Adds "attention", "attention_options" and "row_classes".
void add_attention(const Tables& tables, kvspan_device_t* device, nlohmann::json& found);

}  // namespace kvspan::conformance

#endif
