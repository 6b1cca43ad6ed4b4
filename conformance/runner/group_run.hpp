// SPDX-License-Identifier: Apache-2.0
// One worker's story: which of its cases began, ended, failed, printed; and who is to blame when it
// died. Fed line by line by worker_process.hpp (or by the pipe of --in-process), asked afterwards.
// Not here: what is run next (campaign.hpp).
#ifndef KVSPAN_CONFORMANCE_RUNNER_GROUP_RUN_H
#define KVSPAN_CONFORMANCE_RUNNER_GROUP_RUN_H

#include "case_result.hpp"
#include "worker_process.hpp"
#include "worker_record.hpp"

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace kvspan::runner {

class GroupRun {
 public:
  // `ids`: the cases that the worker was asked to run, in this order. `may_go_on` is asked after
  // every case; false stops the worker there.
  GroupRun(std::vector<std::string> ids, std::function<bool()> may_go_on);

  // ---- while the worker runs: see WorkerWatch
  void printed(std::string_view text);
  [[nodiscard]] Next line(std::string_view line);
  void pause();

  // ---- when it has ended: blames, once
  void ended(const WorkerEnd& end);

  // ---- afterwards; an index is a position in `ids`
  [[nodiscard]] std::size_t count() const { return ids_.size(); }

  // Whether the case has a result: it ended, or the worker's death is its.
  [[nodiscard]] bool settled(std::size_t index) const { return steps_[index] != Step::waiting; }

  [[nodiscard]] const CaseResult& result(std::size_t index) const { return results_[index]; }

  // The case that the worker's death, hang or garbage was charged to; count() when there is none.
  [[nodiscard]] std::size_t blamed() const { return blamed_; }

  // Cases one of which printed something: only running them alone tells which.
  [[nodiscard]] const std::vector<std::size_t>& suspects() const { return suspects_; }

  // What the suspects printed.
  [[nodiscard]] const std::string& suspects_text() const { return suspects_text_; }

 private:
  enum class Step { waiting, begun, ended };

  Next take(const WorkerRecord& record);
  Next begin(const WorkerRecord& record);
  Next end(const WorkerRecord& record);
  Next garbage(const std::string& why);
  void blame(Status status, const std::string& what);
  [[nodiscard]] std::size_t find(const std::string& id) const;
  [[nodiscard]] std::size_t at_work() const;
  [[nodiscard]] std::size_t latest() const;

  std::vector<std::string> ids_;
  std::function<bool()> may_go_on_;
  std::vector<Step> steps_;
  std::vector<CaseResult> results_;
  std::size_t current_;  // count() when none is at work
  std::size_t last_;     // the last that ended; count() when none has
  std::size_t blamed_;
  std::string garbage_;
  bool done_ = false;
  std::string pending_text_;  // printed since the last pause
  std::vector<std::size_t> pending_candidates_;
  std::vector<std::size_t> suspects_;
  std::string suspects_text_;
  std::string last_words_;
};

// The rule that says where a plugin's text goes.
inline constexpr const char* kPrintRule = "KV-HOST-1";

// The failure of a case that printed `text`.
[[nodiscard]] Failure printed_failure(const std::string& text);

// Makes the case a failed one unless its status is worse already.
void fail_with(CaseResult& result, Failure failure);

}  // namespace kvspan::runner

#endif
