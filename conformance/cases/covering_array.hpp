// SPDX-License-Identifier: Apache-2.0
// A 3-wise covering array: few rows of values, one a factor, in which every three factors take
// every three of their values together that may come together. Greedy, after AETG (Cohen, Dalal,
// Fredman and Patton, IEEE TSE 1997), and the same on every machine. Not here: what the factors
// mean (attention_coverage_test.cpp).
#ifndef KVSPAN_CONFORMANCE_CASES_COVERING_ARRAY_H
#define KVSPAN_CONFORMANCE_CASES_COVERING_ARRAY_H

#include <cstdint>
#include <functional>
#include <vector>

namespace kvspan::conformance {

/// A value a factor, from 0; kOpen while it is not chosen.
using Choice = std::vector<uint32_t>;

inline constexpr uint32_t kOpen = UINT32_MAX;

/// Whether these values may come together: false as soon as the chosen ones may not, whatever the
/// open ones become. Where all chosen ones may, some choice of the open ones has to.
using Allowed = std::function<bool(const Choice& choice)>;

/// Rows in the order in which they cover most: a prefix of them covers most triples already.
/// `sizes` are the numbers of values, at least three factors of at most 64 values each.
std::vector<Choice> covering_array(const std::vector<uint32_t>& sizes,
                                   const Allowed& allowed,
                                   uint64_t seed);

}  // namespace kvspan::conformance

#endif
