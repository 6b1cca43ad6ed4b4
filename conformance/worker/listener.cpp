// SPDX-License-Identifier: Apache-2.0
// What each event becomes. A case that skipped itself is a mistake of the suite.
#include "worker/listener.hpp"

#include "worker/case.hpp"
#include "worker/failure_text.hpp"

#include <cstdio>
#include <cstring>

namespace kvspan::conformance {
namespace {

using nlohmann::json;

/// The value of a property that the case recorded; empty when it did not.
std::string property(const ::testing::TestResult& result, const char* key) {
  for (int i = 0; i < result.test_property_count(); ++i) {
    if (std::strcmp(result.GetTestProperty(i).key(), key) == 0) {
      return result.GetTestProperty(i).value();
    }
  }
  return "";
}

}  // namespace

void RecordListener::OnTestStart(const ::testing::TestInfo& info) {
  current_ = std::string(info.test_suite_name()) + "." + info.name();
  records_.write("begin", {{"case", current_}, {"index", executed_}});
  begun_ = std::chrono::steady_clock::now();
}

void RecordListener::OnTestPartResult(const ::testing::TestPartResult& part) {
  if (!part.failed()) {
    return;
  }
  const std::string message = part.message();
  const FailureText text = take_apart(message);
  json fields = {{"case", current_},
                 {"file", source_path(part.file_name())},
                 {"line", part.line_number() < 0 ? 0 : part.line_number()},
                 {"message", message}};
  const auto add = [&fields](const char* key, const std::string& value) {
    if (!value.empty()) {
      fields[key] = value;
    }
  };
  add("expected", text.expected);
  add("actual", text.actual);
  add("rule", text.rule);
  records_.write("failure", fields);
}

void RecordListener::OnTestEnd(const ::testing::TestInfo& info) {
  const auto spent = std::chrono::steady_clock::now() - begun_;
  const ::testing::TestResult& result = *info.result();
  json fields = {
      {"case", current_},
      {"duration_ns", std::chrono::duration_cast<std::chrono::nanoseconds>(spent).count()}};
  const std::string reason = property(result, "inconclusive");
  ++executed_;
  if (result.Failed()) {
    fields["result"] = "fail";
    ++failed_;
  } else if (result.Skipped()) {
    fields["result"] = "error";
    fields["reason"] = "the case skipped itself, which no case may";
    ++errors_;
  } else if (!reason.empty()) {
    fields["result"] = "inconclusive";
    fields["reason"] = reason;
    ++inconclusive_;
  } else {
    fields["result"] = "pass";
  }
  if (const std::string note = property(result, "note"); !note.empty()) {
    records_.write("note", {{"case", current_}, {"text", note}});
  }
  static_cast<void>(std::fflush(nullptr));  // what the plugin printed belongs to this case
  records_.write("end", fields);
}

bool RecordListener::finish() {
  records_.write("done",
                 {{"executed", executed_},
                  {"failed", failed_},
                  {"inconclusive", inconclusive_},
                  {"errors", errors_}});
  return failed_ == 0 && errors_ == 0 && executed_ != 0;
}

}  // namespace kvspan::conformance
