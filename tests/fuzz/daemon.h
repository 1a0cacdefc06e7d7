// A daemon without threads or sockets between clients and an engine that an
// input moves: what handlers do with messages, the core, an audited scheduler.
#ifndef TESTS_FUZZ_DAEMON_H_
#define TESTS_FUZZ_DAEMON_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <absl/container/flat_hash_map.h>
#include <absl/container/flat_hash_set.h>
#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <absl/strings/string_view.h>

#include "engine/reference/sim_engine.h"
#include "blockmgr/step_plan.h"
#include "proto/blockmgr/v1/engine.pb.h"
#include "scheduler/server/commands.h"
#include "scheduler/server/core.h"
#include "tests/sim/audited_scheduler.h"
#include "tests/sim/report.h"

namespace blockmgr::fuzz {

// The engine's end of its stream.
struct StepStream final : EngineSink {
  void SendPlan(const StepPlan& plan) override;
  void ReadNext() override {}
  void Close(const absl::Status& /*status*/) override { closed = true; }

  std::deque<StepPlan> plans;  // not answered yet
  std::vector<StepPlan>* record = nullptr;
  StepResult result;  // the last answer
  bool closed = false;
};

// A client's end of its stream: sees that no token is missing or told twice.
struct TokenStream final : TokenSink {
  bool Deliver(std::span<const TokenItem> items) override;
  void Close(const absl::Status& /*status*/) override {}

  absl::flat_hash_map<const RequestStream*, int32_t> num_tokens;
};

class Daemon {
 public:
  // `choices` draws the scheduler's options. Plans are added to `record`, if
  // there is one, as they are sent.
  Daemon(uint8_t choices, std::vector<StepPlan>* record);
  // Everybody goes; aborts where something is left behind, a reply has not come
  // once, or the audits have found something.
  ~Daemon();
  Daemon(const Daemon&) = delete;
  Daemon& operator=(const Daemon&) = delete;

  // What a peer does, by its first byte; the rest is a message, or text:
  //   O Q      a client's stream opens, or breaks (its session)
  //   S C      SubmitRequest; a request's id
  //   E F      EvictRequest, without and with scores
  //   A        AttachRequest; the engine's stream opens. B: of another session
  //   X        the engine's stream breaks
  //   G        the engine executes the oldest plan, and says so
  //   M R      the same with a StepResult merged into it; a StepResult alone
  //   K P W D  the prefix cache is reset, read; statistics; a drain
  //   T        so many milliseconds go by
  void Do(absl::string_view part);

 private:
  // Of whom CheckQuiescent is asked in the end.
  class Tracked;

  // One pass.
  void Run(Command command);
  template <typename T>
  Reply<T> MakeReply();
  void Open(const std::string& session);
  void Break(const std::string& session);
  void Submit(absl::string_view message);
  void Evict(absl::string_view message, bool by_scores);
  void Attach(absl::string_view message, bool other_session);
  void BreakEngine();
  void Answer(char kind, absl::string_view message);
  // What a right engine answers to the oldest plan.
  StepResult Execute(const StepPlan& plan);

  std::vector<StepPlan>* const record_;
  sim::Report report_;
  absl::flat_hash_set<Tracked*> schedulers_;
  std::optional<Core> core_;
  double now_seconds_ = 1;
  int64_t num_asked_ = 0;
  int64_t num_replies_ = 0;
  absl::flat_hash_map<std::string, std::shared_ptr<TokenStream>> clients_;
  std::shared_ptr<StepStream> engine_;
  std::optional<SimEngine> model_;
  // Nothing but what it answers itself has been accepted.
  bool model_knows_all_ = true;
  PrefixCacheCursor cursor_;
};

// A daemon's life: the choices, and parts with kPartEnd between them.
void Play(absl::string_view input, std::vector<StepPlan>* record);

}  // namespace blockmgr::fuzz

#endif  // TESTS_FUZZ_DAEMON_H_
