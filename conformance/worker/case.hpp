// SPDX-License-Identifier: Apache-2.0
// A case: a GoogleTest test with a record of what it proves and what it needs. The records make the
// registry that the parent plans from without loading a plugin.
//
//   KVSPAN_PROFILE(copy)                                          once a file, before its cases
//   KVSPAN_CASE(CopyTest, FillWritesItsPattern, "KV-COPY-4") {}   a case, its rules
//   KVSPAN_CASE(MemoryTest, TheNthFails, "KV-MEMORY-1", needs::fault_allocation, cost_ms(300)) {}
//
// A case never skips itself: what it needs is told here, and whether the plugin has it is computed
// from the probe (unmet_need). Not here: opening a plugin (rig.hpp), the records (record.hpp).
#ifndef KVSPAN_CONFORMANCE_WORKER_CASE_H
#define KVSPAN_CONFORMANCE_WORKER_CASE_H

#include "worker/rig.hpp"

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

namespace kvspan::conformance {

enum class Profile { core, copy, attention, stream };

/// What a plugin may lawfully be without.
enum class Need {
  device,            // one device at least
  attention,         // the attention table
  debug,             // the debug table
  fault_allocation,  // KVSPAN_FAULT_ALLOCATION can be planted
  fault_submit,      // KVSPAN_FAULT_SUBMIT
  fault_device,      // KVSPAN_FAULT_DEVICE
  import,            // import_host works
  no_import,         // import_host does not
  wait_host,         // KVSPAN_DEVICE_WAIT_HOST: work can be held back from the host
  far_memory,        // one allocation of 5 GiB
  bounded_memory,    // one allocation can ask for more than there is
  scheduler_seed,    // options "seed" and "queues": an order of work that can be chosen
  width_invariance,  // KVSPAN_WIDTH_INVARIANT for f16, head size 64, 16 rows
  queues_four,       // four queues at once
  queues_eight,      // eight queues at once
  cancel_items,      // KVSPAN_CANCEL_ITEM: the word is seen within a submit too
  plain_attention,   // decode attention over f16, head size 64, no options
  window,            // KVSPAN_OPTION_WINDOW
  suffix_mask,       // KVSPAN_OPTION_SUFFIX_MASK
  alibi,             // KVSPAN_OPTION_ALIBI
  lse,               // KVSPAN_OPTION_LSE
};

namespace needs {
inline constexpr Need attention = Need::attention;
inline constexpr Need debug = Need::debug;
inline constexpr Need fault_allocation = Need::fault_allocation;
inline constexpr Need fault_submit = Need::fault_submit;
inline constexpr Need fault_device = Need::fault_device;
inline constexpr Need import = Need::import;
inline constexpr Need no_import = Need::no_import;
inline constexpr Need wait_host = Need::wait_host;
inline constexpr Need far_memory = Need::far_memory;
inline constexpr Need bounded_memory = Need::bounded_memory;
inline constexpr Need scheduler_seed = Need::scheduler_seed;
inline constexpr Need width_invariance = Need::width_invariance;
inline constexpr Need queues_four = Need::queues_four;
inline constexpr Need queues_eight = Need::queues_eight;
inline constexpr Need cancel_items = Need::cancel_items;
inline constexpr Need window = Need::window;
inline constexpr Need suffix_mask = Need::suffix_mask;
inline constexpr Need alibi = Need::alibi;
inline constexpr Need lse = Need::lse;
}  // namespace needs

/// About how long a case takes at full effort on the slower of the shipped plugins.
struct Cost {
  uint32_t milliseconds;
};

constexpr Cost cost_ms(uint32_t milliseconds) {
  return {milliseconds};
}

/// The case chooses K types, V types or head sizes, and looks at the tuples of the settings.
struct TakesTuple {};

inline constexpr TakesTuple takes_tuple;

/// The case takes what all users of the device share, such as all of its memory: a run gives it the
/// device to itself.
struct RunsAlone {};

inline constexpr RunsAlone runs_alone;

struct CaseInfo {
  std::string id;                  // "CopyTest.FillWritesItsPattern"
  std::vector<std::string> rules;  // "KV-COPY-4": one at least
  Profile profile = Profile::core;
  std::vector<Need> needs;
  uint32_t cost_ms = 20;
  bool takes_tuple = false;
  bool runs_alone = false;
  std::string file;  // from conformance/ on
  int line = 0;
};

/// A source file's path from conformance/ on, as cases and failures name it; "" for NULL.
std::string source_path(const char* file);

/// Every case of this program, by file and line. Loads nothing.
std::vector<CaseInfo> registered_cases();

/// Which of the case's needs the plugin of this probe record lacks, as a fact: "the plugin offers
/// no attention table"; empty when it lacks none.
std::string unmet_need(const CaseInfo& info, const nlohmann::json& probe);

/// "core", "copy", "attention", "stream".
std::string name_of(Profile profile);
/// "attention", "far_memory", ...
std::string name_of(Need need);

/// The case could not set its stage (the device was faster than it could fill its queue): it
/// returns right after this and is counted as inconclusive, neither passed nor failed.
void inconclusive(const std::string& reason);

namespace detail {

/// Adds a case to the registry; true.
bool add_case(CaseInfo info);

inline void apply(CaseInfo& info, Need need) {
  info.needs.push_back(need);
}

inline void apply(CaseInfo& info, Cost cost) {
  info.cost_ms = cost.milliseconds;
}

inline void apply(CaseInfo& info, TakesTuple) {
  info.takes_tuple = true;
}

inline void apply(CaseInfo& info, RunsAlone) {
  info.runs_alone = true;
}

/// Runs a case's body as its fixture has it; once where the fixture does not say.
template <class Fixture, class Body>
void in_every_way(Fixture& fixture, const Body& body) {
  if constexpr (requires { fixture.in_every_way(body); }) {
    fixture.in_every_way(body);
  } else {
    body();
  }
}

/// Says the profile of the cases of one source file; true.
bool set_profile(const char* file, Profile profile);

/// Rules are written in one string, apart by spaces; the profile is that of the file.
CaseInfo made_case(const char* id, const char* rules, const char* file, int line);

/// SaidProfile is declared by KVSPAN_PROFILE: a file without one does not compile.
template <class Fixture, class SaidProfile, class... Traits>
bool register_case(CaseInfo info, Traits... traits) {
  if (std::is_base_of_v<PluginTest, Fixture>) {
    info.needs.push_back(Need::device);
  }
  if (info.profile == Profile::attention || info.profile == Profile::stream) {
    info.needs.push_back(Need::attention);
  }
  (apply(info, traits), ...);
  if (info.profile == Profile::attention && !info.takes_tuple) {
    info.needs.push_back(Need::plain_attention);  // its shapes are fixed
  }
  return add_case(std::move(info));
}

}  // namespace detail
}  // namespace kvspan::conformance

#define KVSPAN_JOIN(a, b) a##b
#define KVSPAN_UNIQUE(name, number) KVSPAN_JOIN(name, number)

/// Once a file, inside its anonymous namespace and before its cases.
#define KVSPAN_PROFILE(name)                                         \
  struct ProfileOfThisFile;                                          \
  [[maybe_unused]] const bool KVSPAN_UNIQUE(kProfile, __COUNTER__) = \
      ::kvspan::conformance::detail::set_profile(__FILE__, ::kvspan::conformance::Profile::name)

/// See the head of this file. The test's body is handed to the fixture's in_every_way, which may
/// run it several times.
#define KVSPAN_CASE(Fixture, Name, rules, ...)                                                    \
  class Fixture##_##Name##_Case final : public Fixture {                                          \
    void TestBody() override {                                                                    \
      ::kvspan::conformance::detail::in_every_way(*this, [this] { this->run_case(); });           \
    }                                                                                             \
    void run_case();                                                                              \
  };                                                                                              \
  [[maybe_unused]] const bool kCase_##Fixture##_##Name =                                          \
      ::kvspan::conformance::detail::register_case<Fixture, ProfileOfThisFile>(                   \
          ::kvspan::conformance::detail::made_case(#Fixture "." #Name, rules, __FILE__, __LINE__) \
              __VA_OPT__(, ) __VA_ARGS__);                                                        \
  [[maybe_unused]] const ::testing::TestInfo* const kTest_##Fixture##_##Name =                    \
      ::testing::RegisterTest(                                                                    \
          #Fixture, #Name, nullptr, nullptr, __FILE__, __LINE__, []() -> Fixture* {               \
            return new Fixture##_##Name##_Case;                                                   \
          });                                                                                     \
  void Fixture##_##Name##_Case::run_case()

#endif
