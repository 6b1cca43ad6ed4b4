// SPDX-License-Identifier: Apache-2.0
// One line of a worker's record stream, taken apart. The lines are described in
// conformance/worker/record.hpp. A worker shares its process with the plugin under test, so
// whatever arrives here may be damaged: that is said, and nothing is believed.
#ifndef KVSPAN_CONFORMANCE_RUNNER_WORKER_RECORD_H
#define KVSPAN_CONFORMANCE_RUNNER_WORKER_RECORD_H

#include "case_result.hpp"

#include <nlohmann/json.hpp>

#include <optional>
#include <string>
#include <string_view>

namespace kvspan::runner {

enum class RecordKind { start, probe, begin, note, failure, end, done };

struct WorkerRecord {
  RecordKind kind = RecordKind::note;
  std::string case_id;  // begin, note, failure, end
  std::string text;     // note: the text; end: the reason
  std::string result;   // end
  Nanoseconds duration{};
  Failure failure;      // failure
  nlohmann::json body;  // probe: all of it
};

// Nothing, with `why` as the rest of a sentence that begins with "the record stream", when the line
// is no record. `line` has no line end.
[[nodiscard]] std::optional<WorkerRecord> parse_record(std::string_view line, std::string& why);

// The text of a field; empty where there is none, or no text.
[[nodiscard]] std::string text_field(const nlohmann::json& object, const char* key);

}  // namespace kvspan::runner

#endif
