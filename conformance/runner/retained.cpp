// SPDX-License-Identifier: Apache-2.0
// Refuses careless declarations and words what was found. Read next: retained.hpp.
#include "retained.hpp"

#include "worker_record.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <fstream>
#include <iterator>
#include <set>

namespace kvspan::runner {

namespace {

using nlohmann::json;

constexpr std::size_t kMost = 256;
constexpr const char* kEntryKeys[] = {"kind", "pattern", "most", "reason"};

// A pattern that says next to nothing covers what nobody has thought of.
bool says_something(const std::string& pattern) {
  std::size_t run = 0;
  return std::any_of(pattern.begin(), pattern.end(), [&run](char c) {
    run = std::isalnum(static_cast<unsigned char>(c)) != 0 ? run + 1 : 0;
    return run == 3;
  });
}

// Empty, or what is wrong with the entry.
std::string wrong_retained(const json& entry) {
  if (!entry.is_object()) {
    return "is no object";
  }
  for (const auto& [key, value] : entry.items()) {
    if (std::find(std::begin(kEntryKeys), std::end(kEntryKeys), key) == std::end(kEntryKeys)) {
      return fmt::format("has the unknown key \"{}\"", key);
    }
  }
  for (const char* key : {"kind", "pattern", "reason"}) {
    if (text_field(entry, key).empty()) {
      return fmt::format("has no \"{}\": every entry says kind, pattern, most and reason", key);
    }
  }
  const std::string kind = text_field(entry, "kind");
  if (kind != "thread" && kind != "descriptor" && kind != "mapping") {
    return fmt::format("has the kind \"{}\": use thread, descriptor or mapping", kind);
  }
  if (!says_something(text_field(entry, "pattern"))) {
    return fmt::format("has the pattern \"{}\": name three letters or digits in a row at least",
                       text_field(entry, "pattern"));
  }
  const auto most = entry.find("most");
  if (most == entry.end() || !most->is_number_unsigned() || *most < 1u || *most > kMost) {
    return fmt::format("has no \"most\" from 1 to {}", kMost);
  }
  return {};
}

std::vector<std::string> names_of(const json& entry) {
  std::set<std::string> names;
  const auto list = entry.find("names");
  if (list != entry.end() && list->is_array()) {
    for (const json& name : *list) {
      names.insert(name.is_string() ? name.get<std::string>() : std::string("?"));
    }
  }
  return {names.begin(), names.end()};
}

std::size_t found_of(const json& entry) {
  const auto list = entry.is_object() ? entry.find("names") : entry.end();
  return entry.is_object() && list != entry.end() && list->is_array() ? list->size() : 0;
}

std::vector<json> list_of(const json& probe, const char* key) {
  const auto list = probe.is_object() ? probe.find(key) : probe.end();
  return probe.is_object() && list != probe.end() && list->is_array()
             ? std::vector<json>(list->begin(), list->end())
             : std::vector<json>();
}

}  // namespace

OrEnding<std::string> parse_retained(const std::string& file, std::string_view text) {
  const json list = json::parse(text.begin(), text.end(), nullptr, false);
  if (!list.is_array() || list.empty()) {
    return usage_error(fmt::format("--retained {} is no JSON list with entries", file));
  }
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (const std::string wrong = wrong_retained(list[i]); !wrong.empty()) {
      return usage_error(fmt::format("--retained {}: entry {} {}", file, i + 1, wrong));
    }
  }
  return list.dump();
}

OrEnding<std::string> read_retained(const std::string& file) {
  if (file.empty()) {
    return std::string();
  }
  std::ifstream stream(file, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(stream)), {});
  if (!stream.is_open() || stream.bad()) {
    return usage_error(fmt::format("--retained {} cannot be read", file));
  }
  return parse_retained(file, text);
}

std::vector<std::string> retained_sentences(const json& probe) {
  std::vector<std::string> out;
  for (const json& entry : list_of(probe, "retained")) {
    const std::size_t found = found_of(entry);
    if (text_field(entry, "kind") == "mapping") {
      out.push_back(fmt::format("declared: {} stays mapped when unloaded: {}",
                                text_field(entry, "pattern"),
                                text_field(entry, "reason")));
    } else if (found != 0) {
      out.push_back(
          fmt::format("warning: retained by the plugin's runtime: {} {}{} ({}), at most "
                      "{} declared: {}",
                      found,
                      text_field(entry, "kind"),
                      found == 1 ? "" : "s",
                      fmt::join(names_of(entry), ", "),
                      entry.value("most", json()).dump(),
                      text_field(entry, "reason")));
    }
  }
  for (const json& sentence : list_of(probe, "left")) {
    if (sentence.is_string()) {
      out.push_back(fmt::format("left by the probe's close and not declared (--retained): {}",
                                sentence.get<std::string>()));
    }
  }
  return out;
}

bool retains_something(const json& probe) {
  const std::vector<json> list = list_of(probe, "retained");
  return std::any_of(list.begin(), list.end(), [](const json& entry) {
    return found_of(entry) != 0 || text_field(entry, "kind") == "mapping";
  });
}

}  // namespace kvspan::runner
