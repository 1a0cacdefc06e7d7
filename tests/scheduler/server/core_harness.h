// A core without threads or streams, and peers that record what they get.
#ifndef TESTS_SCHEDULER_SERVER_CORE_HARNESS_H_
#define TESTS_SCHEDULER_SERVER_CORE_HARNESS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <absl/strings/str_cat.h>
#include <gtest/gtest.h>

#include "scheduler/server/core.h"
#include "tests/scheduler/server/fake_scheduler.h"
#include "tests/testing/status_matchers.h"

namespace blockmgr {

struct RecordingTokens : TokenSink {
  bool Deliver(std::span<const TokenItem> items) override {
    for (const TokenItem& item : items) {
      if (item.logprobs != nullptr) {
        lines.push_back(absl::StrCat(
            item.stream->id, item.logprobs->of_prompt ? " prompt" : " outputs",
            "[", item.logprobs->logprobs.first_index, "] at ", item.index));
        continue;
      }
      lines.push_back(
          item.finish == nullptr
              ? absl::StrCat(item.stream->id, "[", item.index, "]=", item.token,
                             item.data == nullptr ? "" : " " + *item.data)
              : absl::StrCat(item.stream->id, " ends ",
                             static_cast<int>(item.finish->reason)));
    }
    return !overflow;
  }
  bool HasSentAll() const override { return has_sent_all; }
  void Close(const absl::Status& status) override { closed = status; }

  std::vector<std::string> lines;
  bool overflow = false;
  bool has_sent_all = true;
  std::optional<absl::Status> closed;
};

struct RecordingEngine : EngineSink {
  void SendPlan(const StepPlan& plan) override { plans.push_back(plan); }
  void ReadNext() override { ++num_reads; }
  void Close(const absl::Status& status) override { closed = status; }

  // An answer to plan `i`: every run that samples has 7, every eviction keeps
  // one entry per head of SmallLayout().
  StepResult Answer(size_t i) const {
    StepResult result;
    result.id = plans.at(i).id;
    for (const uint8_t samples : plans[i].samples) {
      result.sampled.push_back(samples != 0 ? 7 : -1);
    }
    result.evictions.resize(plans[i].evictions.size());
    for (EvictionOutcome& outcome : result.evictions) {
      outcome.counts.assign(SmallLayout().pages_per_block(), 1);
    }
    return result;
  }

  std::vector<StepPlan> plans;
  int num_reads = 0;
  std::optional<absl::Status> closed;
};

// Matches the refusal of an engine that cannot serve the waiting requests.
inline auto RefusedFor(const std::string& text) {
  return StatusIs(absl::StatusCode::kFailedPrecondition, text);
}

// Runs each command as a pass of its own, at a time the test sets.
class CoreTest : public ::testing::Test {
 protected:
  explicit CoreTest(SchedulerFactory factory = FakeScheduler::Make,
                    double step_timeout_seconds = 0,
                    RequestEviction default_eviction = {})
      : core_(Options(step_timeout_seconds, std::move(default_eviction)),
              std::move(factory)) {}

  CoreOptions Options(double step_timeout_seconds,
                      RequestEviction default_eviction) {
    CoreOptions options;
    options.default_eviction = std::move(default_eviction);
    options.epoch = 77;
    options.step_timeout_seconds = step_timeout_seconds;
    options.on_engine_change = [this](bool attached, const std::string& what) {
      engine_changes_.push_back(attached);
      last_engine_change_ = what;
    };
    return options;
  }

  // A daemon that runs makes a pass every second.
  void RunFor(double seconds) {
    for (; seconds > 0; seconds -= 1) {
      now_ += std::min(seconds, 1.0);
      core_.BeginPass(now_);
      core_.EndPass();
    }
  }

  void Run(Command command) {
    core_.BeginPass(now_);
    core_.Handle(&command);
    core_.EndPass();
  }

  absl::StatusOr<Attachment> Attach(const ModelLayout& layout,
                                    int32_t num_host_blocks = 0,
                                    bool replace = false,
                                    const std::string& name = "fake",
                                    const EngineSampling& sampling = {}) {
    absl::StatusOr<Attachment> result = absl::UnknownError("no reply");
    Run(AttachEngine{
        .layout = layout,
        .name = name,
        .done =
            [&result](absl::StatusOr<Attachment> a) { result = std::move(a); },
        .abilities = {.num_host_blocks = num_host_blocks,
                      .supports_window_evictions = supports_window_evictions_,
                      .query_stats = query_stats_,
                      .sampling = sampling},
        .model = model_,
        .replace = replace,
        .may_replace = may_replace_});
    return result;
  }

  absl::Status Open(uint64_t epoch, uint64_t session,
                    std::shared_ptr<RecordingEngine> engine) {
    absl::Status result = absl::UnknownError("no reply");
    Run(OpenSteps{epoch, session, std::move(engine),
                  [&result](absl::Status s) { result = std::move(s); },
                  may_replace_});
    return result;
  }

  std::shared_ptr<RecordingEngine> AttachAndOpen(
      const ModelLayout& layout = SmallLayout()) {
    auto engine = std::make_shared<RecordingEngine>();
    const absl::StatusOr<Attachment> attached = Attach(layout);
    EXPECT_OK(attached);
    EXPECT_OK(Open(77, attached->session, engine));
    return engine;
  }

  std::shared_ptr<RecordingTokens> OpenStream(const std::string& session) {
    auto tokens = std::make_shared<RecordingTokens>();
    Run(OpenClient{session, tokens,
                   [](const absl::Status& s) { EXPECT_OK(s); }});
    return tokens;
  }

  absl::Status Submit(const std::string& session, const std::string& id,
                      int32_t max_tokens) {
    Request request;
    request.id = id;
    request.prompt = {1, 2, 3};
    request.max_tokens = max_tokens;
    return Submit(session, std::move(request));
  }

  absl::Status Submit(const std::string& session, Request request) {
    absl::Status result = absl::UnknownError("no reply");
    Run(SubmitCommand{session, std::move(request),
                      [&result](absl::Status s) { result = std::move(s); }});
    return result;
  }

  absl::Status Cancel(const std::string& id) {
    absl::Status result = absl::UnknownError("no reply");
    Run(CancelCommand{id,
                      [&result](absl::Status s) { result = std::move(s); }});
    return result;
  }

  void Answer(const std::shared_ptr<RecordingEngine>& engine, size_t plan) {
    const StepResult result = engine->Answer(plan);
    Run(EngineResult{engine, &result});
  }

  CoreStats Stats(bool reset_peaks) {
    CoreStats result;
    Run(GetStats{reset_peaks, [&result](absl::StatusOr<CoreStats> s) {
                   result = *std::move(s);
                 }});
    return result;
  }

  double now_ = 100;
  bool may_replace_ = true;
  // The abilities and the model that engines announce when they attach.
  std::map<std::string, std::string> query_stats_;
  bool supports_window_evictions_ = false;
  std::shared_ptr<const ServedModel> model_;
  std::vector<bool> engine_changes_;
  std::string last_engine_change_;
  Core core_;
};

}  // namespace blockmgr

#endif  // TESTS_SCHEDULER_SERVER_CORE_HARNESS_H_
