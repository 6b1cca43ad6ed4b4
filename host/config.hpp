// SPDX-License-Identifier: Apache-2.0
// Where plugins are looked for, and the only place that reads the environment.
#pragma once

#include "kvspan/core/error.hpp"

#include <string>
#include <vector>

namespace kvspan::host {

// Folders that may hold kvspan-<name>.so, in order: those given, those of KVSPAN_PLUGIN_PATH (colon
// separated), beside the executable (a build tree), ../lib*/kvspan of it (an installation). Those
// that exist, each once.
[[nodiscard]] std::vector<std::string> plugin_folders(const std::vector<std::string>& given);

// The file of a plugin: `name_or_path` itself if it has a slash or ends in .so, else
// kvspan-<name>.so in the first folder that has it. Errors: not_found, naming every folder that was
// searched.
[[nodiscard]] Result<std::string> find_plugin(const std::string& name_or_path,
                                              const std::vector<std::string>& folders);

// Every kvspan-*.so of the folders, sorted.
[[nodiscard]] std::vector<std::string> all_plugins(const std::vector<std::string>& folders);

}  // namespace kvspan::host
