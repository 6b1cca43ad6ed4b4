// SPDX-License-Identifier: Apache-2.0
// What a worker writes to the descriptor of --record-fd: JSON lines, each flushed before the worker
// goes on, so that whatever kills it leaves all that had happened. Text is UTF-8; what is not is
// replaced. Not here: what the parent makes of it (the runner), the registry (case.hpp).
//
// Every line is an object with "record", its kind. In the order in which they come:
//
//   start    first line, always: {"schema": 1, "plugin": PATH, "options": {K: V}, "device": N,
//            "seed": N, "effort": N, "mutation": NAME or "", "pid": N, "cases": N}.
//   probe    of --probe alone, instead of cases: see below.
//   begin    {"case": ID, "index": N}. Flushed before the case's fixture is made.
//   note     {"case": ID or "", "text": TEXT}: a remark, no verdict: what the first close left and
//            --retained covers.
//   failure  {"case": ID, "file": "conformance/cases/x_test.cpp", "line": N, "message": TEXT} and,
//            where the check has them, "expected": TEXT and "actual": TEXT; "rule": "KV-..." where
//            the failing check names a rule itself. Several a case are usual. file "" and line 0:
//            outside any source line.
//   end      {"case": ID, "result": R, "duration_ns": N} and "reason": TEXT where R is not pass or
//            fail. R is pass; fail (one failure record or more); inconclusive (the case could not
//            set the stage: counted and shown); error (a mistake of the suite: the case skipped
//            itself).
//   done     last line of a worker that ended by itself: {"executed": N, "failed": N,
//            "inconclusive": N, "errors": N}. A worker that leaves without it died: in the case
//            begun last when that has no end, else on its way out.
//
// probe: {"ok": true, "note": {"name", "vendor", "version", "minor_min", "minor_max",
//   "header_hash": "0x...", "isa_floor", "libraries"}, "minor": N, "tables": {"device": true, ...,
//   "attention": bool, "native": bool, "debug": bool},
//   "options_read": [NAME...] (which options the plugin asked the host for while it opened),
//   "devices": N, and where devices > 0:
//   "device": {"index", "name", "id": hex, "flags": N, "lanes": [3], "queues_max", "depth_max",
//     "cancel": N, "allocation_bytes_max", "binding_bytes_max", "memory_alignment",
//     "import_alignment", "import_bytes_max", "coherence_bytes", "context_bytes",
//     "fence_delta_max", "free_bytes": N or null},
//   "copy_limits": {the fields of kvspan_copy_limits_t},
//   "faults": {"allocation": bool, "submit": bool, "device": bool} (what debug can plant),
//   "codec": [{"row_type", "type": NAME, "head_size", "encode": LEVEL, "decode": LEVEL,
//     "reasons": N}],
//   "attention": [{"k", "v": NAME, "head_size_k", "head_size_v", "level": LEVEL, "reasons": N,
//     "error_class": N, "determinism": N, "width_invariant_max": N, "split_count": N,
//     "workspace_bytes": N}] (decode class, group 1, 1 row, loosest class E1),
//   "attention_options": {"window": LEVEL, ...} (each option bit alone, at the first pair that
//     works), "row_classes": {"decode": LEVEL, "prefill": LEVEL}}.
//   "retained": [{"kind", "pattern", "most", "reason", "names": [TEXT...]}] (an entry of --retained
//     each, with what the probe's own close left of it), "left": [TEXT...] (what it left besides).
//   With --tuple also "absent_tuple": "": a worker that is asked for a tuple which the plugin does
//   not offer says so on stderr and ends with 64 instead.
//   NAME is f32 f16 bf16 q8_0 q5_1 q5_0 q4_1 q4_0; LEVEL is native, converts or unsupported.
//   A plugin that does not load or open: {"ok": false, "stage": "load" | "count" | "describe" |
//   "open" | "close", "code": N, "where": TEXT, "message": TEXT}, and the worker ends with 3.
//
// A worker ends with 0 (everything it was asked ran and passed or was inconclusive), 1 (a case
// failed), 3 (the plugin cannot be opened at all), 64 (usage: also when --cases names nothing).
#ifndef KVSPAN_CONFORMANCE_WORKER_RECORD_H
#define KVSPAN_CONFORMANCE_WORKER_RECORD_H

#include <nlohmann/json.hpp>

#include <string>

namespace kvspan::conformance {

inline constexpr int kRecordSchema = 1;

/// Writes lines to a descriptor, or nowhere. Used from one thread at a time.
class RecordStream {
 public:
  /// fd < 0: nothing is written.
  explicit RecordStream(int fd) : fd_(fd) {}

  bool on() const { return fd_ >= 0; }

  /// One line of `kind` with the fields; whole lines only. False when nobody reads any more.
  bool write(const std::string& kind, nlohmann::json fields);

 private:
  int fd_;
};

}  // namespace kvspan::conformance

#endif
