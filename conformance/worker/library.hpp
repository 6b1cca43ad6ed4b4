// SPDX-License-Identifier: Apache-2.0
// The plugin's file opened by hand, past the SDK's loader: for cases that call the entry point as
// no careful host would, and for unloading. And host services that watch what the plugin asks of
// them, with the blocks of memory that they lend. Everything else goes through the SDK (rig.hpp).
#ifndef KVSPAN_CONFORMANCE_WORKER_LIBRARY_H
#define KVSPAN_CONFORMANCE_WORKER_LIBRARY_H

#include "kvspan/entry.h"

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace kvspan::conformance {

/// A loaded file with the entry point of major 0.
class Library {
 public:
  explicit Library(const std::string& path);
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;
  Library(Library&&) = delete;
  Library& operator=(Library&&) = delete;
  ~Library();

  /// Why it could not be loaded or has no entry point; empty when all is well.
  const std::string& defect() const { return defect_; }

  kvspan_plugin_open_fn entry() const { return entry_; }

  /// The file's path without links, as the dynamic linker knows it.
  const std::string& path() const { return path_; }

  /// Gives the mapping back; nothing of the plugin may be used afterwards.
  void unload();
  /// Never unloads it: something still runs in it.
  void leave_loaded();

  /// Lines of /proc/self/maps that belong to the file, whoever mapped it.
  static std::vector<std::string> mappings(const std::string& path);

 private:
  std::string path_;
  std::string defect_;
  void* handle_ = nullptr;
  kvspan_plugin_open_fn entry_ = nullptr;
};

/// A table of an open plugin; NULL where it has none of that id.
template <class Table>
const Table* table_of(const kvspan_plugin_t& plugin, uint32_t id) {
  return static_cast<const Table*>(plugin.table(plugin.self, id));
}

/// Well-formed by the Unicode standard's table 3-7: neither overlong nor a surrogate.
bool is_utf8(std::string_view text);

/// Blocks of memory that a host lends, by address. Any thread.
class HostBlocks {
 public:
  /// NULL when there is no memory. `alignment` is a power of two.
  void* take(uint64_t bytes, uint64_t alignment);

  /// Ends a block. One that was not lent, NULL included, is counted as wrong and left alone; one
  /// with another size or alignment than it was lent with is counted and ended.
  void give(void* block, uint64_t bytes, uint64_t alignment);

  std::size_t left() const;
  uint64_t wrong() const;
  /// Calls of take(), those that gave NULL among them.
  uint64_t taken() const;

 private:
  struct Block {
    uint64_t bytes, alignment;
  };

  mutable std::mutex mutex_;
  std::map<void*, Block> blocks_;
  uint64_t wrong_ = 0;
  uint64_t taken_ = 0;
};

/// Host services for one plugin. Does not move; outlives the plugin.
class WatchedHost {
 public:
  explicit WatchedHost(std::map<std::string, std::string> options);
  WatchedHost(const WatchedHost&) = delete;
  WatchedHost& operator=(const WatchedHost&) = delete;
  WatchedHost(WatchedHost&&) = delete;
  WatchedHost& operator=(WatchedHost&&) = delete;
  ~WatchedHost() = default;

  const kvspan_host_services_t* table() const { return &table_; }

  /// Information for an open with the right hash and minors.
  kvspan_open_info_t open_info() const;

  /// The nth allocation from now gives NULL; 0 = none.
  void fail_allocation(uint64_t nth);

  /// From now on every call of the plugin is one too many.
  void shut();

  std::set<std::string> options_read() const;

  std::size_t blocks_left() const { return blocks_.left(); }

  /// Calls with a valid alignment, those that were to fail among them.
  uint64_t allocations() const;

  uint64_t wrong_frees() const { return blocks_.wrong(); }

  uint64_t calls_after_shut() const;
  /// The first log line that is none: with a line end, empty, no UTF-8, or of a level that does
  /// not exist.
  std::string bad_line() const;

 private:
  static WatchedHost& of(kvspan_host_t* self) { return *reinterpret_cast<WatchedHost*>(self); }

  static void KVSPAN_CALL log(kvspan_host_t* self,
                              uint32_t level,
                              const char* text,
                              uint32_t byte_count) noexcept;
  static void* KVSPAN_CALL alloc(kvspan_host_t* self, uint64_t bytes, uint64_t alignment) noexcept;
  static void KVSPAN_CALL free(kvspan_host_t* self,
                               void* block,
                               uint64_t bytes,
                               uint64_t alignment) noexcept;
  static uint64_t KVSPAN_CALL now_ns(kvspan_host_t* self) noexcept;
  static uint64_t KVSPAN_CALL option(kvspan_host_t* self,
                                     const char* key,
                                     char* target,
                                     uint64_t capacity) noexcept;

  mutable std::mutex mutex_;
  kvspan_host_services_t table_{};
  std::map<std::string, std::string> options_;
  std::set<std::string> read_;
  HostBlocks blocks_;
  uint64_t allocations_ = 0;
  uint64_t failing_ = 0;  // value of allocations_ that fails; 0 = none
  uint64_t late_calls_ = 0;
  bool shut_ = false;
  std::string bad_line_;
};

}  // namespace kvspan::conformance

#endif
