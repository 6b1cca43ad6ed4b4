// SPDX-License-Identifier: Apache-2.0
// What a scope undoes or ends when it is left, by an error or by an exception. Private to core.
#pragma once

#include <utility>

namespace kvspan {

// Calls `Does`, which does not throw, when it goes; not once it was dismissed.
template <class Does>
class OnExit {
 public:
  explicit OnExit(Does does) : does_(std::move(does)) {}

  OnExit(const OnExit&) = delete;
  OnExit& operator=(const OnExit&) = delete;
  OnExit(OnExit&&) = delete;
  OnExit& operator=(OnExit&&) = delete;

  ~OnExit() {
    if (armed_) {
      does_();
    }
  }

  void dismiss() { armed_ = false; }

 private:
  Does does_;
  bool armed_ = true;
};

}  // namespace kvspan
