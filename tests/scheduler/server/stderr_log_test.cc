#include "scheduler/server/stderr_log.h"

#include <array>
#include <csignal>
#include <memory>
#include <string>
#include <vector>

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_split.h>
#include <absl/strings/strip.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spdlog/spdlog.h>

#include "tests/scheduler/server/server_harness.h"
#include "tests/testing/temp_folder.h"

namespace blockmgr {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class StderrLogTest : public ::testing::Test {
 protected:
  StderrLogTest() {
    EXPECT_EQ(pipe2(ends_.data(), O_CLOEXEC), 0);
    Open(ends_[1]);
  }
  ~StderrLogTest() override {
    CloseReader();
    close(ends_[1]);
  }

  void Open(int descriptor) {
    logger_ = std::make_unique<spdlog::logger>(
        "test", std::make_shared<StderrSink>(descriptor));
    logger_->set_pattern("%v");
  }
  void CloseReader() {
    if (ends_[0] >= 0) close(ends_[0]);
    ends_[0] = -1;
  }
  // All there is.
  std::vector<std::string> Lines() const {
    std::string text;
    std::array<char, 4096> bytes;
    fcntl(ends_[0], F_SETFL, O_NONBLOCK);
    for (ssize_t n; (n = read(ends_[0], bytes.data(), bytes.size())) > 0;) {
      text.append(bytes.data(), static_cast<size_t>(n));
    }
    return absl::StrSplit(absl::StripSuffix(text, "\n"), '\n');
  }

  std::array<int, 2> ends_{};
  std::unique_ptr<spdlog::logger> logger_;
};

TEST_F(StderrLogTest, WritesLines) {
  logger_->info("one");
  logger_->warn("two");
  EXPECT_THAT(Lines(), ElementsAre("one", "two"));
}

TEST_F(StderrLogTest, APipeThatNobodyReadsHoldsNobodyUp) {
  constexpr int64_t kLines = 20000;  // some ten times what the pipe holds
  for (int64_t i = 0; i < kLines; ++i) {
    logger_->info("{} of the lines that nobody reads", i);
  }
  int64_t num_read = 0;
  int64_t num_lost = 0;
  const auto count = [&](const std::vector<std::string>& lines) {
    for (const std::string& line : lines) {
      const std::vector<std::string> words = absl::StrSplit(line, ' ');
      int64_t number = 0;
      ASSERT_TRUE(absl::SimpleAtoi(words.front(), &number)) << line;
      if (line == absl::StrCat(number, " of the lines that nobody reads")) {
        ++num_read;
        EXPECT_GE(number, num_lost);  // in order
      } else {
        EXPECT_THAT(line, HasSubstr("lines of the log are lost"));
        num_lost += number;
      }
    }
  };
  count(Lines());
  EXPECT_GT(num_read, 100);
  EXPECT_LT(num_read, kLines);
  logger_->info("{} of the lines that nobody reads", kLines);
  count(Lines());
  EXPECT_EQ(num_read + num_lost, kLines + 1);
}

TEST_F(StderrLogTest, AReaderThatHasGoneEndsNothing) {
  std::signal(SIGPIPE, SIG_IGN);
  logger_->info("one");
  CloseReader();
  for (int i = 0; i < 10; ++i) logger_->info("nobody is there");
}

// Others, who have the pipe too, may wait for its reader if they like.
TEST_F(StderrLogTest, ThePipeItselfStaysAsItIs) {
  logger_->info("one");
  EXPECT_EQ(fcntl(ends_[1], F_GETFL) & O_NONBLOCK, 0);
}

// systemd gives its services a socket.
TEST_F(StderrLogTest, ASocketThatNobodyReadsHoldsNobodyUp) {
  std::array<int, 2> sockets{};
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets.data()),
            0);
  Open(sockets[1]);
  // More than the socket holds, also in one line.
  logger_->info("one");
  logger_->info(std::string(1'000'000, 'x'));
  for (int i = 0; i < 10000; ++i) logger_->info("{}", std::string(100, 'y'));
  std::array<char, 4> bytes{};
  EXPECT_EQ(read(sockets[0], bytes.data(), bytes.size()), 4);
  EXPECT_EQ(std::string(bytes.data(), 4), "one\n");
  EXPECT_EQ(fcntl(sockets[1], F_GETFL) & O_NONBLOCK, 0);
  close(sockets[0]);
  logger_->info("nobody is there");  // which sends no signal
  close(sockets[1]);
}

TEST_F(StderrLogTest, WritesToFiles) {
  const TempFolder folder;
  const std::string path = folder.path() + "/log";
  const int file =
      open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  ASSERT_GE(file, 0);
  Open(file);
  logger_->info("one");
  logger_->info("two");
  std::array<char, 64> bytes{};
  EXPECT_EQ(pread(file, bytes.data(), bytes.size(), 0), 8);
  EXPECT_STREQ(bytes.data(), "one\ntwo\n");
  close(file);
}

}  // namespace
}  // namespace blockmgr
