// SPDX-License-Identifier: Apache-2.0
// Lines of JSON to records. Read next: worker_record.hpp.
#include "worker_record.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <utility>

namespace kvspan::runner {

namespace {

using nlohmann::json;

constexpr std::size_t kTextBytesMax = 16384;

constexpr std::pair<std::string_view, RecordKind> kKinds[] = {{"start", RecordKind::start},
                                                              {"probe", RecordKind::probe},
                                                              {"begin", RecordKind::begin},
                                                              {"note", RecordKind::note},
                                                              {"failure", RecordKind::failure},
                                                              {"end", RecordKind::end},
                                                              {"done", RecordKind::done}};

// For messages: what cannot be shown becomes '?'.
std::string shown(std::string_view text) {
  constexpr std::size_t kShownBytes = 60;
  std::string out(text.substr(0, kShownBytes));
  std::replace_if(
      out.begin(), out.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
  return out + (text.size() > kShownBytes ? "..." : "");
}

// A text field; cut so that one record cannot fill the report.
std::optional<std::string> text_of(const json& object, const char* key) {
  const auto field = object.find(key);
  if (field == object.end() || !field->is_string()) {
    return std::nullopt;
  }
  auto text = field->get<std::string>();
  if (text.size() > kTextBytesMax) {
    std::size_t cut = kTextBytesMax;
    while (cut > 0 && (static_cast<unsigned char>(text[cut]) & 0xC0u) == 0x80u) {
      --cut;  // not in the middle of a character
    }
    text = fmt::format("{}... ({} bytes left out)", text.substr(0, cut), text.size() - cut);
  }
  return text;
}

std::int64_t number_of(const json& object, const char* key) {
  const auto field = object.find(key);
  return field != object.end() && field->is_number_integer() ? field->get<std::int64_t>() : 0;
}

Failure failure_of(const json& object) {
  Failure failure;
  failure.file = text_of(object, "file").value_or("");
  failure.line = number_of(object, "line");
  failure.message = text_of(object, "message").value_or("");
  failure.expected = text_of(object, "expected");
  failure.actual = text_of(object, "actual");
  failure.rule = text_of(object, "rule").value_or("");
  return failure;
}

}  // namespace

std::string text_field(const json& object, const char* key) {
  const auto field = object.find(key);
  return field != object.end() && field->is_string() ? field->get<std::string>() : std::string();
}

std::optional<WorkerRecord> parse_record(std::string_view line, std::string& why) {
  json object = json::parse(line.begin(), line.end(), nullptr, false);
  if (!object.is_object()) {
    why = fmt::format("holds a line that is no record: '{}'", shown(line));
    return std::nullopt;
  }
  const std::string word = text_of(object, "record").value_or("");
  const auto* const kind = std::find_if(
      std::begin(kKinds), std::end(kKinds), [&word](const auto& one) { return one.first == word; });
  if (kind == std::end(kKinds)) {
    why = fmt::format("holds a record of a kind that does not exist: '{}'", shown(line));
    return std::nullopt;
  }
  WorkerRecord record;
  record.kind = kind->second;
  record.case_id = text_of(object, "case").value_or("");
  const bool names_a_case = record.kind == RecordKind::begin || record.kind == RecordKind::end;
  if (names_a_case && record.case_id.empty()) {
    why = fmt::format("holds a record without its case: '{}'", shown(line));
    return std::nullopt;
  }
  if (record.kind == RecordKind::end) {
    record.result = text_of(object, "result").value_or("");
    record.text = text_of(object, "reason").value_or("");
    record.duration = Nanoseconds(std::max<std::int64_t>(0, number_of(object, "duration_ns")));
  } else if (record.kind == RecordKind::note) {
    record.text = text_of(object, "text").value_or("");
  } else if (record.kind == RecordKind::failure) {
    record.failure = failure_of(object);
  } else if (record.kind == RecordKind::probe) {
    record.body = std::move(object);
  }
  return record;
}

}  // namespace kvspan::runner
