// SPDX-License-Identifier: Apache-2.0
// The first thing that a simulation found wrong. Later ones mostly follow from it.
#pragma once

#include <string>
#include <utility>

namespace kvspan::sim {

// Thread class: SYNC(trouble).
class Trouble {
 public:
  // `checker` names the rule ("order", "content", "leak", ...): shrinking keeps to one checker.
  void report(std::string checker, std::string what) {
    if (checker_.empty()) {
      checker_ = std::move(checker);
      what_ = std::move(what);
    }
  }

  [[nodiscard]] bool found() const { return !checker_.empty(); }

  [[nodiscard]] const std::string& checker() const { return checker_; }

  [[nodiscard]] const std::string& what() const { return what_; }

 private:
  std::string checker_;
  std::string what_;
};

}  // namespace kvspan::sim
