// SPDX-License-Identifier: Apache-2.0
// A backend that does nothing at once: what is left of a step's time is core's own. Its memory is
// real, its attention writes nothing. For benchmarks only.
#pragma once

#include "kvspan/core/backend/backend.hpp"

namespace kvspan::bench {

[[nodiscard]] Backend null_backend();

}  // namespace kvspan::bench
