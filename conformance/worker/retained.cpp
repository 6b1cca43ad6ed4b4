// SPDX-License-Identifier: Apache-2.0
// Patterns against names, counted. Read next: retained.hpp.
#include "worker/retained.hpp"

#include <algorithm>
#include <chrono>
#include <fnmatch.h>
#include <map>
#include <thread>

namespace kvspan::conformance {
namespace {

using nlohmann::json;

constexpr const char* kThread = "thread";
constexpr const char* kDescriptor = "descriptor";
constexpr const char* kMapping = "mapping";

bool covers(const Retained& entry, const char* kind, const std::string& name) {
  return entry.kind == kind && ::fnmatch(entry.pattern.c_str(), name.c_str(), 0) == 0;
}

/// Whether an entry with room left covers the name; it then has one place less.
bool take(std::vector<Kept>& kept, const char* kind, const std::string& name) {
  const auto found = std::find_if(kept.begin(), kept.end(), [&](const Kept& one) {
    return covers(one.entry, kind, name) && one.names.size() < one.entry.most;
  });
  if (found != kept.end()) {
    found->names.push_back(name);
  }
  return found != kept.end();
}

/// Adds to `accepted` what is new in `after` and covered. Whether something is not.
bool accept(std::map<int, std::string>& accepted,
            const std::map<int, std::string>& after,
            const char* kind,
            std::vector<Kept>& kept) {
  bool rest = false;
  for (const auto& [key, name] : after) {
    const bool is_new = accepted.find(key) == accepted.end();
    if (is_new && take(kept, kind, name)) {
      accepted[key] = name;
    } else {
      rest = rest || is_new;
    }
  }
  return rest;
}

}  // namespace

std::string read_retained(const std::string& text, std::vector<Retained>& out) {
  const json list = json::parse(text, nullptr, false);
  if (!list.is_array()) {
    return "--retained is no JSON list";
  }
  for (const json& one : list) {
    if (!one.is_object() || !one.contains("most") || !one["most"].is_number_unsigned()) {
      return "--retained: an entry has no \"most\"";
    }
    out.push_back({one.value("kind", ""),
                   one.value("pattern", ""),
                   one["most"].get<uint32_t>(),
                   one.value("reason", "")});
    const std::string& kind = out.back().kind;
    if (kind != kThread && kind != kDescriptor && kind != kMapping) {
      return "--retained: there is no kind \"" + kind + "\"";
    }
  }
  return "";
}

std::string Remains::told() const {
  std::string text;
  for (const Kept& one : kept) {
    if (!one.names.empty()) {
      text += text.empty() ? "" : "\n";
      text += "retained after the first close: " + std::to_string(one.names.size()) +
              " of at most " + std::to_string(one.entry.most) + " of the kind " + one.entry.kind +
              ", \"" + one.entry.pattern + "\" (" + one.entry.reason + ")";
    }
  }
  return text;
}

json Remains::listed() const {
  json list = json::array();
  for (const Kept& one : kept) {
    list.push_back({{"kind", one.entry.kind},
                    {"pattern", one.entry.pattern},
                    {"most", one.entry.most},
                    {"reason", one.entry.reason},
                    {"names", one.names}});
  }
  return list;
}

Remains remains(const ProcessState& before,
                const ProcessState& after,
                const std::vector<Retained>& entries) {
  Remains found;
  for (const Retained& entry : entries) {
    found.kept.push_back({entry, {}});
  }
  ProcessState accepted = before;
  found.undeclared_threads = accept(accepted.threads, after.threads, kThread, found.kept);
  accept(accepted.descriptors, after.descriptors, kDescriptor, found.kept);
  found.undeclared = accepted.changes(after);
  return found;
}

Remains settled_remains(const ProcessState& before, const std::vector<Retained>& entries) {
  const auto begin = std::chrono::steady_clock::now();
  Remains found = remains(before, ProcessState::now(), entries);
  while (found.undeclared_threads &&
         std::chrono::steady_clock::now() - begin < std::chrono::seconds(2)) {
    std::this_thread::yield();
    found = remains(before, ProcessState::now(), entries);
  }
  return found;
}

bool stays_mapped(const std::string& path, const std::vector<Retained>& entries) {
  return std::any_of(entries.begin(), entries.end(), [&](const Retained& entry) {
    return covers(entry, kMapping, path);
  });
}

}  // namespace kvspan::conformance
