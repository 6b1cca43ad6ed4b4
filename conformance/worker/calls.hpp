// SPDX-License-Identifier: Apache-2.0
// The plugin's slots as the cases call them: straight through, unless a mutation is asked for. A
// mutation makes any plugin look wrong in one way, so that the case that guards against it can be
// seen to go red. Mutations change arguments and results only, never the plugin.
// Read next: rig.hpp.
#ifndef KVSPAN_CONFORMANCE_WORKER_CALLS_H
#define KVSPAN_CONFORMANCE_WORKER_CALLS_H

#include "kvspan/kvspan.h"

#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace kvspan::sdk {
class Plugin;
}

namespace kvspan::conformance {

enum class Mutation {
  none,
  nudge_scale,     // attention: scale a little too large           -> AttentionNumerics
  swap_strides,    // attention: K strides for V and V's for K      -> AttentionNumerics
  nudge_advance,   // advance alone: scale one bit larger           -> AttentionInvariance
  reveal_dead,     // the last row sees one token more              -> PoisonTest
  hide_token,      // the last row sees one token less              -> Needle
  skip_waits,      // submits forget what they wait for             -> FenceMemory, Needle
  short_encode,    // the last row of an item is not encoded        -> CodecTest
  long_copy,       // one byte more than the segment                -> CopyTest
  signal_early,    // signals come from the host before the work    -> FenceMemory
  swallow_errors,  // a refused call looks accepted                 -> RefusalTest
  leak_memory,     // release forgets to release                    -> MemoryTest
  stale_page,      // what was copied to once is not copied to again -> StreamTest
  drop_span,       // the last of several spans, or of a span's listed pages, is not seen
};

/// The mutation of that name. Unknown names are a mistake of the caller: `none` and false.
bool find_mutation(const std::string& name, Mutation& out);

/// All names but "".
std::vector<std::string> mutation_names();

/// The tables of an open plugin; attention and debug may be NULL.
struct Tables {
  const kvspan_device_table_t* device = nullptr;
  const kvspan_memory_table_t* memory = nullptr;
  const kvspan_queue_table_t* queue = nullptr;
  const kvspan_fence_table_t* fence = nullptr;
  const kvspan_copy_table_t* copy = nullptr;
  const kvspan_codec_table_t* codec = nullptr;
  const kvspan_attention_table_t* attention = nullptr;
  const kvspan_debug_table_t* debug = nullptr;
};

/// Of a plugin that the SDK has loaded; it outlives them.
Tables tables_of(const sdk::Plugin& plugin);

/// Each method is the slot of the same name; what it does not mutate it hands on untouched.
class Calls {
 public:
  Calls(const Tables& tables, Mutation mutation) : tables_(tables), mutation_(mutation) {}

  const Tables& tables() const { return tables_; }

  kvspan_result_t copy(kvspan_queue_t* queue,
                       const kvspan_segment_t* segments,
                       uint32_t count,
                       const kvspan_submit_t* submit,
                       kvspan_error_t* error) const;
  kvspan_result_t fill(kvspan_queue_t* queue,
                       const kvspan_range_t* range,
                       uint64_t pattern,
                       uint32_t pattern_bytes,
                       const kvspan_submit_t* submit,
                       kvspan_error_t* error) const;
  kvspan_result_t encode(kvspan_queue_t* queue,
                         const kvspan_codec_item_t* items,
                         uint32_t count,
                         const kvspan_submit_t* submit,
                         kvspan_error_t* error) const;
  kvspan_result_t decode(kvspan_queue_t* queue,
                         const kvspan_codec_item_t* items,
                         uint32_t count,
                         const kvspan_submit_t* submit,
                         kvspan_error_t* error) const;
  kvspan_result_t run(kvspan_queue_t* queue,
                      const kvspan_attention_args_t* args,
                      const kvspan_submit_t* submit,
                      kvspan_error_t* error) const;
  kvspan_result_t advance(kvspan_queue_t* queue,
                          const kvspan_attention_args_t* args,
                          const kvspan_advance_item_t* items,
                          uint32_t count,
                          const kvspan_submit_t* submit,
                          kvspan_error_t* error) const;
  kvspan_result_t fold(kvspan_queue_t* queue,
                       const kvspan_attention_args_t* args,
                       const kvspan_fold_item_t* items,
                       uint32_t count,
                       const kvspan_submit_t* submit,
                       kvspan_error_t* error) const;
  kvspan_result_t finish(kvspan_queue_t* queue,
                         const kvspan_attention_args_t* args,
                         const kvspan_state_t* accumulators,
                         const kvspan_submit_t* submit,
                         kvspan_error_t* error) const;
  kvspan_result_t release(kvspan_memory_t* memory, kvspan_error_t* error) const;

 private:
  template <class Work>
  kvspan_result_t submitting(const kvspan_submit_t* submit, Work&& work) const;
  template <class Work>
  kvspan_result_t attending(const kvspan_attention_args_t* args, Work&& work) const;

  /// Where copies have gone: what stale_page knows.
  struct Targets {
    std::mutex mutex;
    std::set<std::pair<const kvspan_memory_t*, uint64_t>> known;
  };

  Tables tables_;
  Mutation mutation_;
  std::shared_ptr<Targets> targets_ = std::make_shared<Targets>();
};

}  // namespace kvspan::conformance

#endif
