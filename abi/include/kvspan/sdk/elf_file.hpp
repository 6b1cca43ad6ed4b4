// SPDX-License-Identifier: Apache-2.0
// The few parts of an ELF file that identify a plugin: its notes, the libraries it is linked to.
// Reads with bounds, maps nothing, runs nothing: the file may be damaged or hostile.
// Linux only. Not here: what a kvspan note says (note.hpp).
#pragma once

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <elf.h>
#include <fcntl.h>
#include <string>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>
#include <vector>

namespace kvspan::sdk {

/// One note of a file.
struct ElfNote {
  std::string name;  ///< without trailing NULs
  std::uint32_t type = 0;
  std::vector<unsigned char> bytes;
};

/// An open x86-64 shared object. Move by scope only: it is opened, asked and closed in one
/// function.
class ElfFile {
 public:
  ElfFile() = default;
  ElfFile(const ElfFile&) = delete;
  ElfFile& operator=(const ElfFile&) = delete;
  ElfFile(ElfFile&&) = delete;
  ElfFile& operator=(ElfFile&&) = delete;

  ~ElfFile() {
    if (file_ >= 0) {
      ::close(file_);
    }
  }

  /// Opens and judges the file header and the program headers. False: `why` says what is wrong.
  [[nodiscard]] bool open(const std::string& path, std::string& why) {
    file_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);

    struct stat facts {};

    if (file_ < 0 || ::fstat(file_, &facts) != 0) {
      why = std::string("cannot be opened: ") + std::strerror(errno);
      return false;
    }
    if (!S_ISREG(facts.st_mode)) {
      why = "is not a file";
      return false;
    }
    size_ = static_cast<std::uint64_t>(facts.st_size);
    return read_header(why) && read_segments(why);
  }

  /// All notes of all note segments.
  [[nodiscard]] bool notes(std::vector<ElfNote>& out, std::string& why) const {
    for (const Elf64_Phdr& segment : segments_) {
      if (segment.p_type != PT_NOTE) {
        continue;
      }
      std::vector<unsigned char> bytes;
      if (!read_segment(segment, bytes, why)) {
        return false;
      }
      if (!parse_notes(bytes, segment.p_align == 8 ? 8 : 4, out)) {
        why = "is damaged: a note leaves its segment";
        return false;
      }
    }
    return true;
  }

  /// The libraries that the file is linked to, in its own order.
  [[nodiscard]] bool needed(std::vector<std::string>& out, std::string& why) const {
    std::vector<unsigned char> bytes;
    for (const Elf64_Phdr& segment : segments_) {
      if (segment.p_type == PT_DYNAMIC && !read_segment(segment, bytes, why)) {
        return false;
      }
    }
    std::uint64_t strings = 0;
    std::uint64_t strings_bytes = 0;
    std::vector<std::uint64_t> names;
    for (std::size_t at = 0; at + sizeof(Elf64_Dyn) <= bytes.size(); at += sizeof(Elf64_Dyn)) {
      Elf64_Dyn entry;
      std::memcpy(&entry, bytes.data() + at, sizeof entry);
      if (entry.d_tag == DT_NULL) {
        break;
      }
      if (entry.d_tag == DT_NEEDED) {
        names.push_back(entry.d_un.d_val);
      }
      strings = entry.d_tag == DT_STRTAB ? entry.d_un.d_ptr : strings;
      strings_bytes = entry.d_tag == DT_STRSZ ? entry.d_un.d_val : strings_bytes;
    }
    if (names.empty()) {
      return true;
    }
    return read_names(strings, strings_bytes, names, out, why);
  }

 private:
  static constexpr std::uint64_t kPartBytesMax = 1u << 20;  ///< far above any real note or table
  static constexpr std::uint16_t kSegmentsMax = 256;
  static constexpr std::size_t kNameBytesMax = 1024;

  bool read(std::uint64_t offset, void* target, std::uint64_t bytes) const {
    if (offset > size_ || bytes > size_ - offset) {
      return false;
    }
    auto* next = static_cast<unsigned char*>(target);
    while (bytes != 0) {
      const ssize_t got = ::pread(file_, next, bytes, static_cast<off_t>(offset));
      if (got < 0 && errno == EINTR) {
        continue;
      }
      if (got <= 0) {
        return false;
      }
      next += got;
      offset += static_cast<std::uint64_t>(got);
      bytes -= static_cast<std::uint64_t>(got);
    }
    return true;
  }

  bool read_header(std::string& why) {
    unsigned char identity[EI_NIDENT] = {};
    if (!read(0, identity, sizeof identity) || std::memcmp(identity, ELFMAG, SELFMAG) != 0) {
      why = "is not an ELF file";
      return false;
    }
    if (!read(0, &header_, sizeof header_)) {
      why = "is truncated inside its header";
      return false;
    }
    const bool ours = identity[EI_CLASS] == ELFCLASS64 && identity[EI_DATA] == ELFDATA2LSB &&
                      header_.e_machine == EM_X86_64;
    if (!ours) {
      why = "is not for x86-64";
      return false;
    }
    if (header_.e_type != ET_DYN || header_.e_phentsize != sizeof(Elf64_Phdr) ||
        header_.e_phnum == 0 || header_.e_phnum > kSegmentsMax) {
      why = "is not a shared object";
      return false;
    }
    const std::uint64_t sections = std::uint64_t{header_.e_shnum} * header_.e_shentsize;
    if (header_.e_shoff > size_ || sections > size_ - header_.e_shoff) {
      why = "is truncated: its section headers are not in the file";
      return false;
    }
    return true;
  }

  bool read_segments(std::string& why) {
    segments_.resize(header_.e_phnum);
    if (!read(header_.e_phoff, segments_.data(), segments_.size() * sizeof(Elf64_Phdr))) {
      why = "is truncated inside its program headers";
      return false;
    }
    for (const Elf64_Phdr& segment : segments_) {
      const bool in_file =
          segment.p_type == PT_LOAD || segment.p_type == PT_NOTE || segment.p_type == PT_DYNAMIC;
      if (in_file && (segment.p_offset > size_ || segment.p_filesz > size_ - segment.p_offset)) {
        why = "is truncated: a segment ends behind the file";
        return false;
      }
    }
    return true;
  }

  bool read_segment(const Elf64_Phdr& segment,
                    std::vector<unsigned char>& bytes,
                    std::string& why) const {
    if (segment.p_filesz > kPartBytesMax) {
      why = "is damaged: a note or dynamic segment is absurdly large";
      return false;
    }
    bytes.resize(segment.p_filesz);
    if (!read(segment.p_offset, bytes.data(), bytes.size())) {
      why = "could not be read to the end of a segment";
      return false;
    }
    return true;
  }

  static bool parse_notes(const std::vector<unsigned char>& bytes,
                          std::uint64_t alignment,
                          std::vector<ElfNote>& out) {
    const auto aligned = [alignment](std::uint64_t value) {
      return (value + alignment - 1) / alignment * alignment;
    };
    std::uint64_t at = 0;
    while (at + sizeof(Elf64_Nhdr) <= bytes.size()) {
      Elf64_Nhdr head;
      std::memcpy(&head, bytes.data() + at, sizeof head);
      const std::uint64_t name = at + sizeof head;
      const std::uint64_t content = at + aligned(sizeof head + std::uint64_t{head.n_namesz});
      const std::uint64_t end = content + head.n_descsz;
      if (name + head.n_namesz > bytes.size() || end > bytes.size()) {
        return false;
      }
      ElfNote note;
      note.name.assign(reinterpret_cast<const char*>(bytes.data() + name), head.n_namesz);
      note.name.erase(note.name.find_last_not_of('\0') + 1);
      note.type = head.n_type;
      note.bytes.assign(bytes.begin() + static_cast<std::ptrdiff_t>(content),
                        bytes.begin() + static_cast<std::ptrdiff_t>(end));
      out.push_back(std::move(note));
      at = aligned(end);
    }
    return true;
  }

  bool read_names(std::uint64_t strings,
                  std::uint64_t strings_bytes,
                  const std::vector<std::uint64_t>& names,
                  std::vector<std::string>& out,
                  std::string& why) const {
    std::uint64_t start = 0;
    if (!file_offset(strings, strings_bytes, start)) {
      why = "is damaged: its string table is in no segment";
      return false;
    }
    for (const std::uint64_t name : names) {
      char text[kNameBytesMax] = {};
      const std::uint64_t left = name < strings_bytes ? strings_bytes - name : 0;
      const std::uint64_t bytes = left < sizeof text ? left : sizeof text;
      if (!read(start + name, text, bytes) || std::memchr(text, '\0', bytes) == nullptr) {
        why = "is damaged: the name of a needed library does not end";
        return false;
      }
      out.emplace_back(text);
    }
    return true;
  }

  /// Where the bytes of an address lie in the file.
  bool file_offset(std::uint64_t address, std::uint64_t bytes, std::uint64_t& out) const {
    for (const Elf64_Phdr& segment : segments_) {
      if (segment.p_type == PT_LOAD && address >= segment.p_vaddr &&
          address - segment.p_vaddr <= segment.p_filesz &&
          bytes <= segment.p_filesz - (address - segment.p_vaddr)) {
        out = segment.p_offset + (address - segment.p_vaddr);
        return true;
      }
    }
    return false;
  }

  int file_ = -1;
  std::uint64_t size_ = 0;
  Elf64_Ehdr header_{};
  std::vector<Elf64_Phdr> segments_;
};

}  // namespace kvspan::sdk
