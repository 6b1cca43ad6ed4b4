// SPDX-License-Identifier: Apache-2.0
// Faults of negotiation and of the look-up of tables. Some act before there is a Layer: open_base()
// reads the option `fault` itself, the list then has a name that plants nothing more.
// Not here: faults of the file (structural/).
#include "base.hpp"
#include "fault_list.hpp"

#include <memory>
#include <string>

namespace kvspan::faults {
namespace {

void acts_at_open(Layer&) {}

/// Any id gives a table.
void unknown_tables_exist(Layer& layer) {
  layer.calls.table = [&layer, next = layer.calls.table](uint32_t id) -> const void* {
    const void* const table = next(id);
    if (table == nullptr) {
      layer.ran();
      return &layer.own.device;
    }
    return table;
  };
}

/// Each look-up makes a table anew.
void tables_move(Layer& layer) {
  struct Other {
    kvspan_device_table_t table;
    bool second = false;
  };

  auto other = std::make_shared<Other>(Other{layer.own.device});
  layer.calls.table = [&layer, other, next = layer.calls.table](uint32_t id) -> const void* {
    if (id != KVSPAN_TABLE_DEVICE) {
      return next(id);
    }
    other->second = !other->second;
    if (other->second) {
      return next(id);
    }
    layer.ran();
    return &other->table;
  };
}

bool can_read_options(const kvspan_open_info_t* info) {
  return info != nullptr && info->struct_size == sizeof *info && info->host != nullptr &&
         info->host->struct_size == sizeof *info->host;
}

void count(const kvspan_open_info_t* info) {
  Witness witness;
  const std::string path = read_option(info->host, "witness");
  if (!path.empty() && witness.open(path)) {
    witness.add();
  }
}

constexpr Fault kFaults[] = {
    {"header_hash_is_ignored", acts_at_open},
    {"minor_range_is_ignored", acts_at_open},
    {"refusal_leaves_no_range", acts_at_open},
    {"chooses_its_own_minor", acts_at_open},
    {"unknown_tables_exist", unknown_tables_exist},
    {"tables_move", tables_move},
};

}  // namespace

kvspan_result_t open_base(const kvspan_open_info_t* info,
                          kvspan_plugin_t* plugin,
                          kvspan_error_t* error,
                          bool& twisted) {
  const std::string fault = can_read_options(info) ? read_option(info->host, "fault") : "";
  const bool any_hash = fault == "header_hash_is_ignored";
  const bool any_range = fault == "minor_range_is_ignored";
  if (!any_hash && !any_range) {
    const kvspan_result_t result = kvspan_base_open(info, plugin, error);
    if (result == KVSPAN_E_VERSION && fault == "refusal_leaves_no_range") {
      plugin->plugin_minor_min = plugin->plugin_minor_max = 0;
      count(info);
    }
    if (result == KVSPAN_OK && fault == "chooses_its_own_minor") {
      twisted = info->host_minor_max != plugin->minor + 1;
      plugin->minor += 1;
    }
    return result;
  }
  kvspan_open_info_t other = *info;
  if (any_hash) {
    other.header_hash = KVSPAN_HEADER_HASH;
  } else {
    other.host_minor_min = other.host_minor_max = KVSPAN_ABI_MINOR;
  }
  twisted = other.header_hash != info->header_hash || info->host_minor_min > KVSPAN_ABI_MINOR ||
            info->host_minor_max < KVSPAN_ABI_MINOR;
  return kvspan_base_open(&other, plugin, error);
}

std::span<const Fault> identity_faults() {
  return kFaults;
}

}  // namespace kvspan::faults
