// SPDX-License-Identifier: Apache-2.0
// The plugin's identity, read from its file without running a byte of it.
#ifndef KVSPAN_CONFORMANCE_RUNNER_PLUGIN_FILE_H
#define KVSPAN_CONFORMANCE_RUNNER_PLUGIN_FILE_H

#include "kvspan/sdk/note.hpp"

#include "ending.hpp"

#include <string>

namespace kvspan::runner {

struct PluginFile {
  std::string path;  // absolute
  sdk::Note note;
};

// Errors: usage, when the file is no plugin, or none for this machine and this suite.
[[nodiscard]] OrEnding<PluginFile> read_plugin_file(const std::string& path);

}  // namespace kvspan::runner

#endif
