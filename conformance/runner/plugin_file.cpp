// SPDX-License-Identifier: Apache-2.0
// Reads the note and judges it. Read next: plugin_file.hpp.
#include "plugin_file.hpp"

#include <filesystem>
#include <system_error>

namespace kvspan::runner {

OrEnding<PluginFile> read_plugin_file(const std::string& path) {
  PluginFile file;
  std::string why;
  if (!sdk::read_note(path, file.note, why)) {
    return usage_error(path + " " + why + "; give the file of a kvspan plugin, kvspan-<name>.so");
  }
  const std::string misfit = sdk::refusal(file.note, sdk::machine_here());
  if (!misfit.empty()) {
    return usage_error(path + " cannot be judged here: it " + misfit);
  }
  std::error_code problem;
  const auto absolute = std::filesystem::absolute(path, problem);
  file.path = problem ? path : absolute.string();
  return file;
}

}  // namespace kvspan::runner
