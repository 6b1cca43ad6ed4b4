// SPDX-License-Identifier: Apache-2.0
// Records to results. Read next: group_run.hpp.
#include "group_run.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace kvspan::runner {

namespace {

// Keeps the end.
void append_last(std::string& target, std::string_view text, std::size_t most) {
  target.append(text);
  if (target.size() > most) {
    target.erase(0, target.size() - most);
  }
}

}  // namespace

Failure printed_failure(const std::string& text) {
  Failure failure;
  failure.message = "the plugin wrote to stdout or stderr: text goes through the host's log alone";
  failure.expected = "nothing";
  failure.actual = text;
  failure.rule = kPrintRule;
  return failure;
}

void fail_with(CaseResult& result, Failure failure) {
  if (result.status == Status::pass || result.status == Status::inconclusive) {
    result.status = Status::fail;
  }
  if (result.failures.size() < kFailuresMax) {
    result.failures.push_back(std::move(failure));
  } else {
    ++result.failures_left_out;
  }
}

GroupRun::GroupRun(std::vector<std::string> ids, std::function<bool()> may_go_on)
    : ids_(std::move(ids)),
      may_go_on_(std::move(may_go_on)),
      steps_(ids_.size(), Step::waiting),
      results_(ids_.size()),
      current_(ids_.size()),
      last_(ids_.size()),
      blamed_(ids_.size()) {}

std::size_t GroupRun::find(const std::string& id) const {
  return static_cast<std::size_t>(std::find(ids_.begin(), ids_.end(), id) - ids_.begin());
}

// The case that is at work, else the one that is about to begin, else the last one.
std::size_t GroupRun::at_work() const {
  if (current_ != count()) {
    return current_;
  }
  const auto next = std::find(steps_.begin(), steps_.end(), Step::waiting);
  return next != steps_.end() ? static_cast<std::size_t>(next - steps_.begin()) : last_;
}

// The case that is at work, else the last one, else the first.
std::size_t GroupRun::latest() const {
  if (current_ != count()) {
    return current_;
  }
  return last_ != count() ? last_ : 0;
}

void GroupRun::printed(std::string_view text) {
  append_printed(pending_text_, text);
  append_last(last_words_, text, kPrintedBytesMax);
  pending_candidates_ = {latest()};
}

void GroupRun::pause() {
  if (pending_text_.empty()) {
    return;
  }
  if (pending_candidates_.size() == 1) {
    append_printed(results_[pending_candidates_.front()].printed, pending_text_);
  } else {
    append_printed(suspects_text_, pending_text_);
    for (const std::size_t candidate : pending_candidates_) {
      if (std::find(suspects_.begin(), suspects_.end(), candidate) == suspects_.end()) {
        suspects_.push_back(candidate);
      }
    }
  }
  pending_text_.clear();
  pending_candidates_.clear();
}

Next GroupRun::line(std::string_view line) {
  std::string why;
  const auto record = parse_record(line, why);
  return record ? take(*record) : garbage(why);
}

Next GroupRun::take(const WorkerRecord& record) {
  switch (record.kind) {
    case RecordKind::start:
      return Next::restart_clock;
    case RecordKind::begin:
      return begin(record);
    case RecordKind::end:
      return end(record);
    case RecordKind::note: {
      CaseResult& result = results_[latest()];
      if (result.notes.size() < kNotesMax) {
        result.notes.push_back(record.text);
      }
      return Next::go_on;
    }
    case RecordKind::failure:
      fail_with(results_[latest()], record.failure);
      return Next::go_on;
    case RecordKind::done:
      done_ = true;
      return Next::restart_clock;
    case RecordKind::probe:
      break;
  }
  return garbage("holds a probe that nobody asked for");
}

Next GroupRun::begin(const WorkerRecord& record) {
  const std::size_t index = find(record.case_id);
  if (index == count() || steps_[index] != Step::waiting || current_ != count()) {
    return garbage(fmt::format("begins {} out of turn", record.case_id));
  }
  steps_[index] = Step::begun;
  results_[index].status = Status::pass;
  current_ = index;
  if (!pending_text_.empty() && pending_candidates_.back() != index) {
    pending_candidates_.push_back(index);
  }
  return Next::restart_clock;
}

Next GroupRun::end(const WorkerRecord& record) {
  if (current_ == count() || ids_[current_] != record.case_id) {
    return garbage(fmt::format("ends {}, which is not at work", record.case_id));
  }
  CaseResult& result = results_[current_];
  const bool failed = !result.failures.empty();
  if (record.result == "pass" && !failed) {
    result.status = Status::pass;
  } else if (record.result == "pass" || record.result == "fail") {
    result.status = Status::fail;
    if (!failed) {
      fail_with(result, Failure{{}, 0, "the case failed without a word", {}, {}, {}});
    }
  } else if (record.result == "inconclusive") {
    result.status = failed ? Status::fail : Status::inconclusive;
  } else if (record.result == "warn") {
    result.status = failed ? Status::fail : Status::warn;
  } else if (record.result == "error") {
    result.status = Status::suite_error;
  } else {
    return garbage(fmt::format("ends {} without a result", record.case_id));
  }
  if (result.status != Status::pass && result.status != Status::fail) {
    result.reason = record.text;
  }
  result.duration = record.duration;
  steps_[current_] = Step::ended;
  last_ = std::exchange(current_, count());
  return may_go_on_() ? Next::restart_clock : Next::stop;
}

Next GroupRun::garbage(const std::string& why) {
  garbage_ = "the record stream " + why;
  return Next::stop;
}

// Charges the case at work, the one that never began, or the last one.
void GroupRun::blame(Status status, const std::string& what) {
  blamed_ = at_work();
  if (blamed_ == count()) {
    return;  // a worker without cases
  }
  CaseResult& result = results_[blamed_];
  const Step step = steps_[blamed_];
  const char* const when = step == Step::begun   ? "in the case"
                           : step == Step::ended ? "after the case, on the way out"
                                                 : "before the case had begun";
  result.status = status;
  result.reason = fmt::format("the worker {} {}", what, when);
  if (!last_words_.empty()) {
    result.printed = last_words_;
  }
  steps_[blamed_] = Step::ended;
  current_ = count();
}

void GroupRun::ended(const WorkerEnd& end) {
  pause();
  using How = WorkerEnd::How;
  if (!garbage_.empty()) {
    blame(Status::crash, "was stopped: " + garbage_);
  } else if (end.how == How::timed_out) {
    blame(Status::hang, end.spoken());
    if (blamed_ != count()) {
      results_[blamed_].stacks = end.stacks;
    }
  } else if (end.how == How::not_started) {
    blame(Status::blocked, end.spoken());
  } else if (end.how != How::stopped) {
    if (!done_ || end.how == How::signalled || end.half_line) {
      blame(Status::crash, end.spoken() + (end.half_line ? " within a record" : ""));
    } else if (std::find(steps_.begin(), steps_.end(), Step::waiting) != steps_.end()) {
      blame(Status::suite_error, "is done and never began it:");
    }
  }
  if (end.left_processes && count() > 0) {
    fail_with(results_[latest()],
              Failure{{},
                      0,
                      "a process that the plugin started outlived the worker and held its output",
                      {},
                      {},
                      {}});
  }
  for (CaseResult& result : results_) {
    if (!result.printed.empty() && result.status != Status::crash &&
        result.status != Status::hang && result.status != Status::not_run) {
      fail_with(result, printed_failure(result.printed));
    }
  }
}

}  // namespace kvspan::runner
