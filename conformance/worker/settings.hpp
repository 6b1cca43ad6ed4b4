// SPDX-License-Identifier: Apache-2.0
// What a worker is told on its command line: which plugin and device, its options, how much work,
// which seed, and which mutation (none, except where the suite proves its own teeth). Also the
// seeded dice of all cases. Not here: opening the plugin (rig.hpp), what a mutation does
// (calls.hpp), the command line (worker.hpp).
#ifndef KVSPAN_CONFORMANCE_WORKER_SETTINGS_H
#define KVSPAN_CONFORMANCE_WORKER_SETTINGS_H

#include "worker/tuple.hpp"

#include <cstdint>
#include <initializer_list>
#include <map>
#include <string>
#include <vector>

namespace kvspan::conformance {

/// What the runtime under a plugin may keep for the life of the process: see retained.hpp.
struct Retained {
  std::string kind;     // "thread", "descriptor" or "mapping"
  std::string pattern;  // glob over the thread's name, the descriptor's target, the file's path
  uint32_t most = 0;    // of its kind in a process
  std::string reason;
};

struct Settings {
  std::string plugin_path;
  std::map<std::string, std::string> options;  // of the plugin
  uint32_t device = 0;                         // index
  std::string mutation;                        // see calls.hpp; "" = none
  uint32_t effort_percent = 100;               // scales the number of rounds in a case
  uint32_t soak = 1;                           // multiplies the rounds of soaked()
  uint64_t seed = 0;                           // moves the dice of every case
  std::vector<Tuple> tuples;                   // types and sizes to look at; empty = all
  std::vector<Retained> retained;              // declared; empty = nothing may stay
};

/// The settings of this process: those that adopt() was given, once, before the first case.
const Settings& worker_settings();
void adopt(const Settings& settings);

/// `full` rounds scaled by the effort, at least `least`.
uint32_t cases(const Settings& settings, uint32_t full, uint32_t least);

/// The same times the soak: for cases that look for what happens once in very many rounds.
uint32_t soaked(const Settings& settings, uint32_t full, uint32_t least);

/// A seeded source of numbers whose sequence is the same on every machine and standard library
/// (splitmix64: Steele, Lea and Flood, OOPSLA 2014).
class Dice {
 public:
  explicit Dice(uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15ull + 0x1234567ull) {}

  /// The stream `stream` of the worker's seed.
  Dice(const Settings& settings, uint64_t stream)
      : Dice(stream + settings.seed * 0xD1342543DE82EF95ull) {}

  uint64_t next();

  /// 0 .. bound - 1; bound > 0.
  uint64_t below(uint64_t bound) { return next() % bound; }

  /// low .. high, both included.
  uint64_t between(uint64_t low, uint64_t high) { return low + below(high - low + 1); }

  /// True once in `one_in` throws.
  bool hit(uint64_t one_in) { return below(one_in) == 0; }

  /// -1 .. 1, never outside, mean 0.
  float uniform();
  /// About normal with deviation 1, cut at 3.5: the sum of twelve uniforms.
  float normal();

  template <class T>
  T pick(std::initializer_list<T> choices) {
    return *(choices.begin() + static_cast<std::ptrdiff_t>(below(choices.size())));
  }

  template <class Container>
  void shuffle(Container& items) {
    for (std::size_t i = items.size(); i > 1; --i) {
      std::swap(items[i - 1], items[below(i)]);
    }
  }

 private:
  uint64_t state_;
};

}  // namespace kvspan::conformance

#endif
