// SPDX-License-Identifier: Apache-2.0
// JsonFile: a temporary file in the target's folder, renamed when it is complete.
#include "json_file.hpp"

#include "standard_streams.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

namespace kvspan::host {

namespace fs = std::filesystem;

namespace {

constexpr int kTemporaryNamesMax = 100;  // tried before giving up: left-overs of killed processes

Error refusal(const std::string& path, int reason) {
  return error_of(
      Errc::io,
      fmt::format("cannot write {}: {}; give a file in a folder that exists, can be written "
                  "and has room",
                  path,
                  std::strerror(reason)),
      "output");
}

}  // namespace

Result<std::optional<JsonFile>> JsonFile::open_if_named(const std::string& path) {
  if (path.empty()) {
    return std::optional<JsonFile>();
  }
  auto file = open(path);
  if (!file) {
    return tl::unexpected(std::move(file).error());
  }
  return std::optional<JsonFile>(std::move(*file));
}

Result<JsonFile> JsonFile::open(const std::string& path) {
  JsonFile made(path);
  if (made.is_stdout()) {
    return made;
  }

  struct stat facts {};

  const bool exists = ::lstat(path.c_str(), &facts) == 0;
  const bool regular = ::stat(path.c_str(), &facts) == 0 && S_ISREG(facts.st_mode);
  int reason = 0;
  if (!exists) {
    reason = made.open_beside(path);
  } else if (regular && ::access(path.c_str(), W_OK) != 0) {
    reason = errno;
  } else if (regular) {
    std::error_code failure;
    const fs::path target = fs::canonical(path, failure);
    reason = failure ? failure.value() : made.open_beside(target.string());
    if (reason == 0) {
      // A refusal leaves the rights as they are for new files, which is no reason to stop.
      static_cast<void>(::fchmod(::fileno(made.file_), facts.st_mode & 07777U));
    }
  } else {
    made.file_ = std::fopen(path.c_str(), "we");
    reason = made.file_ == nullptr ? errno : 0;
  }
  if (reason != 0) {
    return tl::unexpected(refusal(path, reason));
  }
  return made;
}

// 0 or errno.
int JsonFile::open_beside(const std::string& target) {
  target_ = target;
  const fs::path folder = fs::path(target).parent_path();
  for (int number = 0; number < kTemporaryNamesMax; ++number) {
    const std::string name = fmt::format(".kvspan-{}-{}.json", ::getpid(), number);
    const std::string temporary = (folder / name).string();
    const int descriptor = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (descriptor < 0 && errno == EEXIST) {
      continue;
    }
    if (descriptor < 0) {
      return errno;
    }
    temporary_ = temporary;
    file_ = ::fdopen(descriptor, "w");
    if (file_ == nullptr) {
      const int reason = errno;
      ::close(descriptor);
      return reason;
    }
    return 0;
  }
  return EEXIST;
}

JsonFile::JsonFile(JsonFile&& other) noexcept
    : path_(std::move(other.path_)),
      target_(std::move(other.target_)),
      temporary_(std::exchange(other.temporary_, {})),
      file_(std::exchange(other.file_, nullptr)) {}

JsonFile::~JsonFile() {
  if (file_ != nullptr) {
    std::fclose(file_);
  }
  if (!temporary_.empty()) {
    ::unlink(temporary_.c_str());
  }
}

// 0 or errno. Afterwards there is no temporary file.
int JsonFile::close_into_place() {
  int reason = std::fclose(std::exchange(file_, nullptr)) == 0 ? 0 : errno;
  if (!temporary_.empty()) {
    if (reason == 0 && ::rename(temporary_.c_str(), target_.c_str()) != 0) {
      reason = errno;
    }
    if (reason != 0) {
      ::unlink(temporary_.c_str());
    }
    temporary_.clear();
  }
  return reason;
}

Result<void> JsonFile::write(const nlohmann::ordered_json& document) {
  const std::string text =
      document.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
  if (is_stdout()) {
    return write_stdout(text);
  }
  const bool wrote = std::fwrite(text.data(), 1, text.size(), file_) == text.size();
  int reason = wrote && std::fflush(file_) == 0 ? 0 : errno;
  if (reason == 0) {
    reason = close_into_place();
  }
  if (reason != 0) {
    return tl::unexpected(refusal(path_, reason));
  }
  return {};
}

}  // namespace kvspan::host
