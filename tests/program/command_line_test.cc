#include "program/command_line.h"

#include <optional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "program/build_info.h"

namespace blockmgr {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Optional;

class CommandLineTest : public ::testing::Test {
 protected:
  CommandLineTest() {
    app_.add_option("--blocks", blocks_);
    app_.add_subcommand("run")->add_option("--rate", rate_);
  }

  std::optional<int> Parse(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "prog");
    std::vector<char*> pointers;
    for (std::string& argument : arguments) pointers.push_back(argument.data());
    testing::internal::CaptureStdout();
    testing::internal::CaptureStderr();
    const std::optional<int> status = ParseCommandLine(
        &app_, static_cast<int>(pointers.size()), pointers.data());
    out_ = testing::internal::GetCapturedStdout();
    err_ = testing::internal::GetCapturedStderr();
    return status;
  }

  CLI::App app_{"Does nothing.", "prog"};
  int blocks_ = 0;
  double rate_ = 0.0;
  std::string out_;
  std::string err_;
};

TEST_F(CommandLineTest, GoodLinesGoOn) {
  EXPECT_EQ(Parse({"--blocks", "3", "run", "--rate", "2"}), std::nullopt);
  EXPECT_EQ(blocks_, 3);
  EXPECT_EQ(rate_, 2.0);
}

TEST_F(CommandLineTest, UnexpectedArgumentsAreNamedInTheirOrder) {
  EXPECT_THAT(Parse({"--first", "1", "--second=2"}), Optional(2));
  EXPECT_THAT(err_, HasSubstr("--first 1 --second=2"));
  EXPECT_THAT(Parse({"run", "--third", "--fourth"}), Optional(2));
  EXPECT_THAT(err_, HasSubstr("--third --fourth"));
  EXPECT_EQ(out_, "");
}

TEST_F(CommandLineTest, AnUnknownSubcommandIsNamedNextToTheOthers) {
  EXPECT_THAT(Parse({"rum", "--rate", "2"}), Optional(2));
  EXPECT_EQ(err_, "prog: expected run, got 'rum'\n");
}

TEST_F(CommandLineTest, WrongValuesAreBadLines) {
  EXPECT_THAT(Parse({"--blocks", "many"}), Optional(2));
  EXPECT_THAT(err_, HasSubstr("--blocks"));
}

TEST_F(CommandLineTest, VersionNamesTheProgramAndItsCommit) {
  EXPECT_THAT(Parse({"--version"}), Optional(0));
  EXPECT_THAT(out_, MatchesRegex("prog [0-9]+\\.[0-9]+\\.[0-9]+, commit "
                                 "(unknown|[0-9a-f]+(-dirty)?)\n"));
  EXPECT_EQ(ProgramVersion("prog") + "\n", out_);
}

TEST_F(CommandLineTest, HelpIsNoError) {
  EXPECT_THAT(Parse({"--help"}), Optional(0));
  EXPECT_THAT(out_, HasSubstr("--version"));
  EXPECT_EQ(err_, "");
}

}  // namespace
}  // namespace blockmgr
