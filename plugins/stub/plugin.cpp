// SPDX-License-Identifier: Apache-2.0
// Where a host meets the stub: the note, the entry point, the options, the look-up of tables.
// Start a backend of your own here: README.md. Read next: plugin.hpp.
#include "plugin.hpp"

#include "kvspan/sdk/entry.hpp"
#include "kvspan/sdk/error.hpp"
#include "kvspan/sdk/guard.hpp"

#include <bit>
#include <charconv>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <system_error>

KVSPAN_PLUGIN_NOTE("stub", "kvspan", "0.1.0", 2u, "");

namespace kvspan::stub {
namespace {

constexpr const char* kWhere = KVSPAN_PLUGIN_OPEN_SYMBOL;

/// Reads options one by one; the first that makes no sense decides, the rest are skipped.
class OptionReader {
 public:
  OptionReader(const kvspan_host_services_t& host, kvspan_error_t* error)
      : host_(host), error_(error) {}

  kvspan_result_t result() const { return result_; }

  /// A number in [least, most], written in decimal; `fallback` where the option is not set.
  std::uint64_t number(const char* key,
                       std::uint64_t fallback,
                       std::uint64_t least,
                       std::uint64_t most) {
    std::string text;
    if (!read(key, text)) {
      return fallback;
    }
    std::uint64_t value = 0;
    const char* const end = text.data() + text.size();
    const std::from_chars_result parsed = std::from_chars(text.data(), end, value);
    if (parsed.ec != std::errc() || parsed.ptr != end || value < least || value > most) {
      refuse(key, text, "a number in " + std::to_string(least) + ".." + std::to_string(most));
      return fallback;
    }
    return value;
  }

  /// Whether the option is `second` rather than `first`, which is its default.
  bool second(const char* key, const char* first_word, const char* second_word) {
    std::string text;
    if (read(key, text) && text != first_word && text != second_word) {
      refuse(key, text, std::string(first_word) + " or " + second_word);
    }
    return text == second_word;
  }

  void refuse(const char* key, const std::string& text, const std::string& wanted) {
    if (result_ == KVSPAN_OK) {
      result_ = sdk::fail_argument(error_,
                                   sdk::Place{1},
                                   kWhere,
                                   "option %s is '%s': set it to %s",
                                   key,
                                   text.c_str(),
                                   wanted.c_str());
    }
  }

 private:
  bool read(const char* key, std::string& out) {
    char text[64] = {};
    const std::uint64_t length = host_.option(host_.self, key, text, sizeof text);
    if (length == 0) {
      return false;
    }
    out = text;
    if (length >= sizeof text) {
      refuse(key, out, "something shorter");
    }
    return true;
  }

  const kvspan_host_services_t& host_;
  kvspan_error_t* error_;
  kvspan_result_t result_ = KVSPAN_OK;
};

kvspan_result_t read_options(const kvspan_host_services_t& host,
                             Options& options,
                             kvspan_error_t* error) {
  constexpr std::uint64_t kAny = UINT64_MAX;
  constexpr std::uint64_t kDelayMax = 1ull << 40;
  constexpr std::uint64_t kDeviceBytesMax = 1ull << 46;  // within this process's address space
  constexpr std::uint64_t kDeadlockMax = 3'600'000;
  OptionReader read(host, error);
  const bool shuffled = read.second("queues", "one", "shuffled");
  ScheduleOptions& schedule = options.schedule;
  schedule.mode = shuffled ? QueueMode::shuffled : QueueMode::one;
  schedule.seed = read.number("seed", 1, 0, kAny);
  schedule.delay_max_ticks = read.number("delay_max_ticks", shuffled ? 1000 : 0, 0, kDelayMax);
  schedule.failed_waits =
      read.second("fail_stops", "yes", "no") ? FailedWaits::run : FailedWaits::stop;
  options.granule = static_cast<std::uint32_t>(read.number("granule", 4, 1, 64));
  if (!std::has_single_bit(options.granule)) {
    read.refuse("granule", std::to_string(options.granule), "a power of two up to 64");
  }
  options.split_count = static_cast<std::uint32_t>(read.number("splits", 4, 1, 4096));
  options.device_bytes = read.number("device_bytes", options.device_bytes, 0, kDeviceBytesMax);
  options.deadlock_ms = read.number("deadlock_ms", options.deadlock_ms, 0, kDeadlockMax);
  options.device_count = read.second("zero_devices", "no", "yes") ? 0 : 1;
  return read.result();
}

const void* KVSPAN_CALL find_table(void*, std::uint32_t table_id) noexcept {
  switch (table_id) {
    case KVSPAN_TABLE_DEVICE:
      return &kDeviceTable;
    case KVSPAN_TABLE_MEMORY:
      return &kMemoryTable;
    case KVSPAN_TABLE_QUEUE:
      return &kQueueTable;
    case KVSPAN_TABLE_FENCE:
      return &kFenceTable;
    case KVSPAN_TABLE_COPY:
      return &kCopyTable;
    case KVSPAN_TABLE_CODEC:
      return &kCodecTable;
    case KVSPAN_TABLE_ATTENTION:
      return &kAttentionTable;
    case KVSPAN_TABLE_DEBUG:
      return &kDebugTable;
    default:
      return nullptr;
  }
}

kvspan_result_t KVSPAN_CALL close_plugin(void* self, kvspan_error_t* error) noexcept {
  constexpr const char* kClose = "plugin.close";
  if (self == nullptr) {
    return sdk::fail_argument(error, sdk::Place{1}, kClose, "self is NULL: pass the plugin's");
  }
  Plugin* const plugin = static_cast<Plugin*>(self);
  if (plugin->devices_open != 0) {
    return sdk::fail_amount(error,
                            KVSPAN_E_BUSY,
                            kClose,
                            {KVSPAN_RESOURCE_NONE, 0, plugin->devices_open},
                            "%u devices are open: close them first",
                            plugin->devices_open);
  }
  delete plugin;
  return KVSPAN_OK;
}

}  // namespace
}  // namespace kvspan::stub

extern "C" kvspan_result_t KVSPAN_CALL kvspan_plugin_open_0(const kvspan_open_info_t* info,
                                                            kvspan_plugin_t* plugin,
                                                            kvspan_error_t* error) noexcept {
  using namespace kvspan;
  return sdk::guard(error, stub::kWhere, [&]() -> kvspan_result_t {
    if (const kvspan_result_t bad = sdk::accept_open(info, plugin, error)) {
      return bad;
    }
    stub::Options options;
    if (const kvspan_result_t bad = stub::read_options(*info->host, options, error)) {
      return bad;
    }
    plugin->self = std::make_unique<stub::Plugin>(info->host, options).release();
    plugin->table = stub::find_table;
    plugin->close = stub::close_plugin;
    return KVSPAN_OK;
  });
}
