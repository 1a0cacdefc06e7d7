// The daemon as a process: signals, sockets, flags.
#include <chrono>
#include <csignal>
#include <fstream>
#include <future>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <absl/strings/match.h>
#include <gmock/gmock.h>
#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>

#include "tests/scheduler/server/server_harness.h"
#include "tests/testing/temp_folder.h"

namespace blockmgr {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;

constexpr int kServing = 1;
constexpr char kNoText[] = "\x0A\x01\xFF";  // a string that is not UTF-8

// A blockmgrd, killed at the end if it still runs.
class Daemon {
 public:
  // `variable`: an assignment that the environment has more; empty: none.
  Daemon(const std::string& log, const std::vector<std::string>& flags,
         std::string variable = "")
      : log_(log) {
    std::vector<std::string> words = {BLOCKMGRD_PATH};
    words.insert(words.end(), flags.begin(), flags.end());
    std::vector<char*> argv;
    argv.reserve(words.size() + 1);
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    std::vector<char*> variables;
    for (char** each = environ; *each != nullptr; ++each) {
      if (!absl::StartsWith(*each, "NOTIFY_SOCKET=")) {
        variables.push_back(*each);
      }
    }
    if (!variable.empty()) variables.push_back(variable.data());
    variables.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, log_.c_str(),
                                     O_WRONLY | O_CREAT | O_TRUNC, 0600);
    posix_spawn_file_actions_adddup2(&actions, STDERR_FILENO, STDOUT_FILENO);
    const int error = posix_spawn(&pid_, argv[0], &actions, nullptr,
                                  argv.data(), variables.data());
    EXPECT_EQ(error, 0);
    if (error != 0) pid_ = -1;
    posix_spawn_file_actions_destroy(&actions);
  }
  ~Daemon() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  Daemon(const Daemon&) = delete;
  Daemon& operator=(const Daemon&) = delete;

  void Signal(int signal) const {
    // kill(-1) would reach every process of the user.
    if (pid_ > 0) kill(pid_, signal);
  }

  void LimitDescriptors(rlim_t number) const {
    const rlimit limit{number, number};
    EXPECT_EQ(prlimit(pid_, RLIMIT_NOFILE, &limit, nullptr), 0);
  }

  // Whether it has, until now.
  bool HasEnded() {
    if (pid_ > 0 && waitpid(pid_, &status_, WNOHANG) == pid_) pid_ = -1;
    return pid_ <= 0;
  }

  // The exit status; -1: it ended by a signal, -2: not within a minute.
  int Wait() {
    if (!WaitUntil([this] { return HasEnded(); })) return -2;
    return WIFEXITED(status_) ? WEXITSTATUS(status_) : -1;
  }

  std::string Log() const {
    std::ostringstream text;
    text << std::ifstream(log_).rdbuf();
    return text.str();
  }

 private:
  const std::string log_;
  pid_t pid_ = -1;
  int status_ = 0;
};

class BlockmgrdTest : public ::testing::Test {
 protected:
  std::vector<std::string> Flags(std::vector<std::string> more = {}) const {
    more.insert(more.end(), {"--listen", address_});
    return more;
  }
  // Waits until the daemon serves.
  std::unique_ptr<Daemon> StartDaemon(std::vector<std::string> more = {}) {
    auto daemon = std::make_unique<Daemon>(log(), Flags(std::move(more)));
    EXPECT_TRUE(WaitUntil([this] { return Serving(); })) << daemon->Log();
    return daemon;
  }
  std::string log() const { return folder_.path() + "/log"; }
  std::string path() const { return folder_.path() + "/d.sock"; }
  std::vector<Descriptor> Connections(int count) const {
    std::vector<Descriptor> connections;
    for (int i = 0; i < count; ++i) {
      connections.push_back(ConnectToUnix(path()));
      EXPECT_GE(connections.back().get(), 0);
    }
    return connections;
  }
  // Bytes as a request of the RequestService.
  grpc::Status Send(const std::string& method, const std::string& text) {
    const grpc::Slice bytes(text);
    const grpc::ByteBuffer message(&bytes, 1);
    grpc::ClientContext context;
    grpc::ByteBuffer answer;
    std::promise<grpc::Status> done;
    stub_.UnaryCall(&context, "/blockmgr.v1.RequestService/" + method, {},
                    &message, &answer, [&done](const grpc::Status& status) {
                      done.set_value(status);
                    });
    return done.get_future().get();
  }
  // Attached, with its stream open. The daemon may not know of it yet.
  std::unique_ptr<FakeEngine> StartEngine() const {
    auto engine = std::make_unique<FakeEngine>(address_);
    EXPECT_TRUE(engine->Attach(SmallLayout()).ok());
    engine->OpenStream();
    return engine;
  }
  // The daemon ends at once, and says why.
  void ExpectRefused(const std::vector<std::string>& flags,
                     const std::string& text) const {
    Daemon daemon(log(), flags);
    EXPECT_GT(daemon.Wait(), 0);
    EXPECT_THAT(daemon.Log(), HasSubstr(text));
  }
  bool Serving() const { return AskHealth(Connect(address_), "") == kServing; }

  TempFolder folder_;
  const std::string address_ = "unix:" + folder_.path() + "/d.sock";
  grpc::GenericStub stub_{Connect(address_)};
};

TEST_F(BlockmgrdTest, TermEndsAnIdleDaemon) {
  for (const int signal : {SIGTERM, SIGINT}) {
    const auto daemon = StartDaemon();
    daemon->Signal(signal);
    EXPECT_EQ(daemon->Wait(), 0) << daemon->Log();
    EXPECT_NE(access((folder_.path() + "/d.sock").c_str(), F_OK), 0);
  }
}

TEST_F(BlockmgrdTest, TermLetsRequestsFinish) {
  const auto daemon = StartDaemon();
  const auto engine = StartEngine();
  FakeFrontend frontend(address_, "a");
  ASSERT_TRUE(WaitUntil([&] { return frontend.Submit("r", 5).ok(); }));
  daemon->Signal(SIGTERM);
  ASSERT_TRUE(WaitUntil([&] {
    return frontend.Submit("s", 5).error_code() == grpc::UNAVAILABLE;
  }));
  engine->StartAnswers();
  const v1::TokenChunk chunk = frontend.ReadRequest("r");
  EXPECT_EQ(chunk.tokens_size(), 5);
  EXPECT_EQ(chunk.finish_reason(), v1::FINISH_REASON_LENGTH);
  EXPECT_EQ(daemon->Wait(), 0) << daemon->Log();
}

TEST_F(BlockmgrdTest, SecondSignalCancelsAtOnce) {
  const auto daemon = StartDaemon({"--drain-timeout", "3600"});
  const auto engine = StartEngine();  // hangs: it never answers
  FakeFrontend frontend(address_, "a");
  ASSERT_TRUE(WaitUntil([&] { return frontend.Submit("r", 5).ok(); }));
  daemon->Signal(SIGTERM);
  ASSERT_TRUE(WaitUntil([&] {
    return frontend.Submit("s", 5).error_code() == grpc::UNAVAILABLE;
  }));
  daemon->Signal(SIGTERM);
  EXPECT_EQ(frontend.ReadRequest("r").finish_reason(),
            v1::FINISH_REASON_CANCELLED);
  EXPECT_EQ(daemon->Wait(), 0) << daemon->Log();
}

// By somebody's SIGSTOP, or because the machine has slept.
TEST_F(BlockmgrdTest, ADaemonThatWasStoppedCutsNobodyOff) {
  const auto daemon = StartDaemon({"--step-timeout", "1"});
  const auto engine = StartEngine();
  FakeFrontend frontend(address_, "a");
  ASSERT_TRUE(WaitUntil([&] { return frontend.Submit("r", 2).ok(); }));
  v1::StepPlan plan;
  ASSERT_TRUE(engine->ReadPlan(&plan));
  daemon->Signal(SIGSTOP);
  engine->Answer(plan);
  // Longer than the engine has.
  std::this_thread::sleep_for(std::chrono::seconds(5));
  daemon->Signal(SIGCONT);
  ASSERT_TRUE(engine->ReadPlan(&plan)) << engine->Finish().error_message();
  engine->Answer(plan);
  EXPECT_EQ(frontend.ReadRequest("r").tokens_size(), 2);
  EXPECT_EQ(daemon->Log().find("engine lost"), std::string::npos);
}

TEST_F(BlockmgrdTest, ReplacesTheSocketOfADeadDaemonOnly) {
  const auto first = StartDaemon();
  Daemon second(log() + "2", Flags());
  EXPECT_EQ(second.Wait(), 1);
  EXPECT_THAT(second.Log(), HasSubstr("another daemon is running"));
  first->Signal(SIGKILL);
  EXPECT_EQ(first->Wait(), -1);
  StartDaemon();
}

// CVE-2023-4785: gRPC's own listener never accepts again after this.
TEST_F(BlockmgrdTest, SurvivesAFloodOfConnections) {
  const auto daemon = StartDaemon();
  daemon->LimitDescriptors(64);
  {
    const std::vector<Descriptor> flood = Connections(640);
    EXPECT_TRUE(WaitUntil([&] {
      return daemon->Log().find("cannot accept") != std::string::npos;
    }));
  }
  EXPECT_TRUE(WaitUntil([this] { return Serving(); })) << daemon->Log();
}

TEST_F(BlockmgrdTest, ClosesConnectionsAboveTheLimit) {
  const auto daemon = StartDaemon({"--max-connections", "20"});
  {
    const std::vector<Descriptor> flood = Connections(640);
    EXPECT_TRUE(WaitUntil([&] {
      return daemon->Log().find("20 are open (max_connections)") !=
             std::string::npos;
    }));
  }
  EXPECT_TRUE(WaitUntil([this] { return Serving(); })) << daemon->Log();
}

// gRPC and protobuf log a line for every call that makes no sense.
TEST_F(BlockmgrdTest, MalformedCallsDoNotFillTheLog) {
  const auto daemon = StartDaemon();
  const size_t before = daemon->Log().size();
  for (int i = 0; i < 100; ++i) EXPECT_FALSE(Send("Cancel", kNoText).ok());
  EXPECT_TRUE(Serving());
  EXPECT_LT(daemon->Log().size(), before + 2000) << daemon->Log();
}

// As `2>&1 | less` does it, which somebody has left.
TEST_F(BlockmgrdTest, ALogThatNobodyReadsHoldsNobodyUp) {
  ASSERT_EQ(mkfifo(log().c_str(), 0600), 0);
  Descriptor reader(open(log().c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  Daemon daemon(log(), Flags({"--log-level", "debug"}));
  ASSERT_TRUE(WaitUntil([this] { return Serving(); }));
  // Many times what a pipe holds, by the threads of gRPC and by the core's.
  for (int i = 0; i < 1000; ++i) EXPECT_FALSE(Send("Cancel", kNoText).ok());
  for (int i = 0; i < 300; ++i) {
    FakeEngine engine(address_);
    ASSERT_TRUE(WaitUntil([&] { return engine.Attach(SmallLayout()).ok(); }));
    engine.OpenStream();
    engine.Finish();
  }
  EXPECT_TRUE(Serving());
  reader = Descriptor(-1);
  for (int i = 0; i < 10; ++i) EXPECT_FALSE(Send("Cancel", kNoText).ok());
  EXPECT_TRUE(Serving());
  daemon.Signal(SIGTERM);
  EXPECT_EQ(daemon.Wait(), 0);
}

// As systemd does it.
TEST_F(BlockmgrdTest, TellsAServiceManager) {
  const std::string path = folder_.path() + "/notify";
  const Descriptor manager = BindToUnix(SOCK_DGRAM, path);
  ASSERT_GE(manager.get(), 0);
  const timeval patience{.tv_sec = 60, .tv_usec = 0};
  ASSERT_EQ(setsockopt(manager.get(), SOL_SOCKET, SO_RCVTIMEO, &patience,
                       sizeof(patience)),
            0);
  const auto read_state = [&manager] {
    char text[256];
    const ssize_t size = recv(manager.get(), text, sizeof(text), 0);
    return std::string(text, size > 0 ? static_cast<size_t>(size) : 0);
  };
  Daemon daemon(log(), Flags(), "NOTIFY_SOCKET=" + path);
  EXPECT_EQ(read_state(), "READY=1\nWATCHDOG=1") << daemon.Log();
  EXPECT_TRUE(Serving());  // at once
  EXPECT_EQ(read_state(), "READY=1\nWATCHDOG=1") << daemon.Log();
  daemon.Signal(SIGTERM);
  std::string last;
  do {
    last = read_state();
  } while (last == "READY=1\nWATCHDOG=1");
  EXPECT_EQ(last, "STOPPING=1");
  EXPECT_EQ(daemon.Wait(), 0) << daemon.Log();
}

TEST_F(BlockmgrdTest, RefusesBadFlags) {
  ExpectRefused({"--listen", "0.0.0.0:0"}, "loopback");
  ExpectRefused({"--listen", "127.0.0.1:65536"},
                "--listen: expected unix:PATH or HOST:PORT with a port of 0 to "
                "65535, got \"127.0.0.1:65536\"");
  ExpectRefused({"--listen", "unix:/nonexistent/d.sock"},
                "--listen: expected a folder in which this user can make "
                "/nonexistent/d.sock.lock, got: No such file or directory");
  ExpectRefused(Flags({"--max-steps-in-flight", "9"}),
                "--max-steps-in-flight: expected 1 to 4, got 9");
  ExpectRefused(Flags({"--compaction", "sideways"}), "sideways");
  ExpectRefused(Flags({"--no-such-flag"}), "--no-such-flag");
  ExpectRefused(Flags({"--tenant", "\xC3(:weight=2"}),
                "expected UTF-8, got '\\xc3(:weight=2'");
  ExpectRefused(Flags({"--budget-table", "\xFF=/file"}),
                "expected UTF-8, got '\\xff=/file'");
  ExpectRefused(Flags({"--queue-capacity", "0"}), "--queue-capacity");
  ExpectRefused(Flags({"--max-connections", "0"}), "--max-connections");
  ExpectRefused(Flags({"--score-timeout", "0"}), "--score-timeout");
  ExpectRefused(Flags({"--metrics-listen", "9464"}),
                "--metrics-listen: expected HOST:PORT");
  ExpectRefused(Flags({"--kv-events-endpoint", "tcp://0.0.0.0:5557"}),
                "--kv-events-endpoint: expected a loopback address");
}

// Which no engine could carry out.
TEST_F(BlockmgrdTest, RefusesFlagsThatExcludeEachOther) {
  const auto refused = [this](std::vector<std::string> flags,
                              const std::string& text) {
    flags.insert(flags.end(), {"--keep-ratio", "0.2"});
    ExpectRefused(Flags(std::move(flags)), text);
  };
  const std::string snapkv = "snapkv(window=32) | adakv | topk";
  refused({"--eviction", snapkv, "--max-num-batched-tokens", "256"},
          "--eviction: window: expected 0 to 1 (to --max-num-batched-tokens - "
          "--max-num-seqs + 1), got 32");
  refused({"--eviction", snapkv, "--long-prefill-token-threshold", "16"},
          "--eviction: window: expected 0 to 16 (to "
          "--long-prefill-token-threshold), got 32");
  refused({"--eviction", snapkv, "--compress-every", "16"},
          "--compress-every: expected what the policy observes, at least 32, "
          "got 16");
  refused({"--eviction", "h2o | uniform | topk", "--share-compressed-prefixes"},
          "--share-compressed-prefixes: expected a policy that needs no scores "
          "accumulated");
  refused({"--eviction-mode", "pressure", "--share-compressed-prefixes"},
          "--share-compressed-prefixes: expected a mode that compresses the "
          "prompt, got pressure");
  refused({"--eviction", "h2o | uniform | topk", "--window-keep-ratio", "0.5"},
          "--window-keep-ratio: expected 1 with scores accumulated");
  refused({"--eviction", "snapkv | headkv(profile=none) | topk"},
          "--eviction: profile: expected the name of a loaded budget table "
          "(there is none), got 'none'");
  refused({"--budget-table", "needle"},
          "--budget-table: expected NAME=FILE, got 'needle'");
}

TEST_F(BlockmgrdTest, WarnsOfADefaultThatSharesWhatObservesQueries) {
  const auto daemon =
      StartDaemon({"--keep-ratio", "0.2", "--share-compressed-prefixes",
                   "--eviction", "snapkv(window=16) | adakv | topk"});
  EXPECT_THAT(daemon->Log(),
              HasSubstr("keeps what the last 16 tokens of a prefix attend to"));
}

TEST_F(BlockmgrdTest, SaysWhereMetricsAndEventsAre) {
  const auto daemon =
      StartDaemon({"--metrics-listen", "127.0.0.1:0", "--kv-events-endpoint",
                   "tcp://127.0.0.1:0", "--kv-events-replay-endpoint",
                   "tcp://127.0.0.1:0"});
  daemon->Signal(SIGTERM);
  EXPECT_EQ(daemon->Wait(), 0) << daemon->Log();
  EXPECT_THAT(daemon->Log(), ContainsRegex("metrics at "
                                           "http://127.0.0.1:[1-9][0-9]+/"
                                           "metrics"));
  EXPECT_THAT(daemon->Log(),
              ContainsRegex("KV events at tcp://127.0.0.1:[1-9][0-9]+, replays "
                            "at tcp://127.0.0.1:[1-9][0-9]+"));
}

}  // namespace
}  // namespace blockmgr
