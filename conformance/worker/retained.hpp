// SPDX-License-Identifier: Apache-2.0
// What the runtime under a plugin keeps for the life of the process, as its author has declared it:
// a vendor's driver starts threads and opens descriptors with the first context and ends them with
// the process. A declaration names kind, pattern, the most of it and the reason. What is left after
// the first close is divided into what an entry covers, which is told, and the rest, which breaks
// KV-MANNERS-3. Every later close must leave nothing at all: nobody declares a leak. Not here: the
// file that people write (runner/retained.hpp), reading the process (process_state.hpp).
#ifndef KVSPAN_CONFORMANCE_WORKER_RETAINED_H
#define KVSPAN_CONFORMANCE_WORKER_RETAINED_H

#include "worker/process_state.hpp"
#include "worker/settings.hpp"

#include <nlohmann/json.hpp>

#include <string>
#include <vector>

namespace kvspan::conformance {

/// Reads the entries of `text`, a JSON list as the parent passes it. Empty, or what is wrong.
std::string read_retained(const std::string& text, std::vector<Retained>& out);

/// What one entry covers of what was found.
struct Kept {
  Retained entry;
  std::vector<std::string> names;  // of threads; targets of descriptors; none: nothing was found
};

struct Remains {
  std::vector<Kept> kept;               // one an entry, in their order, those without names too
  std::vector<std::string> undeclared;  // as ProcessState::changes() says it
  bool undeclared_threads = false;      // which may be on their way out

  /// A line an entry that covers something; empty when none does.
  std::string told() const;
  /// [{"kind", "pattern", "most", "reason", "names"}], one an entry.
  nlohmann::json listed() const;
};

/// Divides what `after` has more than `before`. An entry covers at most `most` of its kind.
Remains remains(const ProcessState& before,
                const ProcessState& after,
                const std::vector<Retained>& entries);

/// remains() of the process now, read again for up to two seconds while there are threads that no
/// entry covers.
Remains settled_remains(const ProcessState& before, const std::vector<Retained>& entries);

/// Whether an entry says that the file of this path stays mapped.
bool stays_mapped(const std::string& path, const std::vector<Retained>& entries);

}  // namespace kvspan::conformance

#endif
