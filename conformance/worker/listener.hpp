// SPDX-License-Identifier: Apache-2.0
// GoogleTest's events as records: begin, failure, end of each case, and the counts at the end.
#ifndef KVSPAN_CONFORMANCE_WORKER_LISTENER_H
#define KVSPAN_CONFORMANCE_WORKER_LISTENER_H

#include "worker/record.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>

namespace kvspan::conformance {

class RecordListener : public ::testing::EmptyTestEventListener {
 public:
  /// `records` outlives the listener.
  explicit RecordListener(RecordStream& records) : records_(records) {}

  void OnTestStart(const ::testing::TestInfo& info) override;
  void OnTestPartResult(const ::testing::TestPartResult& part) override;
  void OnTestEnd(const ::testing::TestInfo& info) override;

  /// The record of the whole worker, and whether all is well.
  bool finish();

 private:
  RecordStream& records_;
  std::string current_;
  std::chrono::steady_clock::time_point begun_;
  uint64_t executed_ = 0;
  uint64_t failed_ = 0;
  uint64_t inconclusive_ = 0;
  uint64_t errors_ = 0;
};

}  // namespace kvspan::conformance

#endif
