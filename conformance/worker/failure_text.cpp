// SPDX-License-Identifier: Apache-2.0
// Reads the three shapes in which GoogleTest words a failure: equality, a comparison, a truth.
#include "worker/failure_text.hpp"

#include <cctype>
#include <sstream>
#include <vector>

namespace kvspan::conformance {
namespace {

std::string trimmed(const std::string& text) {
  const std::size_t begin = text.find_first_not_of(" \t");
  const std::size_t end = text.find_last_not_of(" \t");
  return begin == std::string::npos ? "" : text.substr(begin, end - begin + 1);
}

bool begins(const std::string& text, const char* with) {
  return text.rfind(with, 0) == 0;
}

/// Line `at` is an operand, maybe followed by "Which is: value"; moves `at` behind both.
std::string operand(const std::vector<std::string>& lines, std::size_t& at) {
  constexpr const char* kValue = "Which is: ";
  if (at >= lines.size()) {
    return "";
  }
  std::string text = trimmed(lines[at++]);
  if (at < lines.size() && begins(trimmed(lines[at]), kValue)) {
    text += " = " + trimmed(lines[at++]).substr(std::string(kValue).size());
  }
  return text;
}

/// "Expected: (a) <= (b), actual: 3 vs 2".
void comparison(const std::string& line, FailureText& out) {
  const std::size_t split = line.rfind(", actual: ");
  out.expected = line.substr(0, split);
  out.actual = split == std::string::npos ? "" : line.substr(split + 10);
}

std::string first_rule(const std::string& message) {
  for (std::size_t at = message.find("KV-"); at != std::string::npos;
       at = message.find("KV-", at + 1)) {
    std::size_t end = at + 3;
    const auto is = [&](int (*kind)(int)) {
      return end < message.size() && kind(static_cast<unsigned char>(message[end])) != 0;
    };
    while (is(std::isupper)) {
      ++end;
    }
    if (end == at + 3 || end >= message.size() || message[end] != '-') {
      continue;
    }
    const std::size_t digits = ++end;
    while (is(std::isdigit)) {
      ++end;
    }
    if (end > digits) {
      return message.substr(at, end - at);
    }
  }
  return "";
}

}  // namespace

FailureText take_apart(const std::string& message) {
  FailureText out;
  out.rule = first_rule(message);
  std::vector<std::string> lines;
  std::istringstream stream(message);
  for (std::string line; std::getline(stream, line);) {
    lines.push_back(line);
  }
  for (std::size_t at = 0; at < lines.size(); ++at) {
    const std::string line = trimmed(lines[at]);
    if (line == "Expected equality of these values:") {
      ++at;
      out.actual = operand(lines, at);
      out.expected = operand(lines, at);
      break;
    }
    if (begins(line, "Expected: ")) {
      const std::string rest = line.substr(10);
      if (rest.find(", actual: ") != std::string::npos) {
        comparison(rest, out);
        break;
      }
      out.expected = rest;
    } else if (begins(line, "Actual: ")) {
      out.actual = line.substr(8);
    }
  }
  return out;
}

}  // namespace kvspan::conformance
