// SPDX-License-Identifier: Apache-2.0
// Reads waivers and refuses the careless ones. Read next: waivers.hpp.
#include "waivers.hpp"

#include "worker_record.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <optional>

namespace kvspan::runner {

namespace {

using nlohmann::json;
using std::chrono::sys_days;

constexpr std::chrono::days kCrashDaysMax{30};
constexpr const char* kKeys[] = {"case", "rule", "status", "reason", "owner", "expires"};

std::optional<sys_days> parse_day(const std::string& text) {
  int year = 0;
  unsigned month = 0;
  unsigned day = 0;
  char rest = 0;
  if (text.size() != 10 ||
      std::sscanf(text.c_str(), "%4d-%2u-%2u%c", &year, &month, &day, &rest) != 3) {
    return std::nullopt;
  }
  const std::chrono::year_month_day date{
      std::chrono::year(year), std::chrono::month(month), std::chrono::day(day)};
  return date.ok() ? std::optional(sys_days(date)) : std::nullopt;
}

// Empty, or what is wrong with the keys of the entry.
std::string wrong_keys(const json& entry) {
  if (!entry.is_object()) {
    return "is no object";
  }
  for (const auto& [key, value] : entry.items()) {
    if (std::find(std::begin(kKeys), std::end(kKeys), key) == std::end(kKeys)) {
      return fmt::format("has the unknown key \"{}\"", key);
    }
    if (!value.is_string()) {
      return fmt::format("has a \"{}\" that is no text", key);
    }
  }
  for (const char* key : {"case", "reason", "owner", "expires"}) {
    if (text_field(entry, key).empty()) {
      return fmt::format("has no \"{}\": every waiver says case, reason, owner and expires", key);
    }
  }
  return {};
}

// Empty, or what is wrong with the day of the waiver.
std::string wrong_day(const Waiver& waiver, sys_days today) {
  const auto day = parse_day(waiver.expires);
  if (!day) {
    return fmt::format("expires \"{}\", which is no day: write 2030-01-31", waiver.expires);
  }
  if (*day < today) {
    return fmt::format("expired on {}: mend the failure, or renew the waiver with its reason",
                       waiver.expires);
  }
  if (waiver.status != Status::fail && *day - today > kCrashDaysMax) {
    return fmt::format("waives a {} until {}: at most {} days from today",
                       name(waiver.status),
                       waiver.expires,
                       kCrashDaysMax.count());
  }
  return {};
}

bool covers(const Waiver& waiver, const SuiteCase& one) {
  return matches(waiver.case_pattern, one.id) &&
         (waiver.rule_pattern.empty() || proves(one, waiver.rule_pattern));
}

// Empty, or what is wrong with the entry; fills `out`.
std::string wrong_entry(const json& entry,
                        sys_days today,
                        const std::vector<SuiteCase>& suite,
                        Waiver& out) {
  if (std::string wrong = wrong_keys(entry); !wrong.empty()) {
    return wrong;
  }
  out = {text_field(entry, "case"),
         text_field(entry, "rule"),
         Status::fail,
         text_field(entry, "reason"),
         text_field(entry, "owner"),
         text_field(entry, "expires")};
  const std::string status = text_field(entry, "status");
  if (status == "crash" || status == "hang") {
    out.status = status == "crash" ? Status::crash : Status::hang;
  } else if (!status.empty() && status != "fail") {
    return fmt::format("waives the status \"{}\": only fail, crash and hang can be", status);
  }
  if (std::string wrong = wrong_day(out, today); !wrong.empty()) {
    return wrong;
  }
  if (std::none_of(
          suite.begin(), suite.end(), [&out](const SuiteCase& one) { return covers(out, one); })) {
    return "covers no case of this suite; --list shows them";
  }
  return {};
}

}  // namespace

OrEnding<std::vector<Waiver>> parse_waivers(const std::string& file,
                                            std::string_view text,
                                            sys_days today,
                                            const std::vector<SuiteCase>& suite) {
  const json list = json::parse(text.begin(), text.end(), nullptr, false);
  if (!list.is_array()) {
    return usage_error(fmt::format("--waivers {} is no JSON list of waivers", file));
  }
  std::vector<Waiver> waivers;
  for (std::size_t i = 0; i < list.size(); ++i) {
    Waiver waiver;
    const std::string wrong = wrong_entry(list[i], today, suite, waiver);
    if (!wrong.empty()) {
      const std::string id = list[i].is_object() ? text_field(list[i], "case") : "";
      return usage_error(fmt::format(
          "--waivers {}: waiver {}{} {}", file, i + 1, id.empty() ? "" : " (" + id + ")", wrong));
    }
    waivers.push_back(std::move(waiver));
  }
  return waivers;
}

OrEnding<std::vector<Waiver>> read_waivers(const std::string& file,
                                           const std::vector<SuiteCase>& suite) {
  if (file.empty()) {
    return std::vector<Waiver>();
  }
  std::ifstream stream(file, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(stream)), {});
  if (!stream.is_open() || stream.bad()) {
    return usage_error(fmt::format("--waivers {} cannot be read", file));
  }
  return parse_waivers(
      file, text, std::chrono::floor<std::chrono::days>(std::chrono::system_clock::now()), suite);
}

void apply_waivers(const std::vector<Waiver>& waivers, const SuiteCase& one, CaseResult& result) {
  for (const Waiver& waiver : waivers) {
    if (!covers(waiver, one)) {
      continue;
    }
    const std::string words =
        fmt::format("waived until {} by {}: {}", waiver.expires, waiver.owner, waiver.reason);
    if (result.status == waiver.status) {
      result.status = Status::waived;
      result.reason = result.reason.empty() ? words : words + "; " + result.reason;
      return;
    }
    if (result.status == Status::pass) {
      result.status = Status::unexpected_pass;
      result.reason = "it passes, remove the waiver: " + words;
      return;
    }
  }
}

}  // namespace kvspan::runner
