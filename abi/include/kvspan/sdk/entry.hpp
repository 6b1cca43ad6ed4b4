// SPDX-License-Identifier: Apache-2.0
// How a plugin's entry point judges a host: accept_open() is all of it but the plugin's own state.
// negotiate() is the arithmetic alone, the same on both sides. Not here: the loader (loader.hpp).
#pragma once

#include "kvspan/entry.h"
#include "kvspan/sdk/error.hpp"
#include "kvspan/sdk/fill.hpp"

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace kvspan::sdk {

/// An inclusive range of minors of one major.
struct MinorRange {
  std::uint32_t min;
  std::uint32_t max;
};

/// The minor that two sides meet at.
struct Negotiation {
  bool meets;
  std::uint32_t minor;  ///< min of the maxima; 0 unless meets
};

/// The smaller maximum, if neither minimum is above it. An empty range meets nothing.
constexpr Negotiation negotiate(MinorRange host, MinorRange plugin) noexcept {
  const std::uint32_t minor = host.max < plugin.max ? host.max : plugin.max;
  const bool meets = host.min <= minor && plugin.min <= minor;
  return {meets, meets ? minor : 0u};
}

/// What this build of a plugin carries.
struct PluginIdentity {
  MinorRange minors{KVSPAN_ABI_MINOR, KVSPAN_ABI_MINOR};
  std::uint64_t header_hash = KVSPAN_HEADER_HASH;
};

/// Judges what kvspan_plugin_open_0 was handed. OK: every field of `plugin` is written, minor
/// chosen, self, table and close NULL for the caller to fill. VERSION: as OK with minor 0, so the
/// ranges are there on failure too. INVALID_ARG: NULL. BAD_STRUCT_SIZE: another size; `plugin` is
/// then untouched. Keeps no state. Thread class SOLO, as the entry.
[[nodiscard]] inline kvspan_result_t accept_open(const kvspan_open_info_t* info,
                                                 kvspan_plugin_t* plugin,
                                                 kvspan_error_t* error,
                                                 const PluginIdentity& own = {}) noexcept {
  constexpr const char* kWhere = KVSPAN_PLUGIN_OPEN_SYMBOL;
  if (const kvspan_result_t bad = take(info, error, kWhere, 1)) {
    return bad;
  }
  if (const kvspan_result_t bad = take(plugin, error, kWhere, 2)) {
    return bad;
  }
  if (info->reserved != 0) {
    const Place place{1, offsetof(kvspan_open_info_t, reserved)};
    return fail_argument(error, place, kWhere, "reserved is %u: set it to 0", info->reserved);
  }
  if (info->host == nullptr || info->host->struct_size != sizeof(kvspan_host_services_t)) {
    const Place place{1, offsetof(kvspan_open_info_t, host)};
    return fail_argument(error, place, kWhere, "host services are NULL or of another size");
  }
  kvspan_plugin_t filled{};
  filled.struct_size = sizeof filled;
  filled.plugin_minor_min = own.minors.min;
  filled.plugin_minor_max = own.minors.max;
  if (info->header_hash != own.header_hash) {
    std::memcpy(plugin, &filled, sizeof filled);
    return fail(
        error,
        KVSPAN_E_VERSION,
        kWhere,
        "the host's header hash is %016llx, this plugin's %016llx: while the major is 0 both "
        "must be of one build",
        static_cast<unsigned long long>(info->header_hash),
        static_cast<unsigned long long>(own.header_hash));
  }
  const Negotiation met = negotiate({info->host_minor_min, info->host_minor_max}, own.minors);
  filled.minor = met.minor;
  std::memcpy(plugin, &filled, sizeof filled);
  if (!met.meets) {
    return fail(
        error,
        KVSPAN_E_VERSION,
        kWhere,
        "the host takes minors %u..%u, this plugin offers %u..%u: use builds whose ranges meet",
        info->host_minor_min,
        info->host_minor_max,
        own.minors.min,
        own.minors.max);
  }
  return KVSPAN_OK;
}

}  // namespace kvspan::sdk
