// SPDX-License-Identifier: Apache-2.0
// The base plugin's entry point. Its source is compiled a second time with
// -Dkvspan_plugin_open_0=kvspan_base_open (CMakeLists.txt), so that the name is free for the layer.
#ifndef KVSPAN_CONFORMANCE_FAULTS_BASE_H
#define KVSPAN_CONFORMANCE_FAULTS_BASE_H

#include "kvspan/kvspan.h"

extern "C" kvspan_result_t KVSPAN_CALL kvspan_base_open(const kvspan_open_info_t* info,
                                                        kvspan_plugin_t* plugin,
                                                        kvspan_error_t* error) noexcept;

namespace kvspan::faults {

/// The same, with the faults of negotiation (identity.cpp). `twisted` says that one made a
/// difference.
kvspan_result_t open_base(const kvspan_open_info_t* info,
                          kvspan_plugin_t* plugin,
                          kvspan_error_t* error,
                          bool& twisted);

}  // namespace kvspan::faults

#endif
