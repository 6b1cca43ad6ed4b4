// SPDX-License-Identifier: Apache-2.0
// /proc/PID/maps and 64-bit ELF files. Read next: symbols.hpp.
#include "symbols.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cxxabi.h>
#include <elf.h>
#include <fstream>
#include <iterator>
#include <memory>
#include <sstream>

namespace kvspan::runner {

namespace {

// The object at an offset of a file's bytes; zero when the file is too short.
template <class T>
T at(const std::string& bytes, std::uint64_t offset) {
  T out{};
  if (offset <= bytes.size() && bytes.size() - offset >= sizeof out) {
    std::memcpy(&out, bytes.data() + offset, sizeof out);
  }
  return out;
}

std::string text_at(const std::string& bytes, std::uint64_t offset) {
  return offset < bytes.size()
             ? std::string(bytes.data() + offset,
                           ::strnlen(bytes.data() + offset, bytes.size() - offset))
             : std::string();
}

std::string readable(const std::string& symbol) {
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> plain(
      abi::__cxa_demangle(symbol.c_str(), nullptr, nullptr, &status), std::free);
  return status == 0 && plain != nullptr ? std::string(plain.get()) : symbol;
}

std::string last_part(const std::string& path) {
  return path.substr(path.rfind('/') + 1);
}

}  // namespace

Symbols::Symbols(pid_t process) {
  std::ifstream maps(fmt::format("/proc/{}/maps", process));
  for (std::string line; std::getline(maps, line);) {
    Mapped one{};
    unsigned long long begin = 0;
    unsigned long long end = 0;
    unsigned long long offset = 0;
    char rights[5] = {};
    const std::size_t path = line.find('/');
    if (path != std::string::npos &&
        std::sscanf(line.c_str(), "%llx-%llx %4s %llx", &begin, &end, rights, &offset) == 4) {
      mapped_.push_back({begin, end, offset, line.substr(path)});
    }
  }
}

Symbols::File Symbols::read(const std::string& path) {
  constexpr std::uint64_t kFileBytesMax = std::uint64_t{512} << 20;
  File out;
  std::ifstream stream(path, std::ios::binary | std::ios::ate);
  if (!stream.is_open() || static_cast<std::uint64_t>(stream.tellg()) > kFileBytesMax) {
    return out;
  }
  stream.seekg(0);
  const std::string bytes((std::istreambuf_iterator<char>(stream)), {});
  const auto head = at<Elf64_Ehdr>(bytes, 0);
  if (std::memcmp(head.e_ident, ELFMAG, SELFMAG) != 0 || head.e_ident[EI_CLASS] != ELFCLASS64) {
    return out;
  }
  for (unsigned i = 0; i < head.e_phnum; ++i) {
    const auto part = at<Elf64_Phdr>(bytes, head.e_phoff + i * sizeof(Elf64_Phdr));
    if (part.p_type == PT_LOAD) {
      out.parts.push_back({part.p_offset, part.p_filesz, part.p_vaddr});
    }
  }
  for (unsigned i = 0; i < head.e_shnum; ++i) {
    const auto table = at<Elf64_Shdr>(bytes, head.e_shoff + i * sizeof(Elf64_Shdr));
    if (table.sh_type != SHT_SYMTAB && table.sh_type != SHT_DYNSYM) {
      continue;
    }
    const auto names = at<Elf64_Shdr>(bytes, head.e_shoff + table.sh_link * sizeof(Elf64_Shdr));
    const std::uint64_t size = std::min<std::uint64_t>(table.sh_size, bytes.size());
    for (std::uint64_t offset = 0; offset + sizeof(Elf64_Sym) <= size;
         offset += sizeof(Elf64_Sym)) {
      const auto symbol = at<Elf64_Sym>(bytes, table.sh_offset + offset);
      if (ELF64_ST_TYPE(symbol.st_info) == STT_FUNC && symbol.st_shndx != SHN_UNDEF) {
        out.functions.push_back(
            {symbol.st_value, symbol.st_size, text_at(bytes, names.sh_offset + symbol.st_name)});
      }
    }
  }
  std::stable_sort(out.functions.begin(), out.functions.end(), [](const auto& a, const auto& b) {
    return a.address < b.address;
  });
  return out;
}

std::string Symbols::name(std::uint64_t address) {
  const auto place = std::find_if(mapped_.begin(), mapped_.end(), [address](const Mapped& one) {
    return one.begin <= address && address < one.end;
  });
  if (place == mapped_.end()) {
    return fmt::format("0x{:x}", address);
  }
  if (files_.find(place->path) == files_.end()) {
    files_[place->path] = read(place->path);
  }
  const File& file = files_[place->path];
  const std::uint64_t offset = address - place->begin + place->file_offset;
  const auto part = std::find_if(file.parts.begin(), file.parts.end(), [offset](const auto& one) {
    return one.offset <= offset && offset - one.offset < one.bytes;
  });
  const std::uint64_t inside =
      part == file.parts.end() ? offset : offset - part->offset + part->address;
  auto next = std::upper_bound(
      file.functions.begin(), file.functions.end(), inside, [](std::uint64_t a, const Function& b) {
        return a < b.address;
      });
  if (next != file.functions.begin() && inside - (next - 1)->address < (next - 1)->bytes) {
    --next;
    return fmt::format(
        "{}+0x{:x} ({})", readable(next->name), inside - next->address, last_part(place->path));
  }
  return fmt::format("{}+0x{:x}", last_part(place->path), inside);
}

}  // namespace kvspan::runner
