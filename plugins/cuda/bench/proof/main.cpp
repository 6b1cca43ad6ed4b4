// SPDX-License-Identifier: Apache-2.0
// kvspan-cuda-proof: does the dangerous things often, and counts. Exit status: 0 all of it proven,
// 1 something was wrong, 2 wrong options, 3 no device.
#include "kvspan/bench/spread.hpp"

#include "proof.hpp"

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

namespace kvspan::cuda_proof {

namespace {

struct Part {
  const char* name;
  void (*prove)(const Asked&, Counts&);
};

constexpr Part kParts[] = {{"cancellation", prove_cancellation},
                           {"placement", prove_placement},
                           {"kill", prove_kill},
                           {"soak", prove_soak}};

struct Options {
  Asked asked;
  std::vector<std::string> parts;
  std::string json;
  std::string commit = "unknown";
  std::string child;
};

bool run_part(const Part& part, const Asked& asked, Counts& out) {
  const auto begin = bench::Clock::now();
  Counts& counts = out["parts"][part.name];
  counts["result"] = "failed";
  bool good = false;
  try {
    part.prove(asked, counts);
    counts["result"] = "proven";
    good = true;
  } catch (const std::exception& failed) {
    counts["failure"] = failed.what();
  }
  counts["wall_seconds"] = bench::seconds_since(begin);
  fmt::print("{}: {}\n", part.name, counts.dump());
  std::fflush(stdout);
  return good;
}

// After every part, so that a run that is cut short leaves what it had.
int prove(const Options& options) {
  Counts out;
  out["commit"] = options.commit;
  out["plugin"] = options.asked.plugin.substr(options.asked.plugin.rfind('/') + 1);
  out["small"] = options.asked.small;
  out["seed"] = options.asked.seed;
  {
    const Rig rig(options.asked.plugin);  // throws here where there is no device
    out["device"] = rig.backend().info().name;
  }
  fmt::print("{}, seed {}\n", out["device"].get<std::string>(), options.asked.seed);
  bool good = true;
  for (const Part& part : kParts) {
    const auto& chosen = options.parts;
    if (!chosen.empty() && std::find(chosen.begin(), chosen.end(), part.name) == chosen.end()) {
      continue;
    }
    good = run_part(part, options.asked, out) && good;
    if (!options.json.empty()) {
      std::ofstream(options.json) << out.dump(1) << '\n';
    }
  }
  return good ? 0 : 1;
}

int run_command_line(int count, char** arguments) {
  CLI::App app{"Proves by counted repetition what kvspan promises on a backend"};
  Options options;
  Asked& asked = options.asked;
  app.add_option("--plugin", asked.plugin, "The backend's file")->required();
  app.add_option("--parts", options.parts, "Only these: cancellation,placement,kill,soak")
      ->delimiter(',')
      ->check(CLI::IsMember({"cancellation", "placement", "kill", "soak"}));
  app.add_option("--json", options.json, "File for all counts");
  app.add_option("--commit", options.commit, "Written into it");
  app.add_option("--seed", asked.seed, "Of every random choice (1)");
  app.add_option("--rounds", asked.rounds, "Of cancellations (1000)");
  app.add_option("--kills", asked.kills, "Processes killed (10)");
  app.add_option("--seconds", asked.soak_seconds, "Of the soak (240)");
  app.add_flag("--dry", asked.small, "Small histories, for a backend without a card");
  app.add_option("--child", options.child, "What this program starts itself with")
      ->check(CLI::IsMember({"steps", "once"}));
  CLI11_PARSE(app, count, arguments);
  try {
    return options.child.empty() ? prove(options) : be_the_child(asked, options.child == "once");
  } catch (const std::exception& failed) {
    fmt::print(stderr, "error: {}\n", failed.what());
    return 3;
  }
}

}  // namespace

}  // namespace kvspan::cuda_proof

int main(int count, char** arguments) {
  return kvspan::cuda_proof::run_command_line(count, arguments);
}
