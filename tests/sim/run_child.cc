// Child processes: a broken BM_CHECK aborts, a broken loop hangs, and the
// parent lives to tell.

#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>

#include <absl/strings/str_cat.h>

#include "blockmgr/base/check.h"
#include "tests/sim/run.h"
#include "tests/testing/sanitizers.h"

#if BLOCKMGR_TEST_ASAN
#include <sanitizer/lsan_interface.h>
#endif

namespace blockmgr::sim {
namespace {

// What a child leaves for its parent, in memory that both see.
struct Ledge {
  int32_t seed = 0;
  int64_t num_events = 0;
  bool failed = false;
  uint64_t hash = 0;
  RunCounts counts;
  char message[2000] = {};

  void Fail(const std::string& text) {
    failed = true;
    const size_t size = std::min(text.size(), sizeof(message) - 1);
    std::memcpy(message, text.data(), size);
    message[size] = '\0';
  }
};

class SharedLedge {
 public:
  SharedLedge() {
    void* memory = mmap(nullptr, sizeof(Ledge), PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    BM_CHECK(memory != MAP_FAILED);
    ledge_ = new (memory) Ledge();
  }
  ~SharedLedge() { munmap(ledge_, sizeof(Ledge)); }
  SharedLedge(const SharedLedge&) = delete;
  SharedLedge& operator=(const SharedLedge&) = delete;
  Ledge* operator->() const { return ledge_; }
  Ledge* get() const { return ledge_; }

 private:
  Ledge* ledge_;
};

void LeaveChild() {
#if BLOCKMGR_TEST_ASAN
  // _exit does not look for leaks; those end the child with an error.
  if (__lsan_do_recoverable_leak_check() != 0) _exit(3);
#endif
  _exit(0);
}

std::string DescribeEnd(int status) {
  if (WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM) return "it hangs";
  if (WIFSIGNALED(status)) {
    return absl::StrCat("killed by ", sigdescr_np(WTERMSIG(status)));
  }
  return absl::StrCat("exit code ", WEXITSTATUS(status));
}

// Runs `work` in a child; how that ended, or empty when well.
template <typename Work>
std::string InChild(int32_t max_seconds, Work work) {
  std::fflush(nullptr);
  const pid_t child = fork();
  BM_CHECK(child >= 0);
  if (child == 0) {
    // An abort is expected business here: no cores.
    const rlimit none{0, 0};
    (void)setrlimit(RLIMIT_CORE, &none);
    std::signal(SIGABRT, SIG_DFL);
    alarm(static_cast<unsigned>(max_seconds));
    work();
    LeaveChild();
  }
  int status = 0;
  BM_CHECK(waitpid(child, &status, 0) == child);
  return status == 0 ? "" : DescribeEnd(status);
}

}  // namespace

RangeResult RunRange(const SeedRange& range, int32_t max_seconds,
                     const std::function<void()>& setup) {
  const SharedLedge ledge;
  const std::string end = InChild(max_seconds, [&] {
    if (setup) setup();
    for (int32_t i = 0; i < range.num && !ledge->failed; ++i) {
      ledge->seed = range.first + i;
      alarm(static_cast<unsigned>(max_seconds));  // anew: a range may be long
      Report report;
      RunSeed(ledge->seed, range.steps, &report, &ledge->num_events);
      ledge->counts.Add(report.counts());
      ledge->hash = SplitMix64(ledge->hash ^ report.hash());
      if (!report.ok()) ledge->Fail(report.message());
    }
  });
  RangeResult result;
  result.hash = ledge->hash;
  result.counts = ledge->counts;
  if (ledge->failed || !end.empty()) {
    result.failure =
        Failure{.seed = ledge->seed,
                .num_events = ledge->num_events,
                .message = ledge->failed ? std::string(ledge->message) : end};
  }
  return result;
}

std::optional<std::string> RunInChild(const Script& script,
                                      int32_t max_seconds) {
  const SharedLedge ledge;
  const std::string end = InChild(max_seconds, [&] {
    Report report;
    RunScript(script, &report);
    if (!report.ok()) ledge->Fail(report.message());
  });
  if (ledge->failed) return std::string(ledge->message);
  if (!end.empty()) return end;
  return std::nullopt;
}

}  // namespace blockmgr::sim
