// SPDX-License-Identifier: Apache-2.0
// The command line's grammar: CLI11 takes it apart, the checks below say what is wrong with a
// value.
#include "options.hpp"

#include "kvspan/version.h"

#include "suite_case.hpp"

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <sstream>
#include <string_view>

namespace kvspan::runner {

namespace {

constexpr const char* kDescription =
    "kvspan-conformance: is this backend right? Runs every rule of the ABI that a case proves "
    "against one plugin, each group of cases in a process of its own.\n"
    "Exit status: 0 passed, 1 a rule failed, 2 a crash or a hang, 3 the machine or the suite, "
    "4 warnings with --strict, 64 wrong options or nothing to do.";

// The values as written; checked and converted below.
struct Written {
  std::string shard;
  std::string budget;
  std::string timeout;
};

void add_selection(CLI::App& app, Options& options, Written& written) {
  app.add_option("plugin", options.plugin, "File of the plugin, kvspan-<name>.so");
  app.add_option(
         "--profile",
         options.profiles,
         fmt::format("Only cases of this profile: {}; may be repeated", fmt::join(kProfiles, ", ")))
      ->allow_extra_args(false);
  app.add_option("--rule", options.rules, "Only cases that prove such a rule, \"KV-COPY-*\"")
      ->allow_extra_args(false);
  app.add_option("--case", options.cases, "Only cases with such an id, \"CopyTest.*\"")
      ->allow_extra_args(false);
  app.add_option("--tuple",
                 options.tuples,
                 "Only these K type, V type and head size, \"k=q8_0,v=q4_0,hd=128\"; may be "
                 "repeated")
      ->allow_extra_args(false);
  app.add_option("--device", options.device, "Index of the plugin's device (0)");
  app.add_option("--shard", written.shard, "Only part i of n, \"2/4\"");
  app.add_option(
      "--budget",
      written.budget,
      "Begin no case after this long, \"60s\", \"10m\", \"2h\"; one case of every profile "
      "comes first, then of every rule");
}

void add_running(CLI::App& app, Options& options, Written& written) {
  app.add_option("--timeout", written.timeout, "Longest time of one case, then it hangs (2m)");
  app.add_option("--seed", options.seed, "Seed of every random choice (0)");
  app.add_option("--repeat-until-fail",
                 options.rounds,
                 "Run up to N times with seeds counting up; the first that does not pass is the "
                 "last");
  app.add_option("--option", options.plugin_options, "key=value for the plugin; may be repeated")
      ->allow_extra_args(false);
  app.add_option("--effort", options.effort_percent, "Random cases in percent of the usual (100)");
  app.add_option("--soak",
                 options.soak,
                 "Times the rounds of cases that seek what happens once in very many (1); for a "
                 "release 50 gives a million points a case");
  app.add_option("--mutate",
                 options.mutation,
                 "Falsify the plugin's calls in this way: the run must not pass");
  app.add_option("--jobs", options.jobs, "Workers at a time (1: timings are then the plugin's)");
  app.add_flag("--in-process", options.in_process, "Cases in this process, for a debugger");
}

void add_reporting(CLI::App& app, Options& options) {
  app.add_option("--waivers", options.waivers_file, "JSON file of known failures");
  app.add_option("--retained",
                 options.retained_file,
                 "JSON file of the threads and descriptors that the runtime under the plugin keeps "
                 "for the life of the process");
  app.add_option("--out",
                 options.out_folder,
                 "Folder for results.jsonl, junit.xml and report.html; made when absent");
  app.add_flag("--strict", options.strict, "Warnings are no success: status 4");
  app.add_flag("--list", options.list, "Show the selected cases, run none");
  app.add_flag("--quiet", options.quiet, "No progress, only what did not pass and the verdict");
}

bool is_number(std::string_view text) {
  return !text.empty() && text.size() < 10 &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

bool is_type_name(std::string_view text) {
  return !text.empty() && text.size() < 32 && std::all_of(text.begin(), text.end(), [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
  });
}

// "k=q8_0,v=q4_0,hd=128": any of the three, each once.
bool is_tuple(const std::string& text) {
  std::vector<std::string> seen;
  std::istringstream parts(text);
  for (std::string part; std::getline(parts, part, ',');) {
    const std::size_t equals = part.find('=');
    if (equals == std::string::npos) {
      return false;
    }
    const std::string key = part.substr(0, equals);
    const std::string value = part.substr(equals + 1);
    const bool good =
        key == "hd" ? is_number(value) : (key == "k" || key == "v") && is_type_name(value);
    if (!good || std::find(seen.begin(), seen.end(), key) != seen.end()) {
      return false;
    }
    seen.push_back(key);
  }
  return !seen.empty() && text.back() != ',';
}

std::optional<Shard> parse_shard(const std::string& text) {
  Shard shard;
  const std::size_t slash = text.find('/');
  if (slash == std::string::npos || !is_number(std::string_view(text).substr(0, slash)) ||
      !is_number(std::string_view(text).substr(slash + 1))) {
    return std::nullopt;
  }
  std::from_chars(text.data(), text.data() + slash, shard.index);
  std::from_chars(text.data() + slash + 1, text.data() + text.size(), shard.count);
  if (shard.index < 1 || shard.index > shard.count) {
    return std::nullopt;
  }
  return shard;
}

// Empty, or what is wrong with the profiles, tuples and options of the plugin.
std::string wrong_list(const Options& options) {
  for (const std::string& profile : options.profiles) {
    if (std::find(std::begin(kProfiles), std::end(kProfiles), profile) == std::end(kProfiles)) {
      return fmt::format(
          "--profile {}: there is no such profile; use {}", profile, fmt::join(kProfiles, ", "));
    }
  }
  for (const std::string& tuple : options.tuples) {
    if (!is_tuple(tuple)) {
      return fmt::format("--tuple {}: write k=TYPE,v=TYPE,hd=SIZE, at least one of the three",
                         tuple);
    }
  }
  for (const std::string& pair : options.plugin_options) {
    if (pair.find('=') == std::string::npos || pair.front() == '=') {
      return fmt::format("--option {}: write key=value", pair);
    }
  }
  return {};
}

OrEnding<Options> checked(Options options, const Written& written) {
  if (const std::string wrong = wrong_list(options); !wrong.empty()) {
    return usage_error(wrong);
  }
  if (options.plugin.empty() && !options.list) {
    return usage_error("no plugin is named: kvspan-conformance kvspan-mine.so");
  }
  if (!written.shard.empty()) {
    const auto shard = parse_shard(written.shard);
    if (!shard) {
      return usage_error(
          fmt::format("--shard {}: write i/n, with i from 1 to n, for example 2/4", written.shard));
    }
    options.shard = *shard;
  }
  const auto duration = [](const char* name, const std::string& text) -> OrEnding<Nanoseconds> {
    const auto read = parse_duration(text);
    if (!read) {
      return usage_error(fmt::format(
          "{} {}: write a number with its unit, at most 1000h: 500ms, 60s, 10m or 2h", name, text));
    }
    return *read;
  };
  if (!written.budget.empty()) {
    const auto budget = duration("--budget", written.budget);
    if (!budget) {
      return tl::unexpected(budget.error());
    }
    options.budget = *budget;
  }
  if (!written.timeout.empty()) {
    const auto timeout = duration("--timeout", written.timeout);
    if (!timeout) {
      return tl::unexpected(timeout.error());
    }
    options.case_timeout = *timeout;
  }
  constexpr std::uint32_t kJobsMax = 64;
  if (options.jobs < 1 || options.jobs > kJobsMax) {
    return usage_error(fmt::format("--jobs {}: use 1 to {}", options.jobs, kJobsMax));
  }
  if (options.rounds < 1) {
    return usage_error("--repeat-until-fail 0: use 1 or more");
  }
  if (options.effort_percent < 1) {
    return usage_error("--effort 0: use 1 or more, in percent");
  }
  constexpr std::uint32_t kSoakMax = 10000;
  if (options.soak < 1 || options.soak > kSoakMax) {
    return usage_error(fmt::format("--soak {}: use 1 to {}", options.soak, kSoakMax));
  }
  return options;
}

}  // namespace

OrEnding<Options> parse_options(int count, const char* const* arguments) {
  Options options;
  Written written;
  CLI::App app{kDescription};
  app.name("kvspan-conformance");
  app.set_version_flag(
      "--version",
      fmt::format(
          "kvspan-conformance {}.{}.{}", KVSPAN_ABI_MAJOR, KVSPAN_ABI_MINOR, KVSPAN_RELEASE_PATCH));
  add_selection(app, options, written);
  add_running(app, options, written);
  add_reporting(app, options);
  try {
    app.parse(count, arguments);
  } catch (const CLI::ParseError& failure) {
    std::ostringstream text;
    std::ostringstream ignored;
    if (app.exit(failure, text, ignored) == 0) {
      return tl::unexpected(Ending{kExitPassed, text.str()});
    }
    const std::vector<std::string> extras = app.remaining(true);
    const std::string what = extras.empty() ? std::string(failure.what())
                                            : fmt::format("{} is not understood", extras.front());
    return usage_error(what + "; `kvspan-conformance --help` lists what is understood");
  }
  return checked(std::move(options), written);
}

}  // namespace kvspan::runner
