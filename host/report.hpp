// SPDX-License-Identifier: Apache-2.0
// How the tool speaks: errors, progress, JSON files.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <string>

#include "generation.hpp"
#include "kvspan/core/error.hpp"

namespace kvspan::host {

// "error: <sentence>" on stderr, with the amounts when there are any.
void print_error(const Error& error);

// A live line on stderr: phase, rate, resident share. Redrawn on a terminal, one line per tenth elsewhere.
class ProgressLine {
 public:
  ProgressLine();
  ~ProgressLine();
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;
  void show(const Progress& progress);

 private:
  bool terminal_;
  bool open_ = false;
  std::string phase_;
  std::uint64_t tenth_ = 0;
};

// Opened before work starts, so that an unwritable file costs nothing: "-" is stdout.
class JsonFile {
 public:
  // Errors: io, naming the file and the system's reason.
  [[nodiscard]] static Result<JsonFile> open(const std::string& path);

  JsonFile(JsonFile&& other) noexcept;
  JsonFile& operator=(JsonFile&&) = delete;
  JsonFile(const JsonFile&) = delete;
  JsonFile& operator=(const JsonFile&) = delete;
  ~JsonFile();

  [[nodiscard]] bool is_stdout() const { return path_ == "-"; }

  // Errors: io (a full disk).
  [[nodiscard]] Result<void> write(const nlohmann::ordered_json& document);

 private:
  JsonFile(std::string path, void* file) : path_(std::move(path)), file_(file) {}
  std::string path_;
  void* file_;
};

}  // namespace kvspan::host
