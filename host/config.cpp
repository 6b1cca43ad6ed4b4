// SPDX-License-Identifier: Apache-2.0
// Plugin search: given folders, environment, build tree, installation.
#include "config.hpp"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <sstream>

namespace kvspan::host {

namespace fs = std::filesystem;

namespace {

void add_folder(std::vector<std::string>& folders, const fs::path& folder) {
  std::error_code ignored;
  const fs::path canonical = fs::canonical(folder, ignored);
  if (ignored || !fs::is_directory(canonical, ignored)) {
    return;
  }
  if (std::find(folders.begin(), folders.end(), canonical.string()) == folders.end()) {
    folders.push_back(canonical.string());
  }
}

}  // namespace

std::vector<std::string> plugin_folders(const std::vector<std::string>& given) {
  std::vector<std::string> folders;
  for (const std::string& folder : given) {
    add_folder(folders, folder);
  }
  if (const char* const path = std::getenv("KVSPAN_PLUGIN_PATH"); path != nullptr) {
    std::istringstream parts{std::string(path)};
    for (std::string folder; std::getline(parts, folder, ':');) {
      if (!folder.empty()) {
        add_folder(folders, folder);
      }
    }
  }
  std::error_code ignored;
  const fs::path executable = fs::read_symlink("/proc/self/exe", ignored);
  if (!ignored) {
    const fs::path home = executable.parent_path();
    add_folder(folders, home);
    add_folder(folders, home / ".." / "plugins");
    add_folder(folders, home / ".." / "lib" / "kvspan");
    add_folder(folders, home / ".." / "lib" / "x86_64-linux-gnu" / "kvspan");
    add_folder(folders, home / ".." / "lib64" / "kvspan");
  }
  return folders;
}

Result<std::string> find_plugin(const std::string& name_or_path,
                                const std::vector<std::string>& folders) {
  if (name_or_path.find('/') != std::string::npos || name_or_path.ends_with(".so")) {
    std::error_code ignored;
    if (!fs::exists(name_or_path, ignored)) {
      return tl::unexpected(error_of(
          Errc::not_found,
          "there is no plugin file " + name_or_path + "; give the path of a kvspan-<name>.so",
          "plugin"));
    }
    return name_or_path;
  }
  std::string searched;
  for (const std::string& folder : folders) {
    const fs::path file = fs::path(folder) / ("kvspan-" + name_or_path + ".so");
    std::error_code ignored;
    if (fs::exists(file, ignored)) {
      return file.string();
    }
    searched += (searched.empty() ? "" : ", ") + folder;
  }
  return tl::unexpected(error_of(Errc::not_found,
                                 "there is no plugin named " + name_or_path + " (kvspan-" +
                                     name_or_path + ".so) in " +
                                     (searched.empty() ? "any known folder" : searched) +
                                     "; name one of `kvspan list`, or give its path",
                                 "plugin"));
}

std::vector<std::string> all_plugins(const std::vector<std::string>& folders) {
  std::vector<std::string> files;
  for (const std::string& folder : folders) {
    std::error_code ignored;
    std::vector<std::string> found;
    for (const fs::directory_entry& entry : fs::directory_iterator(folder, ignored)) {
      const std::string file = entry.path().filename().string();
      if (file.starts_with("kvspan-") && file.ends_with(".so")) {
        found.push_back(entry.path().string());
      }
    }
    std::sort(found.begin(), found.end());
    files.insert(files.end(), found.begin(), found.end());
  }
  return files;
}

}  // namespace kvspan::host
