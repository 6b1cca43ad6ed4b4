// SPDX-License-Identifier: Apache-2.0
// What the author declares that the runtime under a plugin keeps for the life of the process: the
// file of --retained, and what the reports say of it. A JSON list of objects, each with all keys:
//
//   kind     "thread" (pattern: its name), "descriptor" (what it leads to, "/dev/vendor*") or
//            "mapping" (the plugin's file, which stays mapped when it is unloaded)
//   pattern  a glob with three letters or digits in a row at least
//   most     how many there may be in a process, 1 to 256
//   reason   why the plugin cannot end it
//
// Not here: what is done with it (worker/retained.hpp).
#ifndef KVSPAN_CONFORMANCE_RUNNER_RETAINED_H
#define KVSPAN_CONFORMANCE_RUNNER_RETAINED_H

#include "ending.hpp"

#include <nlohmann/json.hpp>

#include <string>
#include <string_view>
#include <vector>

namespace kvspan::runner {

// The entries of a file's text as a worker takes them, one line of JSON. `file` is its name for
// messages. Errors: usage, naming the entry by its number.
[[nodiscard]] OrEnding<std::string> parse_retained(const std::string& file, std::string_view text);

// The same from the file itself; an empty name gives an empty text.
[[nodiscard]] OrEnding<std::string> read_retained(const std::string& file);

// What the probe found retained, a sentence an entry, and what it found left and not declared.
// Plugins name threads: the text is not clean.
[[nodiscard]] std::vector<std::string> retained_sentences(const nlohmann::json& probe);

// Whether the probe found anything that an entry covers: a run is then not free of warnings.
[[nodiscard]] bool retains_something(const nlohmann::json& probe);

}  // namespace kvspan::runner

#endif
