// SPDX-License-Identifier: Apache-2.0
// A fault: a name and the function that plants it in a Layer. One file an area has the functions
// and the list; faults.json says which case must kill which. Not here: planting (open.cpp).
#ifndef KVSPAN_CONFORMANCE_FAULTS_FAULT_LIST_H
#define KVSPAN_CONFORMANCE_FAULTS_FAULT_LIST_H

#include "layer.hpp"

#include <span>

namespace kvspan::faults {

struct Fault {
  const char* name;
  void (*plant)(Layer& layer);
};

std::span<const Fault> fence_faults();
std::span<const Fault> submit_faults();
std::span<const Fault> cancel_faults();
std::span<const Fault> copy_faults();
std::span<const Fault> codec_faults();
std::span<const Fault> codec_value_faults();
std::span<const Fault> attention_faults();
std::span<const Fault> attention_view_faults();
std::span<const Fault> attention_bits_faults();
std::span<const Fault> attention_state_faults();
std::span<const Fault> attention_tile_faults();
std::span<const Fault> capability_faults();
std::span<const Fault> memory_faults();
std::span<const Fault> ownership_faults();
std::span<const Fault> error_faults();
std::span<const Fault> size_faults();
std::span<const Fault> thread_faults();
std::span<const Fault> manners_faults();
std::span<const Fault> identity_faults();

/// Odd but legal: the option `odd`, not `fault`. A suite that fails these is wrong itself.
std::span<const Fault> oddities();

}  // namespace kvspan::faults

#endif
