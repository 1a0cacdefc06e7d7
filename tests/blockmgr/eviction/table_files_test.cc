#include "blockmgr/eviction/table_files.h"

#include <string>
#include <utility>
#include <vector>

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_folder.h"

namespace blockmgr {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

constexpr absl::StatusCode kBadFiles = absl::StatusCode::kInvalidArgument;

class TableFilesTest : public ::testing::Test {
 protected:
  absl::Status Read(const std::vector<std::string>& arguments) {
    read_.clear();
    return ReadTableFiles("some_table", arguments,
                          [this](const std::string& name,
                                 absl::string_view bytes) -> absl::Status {
                            if (name == "bad") {
                              return absl::InternalError("not a table");
                            }
                            read_.emplace_back(name, bytes);
                            return absl::OkStatus();
                          });
  }

  const TempFolder folder_;
  const std::string path_ = folder_.Write("file", "content");
  std::vector<std::pair<std::string, std::string>> read_;
};

TEST_F(TableFilesTest, ReadsInOrder) {
  EXPECT_THAT(
      Read({absl::StrCat("b=", path_), absl::StrCat("a.1-x_Y=", path_)}),
      IsOk());
  EXPECT_THAT(read_,
              ElementsAre(Pair("b", "content"), Pair("a.1-x_Y", "content")));
}

TEST_F(TableFilesTest, ErrorsNameFieldArgumentAndFile) {
  for (const char* argument : {"needle", "=file", ""}) {
    EXPECT_THAT(Read({argument}),
                StatusIs(kBadFiles, HasSubstr(absl::StrCat(
                                        "some_table: expected NAME=FILE, got '",
                                        argument, "'"))));
  }
  for (const std::string& name : {std::string("a b"), std::string(65, 'n')}) {
    EXPECT_THAT(Read({absl::StrCat(name, "=", path_)}),
                StatusIs(kBadFiles,
                         HasSubstr(absl::StrCat(
                             "some_table: expected a name of 1 to 64 letters, "
                             "digits, '_', '-' or '.', got '",
                             name, "'"))));
  }
  EXPECT_THAT(
      Read({absl::StrCat("a=", path_), absl::StrCat("a=", path_)}),
      StatusIs(kBadFiles, HasSubstr("some_table: expected every name once, got "
                                    "'a' twice")));
  EXPECT_THAT(Read({"a=/nonexistent/file"}),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("some_table: ")));
  EXPECT_THAT(Read({absl::StrCat("bad=", path_)}),
              StatusIs(kBadFiles, HasSubstr(absl::StrCat("some_table: ", path_,
                                                         ": not a table"))));
}

TEST(NoSuchTableTest, ListsTheNamesThereAre) {
  EXPECT_THAT(NoSuchTable("policy: stats", "table", {"a", "b"}, "c"),
              StatusIs(absl::StatusCode::kNotFound,
                       HasSubstr("policy: stats: expected the name of a table "
                                 "(a, b), got 'c'")));
  EXPECT_THAT(NoSuchTable("policy: stats", "table", {}, "c"),
              StatusIs(absl::StatusCode::kNotFound,
                       HasSubstr("(there is none), got 'c'")));
}

}  // namespace
}  // namespace blockmgr
