// SPDX-License-Identifier: Apache-2.0
// Opening and closing for the probe, and everything but the grid of attention (probe_grid.cpp).
#include "worker/probe.hpp"

#include "kvspan/kvspan.h"
#include "kvspan/sdk/loader.hpp"

#include "worker/library.hpp"
#include "worker/probe_parts.hpp"
#include "worker/retained.hpp"
#include "worker/rig.hpp"

#include <cstring>
#include <sstream>
#include <utility>

namespace kvspan::conformance {
namespace {

using nlohmann::json;

json stopped(const char* stage, kvspan_result_t code, const kvspan_error_t& error) {
  return {{"ok", false},
          {"stage", stage},
          {"code", code},
          {"where", std::string(error.where, ::strnlen(error.where, sizeof error.where))},
          {"message", std::string(error.message, ::strnlen(error.message, sizeof error.message))}};
}

std::string hex(uint64_t value) {
  std::ostringstream text;
  text << "0x" << std::hex << value;
  return text.str();
}

json note_of(const sdk::Plugin& plugin) {
  const sdk::Note& note = plugin.note();
  return {{"name", note.name},
          {"vendor", note.vendor},
          {"version", note.version},
          {"minor_min", note.minors.min},
          {"minor_max", note.minors.max},
          {"header_hash", hex(note.header_hash)},
          {"isa_floor", note.isa_floor},
          {"libraries", note.libraries}};
}

json offered_of(const Tables& tables, const sdk::Plugin& plugin) {
  return {{"device", true},
          {"memory", true},
          {"queue", true},
          {"fence", true},
          {"copy", true},
          {"codec", true},
          {"attention", tables.attention != nullptr},
          {"native", plugin.native() != nullptr},
          {"debug", tables.debug != nullptr}};
}

json device_of(const kvspan_device_info_t& info, uint32_t index) {
  std::ostringstream id;
  for (const uint8_t byte : info.id) {
    id << std::hex << (byte >> 4) << (byte & 15);
  }
  return {{"index", index},
          {"name", std::string(info.name, ::strnlen(info.name, sizeof info.name))},
          {"id", id.str()},
          {"flags", info.flags},
          {"lanes", {info.lanes[0], info.lanes[1], info.lanes[2]}},
          {"queues_max", info.queues_max},
          {"depth_max", info.depth_max},
          {"cancel", info.cancel},
          {"allocation_bytes_max", info.allocation_bytes_max},
          {"binding_bytes_max", info.binding_bytes_max},
          {"memory_alignment", info.memory_alignment},
          {"import_alignment", info.import_alignment},
          {"import_bytes_max", info.import_bytes_max},
          {"coherence_bytes", info.coherence_bytes},
          {"context_bytes", info.context_bytes},
          {"fence_delta_max", info.fence_delta_max},
          {"free_bytes", nullptr}};
}

json limits_of(const Tables& tables, kvspan_device_t* device) {
  kvspan_copy_limits_t limits = {};
  limits.struct_size = sizeof limits;
  if (tables.copy->limits(device, &limits, nullptr) != KVSPAN_OK) {
    return json::object();
  }
  return {{"segments_max", limits.segments_max},
          {"source_alignment", limits.source_alignment},
          {"target_alignment", limits.target_alignment},
          {"bytes_alignment", limits.bytes_alignment},
          {"pitch_alignment", limits.pitch_alignment},
          {"fill_alignment", limits.fill_alignment},
          {"bytes_max", limits.bytes_max}};
}

/// Which faults can be planted: each is planted far away and taken back.
json faults_of(const Tables& tables, kvspan_device_t* device) {
  const auto plants = [&](uint32_t kind, kvspan_result_t code) {
    if (tables.debug == nullptr) {
      return false;
    }
    const bool planted =
        tables.debug->fault(device, kind, 1'000'000'000, code, nullptr) == KVSPAN_OK;
    static_cast<void>(tables.debug->fault(device, 0, 0, KVSPAN_OK, nullptr));
    return planted;
  };
  return {{"allocation", plants(KVSPAN_FAULT_ALLOCATION, KVSPAN_E_DEVICE_MEMORY)},
          {"submit", plants(KVSPAN_FAULT_SUBMIT, KVSPAN_E_INTERNAL)},
          {"device", plants(KVSPAN_FAULT_DEVICE, KVSPAN_E_DEVICE_LOST)}};
}

/// The names of the options that the plugin asks its host for while it opens: it is opened once
/// more for it, by hand, because the SDK's host does not count.
json options_asked(const Settings& settings) {
  const Library library(settings.plugin_path);
  WatchedHost host(settings.options);
  json names = json::array();
  if (!library.defect().empty()) {
    return names;
  }
  const kvspan_open_info_t info = host.open_info();
  kvspan_plugin_t plugin = {};
  plugin.struct_size = sizeof plugin;
  if (library.entry()(&info, &plugin, nullptr) == KVSPAN_OK) {
    static_cast<void>(plugin.close(plugin.self, nullptr));
  }
  for (const std::string& name : host.options_read()) {
    names.push_back(name);
  }
  return names;
}

json with_device(const Settings& settings, const Tables& tables, void* self, json found) {
  kvspan_error_t error = fresh_error();
  kvspan_device_info_t info = {};
  info.struct_size = sizeof info;
  kvspan_result_t result = tables.device->describe(self, settings.device, &info, &error);
  if (result != KVSPAN_OK) {
    return stopped("describe", result, error);
  }
  kvspan_device_t* device = nullptr;
  result = tables.device->open(self, settings.device, &device, &error);
  if (result != KVSPAN_OK) {
    return stopped("open", result, error);
  }
  found["device"] = device_of(info, settings.device);
  uint64_t free_bytes = KVSPAN_UNKNOWN_AMOUNT;
  if (tables.device->free_bytes(device, &free_bytes, nullptr) == KVSPAN_OK &&
      free_bytes != KVSPAN_UNKNOWN_AMOUNT) {
    found["device"]["free_bytes"] = free_bytes;
  }
  found["copy_limits"] = limits_of(tables, device);
  found["faults"] = faults_of(tables, device);
  found["codec"] = codec_grid(tables, device);
  if (tables.attention != nullptr) {
    add_attention(tables, device, found);
  }
  if (!settings.tuples.empty()) {
    found["absent_tuple"] = absent_tuple(tables, device, settings.tuples);
  }
  result = tables.device->close(device, &error);
  return result == KVSPAN_OK ? found : stopped("close", result, error);
}

}  // namespace

json probe(const Settings& settings) {
  sdk::LoadOptions options;
  options.options = settings.options;
  options.unload = sdk::Unload::unmap;  // a worker of UnloadTest wants the file gone again
  kvspan_error_t error = fresh_error();
  sdk::Plugin plugin;
  kvspan_result_t result = sdk::Plugin::load(settings.plugin_path, options, plugin, &error);
  if (result != KVSPAN_OK) {
    return stopped("load", result, error);
  }
  const Tables tables = tables_of(plugin);
  json found = {{"ok", true},
                {"note", note_of(plugin)},
                {"minor", plugin.minor()},
                {"tables", offered_of(tables, plugin)},
                {"devices", 0}};
  uint32_t devices = 0;
  result = tables.device->count(plugin.self(), &devices, &error);
  if (result == KVSPAN_OK && settings.device < devices) {
    found = with_device(settings, tables, plugin.self(), std::move(found));
  } else if (result != KVSPAN_OK && result != KVSPAN_E_NO_DEVICE) {
    found = stopped("count", result, error);
  } else if (result == KVSPAN_OK && devices != 0) {
    found = {{"ok", false},
             {"stage", "describe"},
             {"code", KVSPAN_E_INVALID_ARG},
             {"where", "probe"},
             {"message",
              "there is no device " + std::to_string(settings.device) + ": the plugin has " +
                  std::to_string(devices)}};
  }
  if (found["ok"] == true) {
    found["devices"] = devices;
  }
  result = plugin.close(&error);
  if (found["ok"] == true && result != KVSPAN_OK) {
    return stopped("close", result, error);
  }
  if (found["ok"] == true) {
    found["options_read"] = options_asked(settings);
    const Remains left = settled_remains(remembered_process(), settings.retained);
    found["retained"] = left.listed();
    found["left"] = left.undeclared;
  }
  return found;
}

}  // namespace kvspan::conformance
