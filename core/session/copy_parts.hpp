// SPDX-License-Identifier: Apache-2.0
// Segments of a copy, cut into what the submits of a device may have. Private to core/session.
#pragma once

#include "kvspan/kvspan.h"

#include <vector>

namespace kvspan {

// Whether one submit takes all of them.
[[nodiscard]] bool fits_one_copy(const std::vector<kvspan_segment_t>& segments,
                                 const kvspan_copy_limits_t& limits);

// In order, each part within `segments_max` and `bytes_max`; segments that are larger than a submit
// may be are cut at multiples of the device's alignments. Of segments that move nothing, none.
[[nodiscard]] std::vector<std::vector<kvspan_segment_t>> copy_parts(
    const std::vector<kvspan_segment_t>& segments, const kvspan_copy_limits_t& limits);

}  // namespace kvspan
