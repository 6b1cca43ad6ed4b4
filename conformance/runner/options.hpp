// SPDX-License-Identifier: Apache-2.0
// What the command line of kvspan-conformance asks for. Not here: what it means for the cases
// (plan.hpp), what a worker is told (worker_arguments.hpp).
#ifndef KVSPAN_CONFORMANCE_RUNNER_OPTIONS_H
#define KVSPAN_CONFORMANCE_RUNNER_OPTIONS_H

#include "duration.hpp"
#include "ending.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace kvspan::runner {

struct Shard {
  std::uint32_t index = 1;  // 1..count
  std::uint32_t count = 1;
};

struct Options {
  std::string plugin;                 // path of the .so
  std::uint32_t device = 0;           // index
  std::vector<std::string> profiles;  // empty: all
  std::vector<std::string> rules;     // patterns; empty: all
  std::vector<std::string> cases;     // patterns; empty: all
  std::vector<std::string> tuples;    // "k=q8_0,v=q4_0,hd=128", well-formed
  Shard shard;
  std::optional<Nanoseconds> budget;  // of the whole run
  Nanoseconds case_timeout = std::chrono::minutes(2);
  std::uint64_t seed = 0;
  std::uint32_t rounds = 1;                 // --repeat-until-fail
  std::vector<std::string> plugin_options;  // "key=value"
  std::uint32_t effort_percent = 100;
  std::uint32_t soak = 1;  // times the rounds of cases that seek rare events
  std::string mutation;    // empty: none
  std::string waivers_file;
  std::string retained_file;
  std::string retained;  // what it holds, as a worker takes it (retained.hpp); empty: nothing
  std::string out_folder;
  std::uint32_t jobs = 1;
  bool strict = false;
  bool in_process = false;
  bool list = false;
  bool quiet = false;
};

// Reads the command line. An Ending with status 0 holds help or version; any other a usage error
// that names the option, its limit and the fix.
[[nodiscard]] OrEnding<Options> parse_options(int count, const char* const* arguments);

}  // namespace kvspan::runner

#endif
