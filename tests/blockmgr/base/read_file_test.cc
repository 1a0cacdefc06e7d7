#include "blockmgr/base/read_file.h"

#include <filesystem>
#include <fstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/testing/status_matchers.h"

namespace blockmgr {
namespace {

using ::testing::HasSubstr;

class ReadFileTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name =
        (std::filesystem::temp_directory_path() / "blockmgr-test-XXXXXX")
            .string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string Write(const std::string& bytes) const {
    const std::string path = (folder_ / "file").string();
    std::ofstream(path, std::ios::binary) << bytes;
    return path;
  }
  std::filesystem::path folder_;
};

TEST_F(ReadFileTest, GivesEveryByte) {
  std::string bytes = "line\r\n";
  bytes.append(100000, '\0');
  bytes += "\xff end";
  ASSERT_OK_AND_ASSIGN(const std::string read, ReadFile(Write(bytes)));
  EXPECT_EQ(read, bytes);
}

TEST_F(ReadFileTest, AnEmptyFileIsOne) {
  ASSERT_OK_AND_ASSIGN(const std::string read, ReadFile(Write("")));
  EXPECT_EQ(read, "");
}

TEST_F(ReadFileTest, WhatCannotBeReadIsNamed) {
  const std::string missing = (folder_ / "missing").string();
  EXPECT_THAT(ReadFile(missing),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr(missing)));
  EXPECT_THAT(
      ReadFile(folder_.string()),
      StatusIs(absl::StatusCode::kNotFound,
               HasSubstr("'" + folder_.string() + "', which is a folder")));
}

}  // namespace
}  // namespace blockmgr
