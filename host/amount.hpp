// SPDX-License-Identifier: Apache-2.0
// Byte amounts as people write them.
#pragma once

#include "kvspan/core/error.hpp"

#include <cstdint>
#include <string>
#include <string_view>

namespace kvspan::host {

// "6300000", "6.3MB" (10^6), "6MiB" (2^20), "25%" of `whole_bytes`, rounded down. Units: B, kB,
// KiB, MB, MiB, GB, GiB. Errors: invalid_argument, quoting the text and naming what is understood.
[[nodiscard]] Result<std::uint64_t> parse_bytes(std::string_view text, std::uint64_t whole_bytes);

// "6.30 MB" for people; exact bytes are printed beside it where they matter.
[[nodiscard]] std::string bytes_text(std::uint64_t size_bytes);

}  // namespace kvspan::host
