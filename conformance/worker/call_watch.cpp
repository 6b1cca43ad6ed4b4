// SPDX-License-Identifier: Apache-2.0
// Finds the slots in the relocations of the loaded file (System V ABI, AMD64 supplement, chapter 5)
// and exchanges them.
#include "worker/call_watch.hpp"

#include <cstdint>
#include <cstring>
#include <elf.h>
#include <link.h>
#include <map>
#include <mutex>
#include <sys/mman.h>
#include <unistd.h>
#include <utility>

namespace kvspan::conformance {
namespace {

/// What was seen, and where the slots led before. Watches are made and ended one at a time; the
/// plugin calls from any thread.
struct Seen {
  std::mutex mutex;
  std::vector<std::string> variables;
  std::vector<std::string> handlers;
  std::map<std::string, void*> real;
};

Seen& seen() {
  static Seen what;
  return what;
}

template <class Function>
Function* real(const char* name) {
  const std::lock_guard<std::mutex> lock(seen().mutex);
  return reinterpret_cast<Function*>(seen().real[name]);
}

void note_variable(const char* name) {
  const std::lock_guard<std::mutex> lock(seen().mutex);
  seen().variables.emplace_back(name == nullptr ? "NULL" : name);
}

void note_handler(const char* how) {
  const std::lock_guard<std::mutex> lock(seen().mutex);
  seen().handlers.emplace_back(how);
}

constexpr const char* kRead = "getenv";
constexpr const char* kReadSecurely = "secure_getenv";
constexpr const char* kAtEnd = "__cxa_atexit";
constexpr const char* kOnEnd = "on_exit";
constexpr const char* kAtQuickEnd = "__cxa_at_quick_exit";

char* read_variable(const char* name) {
  note_variable(name);
  return real<char*(const char*)>(kRead)(name);
}

char* read_variable_securely(const char* name) {
  note_variable(name);
  return real<char*(const char*)>(kReadSecurely)(name);
}

/// A destructor of a static object comes with the object; a function of atexit comes with NULL.
int at_end(void (*function)(void*), void* object, void* library) {
  if (object == nullptr) {
    note_handler("atexit");
  }
  return real<int(void (*)(void*), void*, void*)>(kAtEnd)(function, object, library);
}

int on_end(void (*function)(int, void*), void* argument) {
  note_handler(kOnEnd);
  return real<int(void (*)(int, void*), void*)>(kOnEnd)(function, argument);
}

int at_quick_end(void (*function)(void*), void* library) {
  note_handler("at_quick_exit");
  return real<int(void (*)(void*), void*)>(kAtQuickEnd)(function, library);
}

/// Ours for a function of that name; NULL for all others.
void* stand_in(const char* name) {
  const std::pair<const char*, void*> all[] = {
      {kRead, reinterpret_cast<void*>(read_variable)},
      {kReadSecurely, reinterpret_cast<void*>(read_variable_securely)},
      {kAtEnd, reinterpret_cast<void*>(at_end)},
      {kOnEnd, reinterpret_cast<void*>(on_end)},
      {kAtQuickEnd, reinterpret_cast<void*>(at_quick_end)}};
  for (const auto& [known, function] : all) {
    if (std::strcmp(known, name) == 0) {
      return function;
    }
  }
  return nullptr;
}

/// The loaded file: where it lies, and the parts of its dynamic section that lead to the slots.
struct Image {
  std::string path;
  bool found = false;
  uintptr_t base = 0;
  const ElfW(Dyn) * dynamic = nullptr;

  /// An entry's address; the dynamic linker may have added the base to it or not.
  uintptr_t address(int64_t tag) const {
    const uint64_t value = number(tag);
    return value == 0 || value >= base ? value : value + base;
  }

  uint64_t number(int64_t tag) const {
    for (const ElfW(Dyn)* entry = dynamic; entry->d_tag != DT_NULL; ++entry) {
      if (entry->d_tag == tag) {
        return entry->d_un.d_val;
      }
    }
    return 0;
  }
};

int look(dl_phdr_info* info, std::size_t, void* data) {
  auto* image = static_cast<Image*>(data);
  if (info->dlpi_name == nullptr || image->path != info->dlpi_name) {
    return 0;
  }
  image->base = info->dlpi_addr;
  for (uint32_t i = 0; i < info->dlpi_phnum; ++i) {
    if (info->dlpi_phdr[i].p_type == PT_DYNAMIC) {
      image->dynamic =
          reinterpret_cast<const ElfW(Dyn)*>(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr);
      image->found = true;
    }
  }
  return 1;
}

bool make_writable(void** slot) {
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const uintptr_t begin = reinterpret_cast<uintptr_t>(slot) / page * page;
  return ::mprotect(reinterpret_cast<void*>(begin), page, PROT_READ | PROT_WRITE) == 0;
}

}  // namespace

CallWatch::CallWatch(const Library& library) {
  Image image;
  image.path = library.path();
  ::dl_iterate_phdr(look, &image);
  found_ = image.found;
  {
    const std::lock_guard<std::mutex> lock(seen().mutex);
    seen().variables.clear();
    seen().handlers.clear();
    seen().real.clear();
  }
  if (!found_) {
    return;
  }
  const auto* symbols = reinterpret_cast<const ElfW(Sym)*>(image.address(DT_SYMTAB));
  const auto* names = reinterpret_cast<const char*>(image.address(DT_STRTAB));
  const std::pair<uintptr_t, uint64_t> tables[] = {
      {image.address(DT_JMPREL), image.number(DT_PLTRELSZ)},
      {image.address(DT_RELA), image.number(DT_RELASZ)}};
  for (const auto& [address, bytes] : tables) {
    const auto* relocation = reinterpret_cast<const ElfW(Rela)*>(address);
    for (uint64_t i = 0; address != 0 && i < bytes / sizeof *relocation; ++i, ++relocation) {
      const auto type = ELF64_R_TYPE(relocation->r_info);
      if (type != R_X86_64_JUMP_SLOT && type != R_X86_64_GLOB_DAT && type != R_X86_64_64) {
        continue;
      }
      const char* name = names + symbols[ELF64_R_SYM(relocation->r_info)].st_name;
      void* const ours = stand_in(name);
      auto** const slot = reinterpret_cast<void**>(image.base + relocation->r_offset);
      if (ours == nullptr || *slot == nullptr || !make_writable(slot)) {
        continue;
      }
      {
        const std::lock_guard<std::mutex> lock(seen().mutex);
        seen().real[name] = *slot;
      }
      slots_.push_back({slot, std::exchange(*slot, ours)});
    }
  }
}

CallWatch::~CallWatch() {
  for (const Slot& slot : slots_) {
    *slot.at = slot.before;
  }
}

std::vector<std::string> CallWatch::variables_read() {
  const std::lock_guard<std::mutex> lock(seen().mutex);
  return seen().variables;
}

std::vector<std::string> CallWatch::exit_handlers() {
  const std::lock_guard<std::mutex> lock(seen().mutex);
  return seen().handlers;
}

}  // namespace kvspan::conformance
