// SPDX-License-Identifier: Apache-2.0
// Mapping a file on POSIX: open, check what it is, map, close (the mapping keeps the file alive by
// itself).
// Read next: mapped_file.hpp for the contract.
#include "model/mapped_file.hpp"

#include "model/fail.hpp"

#include <cerrno>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>
#include <utility>

namespace kvspan::model {

namespace {

// Closes a descriptor on every way out of open().
class Descriptor {
 public:
  explicit Descriptor(int number) noexcept : number_(number) {}

  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  Descriptor(Descriptor&&) = delete;
  Descriptor& operator=(Descriptor&&) = delete;

  ~Descriptor() {
    if (number_ >= 0) {
      ::close(number_);
    }
  }

  [[nodiscard]] int number() const noexcept { return number_; }

 private:
  int number_;
};

std::string system_message(int error_number) {
  return std::error_code(error_number, std::generic_category()).message();
}

}  // namespace

Result<MappedFile> MappedFile::open(const std::string& path) {
  // O_NONBLOCK: opening a named pipe must answer at once instead of waiting for a writer.
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.number() < 0) {
    const int reason = errno;
    return fail(reason == ENOENT ? Errc::not_found : Errc::io,
                "cannot open '{}': {}",
                path,
                system_message(reason));
  }

  struct stat status {};

  if (::fstat(file.number(), &status) != 0) {
    return fail(Errc::io, "cannot read the size of '{}': {}", path, system_message(errno));
  }
  if (!S_ISREG(status.st_mode)) {
    return fail(Errc::io, "'{}' is not a regular file: give the path of a model file", path);
  }
  if (status.st_size <= 0) {
    return fail(Errc::bad_file, "'{}' is empty", path);
  }
  const auto size_bytes = static_cast<std::size_t>(status.st_size);
  void* const data = ::mmap(nullptr, size_bytes, PROT_READ, MAP_PRIVATE, file.number(), 0);
  if (data == MAP_FAILED) {
    return fail(Errc::io, "cannot map '{}' into memory: {}", path, system_message(errno));
  }
  return MappedFile(static_cast<const std::byte*>(data), size_bytes);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_bytes_(std::exchange(other.size_bytes_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  if (this != &other) {
    MappedFile old(std::exchange(data_, nullptr), std::exchange(size_bytes_, 0));
    data_ = std::exchange(other.data_, nullptr);
    size_bytes_ = std::exchange(other.size_bytes_, 0);
  }
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) {
    // munmap takes a pointer to non-const although it changes no byte of the mapping.
    ::munmap(const_cast<std::byte*>(data_), size_bytes_);
  }
}

}  // namespace kvspan::model
