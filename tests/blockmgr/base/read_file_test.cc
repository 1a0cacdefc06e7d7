#include "blockmgr/base/read_file.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_folder.h"

namespace blockmgr {
namespace {

using ::testing::HasSubstr;

TEST(ReadFileTest, GivesEveryByte) {
  std::string bytes = "line\r\n";
  bytes.append(100000, '\0');
  bytes += "\xff end";
  const TempFolder folder;
  ASSERT_OK_AND_ASSIGN(const std::string read,
                       ReadFile(folder.Write("file", bytes)));
  EXPECT_EQ(read, bytes);
}

TEST(ReadFileTest, AnEmptyFileIsOne) {
  const TempFolder folder;
  ASSERT_OK_AND_ASSIGN(const std::string read,
                       ReadFile(folder.Write("file", "")));
  EXPECT_EQ(read, "");
}

TEST(ReadFileTest, WhatCannotBeReadIsNamed) {
  const TempFolder folder;
  const std::string missing = folder.File("missing");
  EXPECT_THAT(ReadFile(missing),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr(missing)));
  EXPECT_THAT(
      ReadFile(folder.File("")),
      StatusIs(absl::StatusCode::kNotFound,
               HasSubstr("'" + folder.File("") + "', which is a folder")));
}

}  // namespace
}  // namespace blockmgr
