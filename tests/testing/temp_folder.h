// A folder of one test's own.
#ifndef TESTS_TESTING_TEMP_FOLDER_H_
#define TESTS_TESTING_TEMP_FOLDER_H_

#include <unistd.h>

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
      : path_(std::filesystem::temp_directory_path() /
              absl::StrCat("blockmgr-test-", getpid(), "-",
                           ::testing::UnitTest::GetInstance()
                               ->current_test_info()
                               ->name())) {
    std::filesystem::create_directories(path_);
  }
  ~TempFolder() { std::filesystem::remove_all(path_); }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  std::string File(absl::string_view name) const {
    return (path_ / std::string(name)).string();
  }
  std::string Write(absl::string_view name, absl::string_view bytes) const {
    std::ofstream(File(name), std::ios::binary) << bytes;
    return File(name);
  }

 private:
  const std::filesystem::path path_;
};

}  // namespace blockmgr

#endif  // TESTS_TESTING_TEMP_FOLDER_H_
