// SPDX-License-Identifier: Apache-2.0
// The registry of cases and what their needs mean in terms of a probe record.
#include "worker/case.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <map>
#include <sstream>
#include <tuple>
#include <utility>

namespace kvspan::conformance {
namespace {

using nlohmann::json;

/// Filled while the program starts, read afterwards.
std::vector<CaseInfo>& registry() {
  static std::vector<CaseInfo> cases;
  return cases;
}

/// By source file; likewise.
std::map<std::string, Profile>& profiles() {
  static std::map<std::string, Profile> said;
  return said;
}

constexpr std::pair<Need, const char*> kNeedNames[] = {{Need::device, "device"},
                                                       {Need::attention, "attention"},
                                                       {Need::debug, "debug"},
                                                       {Need::fault_allocation, "fault_allocation"},
                                                       {Need::fault_submit, "fault_submit"},
                                                       {Need::fault_device, "fault_device"},
                                                       {Need::import, "import"},
                                                       {Need::no_import, "no_import"},
                                                       {Need::wait_host, "wait_host"},
                                                       {Need::far_memory, "far_memory"},
                                                       {Need::bounded_memory, "bounded_memory"},
                                                       {Need::scheduler_seed, "scheduler_seed"},
                                                       {Need::width_invariance, "width_invariance"},
                                                       {Need::queues_four, "queues_four"},
                                                       {Need::queues_eight, "queues_eight"},
                                                       {Need::cancel_items, "cancel_items"},
                                                       {Need::plain_attention, "plain_attention"},
                                                       {Need::window, "window"},
                                                       {Need::suffix_mask, "suffix_mask"},
                                                       {Need::alibi, "alibi"},
                                                       {Need::lse, "lse"}};

bool truth(const json& object, const char* key) {
  return object.is_object() && object.value(key, false);
}

uint64_t number(const json& object, const char* key) {
  const auto found = object.is_object() ? object.find(key) : object.end();
  return object.is_object() && found != object.end() && found->is_number_unsigned()
             ? found->get<uint64_t>()
             : 0;
}

bool reads_option(const json& probe, const char* name) {
  for (const json& read : probe.value("options_read", json::array())) {
    if (read == name) {
      return true;
    }
  }
  return false;
}

std::string far_memory(const json& device) {
  constexpr uint64_t kWanted = uint64_t{5} << 30;
  const json free = device.value("free_bytes", json());
  const uint64_t most = number(device, "allocation_bytes_max");
  if (most < kWanted) {
    return "one allocation has at most " + std::to_string(most) + " bytes, the case takes " +
           std::to_string(kWanted);
  }
  return free.is_number_unsigned() && free.get<uint64_t>() < kWanted
             ? "the device has " + free.dump() + " bytes free, the case takes " +
                   std::to_string(kWanted)
             : "";
}

std::string bounded_memory(const json& probe, const json& device) {
  const json free = device.value("free_bytes", json());
  if (reads_option(probe, "device_bytes")) {
    return "";
  }
  if (!free.is_number_unsigned()) {
    return "the device does not know how much memory is free";
  }
  return free.get<uint64_t>() >= number(device, "allocation_bytes_max")
             ? "no single allocation can ask for more than is free"
             : "";
}

// What the probe heard of decode attention over f16 with head size 64; null where it did not ask.
json plain_attention(const json& probe) {
  for (const json& row : probe.value("attention", json::array())) {
    if (row.value("k", "") == "f16" && row.value("v", "") == "f16" &&
        number(row, "head_size_k") == 64 && number(row, "head_size_v") == 64) {
      return row;
    }
  }
  return {};
}

std::string option(const json& probe, Need need) {
  const json options = probe.value("attention_options", json::object());
  const std::string level = options.value(name_of(need), "unsupported");
  return level == "unsupported" ? "the plugin offers no attention with the option " + name_of(need)
                                : "";
}

std::string width_invariance(const json& probe) {
  const json row = plain_attention(probe);
  return (number(row, "determinism") & KVSPAN_WIDTH_INVARIANT) != 0 &&
                 number(row, "width_invariant_max") >= 16
             ? ""
             : "the plugin does not promise KVSPAN_WIDTH_INVARIANT for f16, head size 64, 16 rows";
}

std::string queues(const json& device, uint64_t wanted) {
  const uint64_t most = number(device, "queues_max");
  return most >= wanted ? ""
                        : "the device has " + std::to_string(most) + " queues, the case takes " +
                              std::to_string(wanted);
}

std::string lacks(Need need, const json& probe) {
  const json device = probe.value("device", json::object());
  const json tables = probe.value("tables", json::object());
  const json faults = probe.value("faults", json::object());
  const uint64_t flags = number(device, "flags");
  const auto unless = [](bool has, const char* fact) { return has ? "" : fact; };
  switch (need) {
    case Need::device:
      return unless(number(probe, "devices") > 0, "the plugin has no device here");
    case Need::attention:
      return unless(truth(tables, "attention"), "the plugin offers no attention table");
    case Need::debug:
      return unless(truth(tables, "debug"), "the plugin offers no debug table");
    case Need::fault_allocation:
      return unless(truth(faults, "allocation"), "the plugin cannot plant failing allocations");
    case Need::fault_submit:
      return unless(truth(faults, "submit"), "the plugin cannot plant failing submits");
    case Need::fault_device:
      return unless(truth(faults, "device"), "the plugin cannot plant the loss of its device");
    case Need::import:
      return unless(number(device, "import_alignment") != 0,
                    "the device does not import host pages (import_alignment is 0)");
    case Need::no_import:
      return unless(number(device, "import_alignment") == 0,
                    "the device imports host pages: there is nothing to refuse");
    case Need::wait_host:
      return unless((flags & KVSPAN_DEVICE_WAIT_HOST) != 0,
                    "the device does not offer KVSPAN_DEVICE_WAIT_HOST");
    case Need::far_memory:
      return far_memory(device);
    case Need::bounded_memory:
      return bounded_memory(probe, device);
    case Need::scheduler_seed:
      return unless(reads_option(probe, "seed") && reads_option(probe, "queues"),
                    "the plugin has no options \"seed\" and \"queues\"");
    case Need::width_invariance:
      return width_invariance(probe);
    case Need::queues_four:
      return queues(device, 4);
    case Need::queues_eight:
      return queues(device, 8);
    case Need::cancel_items:
      return unless(number(device, "cancel") == KVSPAN_CANCEL_ITEM,
                    "the device does not say that it sees a cancel word within a submit");
    case Need::plain_attention: {
      const json row = plain_attention(probe);
      return unless(row.is_object() && row.value("level", "unsupported") != "unsupported",
                    "the plugin offers no attention over f16 K and V with head size 64");
    }
    case Need::window:
    case Need::suffix_mask:
    case Need::alibi:
    case Need::lse:
      return option(probe, need);
  }
  return "unknown need";
}

}  // namespace

namespace detail {

bool add_case(CaseInfo info) {
  registry().push_back(std::move(info));
  return true;
}

bool set_profile(const char* file, Profile profile) {
  profiles()[file] = profile;
  return true;
}

CaseInfo made_case(const char* id, const char* rules, const char* file, int line) {
  CaseInfo made;
  made.id = id;
  made.profile = profiles().at(file);
  made.line = line;
  made.file = source_path(file);
  std::istringstream words(rules);
  for (std::string rule; words >> rule;) {
    made.rules.push_back(rule);
  }
  return made;
}

}  // namespace detail

std::string source_path(const char* file) {
  const std::string path = file == nullptr ? "" : file;
  const std::size_t at = path.rfind("conformance/");
  return at == std::string::npos ? path : path.substr(at);
}

std::vector<CaseInfo> registered_cases() {
  std::vector<CaseInfo> cases = registry();  // in whatever order the linker had the files
  std::sort(cases.begin(), cases.end(), [](const CaseInfo& a, const CaseInfo& b) {
    return std::tie(a.file, a.line) < std::tie(b.file, b.line);
  });
  return cases;
}

std::string unmet_need(const CaseInfo& info, const nlohmann::json& probe) {
  for (const Need need : info.needs) {
    std::string fact = lacks(need, probe);
    if (!fact.empty()) {
      return fact;
    }
  }
  return "";
}

std::string name_of(Profile profile) {
  switch (profile) {
    case Profile::core:
      return "core";
    case Profile::copy:
      return "copy";
    case Profile::attention:
      return "attention";
    case Profile::stream:
      return "stream";
  }
  return "";
}

std::string name_of(Need need) {
  for (const auto& [known, name] : kNeedNames) {
    if (known == need) {
      return name;
    }
  }
  return "";
}

void inconclusive(const std::string& reason) {
  ::testing::Test::RecordProperty("inconclusive", reason);
}

}  // namespace kvspan::conformance
