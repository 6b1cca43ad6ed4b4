// SPDX-License-Identifier: Apache-2.0
// What one run of the property tests is told: which plugin, its options, how much work, and which
// deliberate break (none, except in the tests of the tests). Also the seeded dice of all cases.
// Not here: opening the plugin (rig.hpp), what a break does (calls.hpp).
#ifndef KVSPAN_PLUGINS_TESTS_SETTINGS_H
#define KVSPAN_PLUGINS_TESTS_SETTINGS_H

#include <cstdint>
#include <initializer_list>
#include <map>
#include <string>

namespace kvspan::property {

struct Settings {
  std::string plugin_path;                     // KVSPAN_TEST_PLUGIN
  std::map<std::string, std::string> options;  // KVSPAN_TEST_OPTIONS: "seed=3,queues=shuffled"
  std::string break_name;                      // KVSPAN_TEST_BREAK: see calls.hpp; "" = none
  uint32_t effort_percent = 100;               // KVSPAN_TEST_EFFORT: scales the number of cases
};

/// The settings of this process, from its environment.
Settings read_settings();

/// `full` cases scaled by the effort, at least `least`.
uint32_t cases(const Settings& settings, uint32_t full, uint32_t least);

/// A seeded source of numbers whose sequence is the same on every machine and standard library
/// (splitmix64: Steele, Lea and Flood, OOPSLA 2014).
class Dice {
 public:
  explicit Dice(uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15ull + 0x1234567ull) {}

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

}  // namespace kvspan::property

#endif
