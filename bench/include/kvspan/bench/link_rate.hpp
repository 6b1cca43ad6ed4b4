// SPDX-License-Identifier: Apache-2.0
// What the link between host and device brings through the backend's own copy table.
#pragma once

#include "kvspan/core/backend/backend.hpp"
#include "kvspan/core/error.hpp"

namespace kvspan::bench {

// Bytes a second of large copies to the device, of 64 MiB or what takes 20 ms, the median of seven.
// Errors: memory, the copies'.
[[nodiscard]] Result<double> link_rate(const Backend& backend);

}  // namespace kvspan::bench
