// SPDX-License-Identifier: Apache-2.0
// Runs the probe and judges how it ended. Read next: probe.hpp.
#include "probe.hpp"

#include "ending.hpp"
#include "group_run.hpp"
#include "worker_record.hpp"

#include <fmt/format.h>

#include <string_view>
#include <utility>

namespace kvspan::runner {

namespace {

// A plugin that refuses in an orderly way.
Failure refusal_of(const nlohmann::json& body) {
  Failure failure;
  const std::string where = text_field(body, "where");
  failure.message = fmt::format("the plugin cannot be used: {} fails{}{}: {}",
                                text_field(body, "stage"),
                                where.empty() ? "" : " in ",
                                where,
                                text_field(body, "message"));
  return failure;
}

class Listening {
 public:
  WorkerWatch watch(Nanoseconds timeout) {
    WorkerWatch watch;
    watch.step_timeout = timeout;
    watch.on_printed = [this](std::string_view text) {
      append_printed(probe.result.printed, text);
    };
    watch.on_line = [this](std::string_view line) { return take(line); };
    watch.on_pause = [] {};
    return watch;
  }

  Probe probe;
  std::string garbage;

 private:
  Next take(std::string_view line) {
    std::string why;
    auto record = parse_record(line, why);
    if (!record) {
      garbage = "the record stream " + why;
      return Next::stop;
    }
    if (record->kind == RecordKind::probe) {
      probe.answered = true;
      probe.body = std::move(record->body);
    } else if (record->kind == RecordKind::note) {
      probe.result.notes.push_back(record->text);
    }
    return Next::go_on;
  }
};

}  // namespace

bool Probe::opened() const {
  const auto ok = body.find("ok");
  return answered && ok != body.end() && ok->is_boolean() && ok->get<bool>();
}

SuiteCase probe_case() {
  SuiteCase probe;
  probe.id = "Probe.LoadsOpensAndAnswers";
  probe.rules = {"KV-DEVICE-1", kPrintRule};
  probe.profile = "core";
  return probe;
}

Probe run_probe(const WorkerCommand& command,
                const std::vector<std::string>& arguments,
                Nanoseconds timeout) {
  Listening listening;
  const auto begin = Clock::now();
  const WorkerWatch watch = listening.watch(timeout);
  const WorkerEnd end = run_worker(command, arguments, watch);
  Probe probe = std::move(listening.probe);
  CaseResult& result = probe.result;
  result.duration = Clock::now() - begin;
  using How = WorkerEnd::How;
  const std::string said = "kvspan-conformance --worker: ";
  if (end.how == How::exited && end.value == kExitUsage && !probe.answered &&
      result.printed.compare(0, said.size(), said) == 0) {
    probe.refused = result.printed.substr(said.size(), result.printed.find('\n') - said.size());
  }
  if (end.how == How::timed_out) {
    result.status = Status::hang;
    result.stacks = end.stacks;
    result.reason = fmt::format("the probe worker {} ({})", end.spoken(), spoken(timeout));
  } else if (end.how == How::not_started) {
    result.status = Status::suite_error;
    result.reason = "the probe worker " + end.spoken();
  } else if (end.how == How::stopped || end.half_line) {
    result.status = Status::crash;
    result.reason = end.half_line ? "the probe worker ended within a record" : listening.garbage;
  } else if (end.how == How::signalled || !probe.answered) {
    result.status = Status::crash;
    result.reason = fmt::format("the probe worker {}{}",
                                end.spoken(),
                                probe.answered ? " after its answer" : " without an answer");
  } else if (!probe.opened()) {
    result.status = Status::fail;
    fail_with(result, refusal_of(probe.body));
  } else if (end.value != 0) {
    result.status = Status::crash;
    result.reason = fmt::format("the probe worker {} after its answer", end.spoken());
  } else {
    result.status = Status::pass;
    if (!result.printed.empty()) {
      fail_with(result, printed_failure(result.printed));
    }
  }
  return probe;
}

}  // namespace kvspan::runner
