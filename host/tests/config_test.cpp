// SPDX-License-Identifier: Apache-2.0
// Where plugins are looked for: order, repetition, what is said when there is none.
#include "config.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace kvspan::host {
namespace {

namespace fs = std::filesystem;

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class Config : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "kvspan-config-XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    root_ = fs::canonical(name);
    ::unsetenv("KVSPAN_PLUGIN_PATH");
  }

  void TearDown() override {
    ::unsetenv("KVSPAN_PLUGIN_PATH");
    fs::remove_all(root_);
  }

  std::string folder(const std::string& name) const {
    fs::create_directories(root_ / name);
    return (root_ / name).string();
  }

  std::string file(const std::string& name) const {
    std::ofstream(root_ / name) << "x";
    return (root_ / name).string();
  }

  // The folders of a search without those beside this executable.
  std::vector<std::string> searched(const std::vector<std::string>& given) const {
    std::vector<std::string> folders;
    for (const std::string& name : plugin_folders(given)) {
      if (name.starts_with(root_.string())) {
        folders.push_back(name);
      }
    }
    return folders;
  }

  fs::path root_;
};

TEST_F(Config, SearchesGivenFoldersThenTheEnvironments) {
  const std::string a = folder("a");
  const std::string b = folder("b");
  const std::string c = folder("c");
  ::setenv("KVSPAN_PLUGIN_PATH", (b + "::" + c).c_str(), 1);
  EXPECT_THAT(searched({c, a}), ElementsAre(c, a, b));
}

TEST_F(Config, SearchesEveryFolderOnceWhateverItsSpelling) {
  const std::string a = folder("a");
  EXPECT_THAT(searched({a, a + "/", a + "/../a", root_ / "absent", file("no_folder")}),
              ElementsAre(a));
}

TEST_F(Config, SearchesBesideTheExecutable) {
  const fs::path home = fs::canonical("/proc/self/exe").parent_path();
  EXPECT_THAT(plugin_folders({}), ::testing::Contains(home.string()));
}

TEST_F(Config, FindsAPluginByNameInTheFirstFolderThatHasIt) {
  const std::vector<std::string> folders = {folder("a"), folder("b"), folder("c")};
  const std::string first = file("b/kvspan-x.so");
  file("c/kvspan-x.so");
  EXPECT_EQ(find_plugin("x", folders).value(), first);
}

TEST_F(Config, TakesAPathAsItIs) {
  const std::string path = file("kvspan-x.so");
  EXPECT_EQ(find_plugin(path, {}).value(), path);
}

TEST_F(Config, NamesEveryFolderThatWasSearchedInVain) {
  const std::vector<std::string> folders = {folder("a"), folder("b")};
  const auto found = find_plugin("warp", folders);
  ASSERT_FALSE(found);
  EXPECT_EQ(found.error().code, Errc::not_found);
  EXPECT_THAT(found.error().message, HasSubstr("kvspan-warp.so"));
  EXPECT_THAT(found.error().message, HasSubstr(folders[0] + ", " + folders[1]));
  EXPECT_THAT(find_plugin("warp", {}).error().message, HasSubstr("any known folder"));
}

TEST_F(Config, SaysThatAPathIsMissing) {
  const auto found = find_plugin((root_ / "kvspan-x.so").string(), {});
  ASSERT_FALSE(found);
  EXPECT_EQ(found.error().code, Errc::not_found);
  EXPECT_THAT(found.error().message, HasSubstr((root_ / "kvspan-x.so").string()));
}

TEST_F(Config, ListsPluginsFolderByFolderAndSorted) {
  const std::vector<std::string> folders = {folder("b"), folder("a")};
  const std::string z = file("b/kvspan-z.so");
  const std::string c = file("b/kvspan-c.so");
  const std::string m = file("a/kvspan-m.so");
  file("a/libother.so");
  file("a/kvspan-notes.txt");
  EXPECT_THAT(all_plugins(folders), ElementsAre(c, z, m));
}

}  // namespace
}  // namespace kvspan::host
