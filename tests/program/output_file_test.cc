#include "program/output_file.h"

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>

#include <sys/stat.h>

#include <absl/strings/str_cat.h>
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

TEST_F(OutputFileTest, WritesAllFilesOrNone) {
  const std::string a = folder_.Write("a", "as it was");
  EXPECT_THAT(
      WriteOutputFiles({{"--a", a, "new"}, {"--full", "/dev/full", "new"}}),
      StatusIs(absl::StatusCode::kUnavailable,
               "--full: expected a file that can be written, got '/dev/full': "
               "No space left on device"));
  EXPECT_EQ(Contents(a), "as it was");
  const std::string b = folder_.File("b");
  EXPECT_OK(WriteOutputFiles({{"--a", a, "new"}, {"--b", b, "newer"}}));
  EXPECT_EQ(Contents(a), "new");
  EXPECT_EQ(Contents(b), "newer");
  // Nothing is left beside them.
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_.path()), {}), 2);
}

TEST_F(OutputFileTest, DevicesAndPipesStayWhatTheyAre) {
  const std::string pipe = folder_.File("pipe");
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  std::string read;
  std::thread reader([&] { read = Contents(pipe); });
  EXPECT_OK(WriteOutputFiles({{"--pipe", pipe, "through it"}}));
  reader.join();
  EXPECT_EQ(read, "through it");
  EXPECT_TRUE(fs::is_fifo(pipe));
  EXPECT_OK(WriteOutputFiles({{"--null", "/dev/null", "nothing"}}));
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
  // An open file, to which a rename would write nothing.
  std::FILE* const open = std::fopen(folder_.Write("open", "").c_str(), "r");
  ASSERT_NE(open, nullptr);
  EXPECT_OK(WriteOutputFiles(
      {{"--fd", absl::StrCat("/proc/self/fd/", fileno(open)), "x"}}));
  EXPECT_EQ(std::fgetc(open), 'x');
  std::fclose(open);
}

TEST_F(OutputFileTest, LinksStayAndTheirTargetIsWritten) {
  fs::create_directory(folder_.File("deep"));
  const std::string target = folder_.File("deep/target");
  fs::create_symlink("deep/target", folder_.File("near"));
  const std::string link = folder_.File("link");
  fs::create_symlink(folder_.File("near"), link);
  for (const char* bytes : {"of a file to be", "of a file"}) {
    EXPECT_OK(WriteOutputFiles({{"--link", link, bytes}}));
    EXPECT_TRUE(fs::is_symlink(link));
    EXPECT_FALSE(fs::is_symlink(target));
    EXPECT_EQ(Contents(target), bytes);
  }
}

TEST_F(OutputFileTest, AReplacedFileKeepsItsPermissions) {
  const std::string path = folder_.Write("secret", "old");
  fs::permissions(path, fs::perms::owner_read | fs::perms::owner_write);
  EXPECT_OK(WriteOutputFiles({{"--secret", path, "new"}}));
  EXPECT_EQ(fs::status(path).permissions(),
            fs::perms::owner_read | fs::perms::owner_write);
}

// Two programs that write the same file never write into one file beside it.
TEST_F(OutputFileTest, FilesOfOthersBesideItStay) {
  const std::string path = folder_.File("out");
  const std::string part = folder_.Write("out.part", "another's");
  EXPECT_OK(WriteOutputFiles({{"--out", path, "new"}}));
  EXPECT_EQ(Contents(path), "new");
  EXPECT_EQ(Contents(part), "another's");
}

TEST_F(OutputFileTest, AFileWithoutRoomBesideItIsWrittenInPlace) {
  const std::string path = folder_.File(std::string(255, 'x'));
  EXPECT_OK(WriteOutputFiles({{"--long", path, "new"}}));
  EXPECT_EQ(Contents(path), "new");
}

TEST_F(OutputFileTest, ANewFileTakesNoNameThatThereIs) {
  const std::string stem = folder_.File("run");
  ASSERT_OK_AND_ASSIGN(const std::string first,
                       MakeNewFile("--new", stem, ".json"));
  EXPECT_EQ(first, stem + ".json");
  ASSERT_OK_AND_ASSIGN(const std::string second,
                       MakeNewFile("--new", stem, ".json"));
  EXPECT_EQ(second, stem + "-2.json");
  EXPECT_THAT(MakeNewFile("--new", folder_.File("none/run"), ".json"),
              StatusIs(absl::StatusCode::kUnavailable, StartsWith("--new: ")));
}

TEST_F(OutputFileTest, OneFileHasManyNames) {
  const std::string a = folder_.File("a");
  fs::create_symlink("a", folder_.File("link"));
  for (const bool exists : {false, true}) {
    if (exists) folder_.Write("a", "");
    EXPECT_TRUE(IsSameFile(a, a));
    EXPECT_TRUE(IsSameFile(a, folder_.File("./a")));
    EXPECT_TRUE(IsSameFile(folder_.File("link"), a));
    EXPECT_FALSE(IsSameFile(a, folder_.File("b")));
  }
  fs::create_hard_link(a, folder_.File("b"));
  EXPECT_TRUE(IsSameFile(a, folder_.File("b")));
  EXPECT_FALSE(IsSameFile("/dev/null", "/dev/full"));
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
