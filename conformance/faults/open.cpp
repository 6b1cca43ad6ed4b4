// SPDX-License-Identifier: Apache-2.0
// The entry point of a faulty object: opens the base, wraps it, plants what the options ask for.
//   fault=<name>    one bug of the lists in fault_list.hpp; `none` or unset: everything straight
//                   through
//   odd=<name>      one legal oddity
//   witness=<path>  a file whose first 8 bytes count how often the faulty line ran
// All other options are the base's. The base's entry is its own source, compiled under another name
// (base.hpp): the shipped sources hold nothing of this.
#include "kvspan/sdk/error.hpp"
#include "kvspan/sdk/guard.hpp"

#include "base.hpp"
#include "fault_list.hpp"

#include <initializer_list>
#include <memory>
#include <span>
#include <string>

namespace kvspan::faults {
namespace {

constexpr const char* kWhere = KVSPAN_PLUGIN_OPEN_SYMBOL;

using Lists = std::initializer_list<std::span<const Fault>>;

/// Plants the one whose name the option gives. INVALID_ARG naming it and a few that exist.
kvspan_result_t plant(Layer& layer, const char* key, Lists lists, kvspan_error_t* error) {
  const std::string wanted = layer.option(key);
  if (wanted.empty() || wanted == "none") {
    return KVSPAN_OK;
  }
  std::string few;
  for (const std::span<const Fault>& list : lists) {
    few += few.size() < 100 ? std::string(", ") + list.front().name : "";
    for (const Fault& fault : list) {
      if (fault.name == wanted) {
        fault.plant(layer);
        return KVSPAN_OK;
      }
    }
  }
  return sdk::fail_argument(error,
                            sdk::Place{1},
                            kWhere,
                            "option %s is '%s', which does not exist: set it to none%s, ...",
                            key,
                            wanted.c_str(),
                            few.c_str());
}

kvspan_result_t plant_all(Layer& layer, kvspan_error_t* error) {
  const std::string path = layer.option("witness");
  if (!path.empty() && !layer.witness.open(path)) {
    return sdk::fail_argument(error,
                              sdk::Place{1},
                              kWhere,
                              "option witness: '%s' cannot be written: name a file that can",
                              path.c_str());
  }
  const kvspan_result_t odd = plant(layer, "odd", {oddities()}, error);
  return odd != KVSPAN_OK ? odd
                          : plant(layer,
                                  "fault",
                                  {fence_faults(),
                                   submit_faults(),
                                   cancel_faults(),
                                   copy_faults(),
                                   codec_faults(),
                                   codec_value_faults(),
                                   attention_faults(),
                                   attention_view_faults(),
                                   attention_bits_faults(),
                                   attention_state_faults(),
                                   attention_tile_faults(),
                                   capability_faults(),
                                   memory_faults(),
                                   ownership_faults(),
                                   error_faults(),
                                   size_faults(),
                                   thread_faults(),
                                   manners_faults(),
                                   identity_faults()},
                                  error);
}

const void* KVSPAN_CALL find_table(void* self, uint32_t table_id) noexcept {
  return static_cast<Layer*>(self)->calls.table(table_id);
}

kvspan_result_t KVSPAN_CALL close_plugin(void* self, kvspan_error_t* error) noexcept {
  if (self == nullptr) {
    return sdk::fail_argument(
        error, sdk::Place{1}, "plugin.close", "self is NULL: pass the plugin's");
  }
  Layer* const layer = static_cast<Layer*>(self);
  const kvspan_result_t result = layer->calls.close_plugin(error);
  if (result == KVSPAN_OK && !layer->outlives_close) {
    forget_layer(*layer);
    delete layer;
  }
  return result;
}

}  // namespace
}  // namespace kvspan::faults

extern "C" kvspan_result_t KVSPAN_CALL kvspan_plugin_open_0(const kvspan_open_info_t* info,
                                                            kvspan_plugin_t* plugin,
                                                            kvspan_error_t* error) noexcept {
  using namespace kvspan;
  return sdk::guard(error, faults::kWhere, [&]() -> kvspan_result_t {
    bool twisted = false;
    if (const kvspan_result_t bad = faults::open_base(info, plugin, error, twisted)) {
      return bad;
    }
    auto layer = std::make_unique<faults::Layer>(info->host, *plugin);
    if (const kvspan_result_t bad = faults::plant_all(*layer, error)) {
      static_cast<void>(layer->plugin.close(layer->plugin.self, nullptr));
      faults::forget_layer(*layer);
      plugin->self = nullptr;
      return bad;
    }
    if (twisted) {
      layer->ran();
    }
    plugin->self = layer.release();
    plugin->table = faults::find_table;
    plugin->close = faults::close_plugin;
    return KVSPAN_OK;
  });
}
