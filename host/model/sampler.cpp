// SPDX-License-Identifier: Apache-2.0
// Greedy choice in one pass.
// Read next: sampler.hpp for the contract.
#include "model/sampler.hpp"

#include "model/fail.hpp"

#include <cmath>
#include <cstddef>

namespace kvspan::model {

Result<std::uint32_t> greedy_token(std::span<const float> logits) {
  if (logits.empty()) {
    return fail(Errc::invalid_argument, "there are no logits to choose a token from");
  }
  std::size_t best = 0;
  for (std::size_t id = 0; id < logits.size(); ++id) {
    if (std::isnan(logits[id])) {
      return fail(Errc::internal, "the logit of token {} is not a number", id);
    }
    if (logits[id] > logits[best]) {
      best = id;
    }
  }
  return static_cast<std::uint32_t>(best);
}

}  // namespace kvspan::model
