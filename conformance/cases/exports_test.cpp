// SPDX-License-Identifier: Apache-2.0
// The plugin's file as the dynamic linker sees it: one exported name, nothing that keeps it mapped
// for ever, no code that is patched while it loads, no executable stack. Runs nothing of it.
#include "kvspan/entry.h"

#include "worker/case.hpp"

#include <cstring>
#include <elf.h>
#include <fstream>
#include <iterator>

namespace kvspan::conformance {
namespace {

KVSPAN_PROFILE(core);

class ExportsTest : public CaseTest {
 protected:
  void SetUp() override {
    CaseTest::SetUp();
    std::ifstream file(settings().plugin_path, std::ios::binary);
    file_.assign(std::istreambuf_iterator<char>(file), {});
    ASSERT_TRUE(at<Elf64_Ehdr>(0, header_)) << settings().plugin_path << " cannot be read";
    ASSERT_EQ(std::memcmp(header_.e_ident, ELFMAG, SELFMAG), 0);
    for (uint32_t i = 0; i < header_.e_shnum; ++i) {
      Elf64_Shdr section = {};
      ASSERT_TRUE(at(header_.e_shoff + i * sizeof section, section));
      sections_.push_back(section);
    }
    for (uint32_t i = 0; i < header_.e_phnum; ++i) {
      Elf64_Phdr segment = {};
      ASSERT_TRUE(at(header_.e_phoff + i * sizeof segment, segment));
      segments_.push_back(segment);
    }
  }

  template <class T>
  bool at(uint64_t offset, T& out) const {
    if (offset > file_.size() || file_.size() - offset < sizeof out) {
      return false;
    }
    std::memcpy(&out, file_.data() + offset, sizeof out);
    return true;
  }

  std::string text_at(uint64_t offset) const {
    return offset < file_.size() ? std::string(file_.c_str() + offset) : "";
  }

  std::string file_;
  Elf64_Ehdr header_ = {};
  std::vector<Elf64_Shdr> sections_;
  std::vector<Elf64_Phdr> segments_;
};

KVSPAN_CASE(ExportsTest, TheEntryPointIsTheOnlyExportedName, "KV-ENTRY-1") {
  std::vector<std::string> exported;
  for (const Elf64_Shdr& section : sections_) {
    if (section.sh_type != SHT_DYNSYM) {
      continue;
    }
    ASSERT_LT(section.sh_link, sections_.size());
    for (uint64_t i = 0; i < section.sh_size / sizeof(Elf64_Sym); ++i) {
      Elf64_Sym symbol = {};
      ASSERT_TRUE(at(section.sh_offset + i * sizeof symbol, symbol));
      const std::string name = text_at(sections_[section.sh_link].sh_offset + symbol.st_name);
      const uint32_t binding = ELF64_ST_BIND(symbol.st_info);
      const bool defined = symbol.st_shndx != SHN_UNDEF && binding != STB_LOCAL;
      EXPECT_FALSE(defined && binding == STB_GNU_UNIQUE)
          << name << " keeps the file mapped for ever (KV-MANNERS-6)";
      // Version nodes are absolute symbols without a byte behind them.
      if (defined && symbol.st_shndx != SHN_ABS) {
        exported.push_back(name);
      }
    }
  }
  EXPECT_EQ(exported, std::vector<std::string>{KVSPAN_PLUGIN_OPEN_SYMBOL});
}

KVSPAN_CASE(ExportsTest, NoCodeIsPatchedAndNoStackRuns, "KV-ENTRY-5") {
  bool stack = false;
  for (const Elf64_Phdr& segment : segments_) {
    if (segment.p_type == PT_GNU_STACK) {
      stack = true;
      EXPECT_EQ(segment.p_flags & PF_X, 0u) << "the stack would be executable";
    }
    EXPECT_FALSE(segment.p_type == PT_LOAD && (segment.p_flags & PF_X) != 0 &&
                 (segment.p_flags & PF_W) != 0)
        << "code that can be written";
    if (segment.p_type != PT_DYNAMIC) {
      continue;
    }
    for (uint64_t i = 0; i < segment.p_filesz / sizeof(Elf64_Dyn); ++i) {
      Elf64_Dyn entry = {};
      ASSERT_TRUE(at(segment.p_offset + i * sizeof entry, entry));
      EXPECT_NE(entry.d_tag, DT_TEXTREL) << "code is patched while the file loads";
      EXPECT_NE(entry.d_tag, DT_RPATH) << "a path of one machine";
    }
  }
  EXPECT_TRUE(stack) << "without PT_GNU_STACK the stack becomes executable";
}

}  // namespace
}  // namespace kvspan::conformance
