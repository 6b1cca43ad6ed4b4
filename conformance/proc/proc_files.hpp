// SPDX-License-Identifier: Apache-2.0
// Reading /proc, for the parent, which looks at a worker, and for the worker, which looks at
// itself.
#ifndef KVSPAN_CONFORMANCE_PROC_PROC_FILES_H
#define KVSPAN_CONFORMANCE_PROC_PROC_FILES_H

#include <cstddef>
#include <fstream>
#include <string>

namespace kvspan::conformance {

/// The first line of a file; empty where there is none.
inline std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

/// The value behind "name:" in a status file; empty when there is none.
inline std::string status_field(const std::string& path, const std::string& name) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.rfind(name + ":", 0) == 0) {
      const std::size_t at = line.find_first_not_of(" \t", name.size() + 1);
      return at == std::string::npos ? "" : line.substr(at);
    }
  }
  return "";
}

}  // namespace kvspan::conformance

#endif
