// SPDX-License-Identifier: Apache-2.0
// What an attention submit does when its virtual time comes: advance, fold and finish by the C
// reference of the SDK, one (row, head) after another. run is the three of them, nothing else.
// Not here: checks (attention.cpp). Read next: kvspan/sdk/reference/advance.h.
#pragma once

#include "kvspan/attention.h"

#include "attention_args.hpp"
#include "scheduler.hpp"

#include <cstdint>
#include <memory>
#include <vector>

namespace kvspan::stub {

/// The bodies of the four slots. Arguments were checked; `granule` is the plugin's, in tokens.
std::unique_ptr<Body> make_run(const kvspan_attention_args_t& args, std::uint32_t granule);
std::unique_ptr<Body> make_advance(const kvspan_attention_args_t& args,
                                   std::vector<kvspan_advance_item_t> items,
                                   std::uint32_t granule);
std::unique_ptr<Body> make_fold(const kvspan_attention_args_t& args,
                                std::vector<kvspan_fold_item_t> items);
std::unique_ptr<Body> make_finish(const kvspan_attention_args_t& args,
                                  std::vector<kvspan_state_t> accumulators);

}  // namespace kvspan::stub
