// SPDX-License-Identifier: Apache-2.0
// Reading a plugin's note from whole and damaged files: a truth, or a reason, never a crash.
#include "kvspan/sdk/note.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <unistd.h>

namespace kvspan::sdk {
namespace {

std::string fake(const std::string& name) {
  return std::string(KVSPAN_FAKES) + "/kvspan-" + name + ".so";
}

std::string bytes_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

/// A file of the given bytes that is gone afterwards.
class Scratch {
 public:
  Scratch() : path_(::testing::TempDir() + "kvspan_note_XXXXXX") {
    file_ = ::mkstemp(path_.data());
  }

  ~Scratch() {
    ::close(file_);
    ::unlink(path_.c_str());
  }

  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  void write(const std::string& bytes) const {
    ASSERT_EQ(::pwrite(file_, bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
    cut(bytes.size());
  }

  void poke(std::size_t at, char byte) const {
    ASSERT_EQ(::pwrite(file_, &byte, 1, static_cast<off_t>(at)), 1);
  }

  void cut(std::size_t bytes) const { ASSERT_EQ(::ftruncate(file_, static_cast<off_t>(bytes)), 0); }

  const std::string& path() const { return path_; }

 private:
  std::string path_;
  int file_ = -1;
};

bool same(const Note& a, const Note& b) {
  return a.name == b.name && a.vendor == b.vendor && a.version == b.version &&
         a.abi_major == b.abi_major && a.minors.min == b.minors.min &&
         a.minors.max == b.minors.max && a.header_hash == b.header_hash &&
         a.isa_floor == b.isa_floor && a.libraries == b.libraries;
}

TEST(ReadNote, ReadsEveryField) {
  Note note;
  std::string why;
  ASSERT_TRUE(read_note(fake("complete"), note, why)) << why;
  EXPECT_EQ(note.name, "fake");
  EXPECT_EQ(note.vendor, "kvspan tests");
  EXPECT_EQ(note.version, "1.2.3");
  EXPECT_EQ(note.abi_major, KVSPAN_ABI_MAJOR);
  EXPECT_EQ(note.minors.max, KVSPAN_ABI_MINOR);
  EXPECT_EQ(note.header_hash, KVSPAN_HEADER_HASH);
  EXPECT_EQ(note.isa_floor, 2u);
  EXPECT_EQ(note.libraries, (std::vector<std::string>{"libone.so.1", "libtwo.so"}));
  EXPECT_EQ(note.build_id.size(), 40u) << note.build_id;
}

TEST(ReadNote, ListsTheLibrariesThatTheFileIsLinkedTo) {
  Note note;
  std::string why;
  ASSERT_TRUE(read_note(fake("absent-library"), note, why)) << why;
  const auto named = [&](const char* library) {
    return std::count(note.needed.begin(), note.needed.end(), library);
  };
  EXPECT_EQ(named("libkvspan_absent.so"), 1);
  EXPECT_EQ(named("libc.so.6"), 1);
}

TEST(ReadNote, SurvivesStripping) {
  const Scratch copy;
  copy.write(bytes_of(fake("complete")));
  const std::string command = "strip " + copy.path();
  ASSERT_EQ(std::system(command.c_str()), 0);
  Note note;
  std::string why;
  ASSERT_TRUE(read_note(copy.path(), note, why)) << why;
  EXPECT_EQ(note.name, "fake");
}

TEST(ReadNote, SaysWhatAFileIsInsteadOfAPlugin) {
  Note note;
  std::string why;
  EXPECT_FALSE(read_note(fake("no-note"), note, why));
  EXPECT_EQ(why, "has no kvspan note: it is not a kvspan plugin");
  EXPECT_FALSE(read_note(fake("two-notes"), note, why));
  EXPECT_NE(why.find("kvspan note"), std::string::npos) << why;
  EXPECT_FALSE(read_note(fake("no-floor"), note, why));
  EXPECT_NE(why.find("processor floor"), std::string::npos) << why;
  EXPECT_FALSE(read_note("/nonexistent/kvspan-x.so", note, why));
  EXPECT_NE(why.find("cannot be opened"), std::string::npos) << why;
  EXPECT_FALSE(read_note(KVSPAN_FAKES, note, why));
  EXPECT_EQ(why, "is not a file");
  const Scratch text;
  text.write("#!/bin/sh\nexit 0\n");
  EXPECT_FALSE(read_note(text.path(), note, why));
  EXPECT_EQ(why, "is not an ELF file");
  text.write("");
  EXPECT_FALSE(read_note(text.path(), note, why));
  EXPECT_EQ(why, "is not an ELF file");
}

TEST(ReadNote, OtherMachinesAndKindsOfFileAreNamed) {
  const std::string whole = bytes_of(fake("complete"));

  struct Case {
    std::size_t at;
    char byte;
    const char* why;
  };

  for (const Case& c : {Case{EI_CLASS, ELFCLASS32, "is not for x86-64"},
                        Case{18, static_cast<char>(EM_AARCH64), "is not for x86-64"},
                        Case{16, ET_REL, "is not a shared object"}}) {
    const Scratch file;
    file.write(whole);
    file.poke(c.at, c.byte);
    Note note;
    std::string why;
    EXPECT_FALSE(read_note(file.path(), note, why));
    EXPECT_EQ(why, c.why);
  }
}

TEST(ReadNote, AFileCutAnywhereIsRefused) {
  const std::string whole = bytes_of(fake("complete"));
  const Scratch file;
  file.write(whole);
  for (std::size_t bytes = whole.size(); bytes-- > 0;) {
    file.cut(bytes);
    Note note;
    std::string why;
    ASSERT_FALSE(read_note(file.path(), note, why)) << "cut to " << bytes << " of " << whole.size();
    ASSERT_TRUE(why.find("truncated") != std::string::npos || bytes < SELFMAG + 12) << why;
  }
}

TEST(ReadNote, AFlippedByteOutsideTheNoteChangesNothingThatIsRead) {
  const std::string whole = bytes_of(fake("complete"));
  Note truth;
  std::string why;
  ASSERT_TRUE(read_note(fake("complete"), truth, why));
  const std::size_t begin = whole.find(std::string("fake\0", 5)) - offsetof(kvspan_note_t, name);
  const Scratch file;
  file.write(whole);
  int refused = 0;
  // All of the headers, notes and names; of the rest (code, sections, debug information) a sample.
  for (std::size_t at = 0; at < whole.size(); at += at < 4096 ? 1 : 13) {
    for (const int mask : {0x01, 0x80, 0xFF}) {
      file.poke(at, static_cast<char>(whole[at] ^ mask));
      Note note;
      const bool read = read_note(file.path(), note, why);
      refused += read ? 0 : 1;
      const bool inside = at >= begin && at < begin + sizeof(kvspan_note_t);
      ASSERT_TRUE(!read || inside || same(note, truth)) << "byte " << at << " mask " << mask;
      ASSERT_TRUE(read || !why.empty());
    }
    file.poke(at, whole[at]);
  }
  EXPECT_GT(refused, 200);
}

TEST(ReadNote, AFlippedByteOfTheNoteIsSeenOrRefused) {
  const std::string whole = bytes_of(fake("complete"));
  Note truth;
  std::string why;
  ASSERT_TRUE(read_note(fake("complete"), truth, why));
  const std::size_t begin = whole.find(std::string("fake\0", 5)) - offsetof(kvspan_note_t, name);
  const Scratch file;
  file.write(whole);
  for (std::size_t at = begin; at < begin + offsetof(kvspan_note_t, vendor); ++at) {
    const std::size_t field = at - begin;
    // Bytes behind a text's NUL say nothing.
    if (field >= offsetof(kvspan_note_t, name) + std::strlen("fake") + 1) {
      continue;
    }
    for (int bit = 0; bit < 8; ++bit) {
      file.poke(at, static_cast<char>(whole[at] ^ (1 << bit)));
      Note note;
      ASSERT_TRUE(!read_note(file.path(), note, why) || !same(note, truth)) << field << " " << bit;
    }
    file.poke(at, whole[at]);
  }
}

TEST(Refusal, NamesTheFirstThingThatDoesNotFit) {
  Note note;
  note.abi_major = 0;
  note.minors = {1, 3};
  note.header_hash = 0xABC;
  note.isa_floor = 3;
  const Machine fits{0, {2, 5}, 0xABC, 3};
  EXPECT_EQ(refusal(note, fits), "");
  Machine machine = fits;
  machine.isa_level = 2;
  EXPECT_EQ(refusal(note, machine),
            "needs an x86-64-v3 processor, this one is x86-64-v2: use a build with a lower floor");
  machine.minors = {4, 5};
  EXPECT_NE(refusal(note, machine).find("minors 1..3"), std::string::npos);
  machine.header_hash = 0xABD;
  EXPECT_NE(refusal(note, machine).find("0000000000000abc"), std::string::npos);
  machine.abi_major = 1;
  EXPECT_NE(refusal(note, machine).find("major 0"), std::string::npos);
  note.abi_major = 1;
  machine = fits;
  machine.abi_major = 1;
  machine.header_hash = 1;
  EXPECT_EQ(refusal(note, machine), "") << "from major 1 on the hash does not pair";
}

TEST(IsaLevel, IsALevelThatThisTestWasBuiltFor) {
  EXPECT_GE(isa_level_here(), 2u);
  EXPECT_LE(isa_level_here(), 4u);
  if (__builtin_cpu_supports("avx2") == 0) {
    EXPECT_EQ(isa_level_here(), 2u);
  }
}

}  // namespace
}  // namespace kvspan::sdk
