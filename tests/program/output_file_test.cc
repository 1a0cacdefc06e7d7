#include "program/output_file.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include <sys/stat.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <CLI/CLI.hpp>

#include "tests/testing/is_invalid.h"
#include "tests/testing/parse_flags.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_folder.h"

namespace blockmgr {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class OutputFileTest : public ::testing::Test {
 protected:
  TempFolder folder_;
};

std::string Contents(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST_F(OutputFileTest, AFileThatIsNotThereIsNotThereAfterwards) {
  const std::string path = folder_.File("new.json");
  EXPECT_OK(CheckOutputFile(path));
  EXPECT_FALSE(fs::exists(path));
}

TEST_F(OutputFileTest, AnExistingFileKeepsItsContents) {
  const std::string path = folder_.Write("old.json", "kept");
  EXPECT_OK(CheckOutputFile(path));
  EXPECT_OK(PrepareOutputFile("--output", path));
  EXPECT_EQ(Contents(path), "kept");
}

TEST_F(OutputFileTest, ALinkToAFileToBeStays) {
  const std::string path = folder_.File("link.json");
  fs::create_symlink("target.json", path);
  EXPECT_OK(CheckOutputFile(path));
  EXPECT_TRUE(fs::is_symlink(path));
  EXPECT_FALSE(fs::exists(folder_.File("target.json")));
}

TEST_F(OutputFileTest, DevicesAndPipesAreNotOpened) {
  EXPECT_OK(CheckOutputFile("/dev/null"));
  const std::string path = folder_.File("pipe");
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  EXPECT_OK(CheckOutputFile(path));  // opening it would wait for a reader
}

TEST_F(OutputFileTest, ErrorsNameThePathAndTheReason) {
  const std::string in_no_folder = folder_.File("none/new.json");
  EXPECT_THAT(CheckOutputFile(in_no_folder),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "expected a file that can be written, got '" +
                           in_no_folder + "': No such file or directory"));
  EXPECT_THAT(CheckOutputFile(folder_.path()), IsInvalid("': Is a directory"));
  // Not even root can make files there.
  EXPECT_FALSE(CheckOutputFile("/proc/new.json").ok());
}

TEST_F(OutputFileTest, PreparingMakesTheFolder) {
  const std::string path = folder_.File("deep/folder/new.json");
  EXPECT_OK(PrepareOutputFile("--output", path));
  EXPECT_TRUE(fs::is_directory(folder_.File("deep/folder")));
  EXPECT_FALSE(fs::exists(path));

  const std::string file = folder_.Write("file", "kept");
  EXPECT_THAT(PrepareOutputFile("--output", folder_.File("file/new.json")),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(StartsWith("--output: expected a file that can"),
                             HasSubstr("': Not a directory"))));
  EXPECT_EQ(Contents(file), "kept");
}

TEST_F(OutputFileTest, AFlagIsCheckedWhenItIsParsed) {
  CLI::App app;
  std::string path;
  app.add_option("--json", path)->check(OutputFile())->expected(0, 1);
  EXPECT_OK(ParseFlags(&app, {"--json", folder_.File("new.json")}));
  EXPECT_OK(ParseFlags(&app, {"--json", "-"}));
  EXPECT_OK(ParseFlags(&app, {"--json"}));
  EXPECT_THAT(ParseFlags(&app, {"--json", folder_.File("none/new.json")}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       StartsWith("--json: expected a file that can be")));
}

}  // namespace
}  // namespace blockmgr
