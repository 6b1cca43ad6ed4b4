// SPDX-License-Identifier: Apache-2.0
// Names for addresses of another process: which file is mapped there, and which function of the
// file it is, read from the file's symbol table. Loads and runs nothing. Not here: whose addresses
// (stack_dump.hpp).
#ifndef KVSPAN_CONFORMANCE_RUNNER_SYMBOLS_H
#define KVSPAN_CONFORMANCE_RUNNER_SYMBOLS_H

#include <cstdint>
#include <map>
#include <string>
#include <sys/types.h>
#include <vector>

namespace kvspan::runner {

class Symbols {
 public:
  // Reads what the process has mapped now; without the right to, every name is an address.
  explicit Symbols(pid_t process);

  // "fill+0x1c (kvspan-mine.so)"; without a symbol "kvspan-mine.so+0x4711", outside every file the
  // address alone. Text of symbols and paths: not clean.
  [[nodiscard]] std::string name(std::uint64_t address);

 private:
  struct Mapped {
    std::uint64_t begin, end, file_offset;
    std::string path;
  };

  struct Function {
    std::uint64_t address, bytes;
    std::string name;  // as it is written in the file
  };

  struct File {
    // Of the file's parts in memory: its offset, its size, its address.
    struct Part {
      std::uint64_t offset, bytes, address;
    };

    std::vector<Part> parts;
    std::vector<Function> functions;  // by address
  };

  static File read(const std::string& path);

  std::vector<Mapped> mapped_;
  std::map<std::string, File> files_;
};

}  // namespace kvspan::runner

#endif
