// SPDX-License-Identifier: Apache-2.0
// Results as JUnit XML. fail and unexpected_pass are <failure>; skip, waived and inconclusive are
// <skipped>; every other status but pass and warn is an <error>.
#include "report_junit.hpp"

#include "worker_arguments.hpp"

#include <fmt/format.h>

#include <chrono>

namespace kvspan::runner {

namespace {

enum class Kind { pass, failure, error, skipped };

Kind kind_of(Status status) {
  switch (status) {
    case Status::pass:
    case Status::warn:
      return Kind::pass;
    case Status::fail:
    case Status::unexpected_pass:
      return Kind::failure;
    case Status::skip:
    case Status::waived:
    case Status::inconclusive:
      return Kind::skipped;
    case Status::crash:
    case Status::hang:
    case Status::blocked:
    case Status::not_run:
    case Status::suite_error:
      return Kind::error;
  }
  return Kind::error;
}

std::string body_of(const CaseResult& result, const std::string& reproduce) {
  std::string out;
  for (const Failure& failure : result.failures) {
    out += failure.file.empty() ? "" : fmt::format("{}:{}: ", failure.file, failure.line);
    out += failure.message + "\n";
    out += failure.expected ? fmt::format("  expected: {}\n", *failure.expected) : "";
    out += failure.actual ? fmt::format("  actual:   {}\n", *failure.actual) : "";
  }
  if (result.failures_left_out != 0) {
    out += fmt::format("and {} failures more\n", result.failures_left_out);
  }
  out += result.alone.empty() ? "" : result.alone + "\n";
  for (const std::string& line : result.stacks) {
    out += line + "\n";
  }
  out += result.printed.empty() ? "" : fmt::format("printed:\n{}\n", result.printed);
  return out + "reproduce: " + reproduce + "\n";
}

std::string case_xml(const ReportFacts& facts, const SuiteCase& one, const CaseResult& result) {
  std::string out = fmt::format("    <testcase classname=\"{}\" name=\"{}\" time=\"{:.6f}\"",
                                escaped(std::string(one.suite())),
                                escaped(one.id.substr(one.id.find('.') + 1)),
                                std::chrono::duration<double>(result.duration).count());
  const Kind kind = kind_of(result.status);
  if (kind == Kind::pass) {
    return out + "/>\n";
  }
  const std::string message = escaped(first_words(result));
  if (kind == Kind::skipped) {
    return out + fmt::format(">\n      <skipped message=\"{}: {}\"/>\n    </testcase>\n",
                             name(result.status),
                             message);
  }
  const char* const tag = kind == Kind::failure ? "failure" : "error";
  return out +
         fmt::format(
             ">\n      <{0} type=\"{1}\" message=\"{2}\">{3}</{0}>\n    </testcase>\n",
             tag,
             name(result.status),
             message,
             escaped(body_of(result, reproduce_line(facts.options, facts.seed, one, result))));
}

std::string document(const ReportFacts& facts,
                     const Plan& plan,
                     const std::vector<CaseResult>& results) {
  std::size_t failures = 0;
  std::size_t errors = 0;
  std::size_t skipped = 0;
  std::string cases;
  for (std::size_t i = 0; i < results.size(); ++i) {
    const Kind kind = kind_of(results[i].status);
    failures += kind == Kind::failure ? 1u : 0u;
    errors += kind == Kind::error ? 1u : 0u;
    skipped += kind == Kind::skipped ? 1u : 0u;
    cases += case_xml(facts, plan.cases[i].suite_case, results[i]);
  }
  const std::string counts =
      fmt::format("tests=\"{}\" failures=\"{}\" errors=\"{}\" skipped=\"{}\" time=\"{:.6f}\"",
                  results.size(),
                  failures,
                  errors,
                  skipped,
                  std::chrono::duration<double>(facts.duration).count());
  return fmt::format(
      "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
      "<testsuites name=\"kvspan-conformance\" {0}>\n"
      "  <testsuite name=\"{1}\" {0} timestamp=\"{2}\">\n{3}  </testsuite>\n</testsuites>\n",
      counts,
      escaped(spoken_plugin(facts)),
      escaped(facts.started),
      cases);
}

}  // namespace

std::string junit_before(const ReportFacts& facts, const Plan& plan) {
  std::vector<CaseResult> results(plan.cases.size());
  for (CaseResult& result : results) {
    result.status = Status::not_run;
    result.reason = "the run was lost before this case had a result";
  }
  return document(facts, plan, results);
}

std::string junit_after(const ReportInput& input) {
  return document(input.facts, input.plan, input.results);
}

}  // namespace kvspan::runner
