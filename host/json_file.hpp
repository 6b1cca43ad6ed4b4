// SPDX-License-Identifier: Apache-2.0
// A JSON document on its way into a file: the old file stays until the new one is whole.
// Not here: what is in it (generation_report.hpp and the commands).
#pragma once

#include "kvspan/core/error.hpp"

#include <nlohmann/json_fwd.hpp>

#include <cstdio>
#include <optional>
#include <string>

namespace kvspan::host {

// Opened before work starts, so that an unwritable file costs nothing: "-" is stdout. Ends without
// a trace when nothing was written. What is no regular file (a pipe, a device) is written directly.
class JsonFile {
 public:
  // Errors: io, naming the file and the system's reason.
  [[nodiscard]] static Result<JsonFile> open(const std::string& path);

  // The same where a path was given; nothing where it is empty.
  [[nodiscard]] static Result<std::optional<JsonFile>> open_if_named(const std::string& path);

  JsonFile(JsonFile&& other) noexcept;
  JsonFile& operator=(JsonFile&&) = delete;
  JsonFile(const JsonFile&) = delete;
  JsonFile& operator=(const JsonFile&) = delete;
  ~JsonFile();

  [[nodiscard]] bool is_stdout() const { return path_ == "-"; }

  // Once. Errors: io (a full disk); the file is then as it was before.
  [[nodiscard]] Result<void> write(const nlohmann::ordered_json& document);

 private:
  explicit JsonFile(std::string path) : path_(std::move(path)) {}

  [[nodiscard]] int open_beside(const std::string& target);
  [[nodiscard]] int close_into_place();

  std::string path_;       // as given
  std::string target_;     // the regular file that `temporary_` becomes
  std::string temporary_;  // in the same folder; empty: written directly
  std::FILE* file_ = nullptr;
};

}  // namespace kvspan::host
