// A folder of one test's own.
#ifndef TESTS_TESTING_TEMP_FOLDER_H_
#define TESTS_TESTING_TEMP_FOLDER_H_

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include <absl/strings/str_cat.h>
#include <absl/strings/string_view.h>
#include <gtest/gtest.h>

namespace blockmgr {

// Gone with its files when the test ends.
class TempFolder {
 public:
  TempFolder()
      : path_((std::filesystem::temp_directory_path() / "blockmgr-test-XXXXXX")
                  .string()) {
    EXPECT_NE(mkdtemp(path_.data()), nullptr);
  }
  ~TempFolder() { std::filesystem::remove_all(path_); }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  // Short: sockets have room for few characters.
  const std::string& path() const { return path_; }
  std::string File(absl::string_view name) const {
    return absl::StrCat(path_, "/", name);
  }
  std::string Write(absl::string_view name, absl::string_view bytes) const {
    std::ofstream(File(name), std::ios::binary) << bytes;
    return File(name);
  }

 private:
  std::string path_;
};

}  // namespace blockmgr

#endif  // TESTS_TESTING_TEMP_FOLDER_H_
