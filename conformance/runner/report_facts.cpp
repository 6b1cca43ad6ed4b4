// SPDX-License-Identifier: Apache-2.0
// Files and text that the reports share. Read next: report_facts.hpp.
#include "report_facts.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <system_error>

namespace kvspan::runner {

namespace {

// How many bytes the UTF-8 character at `at` has; 0 when there is none.
std::size_t character_bytes(const std::string& text, std::size_t at) {
  const auto byte = [&text](std::size_t i) {
    return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u;
  };
  const unsigned first = byte(at);
  if (first < 0x80) {
    return 1;
  }
  const std::size_t count = first >= 0xC2 && first < 0xE0   ? 2
                            : first >= 0xE0 && first < 0xF0 ? 3
                            : first >= 0xF0 && first < 0xF5 ? 4
                                                            : 0;
  for (std::size_t i = 1; i < count; ++i) {
    if ((byte(at + i) & 0xC0u) != 0x80u) {
      return 0;
    }
  }
  const unsigned second = byte(at + 1);
  const bool overlong = (first == 0xE0 && second < 0xA0) || (first == 0xF0 && second < 0x90);
  const bool beyond = (first == 0xED && second >= 0xA0) || (first == 0xF4 && second >= 0x90);
  // U+FFFE and U+FFFF are not allowed in XML.
  const bool no_character = first == 0xEF && second == 0xBF && byte(at + 2) >= 0xBE;
  return overlong || beyond || no_character ? 0 : count;
}

}  // namespace

std::string spoken_plugin(const ReportFacts& facts) {
  return fmt::format("{} {} by {}, build id {}",
                     facts.note.name,
                     facts.note.version,
                     facts.note.vendor,
                     facts.note.build_id.empty() ? "none" : facts.note.build_id);
}

std::string made_folder(const std::string& folder) {
  std::error_code problem;
  std::filesystem::create_directories(folder, problem);
  if (problem || !std::filesystem::is_directory(folder, problem)) {
    return fmt::format("{} cannot be made: {}",
                       folder,
                       problem ? problem.message() : std::string("something else has its name"));
  }
  return {};
}

std::string written_file(const std::string& path, const std::string& text) {
  const std::string draft = path + ".new";
  std::ofstream file(draft, std::ios::binary | std::ios::trunc);
  file << text;
  file.close();
  if (file.fail() || std::rename(draft.c_str(), path.c_str()) != 0) {
    const std::string reason = std::strerror(errno);
    static_cast<void>(std::remove(draft.c_str()));
    return fmt::format("{} cannot be written: {}", path, reason);
  }
  return {};
}

std::string clean_text(const std::string& text) {
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t bytes = character_bytes(text, at);
    const bool control = bytes == 1 &&
                         (static_cast<unsigned char>(text[at]) < 0x20 || text[at] == 0x7F) &&
                         text[at] != '\n' && text[at] != '\t';
    if (bytes == 0 || control) {
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(text[at]));
      ++at;
    } else {
      out.append(text, at, bytes);
      at += bytes;
    }
  }
  return out;
}

std::string escaped(const std::string& text) {
  std::string out;
  for (const char letter : clean_text(text)) {
    switch (letter) {
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '&':
        out += "&amp;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += letter;
    }
  }
  return out;
}

}  // namespace kvspan::runner
