// SPDX-License-Identifier: Apache-2.0
// Opening a plugin: read its note, load it, negotiate, check every table, and close it again on one
// path whether it went well, stopped half way or the owner ends. Linux.
// A refusal is one sentence that begins with the file's name and says what does not fit.
// Not here: the note (note.hpp), tables as C++ objects (handle.hpp).
#pragma once

#include "kvspan/attention.h"
#include "kvspan/codec.h"
#include "kvspan/copy.h"
#include "kvspan/debug.h"
#include "kvspan/device.h"
#include "kvspan/entry.h"
#include "kvspan/fence.h"
#include "kvspan/memory.h"
#include "kvspan/native.h"
#include "kvspan/queue.h"
#include "kvspan/sdk/error.hpp"
#include "kvspan/sdk/guard.hpp"
#include "kvspan/sdk/host_services.hpp"
#include "kvspan/sdk/note.hpp"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <dlfcn.h>
#include <limits.h>
#include <memory>
#include <stdlib.h>
#include <string>
#include <utility>

namespace kvspan::sdk {
namespace detail {

/// One table that a host asks for.
struct TableRule {
  std::uint32_t id;
  std::uint32_t bytes;  ///< sizeof: exact while the ABI's major is 0
  const char* name;
  bool mandatory;
};

inline constexpr TableRule kTableRules[] = {
    {KVSPAN_TABLE_DEVICE, sizeof(kvspan_device_table_t), "device", true},
    {KVSPAN_TABLE_MEMORY, sizeof(kvspan_memory_table_t), "memory", true},
    {KVSPAN_TABLE_QUEUE, sizeof(kvspan_queue_table_t), "queue", true},
    {KVSPAN_TABLE_FENCE, sizeof(kvspan_fence_table_t), "fence", true},
    {KVSPAN_TABLE_COPY, sizeof(kvspan_copy_table_t), "copy", true},
    {KVSPAN_TABLE_CODEC, sizeof(kvspan_codec_table_t), "codec", true},
    {KVSPAN_TABLE_ATTENTION, sizeof(kvspan_attention_table_t), "attention", false},
    {KVSPAN_TABLE_NATIVE, sizeof(kvspan_native_table_t), "native", false},
    {KVSPAN_TABLE_DEBUG, sizeof(kvspan_debug_table_t), "debug", false},
};
inline constexpr std::size_t kTableCount = sizeof kTableRules / sizeof kTableRules[0];

/// A table is {u32 struct_size, u32 reserved, slots}: all slots are there. Else the defect, in
/// words.
inline std::string table_defect(const TableRule& rule, const void* table) {
  if (table == nullptr) {
    return rule.mandatory ? std::string("has no ") + rule.name + " table, which is mandatory" : "";
  }
  std::uint32_t bytes = 0;
  std::memcpy(&bytes, table, sizeof bytes);
  if (bytes != rule.bytes) {
    return std::string("has a ") + rule.name + " table of " + std::to_string(bytes) +
           " bytes, this ABI's has " + std::to_string(rule.bytes);
  }
  using Slot = void (*)();
  const auto* slots = static_cast<const unsigned char*>(table) + 2 * sizeof(std::uint32_t);
  const std::size_t count = (rule.bytes - 2 * sizeof(std::uint32_t)) / sizeof(Slot);
  for (std::size_t i = 0; i < count; ++i) {
    Slot slot = nullptr;
    std::memcpy(&slot, slots + i * sizeof(Slot), sizeof slot);
    if (slot == nullptr) {
      return std::string("has a NULL in slot ") + std::to_string(i) + " of its " + rule.name +
             " table";
    }
  }
  return "";
}

/// Everything of one loaded plugin. Its services do not move while the plugin may call them.
class LoadedPlugin {
 public:
  LoadedPlugin(LoadOptions options, std::string path)
      : services_(std::move(options)), path_(std::move(path)) {}

  LoadedPlugin(const LoadedPlugin&) = delete;
  LoadedPlugin& operator=(const LoadedPlugin&) = delete;
  LoadedPlugin(LoadedPlugin&&) = delete;
  LoadedPlugin& operator=(LoadedPlugin&&) = delete;

  ~LoadedPlugin() {
    if (library_ != nullptr && !open_ && services_.options().unload == Unload::unmap) {
      (void)::dlclose(library_);
    }
  }

  kvspan_result_t load(kvspan_error_t* error) {
    std::string why;
    if (!read_note(path_, note_, why)) {
      return refuse(error, KVSPAN_E_INVALID_ARG, "load.note", why);
    }
    why = refusal(note_, machine_here());
    if (!why.empty()) {
      return refuse(error, KVSPAN_E_VERSION, "load.note", why);
    }
    library_ = ::dlopen(path_.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library_ == nullptr) {
      return refuse(error, KVSPAN_E_VERSION, "load.library", library_defect());
    }
    return open(error);
  }

  /// Ends the plugin; on failure it stays open.
  kvspan_result_t close(kvspan_error_t* error) noexcept {
    if (!open_) {
      return KVSPAN_OK;
    }
    const kvspan_result_t result = plugin_.close(plugin_.self, error);
    open_ = result != KVSPAN_OK;
    return result;
  }

  bool is_open() const noexcept { return open_; }

  const Note& note() const noexcept { return note_; }

  const std::string& path() const noexcept { return path_; }

  const kvspan_plugin_t& plugin() const noexcept { return plugin_; }

  const void* table(std::size_t rule) const noexcept { return tables_[rule]; }

 private:
  /// "kvspan-x.so <why>".
  kvspan_result_t refuse(kvspan_error_t* error,
                         kvspan_result_t code,
                         const char* where,
                         const std::string& why) const noexcept {
    const std::size_t slash = path_.rfind('/');
    const char* name = path_.c_str() + (slash == std::string::npos ? 0 : slash + 1);
    return fail(error, code, where, "%.64s %s", name, why.c_str());
  }

  /// Why dlopen failed; the missing library first, where that is why.
  std::string library_defect() const {
    const char* reason = ::dlerror();
    const std::string said = reason == nullptr ? "for no stated reason" : reason;
    for (const std::string& library : note_.needed) {
      if (said.rfind(library + ":", 0) == 0) {
        std::string text = "needs ";
        text.append(library).append(", which cannot be loaded here: install it (");
        return text.append(said).append(")");
      }
    }
    return "cannot be loaded: " + said;
  }

  kvspan_result_t open(kvspan_error_t* error) {
    kvspan_plugin_open_fn entry = nullptr;
    void* symbol = ::dlsym(library_, KVSPAN_PLUGIN_OPEN_SYMBOL);
    if (symbol == nullptr) {
      return refuse(error,
                    KVSPAN_E_INTERNAL,
                    "load.entry",
                    std::string("does not export ") + KVSPAN_PLUGIN_OPEN_SYMBOL);
    }
    std::memcpy(&entry, &symbol, sizeof entry);
    const Machine machine;
    kvspan_open_info_t info{};
    info.struct_size = sizeof info;
    info.host_minor_min = machine.minors.min;
    info.host_minor_max = machine.minors.max;
    info.header_hash = machine.header_hash;
    info.host = services_.table();
    kvspan_plugin_t made{};
    made.struct_size = sizeof made;
    kvspan_error_t said{};
    said.struct_size = sizeof said;
    kvspan_result_t result = KVSPAN_OK;
    try {
      result = entry(&info, &made, &said);
    } catch (...) {
      return refuse(error, KVSPAN_E_INTERNAL, "load.open", "threw an exception while opening");
    }
    if (result != KVSPAN_OK) {
      return refuse_open(error, result, said);
    }
    plugin_ = made;
    open_ = made.close != nullptr;  // without one there is nothing to end it with
    const std::string defect = open_defect(machine);
    if (defect.empty()) {
      return KVSPAN_OK;
    }
    (void)close(nullptr);
    return refuse(error, KVSPAN_E_INTERNAL, "load.check", defect);
  }

  kvspan_result_t refuse_open(kvspan_error_t* error,
                              kvspan_result_t result,
                              const kvspan_error_t& said) const {
    if (result > 0) {
      return refuse(error,
                    KVSPAN_E_INTERNAL,
                    "load.open",
                    "returned " + std::to_string(result) + " from open, which it may not");
    }
    const std::string sentence(said.message, ::strnlen(said.message, sizeof said.message));
    const std::string reason = sentence.empty() ? "code " + std::to_string(result) : sentence;
    (void)refuse(error, result, "load.open", "refused to open: " + reason);
    if (error != nullptr && said.code == result) {
      error->resource = said.resource;
      error->required = said.required;
      error->provided = said.provided;
      error->missing = said.missing;
      error->native_code = said.native_code;
    }
    return result;
  }

  /// What is wrong with an open plugin; empty when nothing is. Fills the tables.
  std::string open_defect(const Machine& machine) {
    if (plugin_.struct_size != sizeof plugin_ || plugin_.table == nullptr ||
        plugin_.close == nullptr) {
      return "opened with a plugin struct of another size or without its two functions";
    }
    const MinorRange own{plugin_.plugin_minor_min, plugin_.plugin_minor_max};
    if (own.min != note_.minors.min || own.max != note_.minors.max) {
      return "says other minors than its note";
    }
    const Negotiation met = negotiate(machine.minors, own);
    if (!met.meets || plugin_.minor != met.minor) {
      return "chose minor " + std::to_string(plugin_.minor) + ", which is not the agreed one";
    }
    if (plugin_.table(plugin_.self, 0) != nullptr) {
      return "has a table with id 0, which does not exist";
    }
    for (std::size_t i = 0; i < kTableCount; ++i) {
      tables_[i] = plugin_.table(plugin_.self, kTableRules[i].id);
      std::string defect = table_defect(kTableRules[i], tables_[i]);
      if (!defect.empty()) {
        return defect;
      }
    }
    return "";
  }

  HostServices services_;
  std::string path_;
  Note note_;
  void* library_ = nullptr;
  kvspan_plugin_t plugin_{};
  bool open_ = false;
  const void* tables_[kTableCount] = {};
};

/// An absolute path without links or dots; empty when there is no such file.
inline std::string canonical(const std::string& path) {
  char* found = ::realpath(path.c_str(), nullptr);
  std::string text = found == nullptr ? "" : found;
  ::free(found);
  return text;
}

}  // namespace detail

/// An open plugin. Owns it: closes when it ends, and unmaps the file if the options said so. All
/// devices must be closed first; what is BUSY then stays loaded for the rest of the process.
class Plugin {
 public:
  Plugin() = default;
  Plugin(const Plugin&) = delete;
  Plugin& operator=(const Plugin&) = delete;
  Plugin(Plugin&&) noexcept = default;

  Plugin& operator=(Plugin&& other) noexcept {
    if (this != &other) {
      end();
      loaded_ = std::move(other.loaded_);
    }
    return *this;
  }

  ~Plugin() { end(); }

  /// Opens the plugin in the file `path` and makes `out` it. `out` is untouched on failure.
  /// INVALID_ARG: no such file, not ELF, truncated, no note: name a plugin's file.
  /// VERSION: another major, header hash, processor or library: use another build or machine.
  /// INTERNAL: the plugin breaks its contract: report it to its maker.
  /// Other codes are the plugin's own. Thread class SOLO for one path.
  [[nodiscard]] static kvspan_result_t load(const std::string& path,
                                            const LoadOptions& options,
                                            Plugin& out,
                                            kvspan_error_t* error) noexcept {
    return guard(error, "load", [&] {
      const std::string absolute = detail::canonical(path);
      if (absolute.empty()) {
        return fail(error,
                    KVSPAN_E_INVALID_ARG,
                    "load.path",
                    "%.128s does not exist: give the path of a kvspan-<name>.so",
                    path.c_str());
      }
      auto loaded = std::make_unique<detail::LoadedPlugin>(options, absolute);
      const kvspan_result_t result = loaded->load(error);
      if (result != KVSPAN_OK && loaded->is_open()) {
        (void)loaded.release();  // could not be closed: its services must outlive it
      }
      if (result == KVSPAN_OK) {
        Plugin made;
        made.loaded_ = std::move(loaded);
        out = std::move(made);
      }
      return result;
    });
  }

  /// Ends the plugin now. BUSY: devices are open, it stays as it is; close them and call again.
  kvspan_result_t close(kvspan_error_t* error = nullptr) noexcept {
    if (loaded_ == nullptr) {
      return KVSPAN_OK;
    }
    const kvspan_result_t result = loaded_->close(error);
    if (result == KVSPAN_OK) {
      loaded_.reset();
    }
    return result;
  }

  explicit operator bool() const noexcept { return loaded_ != nullptr; }

  // Below: of an open plugin only. Tables live until it closes.
  void* self() const noexcept { return loaded_->plugin().self; }

  const Note& note() const noexcept { return loaded_->note(); }

  const std::string& path() const noexcept { return loaded_->path(); }

  std::uint32_t minor() const noexcept { return loaded_->plugin().minor; }

  const kvspan_device_table_t* device() const noexcept { return at<kvspan_device_table_t>(0); }

  const kvspan_memory_table_t* memory() const noexcept { return at<kvspan_memory_table_t>(1); }

  const kvspan_queue_table_t* queue() const noexcept { return at<kvspan_queue_table_t>(2); }

  const kvspan_fence_table_t* fence() const noexcept { return at<kvspan_fence_table_t>(3); }

  const kvspan_copy_table_t* copy() const noexcept { return at<kvspan_copy_table_t>(4); }

  const kvspan_codec_table_t* codec() const noexcept { return at<kvspan_codec_table_t>(5); }

  /// NULL when the plugin has no attention.
  const kvspan_attention_table_t* attention() const noexcept {
    return at<kvspan_attention_table_t>(6);
  }

  /// NULL when absent.
  const kvspan_native_table_t* native() const noexcept { return at<kvspan_native_table_t>(7); }

  /// A table that is not in kvspan.h yet (graph.h), by its KVSPAN_TABLE_* id; NULL when absent.
  const void* draft(std::uint32_t id) const noexcept {
    return loaded_->plugin().table(loaded_->plugin().self, id);
  }

  /// NULL when absent.
  const kvspan_debug_table_t* debug() const noexcept { return at<kvspan_debug_table_t>(8); }

 private:
  template <class T>
  const T* at(std::size_t rule) const noexcept {
    return static_cast<const T*>(loaded_->table(rule));
  }

  void end() noexcept {
    if (close() != KVSPAN_OK) {
      (void)loaded_.release();  // still in use: keep everything that it may touch
    }
  }

  std::unique_ptr<detail::LoadedPlugin> loaded_;
};

}  // namespace kvspan::sdk
