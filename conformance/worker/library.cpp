// SPDX-License-Identifier: Apache-2.0
// Loads a plugin's file as the dynamic linker does and counts what the plugin asks of its host.
#include "worker/library.hpp"

#include <chrono>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <fstream>
#include <new>
#include <utility>

namespace kvspan::conformance {
namespace {

std::string canonical(const std::string& path) {
  char found[PATH_MAX] = {};
  return ::realpath(path.c_str(), found) == nullptr ? path : std::string(found);
}

}  // namespace

bool is_utf8(std::string_view text) {
  for (std::size_t at = 0; at < text.size();) {
    const auto first = static_cast<unsigned char>(text[at++]);
    const int more = first < 0x80 ? 0 : first < 0xC2 ? -1 : first < 0xE0 ? 1 : first < 0xF0 ? 2 : 3;
    if (more < 0 || first > 0xF4) {
      return false;
    }
    for (int i = 0; i < more; ++i, ++at) {
      const auto next = at < text.size() ? static_cast<unsigned char>(text[at]) : 0u;
      const unsigned least = i == 0 && first == 0xE0 ? 0xA0 : i == 0 && first == 0xF0 ? 0x90 : 0x80;
      const unsigned most = i == 0 && first == 0xED ? 0x9F : i == 0 && first == 0xF4 ? 0x8F : 0xBF;
      if (next < least || next > most) {
        return false;
      }
    }
  }
  return true;
}

Library::Library(const std::string& path) : path_(canonical(path)) {
  handle_ = ::dlopen(path_.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle_ == nullptr) {
    const char* reason = ::dlerror();
    defect_ = reason == nullptr ? "cannot be loaded" : reason;
    return;
  }
  void* symbol = ::dlsym(handle_, KVSPAN_PLUGIN_OPEN_SYMBOL);
  if (symbol == nullptr) {
    defect_ = std::string("does not export ") + KVSPAN_PLUGIN_OPEN_SYMBOL;
    return;
  }
  std::memcpy(&entry_, &symbol, sizeof entry_);
}

Library::~Library() {
  unload();
}

void Library::unload() {
  if (handle_ != nullptr) {
    ::dlclose(std::exchange(handle_, nullptr));
  }
  entry_ = nullptr;
}

void Library::leave_loaded() {
  handle_ = nullptr;
}

std::vector<std::string> Library::mappings(const std::string& path) {
  const std::string wanted = canonical(path);
  std::vector<std::string> found;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    const std::size_t at = line.find('/');
    if (at != std::string::npos && line.substr(at) == wanted) {
      found.push_back(line);
    }
  }
  return found;
}

void* HostBlocks::take(uint64_t bytes, uint64_t alignment) {
  void* block = ::operator new(bytes, std::align_val_t(alignment), std::nothrow);
  const std::lock_guard<std::mutex> lock(mutex_);
  ++taken_;
  if (block != nullptr) {
    blocks_[block] = {bytes, alignment};
  }
  return block;
}

void HostBlocks::give(void* block, uint64_t bytes, uint64_t alignment) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = blocks_.find(block);
  if (found == blocks_.end()) {
    ++wrong_;  // not ours: freeing it would do harm
    return;
  }
  const Block held = found->second;
  wrong_ += held.bytes != bytes || held.alignment != alignment ? 1u : 0u;
  blocks_.erase(found);
  ::operator delete(block, std::align_val_t(held.alignment));
}

std::size_t HostBlocks::left() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return blocks_.size();
}

uint64_t HostBlocks::wrong() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return wrong_;
}

uint64_t HostBlocks::taken() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return taken_;
}

WatchedHost::WatchedHost(std::map<std::string, std::string> options)
    : options_(std::move(options)) {
  table_.struct_size = sizeof table_;
  table_.log_level = KVSPAN_LOG_DEBUG;
  table_.self = reinterpret_cast<kvspan_host_t*>(this);
  table_.log = log;
  table_.alloc = alloc;
  table_.free = free;
  table_.now_ns = now_ns;
  table_.option = option;
}

kvspan_open_info_t WatchedHost::open_info() const {
  kvspan_open_info_t info = {};
  info.struct_size = sizeof info;
  info.host_minor_min = KVSPAN_ABI_MINOR;
  info.host_minor_max = KVSPAN_ABI_MINOR;
  info.header_hash = KVSPAN_HEADER_HASH;
  info.host = &table_;
  return info;
}

void WatchedHost::fail_allocation(uint64_t nth) {
  const std::lock_guard<std::mutex> lock(mutex_);
  failing_ = nth == 0 ? 0 : allocations_ + nth;
}

void WatchedHost::shut() {
  const std::lock_guard<std::mutex> lock(mutex_);
  shut_ = true;
}

std::set<std::string> WatchedHost::options_read() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return read_;
}

uint64_t WatchedHost::allocations() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return allocations_;
}

uint64_t WatchedHost::calls_after_shut() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return late_calls_;
}

std::string WatchedHost::bad_line() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return bad_line_;
}

void WatchedHost::log(kvspan_host_t* self,
                      uint32_t level,
                      const char* text,
                      uint32_t byte_count) noexcept {
  WatchedHost& host = of(self);
  const std::lock_guard<std::mutex> lock(host.mutex_);
  host.late_calls_ += host.shut_ ? 1u : 0u;
  const bool line = text != nullptr && byte_count != 0 && level <= KVSPAN_LOG_DEBUG &&
                    std::memchr(text, '\n', byte_count) == nullptr && is_utf8({text, byte_count});
  if (!line && host.bad_line_.empty()) {
    host.bad_line_ = "level " + std::to_string(level) + ": '" +
                     std::string(text == nullptr ? "" : text, text == nullptr ? 0 : byte_count) +
                     "'";
  }
}

void* WatchedHost::alloc(kvspan_host_t* self, uint64_t bytes, uint64_t alignment) noexcept {
  WatchedHost& host = of(self);
  const std::lock_guard<std::mutex> lock(host.mutex_);
  host.late_calls_ += host.shut_ ? 1u : 0u;
  if (alignment == 0 || (alignment & (alignment - 1)) != 0 ||
      ++host.allocations_ == host.failing_) {
    return nullptr;
  }
  return host.blocks_.take(bytes, alignment);
}

void WatchedHost::free(kvspan_host_t* self,
                       void* block,
                       uint64_t bytes,
                       uint64_t alignment) noexcept {
  WatchedHost& host = of(self);
  const std::lock_guard<std::mutex> lock(host.mutex_);
  host.late_calls_ += host.shut_ ? 1u : 0u;
  if (block != nullptr) {
    host.blocks_.give(block, bytes, alignment);
  }
}

uint64_t WatchedHost::now_ns(kvspan_host_t* self) noexcept {
  WatchedHost& host = of(self);
  const std::lock_guard<std::mutex> lock(host.mutex_);
  host.late_calls_ += host.shut_ ? 1u : 0u;
  const auto since = std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(since).count());
}

uint64_t WatchedHost::option(kvspan_host_t* self,
                             const char* key,
                             char* target,
                             uint64_t capacity) noexcept {
  WatchedHost& host = of(self);
  const std::lock_guard<std::mutex> lock(host.mutex_);
  host.late_calls_ += host.shut_ ? 1u : 0u;
  host.read_.insert(key == nullptr ? "" : key);
  const auto found = host.options_.find(key == nullptr ? "" : key);
  if (found == host.options_.end()) {
    return 0;
  }
  const std::string& value = found->second;
  if (capacity != 0 && target != nullptr) {
    const std::size_t bytes = value.size() < capacity ? value.size() : capacity - 1;
    std::memcpy(target, value.data(), bytes);
    target[bytes] = '\0';
  }
  return value.size();
}

}  // namespace kvspan::conformance
