// SPDX-License-Identifier: Apache-2.0
// Checks of everything that a submit names, shared by plugins (which must survive any argument) and
// by whoever checks for them. Each is (value, context, error, where) -> kvspan_result_t, sums every
// extent with overflow checks, allocates nothing, and says argument, field and a sentence.
// Read next: validate_range.hpp for what a context is, then one file a table.
#pragma once

#include "kvspan/sdk/validate_attention.hpp"
#include "kvspan/sdk/validate_coverage.hpp"
#include "kvspan/sdk/validate_items.hpp"
#include "kvspan/sdk/validate_kinds.hpp"
#include "kvspan/sdk/validate_plane.hpp"
#include "kvspan/sdk/validate_points.hpp"
#include "kvspan/sdk/validate_range.hpp"
#include "kvspan/sdk/validate_shape.hpp"
#include "kvspan/sdk/validate_submit.hpp"
