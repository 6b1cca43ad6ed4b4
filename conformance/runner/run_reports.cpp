// SPDX-License-Identifier: Apache-2.0
// Opens, feeds and closes the reports. Read next: run_reports.hpp.
#include "run_reports.hpp"

#include "ending.hpp"
#include "report_html.hpp"
#include "report_junit.hpp"

#include <fmt/format.h>

#include <cstdio>

namespace kvspan::runner {

void write_stdout(const std::string& text) {
  static_cast<void>(std::fwrite(text.data(), 1, text.size(), stdout));
  static_cast<void>(std::fflush(stdout));
}

RunReports::RunReports(const ReportFacts& facts, const Plan& plan)
    : facts_(facts), plan_(plan), progress_(plan.cases.size(), facts.options.quiet) {}

std::string RunReports::path(const char* name) const {
  return facts_.options.out_folder + "/" + name;
}

void RunReports::keep(const std::string& problem) {
  problem_ = problem_.empty() ? problem : problem_;
}

std::string RunReports::open() {
  if (facts_.options.out_folder.empty()) {
    return {};
  }
  std::string problem = made_folder(facts_.options.out_folder);
  // An old page beside a lost run would be taken for its result.
  static_cast<void>(std::remove(path("report.html").c_str()));
  if (problem.empty()) {
    problem = written_file(path("junit.xml"), junit_before(facts_, plan_));
  }
  return problem.empty() ? results_file_.create(path("results.jsonl"), facts_, plan_) : problem;
}

void RunReports::add(std::size_t index, const CaseResult& result) {
  const SuiteCase& one = plan_.cases[index].suite_case;
  const std::string text = terminal_case(facts_, one, result);
  if (!text.empty()) {
    progress_.clear();
    write_stdout(text);
  }
  progress_.step(one.id, result);
  if (!facts_.options.out_folder.empty()) {
    keep(results_file_.add(facts_, one, result));
  }
}

void RunReports::finish(const std::vector<CaseResult>& results, Verdict& verdict) {
  const ReportInput input{facts_, plan_, results, verdict};
  if (!facts_.options.out_folder.empty()) {
    keep(written_file(path("junit.xml"), junit_after(input)));
    keep(written_file(path("report.html"), html_page(input)));
    if (problem_.empty()) {
      keep(results_file_.finish(facts_, verdict));
    }
  }
  if (!problem_.empty()) {
    verdict.exit_status = kExitMachine;
    verdict.sentence = fmt::format("NOT JUDGED: {}; {}", problem_, verdict.sentence);
  }
  progress_.clear();
  write_stdout(terminal_end(input));
}

}  // namespace kvspan::runner
