// SPDX-License-Identifier: Apache-2.0
// Ctrl-C as a question: was it pressed? The work stops at its next commit and sums up.
#pragma once

namespace kvspan::host {

// While one lives, the first SIGINT and the first SIGTERM only set a flag, a second one does what
// it did before; the handlers before come back when it ends.
class Interrupt {
 public:
  Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;
  ~Interrupt();

  [[nodiscard]] static bool requested();

 private:
  struct Handlers;
  Handlers* before_;
};

}  // namespace kvspan::host
