// SPDX-License-Identifier: Apache-2.0
// A tag in words.
#include "tag.hpp"

namespace kvspan::sim {

std::string text(const Tag& tag) {
  constexpr std::uint32_t kPoisoned = 0xEEEEEEEE;
  if (tag.stream == kPoisoned && tag.token == kPoisoned) {
    return "{nothing valid: never written, or being written}";
  }
  const char* const plane = tag.plane == kPlaneK       ? "K"
                            : tag.plane == kPlaneV     ? "V"
                            : tag.plane == kPlaneQ     ? "Q"
                            : tag.plane == kPlaneOut   ? "out"
                            : tag.plane == kPlaneState ? "state"
                                                       : "?";
  return std::string("{") + plane + " stream " + std::to_string(tag.stream) + " layer " +
         std::to_string(tag.layer) + " token " + std::to_string(tag.token) + " generation " +
         std::to_string(tag.generation) + " head " + std::to_string(tag.head) + "}";
}

}  // namespace kvspan::sim
