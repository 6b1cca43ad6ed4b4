// SPDX-License-Identifier: Apache-2.0
// A plugin's identity, read from the file without running a byte of it, and whether it can work
// here. Not here: loading (loader.hpp). The note's layout: kvspan/entry.h.
#pragma once

#include "kvspan/entry.h"
#include "kvspan/sdk/elf_file.hpp"
#include "kvspan/sdk/entry.hpp"

#include <algorithm>
#include <cpuid.h>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

namespace kvspan::sdk {

/// What the file says of itself.
struct Note {
  std::string name;     ///< "cpu"
  std::string vendor;   ///< who made it
  std::string version;  ///< of the plugin
  std::uint32_t abi_major = 0;
  MinorRange minors{0, 0};
  std::uint64_t header_hash = 0;
  std::uint32_t isa_floor = 0;         ///< 1..4 for x86-64-v1..v4
  std::vector<std::string> libraries;  ///< opened at run time, by the note
  std::vector<std::string> needed;     ///< linked, by the file's dynamic section
  std::string build_id;                ///< hex; empty when the linker wrote none
};

/// What this build of a host and this machine offer.
struct Machine {
  std::uint32_t abi_major = KVSPAN_ABI_MAJOR;
  MinorRange minors{KVSPAN_ABI_MINOR, KVSPAN_ABI_MINOR};
  std::uint64_t header_hash = KVSPAN_HEADER_HASH;
  std::uint32_t isa_level = 1;  ///< 1..4 for x86-64-v1..v4
};

/// The x86-64 level of this CPU and operating system. Levels: the x86-64 psABI, "Micro-Architecture
/// Levels".
inline std::uint32_t isa_level_here() noexcept {
  unsigned a = 0;
  unsigned b = 0;
  unsigned c = 0;
  unsigned d = 0;
  const bool leaf1 = __get_cpuid(1, &a, &b, &c, &d) != 0;
  const bool cx16 = leaf1 && (c & bit_CMPXCHG16B) != 0;
  const bool movbe = leaf1 && (c & bit_MOVBE) != 0;
  const bool f16c = leaf1 && (c & bit_F16C) != 0;
  const bool extended = __get_cpuid(0x80000001u, &a, &b, &c, &d) != 0;
  const bool lahf = extended && (c & bit_LAHF_LM) != 0;
  const bool lzcnt = extended && (c & bit_ABM) != 0;
  __builtin_cpu_init();
  if (!cx16 || !lahf || !__builtin_cpu_supports("sse4.2") || !__builtin_cpu_supports("popcnt")) {
    return 1;
  }
  if (!movbe || !f16c || !lzcnt || !__builtin_cpu_supports("avx2") ||
      !__builtin_cpu_supports("bmi") || !__builtin_cpu_supports("bmi2") ||
      !__builtin_cpu_supports("fma")) {
    return 2;
  }
  const bool wide = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                    __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
                    __builtin_cpu_supports("avx512vl");
  return wide ? 4 : 3;
}

/// This host, on this machine.
inline Machine machine_here() noexcept {
  Machine machine;
  machine.isa_level = isa_level_here();
  return machine;
}

/// Why a plugin with this note cannot work on that machine, as the rest of a sentence that begins
/// with its name; empty when it can be loaded.
inline std::string refusal(const Note& note, const Machine& machine) {
  char text[256] = {};
  if (note.abi_major != machine.abi_major) {
    std::snprintf(text,
                  sizeof text,
                  "speaks ABI major %u, this host %u: use a plugin built for major %u",
                  note.abi_major,
                  machine.abi_major,
                  machine.abi_major);
    return text;
  }
  if (machine.abi_major == 0 && note.header_hash != machine.header_hash) {
    std::snprintf(text,
                  sizeof text,
                  "was built with header hash %016llx, this host with %016llx: build both from one "
                  "source while the ABI's major is 0",
                  static_cast<unsigned long long>(note.header_hash),
                  static_cast<unsigned long long>(machine.header_hash));
    return text;
  }
  if (!negotiate(machine.minors, note.minors).meets) {
    std::snprintf(text,
                  sizeof text,
                  "offers ABI minors %u..%u, this host takes %u..%u: use builds whose ranges meet",
                  note.minors.min,
                  note.minors.max,
                  machine.minors.min,
                  machine.minors.max);
    return text;
  }
  if (note.isa_floor > machine.isa_level) {
    std::snprintf(text,
                  sizeof text,
                  "needs an x86-64-v%u processor, this one is x86-64-v%u: use a build with a lower "
                  "floor",
                  note.isa_floor,
                  machine.isa_level);
    return text;
  }
  return {};
}

namespace detail {

/// A text field of a note; false when it does not end or is not printable ASCII.
inline bool note_text(const char* field, std::size_t capacity, std::string& out) {
  const void* end = std::memchr(field, '\0', capacity);
  if (end == nullptr) {
    return false;
  }
  out.assign(field, static_cast<const char*>(end));
  return std::all_of(
      out.begin(), out.end(), [](char letter) { return letter >= ' ' && letter <= '~'; });
}

inline std::vector<std::string> split_at_commas(const std::string& text) {
  std::vector<std::string> parts;
  std::size_t begin = 0;
  while (begin < text.size()) {
    const std::size_t comma = text.find(',', begin);
    const std::size_t end = comma == std::string::npos ? text.size() : comma;
    const std::size_t first = text.find_first_not_of(' ', begin);
    if (first < end) {
      parts.push_back(text.substr(first, end - first));
    }
    begin = end + 1;
  }
  return parts;
}

/// The fields of a kvspan note of at least this ABI's size.
inline bool parse_note(const std::vector<unsigned char>& bytes, Note& out, std::string& why) {
  kvspan_note_t raw{};
  if (bytes.size() < sizeof raw) {
    why = "has a kvspan note that is too short";
    return false;
  }
  std::memcpy(&raw, bytes.data(), sizeof raw);
  if (raw.struct_size != bytes.size() || raw.reserved != 0) {
    why = "has a damaged kvspan note: its size or reserved field is wrong";
    return false;
  }
  std::string libraries;
  if (!note_text(raw.name, sizeof raw.name, out.name) || out.name.empty() ||
      !note_text(raw.vendor, sizeof raw.vendor, out.vendor) ||
      !note_text(raw.version, sizeof raw.version, out.version) ||
      !note_text(raw.libraries, sizeof raw.libraries, libraries)) {
    why = "has a damaged kvspan note: a text is missing, does not end or is not plain text";
    return false;
  }
  if (raw.isa_floor < 1 || raw.isa_floor > 4 || raw.abi_minor_min > raw.abi_minor_max) {
    why = "has a damaged kvspan note: processor floor or minor range make no sense";
    return false;
  }
  out.libraries = split_at_commas(libraries);
  out.abi_major = raw.abi_major;
  out.minors = {raw.abi_minor_min, raw.abi_minor_max};
  out.header_hash = raw.header_hash;
  out.isa_floor = raw.isa_floor;
  return true;
}

inline std::string to_hex(const std::vector<unsigned char>& bytes) {
  std::string text;
  for (const unsigned char byte : bytes) {
    constexpr const char* kDigits = "0123456789abcdef";
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15u];
  }
  return text;
}

}  // namespace detail

/// Reads a plugin's identity from its file. False: `why` is the rest of a sentence that begins with
/// the file's name ("is not an ELF file"); `out` is then unspecified. Any thread.
[[nodiscard]] inline bool read_note(const std::string& path, Note& out, std::string& why) {
  ElfFile file;
  std::vector<ElfNote> notes;
  Note note;
  if (!file.open(path, why) || !file.notes(notes, why) || !file.needed(note.needed, why)) {
    return false;
  }
  int found = 0;
  for (const ElfNote& candidate : notes) {
    if (candidate.name == "GNU" && candidate.type == NT_GNU_BUILD_ID) {
      note.build_id = detail::to_hex(candidate.bytes);
    }
    if (candidate.name == KVSPAN_NOTE_NAME && candidate.type == KVSPAN_NOTE_TYPE) {
      ++found;
      if (!detail::parse_note(candidate.bytes, note, why)) {
        return false;
      }
    }
  }
  if (found != 1) {
    why = found == 0 ? "has no kvspan note: it is not a kvspan plugin"
                     : "has more than one kvspan note: a plugin has exactly one";
    return false;
  }
  out = std::move(note);
  return true;
}

}  // namespace kvspan::sdk
