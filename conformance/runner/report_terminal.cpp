// SPDX-License-Identifier: Apache-2.0
// Words for people. Read next: report_terminal.hpp.
#include "report_terminal.hpp"

#include "retained.hpp"
#include "worker_arguments.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <map>
#include <unistd.h>

namespace kvspan::runner {

namespace {

constexpr std::size_t kShownFailures = 5;
constexpr std::size_t kShownBytes = 600;
constexpr std::size_t kShownFrames = 12;

// Every line of the text behind the margin; long texts are cut, the reports have all of it.
std::string indented(const std::string& label, const std::string& text) {
  std::string cut = clean_text(text.substr(0, kShownBytes));
  if (text.size() > kShownBytes) {
    cut += fmt::format("... ({} bytes more)", text.size() - kShownBytes);
  }
  std::string out = "    " + label;
  for (const char letter : cut) {
    out += letter;
    if (letter == '\n') {
      out += "      ";
    }
  }
  while (!out.empty() && std::isspace(static_cast<unsigned char>(out.back())) != 0) {
    out.pop_back();
  }
  return out + "\n";
}

std::string shown_failure(const Failure& failure) {
  const std::string place =
      failure.file.empty() ? std::string() : fmt::format("{}:{}: ", failure.file, failure.line);
  std::string out = indented("", place + failure.message);
  out += failure.expected ? indented("  expected: ", *failure.expected) : "";
  out += failure.actual ? indented("  actual:   ", *failure.actual) : "";
  return out;
}

std::string upper(std::string_view word) {
  std::string out(word);
  std::transform(out.begin(), out.end(), out.begin(), [](char c) {
    return c == '_' ? ' ' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  });
  return out;
}

}  // namespace

std::string terminal_case(const ReportFacts& facts,
                          const SuiteCase& one,
                          const CaseResult& result) {
  if (!needs_a_look(result.status)) {
    return {};
  }
  std::string out =
      fmt::format("{} {}  [{}]\n", upper(name(result.status)), one.id, fmt::join(one.rules, " "));
  out += result.reason.empty() ? "" : indented("", result.reason);
  out += result.alone.empty() ? "" : indented("", result.alone);
  const std::size_t shown = std::min(kShownFailures, result.failures.size());
  for (std::size_t i = 0; i < shown; ++i) {
    out += shown_failure(result.failures[i]);
  }
  const std::size_t more = result.failures.size() - shown + result.failures_left_out;
  out += more == 0 ? "" : fmt::format("    and {} failures more\n", more);
  const std::size_t frames = std::min(kShownFrames, result.stacks.size());
  for (std::size_t i = 0; i < frames; ++i) {
    out += "    " + clean_text(result.stacks[i]) + "\n";
  }
  if (frames != result.stacks.size()) {
    out += fmt::format("    and {} lines of stacks more in the reports\n",
                       result.stacks.size() - frames);
  }
  if (!result.printed.empty() && result.status != Status::fail) {
    out += indented("printed: ", result.printed);
  }
  return out + fmt::format("    {}\n", reproduce_line(facts.options, facts.seed, one, result));
}

std::string terminal_end(const ReportInput& input) {
  std::map<std::string, std::size_t> skips;
  for (std::size_t i = 1; i < input.results.size(); ++i) {
    if (input.results[i].status == Status::skip) {
      ++skips[input.results[i].reason];
    }
  }
  std::string out;
  for (const auto& [fact, count] : skips) {
    out += fmt::format("skipped {}: {}\n", count, clean_text(fact));
  }
  for (const std::string& sentence : retained_sentences(input.facts.probe)) {
    out += clean_text(sentence) + "\n";
  }
  out += fmt::format("{} in {}, seed {}\n{}\n",
                     clean_text(spoken_plugin(input.facts)),
                     spoken(input.facts.duration),
                     input.facts.seed,
                     clean_text(input.verdict.sentence));
  return out;
}

Progress::Progress(std::size_t count, bool quiet)
    : count_(count), quiet_(quiet), terminal_(::isatty(STDERR_FILENO) == 1) {}

void Progress::clear() {
  if (open_) {
    static_cast<void>(std::fputs("\r\033[K", stderr));
    open_ = false;
  }
}

void Progress::step(const std::string& id, const CaseResult& result) {
  ++done_;
  bad_ += needs_a_look(result.status) ? 1u : 0u;
  if (quiet_) {
    return;
  }
  if (terminal_) {
    static_cast<void>(std::fprintf(
        stderr, "\r\033[K%zu of %zu, %zu to look at  %.60s", done_, count_, bad_, id.c_str()));
    open_ = true;
  } else if (count_ != 0 && done_ * 10 / count_ != tenth_) {
    tenth_ = done_ * 10 / count_;
    static_cast<void>(
        std::fprintf(stderr, "%zu of %zu cases, %zu to look at\n", done_, count_, bad_));
  }
}

}  // namespace kvspan::runner
