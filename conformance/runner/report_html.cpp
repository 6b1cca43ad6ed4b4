// SPDX-License-Identifier: Apache-2.0
// The page. Its looks and its script: report_look.hpp. Read next: report_html.hpp.
#include "report_html.hpp"

#include "kvspan/version.h"

#include "report_look.hpp"
#include "report_matrix.hpp"
#include "retained.hpp"
#include "worker_arguments.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <chrono>
#include <map>
#include <utility>

namespace kvspan::runner {

namespace {

std::string badge(Status status) {
  return fmt::format("<span class=\"status s-{0}\">{0}</span>", name(status));
}

std::string head_html(const ReportInput& input) {
  const ReportFacts& facts = input.facts;
  const bool good = input.verdict.exit_status == 0;
  std::string out = fmt::format(
      "<header><h1>kvspan-conformance: {}</h1>\n<p id=\"verdict\" class=\"{}\" "
      "data-exit-status=\"{}\">{}</p>\n<table class=\"facts\">\n",
      escaped(facts.note.name),
      good ? "good" : "bad",
      input.verdict.exit_status,
      escaped(input.verdict.sentence));
  const auto row = [&out](const char* label, const std::string& text) {
    out += fmt::format("<tr><th scope=\"row\">{}</th><td>{}</td></tr>\n", label, escaped(text));
  };
  row("plugin", spoken_plugin(facts));
  row("file", facts.options.plugin);
  row("suite",
      fmt::format("{}, ABI {}.{}, header {:016x}",
                  facts.suite_version,
                  KVSPAN_ABI_MAJOR,
                  KVSPAN_ABI_MINOR,
                  static_cast<std::uint64_t>(KVSPAN_HEADER_HASH)));
  row("started", fmt::format("{}, took {}", facts.started, spoken(facts.duration)));
  row("seed", std::to_string(facts.seed));
  row("command", fmt::format("{}", fmt::join(facts.command_line, " ")));
  return out + "</table></header>\n";
}

// The filters do something only where the script runs, which shows them.
std::string filters_html(const Verdict& verdict) {
  std::string out =
      "<form id=\"filters\" hidden><label>show <select id=\"by-status\"><option value=\"\">every "
      "status</option>";
  for (std::size_t i = 0; i < kStatusCount; ++i) {
    if (verdict.counts[i] != 0) {
      out += fmt::format("<option value=\"{0}\">{0} ({1})</option>",
                         name(static_cast<Status>(i)),
                         verdict.counts[i]);
    }
  }
  return out +
         "</select></label> <label>with <input id=\"by-text\" type=\"search\" "
         "placeholder=\"case or rule\"></label></form>\n";
}

std::string pre(const char* kind, const std::string& text) {
  return fmt::format("<dt>{0}</dt><dd><pre class=\"{0}\">{1}</pre></dd>\n", kind, escaped(text));
}

std::string failure_html(const Failure& failure) {
  std::string out = "<li class=\"failure\">";
  if (!failure.file.empty()) {
    out += fmt::format("<code class=\"place\">{}:{}</code> ", escaped(failure.file), failure.line);
  }
  if (!failure.rule.empty()) {
    out += fmt::format("<code>{}</code> ", escaped(failure.rule));
  }
  out += fmt::format("<pre class=\"message\">{}</pre>", escaped(failure.message));
  if (failure.expected || failure.actual) {
    out += "<dl>" + (failure.expected ? pre("expected", *failure.expected) : "") +
           (failure.actual ? pre("actual", *failure.actual) : "") + "</dl>";
  }
  return out + "</li>\n";
}

std::string look_html(const ReportInput& input, std::size_t index) {
  const SuiteCase& one = input.plan.cases[index].suite_case;
  const CaseResult& result = input.results[index];
  std::string out = fmt::format(
      "<article class=\"row\" data-case=\"{0}\" data-status=\"{1}\" data-rules=\"{2}\">"
      "<h3>{3} {0} <small>{2}</small></h3>\n",
      escaped(one.id),
      name(result.status),
      escaped(fmt::format("{}", fmt::join(one.rules, " "))),
      badge(result.status));
  for (const std::string& text : {result.reason, result.alone}) {
    out += text.empty() ? "" : fmt::format("<p class=\"reason\">{}</p>\n", escaped(text));
  }
  if (!result.failures.empty()) {
    out += "<ul>\n";
    for (const Failure& failure : result.failures) {
      out += failure_html(failure);
    }
    out += "</ul>\n";
  }
  if (result.failures_left_out != 0) {
    out += fmt::format("<p>and {} failures more</p>\n", result.failures_left_out);
  }
  if (!result.stacks.empty()) {
    const std::string stacks = fmt::format("{}", fmt::join(result.stacks, "\n"));
    out += "<dl>" + pre("stacks", stacks) + "</dl>\n";
  }
  if (!result.printed.empty()) {
    out += "<dl>" + pre("printed", result.printed) + "</dl>\n";
  }
  if (!result.notes.empty()) {
    out += "<details><summary>notes</summary><pre>" +
           escaped(fmt::format("{}", fmt::join(result.notes, "\n"))) + "</pre></details>\n";
  }
  return out +
         fmt::format("<p>again: <code class=\"reproduce\">{}</code></p></article>\n",
                     escaped(reproduce_line(input.facts.options, input.facts.seed, one, result)));
}

std::string looks_html(const ReportInput& input) {
  std::string out;
  for (const std::string& sentence : retained_sentences(input.facts.probe)) {
    out += fmt::format("<p class=\"retained\">{}</p>\n", escaped(sentence));
  }
  for (std::size_t i = 0; i < input.results.size(); ++i) {
    if (needs_a_look(input.results[i].status)) {
      out += look_html(input, i);
    }
  }
  return out.empty() ? "<p>Nothing: every case that was run passed.</p>\n" : out;
}

// A rule is as good as the worst case that proves it.
int badness(Status status) {
  constexpr std::pair<Status, int> kOrder[] = {{Status::crash, 9},
                                               {Status::hang, 9},
                                               {Status::fail, 8},
                                               {Status::unexpected_pass, 7},
                                               {Status::suite_error, 6},
                                               {Status::blocked, 5},
                                               {Status::not_run, 4},
                                               {Status::waived, 3},
                                               {Status::warn, 2},
                                               {Status::inconclusive, 2},
                                               {Status::pass, 1},
                                               {Status::skip, 0}};
  for (const auto& [known, rank] : kOrder) {
    if (known == status) {
      return rank;
    }
  }
  return 0;
}

std::string rules_html(const ReportInput& input) {
  std::map<std::string, std::vector<std::size_t>> by_rule;
  for (std::size_t i = 1; i < input.results.size(); ++i) {
    for (const std::string& rule : input.plan.cases[i].suite_case.rules) {
      by_rule[rule].push_back(i);
    }
  }
  std::string out =
      "<table id=\"rules\"><tr><th scope=\"col\">rule</th><th scope=\"col\">status</th>"
      "<th scope=\"col\">cases</th></tr>\n";
  for (const auto& [rule, indices] : by_rule) {
    Status worst = Status::skip;
    std::string cases;
    for (const std::size_t index : indices) {
      const Status status = input.results[index].status;
      worst = badness(status) > badness(worst) ? status : worst;
      cases += fmt::format(
          "<li>{} {}</li>", badge(status), escaped(input.plan.cases[index].suite_case.id));
    }
    out += fmt::format(
        "<tr class=\"row\" data-status=\"{0}\" data-rules=\"{1}\"><th scope=\"row\">{1}</th>"
        "<td>{2}</td><td><details><summary>{3}</summary><ul>{4}</ul></details></td></tr>\n",
        name(worst),
        escaped(rule),
        badge(worst),
        indices.size(),
        cases);
  }
  return out + "</table>\n";
}

std::string cases_html(const ReportInput& input) {
  std::string out =
      "<table id=\"cases\"><tr><th scope=\"col\">case</th><th scope=\"col\">status</th>"
      "<th scope=\"col\">time</th><th scope=\"col\">profile</th><th scope=\"col\">rules</th>"
      "<th scope=\"col\">why</th></tr>\n";
  for (std::size_t i = 0; i < input.results.size(); ++i) {
    const SuiteCase& one = input.plan.cases[i].suite_case;
    const CaseResult& result = input.results[i];
    out += fmt::format(
        "<tr class=\"row\" data-case=\"{0}\" data-status=\"{1}\" data-rules=\"{2}\"><td>{0}</td>"
        "<td>{3}</td><td>{4}</td><td>{5}</td><td>{2}</td><td>{6}</td></tr>\n",
        escaped(one.id),
        name(result.status),
        escaped(fmt::format("{}", fmt::join(one.rules, " "))),
        badge(result.status),
        spoken(result.duration),
        escaped(one.profile),
        escaped(result.reason.empty() ? fmt::format("{}", fmt::join(result.notes, "; "))
                                      : result.reason));
  }
  return out + "</table>\n";
}

}  // namespace

std::string html_page(const ReportInput& input) {
  return fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<title>kvspan-conformance: {}</title>\n<style>{}</style></head>\n<body>\n{}<main>\n{}"
      "<section id=\"look\"><h2>To look at</h2>\n{}</section>\n"
      "<section id=\"matrix\"><h2>What the plugin offers</h2>\n{}</section>\n"
      "<section><h2>Rules</h2>\n{}</section>\n"
      "<section><h2>Cases</h2>\n{}</section>\n</main>\n<script>{}</script>\n</body></html>\n",
      escaped(input.facts.note.name),
      kPageStyle,
      head_html(input),
      filters_html(input.verdict),
      looks_html(input),
      matrix_html(input.facts.probe),
      rules_html(input),
      cases_html(input),
      kPageScript);
}

}  // namespace kvspan::runner
