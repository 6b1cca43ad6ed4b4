// SPDX-License-Identifier: Apache-2.0
// The submitting slots as core calls them: arguments are checked against the contract's rules
// first, so that a mistake of core or of the engine is a refusal that names the field, on every
// backend, and never a crash in a driver. Private to core.
// Read next: kvspan/sdk/validate.hpp, which holds the rules.
#pragma once

#include "kvspan/core/backend/backend.hpp"
#include "kvspan/core/backend/lane.hpp"
#include "kvspan/sdk/validate.hpp"

#include <cstdint>
#include <functional>
#include <span>

namespace kvspan {

// Bytes of a memory that core made, or kEngineMemory for one that it did not.
using MemoryBytes = std::function<std::uint64_t(kvspan_memory_t*)>;

// Nobody told core how large the engine's own memories are, so ranges in them are checked for
// overflow alone; their end is the plugin's to check.
inline constexpr std::uint64_t kEngineMemory = UINT64_MAX - 1;

// Each method is the slot of its name and returns what it returns, or the refusal, with nothing
// enqueued then. Thread class: SYNC(queue), as the slots.
class CheckedCalls {
 public:
  // `limits` and `tables` are the device's and outlive this.
  CheckedCalls(const Backend& backend,
               const kvspan_copy_limits_t& limits,
               MemoryBytes memory_bytes,
               Checks checks);

  [[nodiscard]] kvspan_result_t copy(kvspan_queue_t* queue,
                                     std::span<const kvspan_segment_t> segments,
                                     const kvspan_submit_t* submit,
                                     kvspan_error_t* error) const;
  [[nodiscard]] kvspan_result_t encode(kvspan_queue_t* queue,
                                       std::span<const kvspan_codec_item_t> items,
                                       const kvspan_submit_t* submit,
                                       kvspan_error_t* error) const;
  // `caps` answers query(args.shape).
  [[nodiscard]] kvspan_result_t run(kvspan_queue_t* queue,
                                    const kvspan_attention_args_t& args,
                                    const kvspan_attention_caps_t& caps,
                                    const kvspan_submit_t* submit,
                                    kvspan_error_t* error) const;
  [[nodiscard]] kvspan_result_t advance(kvspan_queue_t* queue,
                                        const kvspan_attention_args_t& args,
                                        const kvspan_attention_caps_t& caps,
                                        std::span<const kvspan_advance_item_t> items,
                                        const kvspan_submit_t* submit,
                                        kvspan_error_t* error) const;
  [[nodiscard]] kvspan_result_t fold(kvspan_queue_t* queue,
                                     const kvspan_attention_args_t& args,
                                     const kvspan_attention_caps_t& caps,
                                     std::span<const kvspan_fold_item_t> items,
                                     const kvspan_submit_t* submit,
                                     kvspan_error_t* error) const;
  // `accumulators` [args.entry_count]
  [[nodiscard]] kvspan_result_t finish(kvspan_queue_t* queue,
                                       const kvspan_attention_args_t& args,
                                       const kvspan_attention_caps_t& caps,
                                       const kvspan_state_t* accumulators,
                                       const kvspan_submit_t* submit,
                                       kvspan_error_t* error) const;

 private:
  [[nodiscard]] auto context() const;

  // What the three attention calls have in common; `check_items` is given the context.
  template <class CheckItems>
  [[nodiscard]] kvspan_result_t check_attention(sdk::AttentionCall call,
                                                const kvspan_attention_args_t& args,
                                                const kvspan_attention_caps_t& caps,
                                                kvspan_error_t* error,
                                                const char* where,
                                                const CheckItems& check_items) const;

  BackendTables tables_;
  std::uint64_t memory_alignment_;
  kvspan_copy_limits_t limits_;
  MemoryBytes memory_bytes_;
  Checks checks_;
};

}  // namespace kvspan
