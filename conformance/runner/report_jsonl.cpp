// SPDX-License-Identifier: Apache-2.0
// Results as JSON lines. Read next: report_jsonl.hpp, where every field is named.
#include "report_jsonl.hpp"

#include "kvspan/version.h"

#include "worker_arguments.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>

namespace kvspan::runner {

namespace {

using nlohmann::ordered_json;

ordered_json failure_json(const Failure& failure) {
  ordered_json out;
  out["file"] = failure.file;
  out["line"] = failure.line;
  out["message"] = failure.message;
  if (failure.expected) {
    out["expected"] = *failure.expected;
  }
  if (failure.actual) {
    out["actual"] = *failure.actual;
  }
  if (!failure.rule.empty()) {
    out["rule"] = failure.rule;
  }
  return out;
}

ordered_json plugin_json(const ReportFacts& facts) {
  ordered_json out;
  out["file"] = facts.options.plugin;
  out["name"] = facts.note.name;
  out["vendor"] = facts.note.vendor;
  out["version"] = facts.note.version;
  out["build_id"] = facts.note.build_id;
  out["abi_major"] = facts.note.abi_major;
  out["abi_minor_min"] = facts.note.minors.min;
  out["abi_minor_max"] = facts.note.minors.max;
  out["header_hash"] = fmt::format("{:016x}", facts.note.header_hash);
  out["isa_floor"] = facts.note.isa_floor;
  return out;
}

}  // namespace

// Replaces what is no UTF-8: text comes from plugins.
std::string ResultsFile::line(const ordered_json& record) {
  file_ << record.dump(-1, ' ', false, ordered_json::error_handler_t::replace) << '\n';
  file_.flush();
  return file_.good() ? std::string()
                      : fmt::format("{} cannot be written: {}", path_, std::strerror(errno));
}

std::string ResultsFile::create(const std::string& path,
                                const ReportFacts& facts,
                                const Plan& plan) {
  path_ = path;
  file_.open(path, std::ios::binary | std::ios::trunc);
  ordered_json out;
  out["record"] = "header";
  out["schema"] = kResultsSchema;
  out["suite_version"] = facts.suite_version;
  out["abi"] = fmt::format("{}.{}", KVSPAN_ABI_MAJOR, KVSPAN_ABI_MINOR);
  out["header_hash"] = fmt::format("{:016x}", static_cast<std::uint64_t>(KVSPAN_HEADER_HASH));
  out["plugin"] = plugin_json(facts);
  out["probe"] = facts.probe;
  out["seed"] = facts.seed;
  out["command_line"] = facts.command_line;
  out["started"] = facts.started;
  out["planned"] = plan.cases.size() - 1;
  return line(out);
}

std::string ResultsFile::add(const ReportFacts& facts,
                             const SuiteCase& one,
                             const CaseResult& result) {
  ordered_json out;
  out["record"] = "case";
  out["case"] = one.id;
  out["rules"] = one.rules;
  out["profile"] = one.profile;
  out["status"] = name(result.status);
  out["reason"] = result.reason;
  out["duration_ns"] = result.duration.count();
  out["failures"] = ordered_json::array();
  for (const Failure& failure : result.failures) {
    out["failures"].push_back(failure_json(failure));
  }
  out["failures_left_out"] = result.failures_left_out;
  out["notes"] = result.notes;
  out["stacks"] = result.stacks;
  out["printed"] = result.printed;
  out["alone"] = result.alone;
  out["reproduce"] = needs_a_look(result.status)
                         ? reproduce_line(facts.options, facts.seed, one, result)
                         : std::string();
  return line(out);
}

std::string ResultsFile::finish(const ReportFacts& facts, const Verdict& verdict) {
  ordered_json out;
  out["record"] = "verdict";
  out["exit_status"] = verdict.exit_status;
  out["sentence"] = verdict.sentence;
  out["executed"] = verdict.executed;
  out["mandatory"] = verdict.mandatory;
  out["skipped"] = verdict.skipped;
  for (std::size_t i = 0; i < kStatusCount; ++i) {
    out["counts"][std::string(name(static_cast<Status>(i)))] = verdict.counts[i];
  }
  out["duration_ns"] = facts.duration.count();
  return line(out);
}

}  // namespace kvspan::runner
