// SPDX-License-Identifier: Apache-2.0
// Everything that is printed for people goes to stderr, so that stdout is text or JSON only.
#include "report.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

namespace kvspan::host {

void print_error(const Error& error) {
  fmt::print(stderr, "error: {}\n", error.message);
  if (error.required != 0) {
    fmt::print(stderr, "  required {} bytes, provided {}, missing {}\n", error.required,
               error.provided, error.missing);
  }
}

ProgressLine::ProgressLine() : terminal_(isatty(STDERR_FILENO) != 0) {}

ProgressLine::~ProgressLine() {
  if (open_) {
    fmt::print(stderr, "\n");
  }
}

void ProgressLine::show(const Progress& progress) {
  const std::uint64_t tenth = progress.total == 0 ? 10 : progress.done * 10 / progress.total;
  const bool fresh = phase_ != progress.phase;
  if (!terminal_ && !fresh && tenth == tenth_) {
    return;
  }
  const double rate =
      progress.seconds > 0.0 ? static_cast<double>(progress.done) / progress.seconds : 0.0;
  const std::string line =
      fmt::format("{:<8}{:>9} / {} tokens  {:>9.1f} tok/s  {:>5.1f} % of pages read resident",
                  progress.phase, progress.done, progress.total, rate,
                  100.0 * progress.resident_share);
  if (terminal_) {
    fmt::print(stderr, "{}\r\x1b[K{}", fresh && open_ ? "\n" : "", line);
    open_ = true;
  } else {
    fmt::print(stderr, "{}\n", line);
  }
  std::fflush(stderr);
  phase_ = progress.phase;
  tenth_ = tenth;
}

Result<JsonFile> JsonFile::open(const std::string& path) {
  if (path == "-") {
    return JsonFile(path, stdout);
  }
  std::FILE* const file = std::fopen(path.c_str(), "w");
  if (file == nullptr) {
    return tl::unexpected(Error{Errc::io,
                                fmt::format("cannot write {}: {}; give a file in a folder that exists "
                                            "and can be written",
                                            path, std::strerror(errno)),
                                0, 0, 0, "output"});
  }
  return JsonFile(path, file);
}

JsonFile::JsonFile(JsonFile&& other) noexcept
    : path_(std::move(other.path_)), file_(std::exchange(other.file_, nullptr)) {}

JsonFile::~JsonFile() {
  if (file_ != nullptr && file_ != stdout) {
    std::fclose(static_cast<std::FILE*>(file_));
  }
}

Result<void> JsonFile::write(const nlohmann::ordered_json& document) {
  auto* const file = static_cast<std::FILE*>(file_);
  const std::string text =
      document.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
  const bool wrote = std::fwrite(text.data(), 1, text.size(), file) == text.size();
  if (!wrote || std::fflush(file) != 0) {
    return tl::unexpected(Error{Errc::io,
                                fmt::format("writing {} failed: {}", path_, std::strerror(errno)), 0,
                                0, 0, "output"});
  }
  return {};
}

}  // namespace kvspan::host
