// SPDX-License-Identifier: Apache-2.0
// A GoogleTest failure message taken apart: what was expected and what came, where it says so.
#ifndef KVSPAN_CONFORMANCE_WORKER_FAILURE_TEXT_H
#define KVSPAN_CONFORMANCE_WORKER_FAILURE_TEXT_H

#include <string>

namespace kvspan::conformance {

struct FailureText {
  std::string expected;  // empty where the check has none
  std::string actual;
  std::string rule;  // the first "KV-..." that the message names
};

/// `EXPECT_EQ(actual, expected)` is how the cases write it: the value that came is on the left.
FailureText take_apart(const std::string& message);

}  // namespace kvspan::conformance

#endif
