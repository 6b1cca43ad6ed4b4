// SPDX-License-Identifier: Apache-2.0
// Calls as tables of the ABI: for code that is handed tables (core), so that a mutation reaches it
// too. Not here: what a mutation does (calls.hpp).
#ifndef KVSPAN_CONFORMANCE_WORKER_CALL_TABLES_H
#define KVSPAN_CONFORMANCE_WORKER_CALL_TABLES_H

#include "worker/calls.hpp"

namespace kvspan::conformance {

/// One at a time in a process: slots of the ABI have no place for a pointer of ours. `calls`
/// outlives it.
class CallTables {
 public:
  explicit CallTables(const Calls& calls);
  CallTables(const CallTables&) = delete;
  CallTables& operator=(const CallTables&) = delete;
  CallTables(CallTables&&) = delete;
  CallTables& operator=(CallTables&&) = delete;
  ~CallTables();

  /// The plugin's tables, with the slots that Calls has led through it.
  const Tables& tables() const { return tables_; }

 private:
  kvspan_memory_table_t memory_;
  kvspan_copy_table_t copy_;
  kvspan_codec_table_t codec_;
  kvspan_attention_table_t attention_ = {};
  Tables tables_;
};

}  // namespace kvspan::conformance

#endif
