// Speculative decoding changes how long it takes, and nothing else: a scheduler
// and a tiny engine put out the same tokens with drafts and without, and evict
// the same entries.

#include <deque>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/reference/tiny_engine.h"
#include "scheduler/scheduler.h"
#include "tests/engine/reference/engine_harness.h"
#include "tests/engine/reference/test_util.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_requests.h"

namespace blockmgr {
namespace {

struct Outcome {
  std::map<uint64_t, std::vector<int32_t>> outputs;
  // Positions kept by every eviction of every request, over all heads.
  std::map<uint64_t, std::vector<std::vector<int32_t>>> kept;
  SchedulerStats stats;
  size_t commanded_at = 0;  // outputs by then
};

struct Setting {
  int32_t num_speculative_tokens = 0;
  int32_t max_steps_in_flight = 1;
  DType dtype = DType::kFloat32;
  // Evicts the first request once it has so many outputs, where drafts run
  // right after some were rejected; 0: never.
  size_t command_after = 0;
};

RequestEviction Evicting(const std::string& policy, EvictionMode mode) {
  RequestEviction eviction = Recency(16, mode, 16);
  const absl::StatusOr<EvictionPolicy> parsed = ParsePolicy(policy);
  EXPECT_OK(parsed);
  eviction.policy = *parsed;
  return eviction;
}

// Serves all requests to their ends.
Outcome Serve(const Setting& setting, const std::vector<Request>& requests) {
  const auto model = SmallModel(7);
  const ModelLayout layout = MakeLayout(model->shape(), 8, setting.dtype, 160);
  absl::StatusOr<std::vector<std::unique_ptr<Backend>>> backends =
      CreateCpuShards(layout);
  EXPECT_OK(backends);
  for (const auto& backend : *backends) backend->Poison();
  // One more than the scheduler takes on.
  const int32_t max_drafts = setting.num_speculative_tokens == 0
                                 ? 0
                                 : setting.num_speculative_tokens + 1;
  TinyEngine engine(model, layout, *std::move(backends),
                    {.max_sequences = 8, .max_drafts = max_drafts});
  SchedulerOptions options = PlainOptions();
  options.num_speculative_tokens = setting.num_speculative_tokens;
  options.max_steps_in_flight = setting.max_steps_in_flight;
  options.enable_prefix_caching = true;
  options.query_window = 8;
  options.engine.num_scorer_states = 8;
  const std::unique_ptr<Scheduler> scheduler =
      *Scheduler::Create(layout, options);
  Outcome run;
  engine.set_observer({.on_eviction = [&](const EvictionOrder& order,
                                          int32_t /*shard*/,
                                          const ScoredEntries& scored,
                                          const KeepSets& keep) {
    std::vector<int32_t>& kept =
        run.kept[Index(engine.tables().row(order.slot).request)].emplace_back();
    for (size_t head = 0; head + 1 < keep.offsets.size(); ++head) {
      const auto own = KeptPositions(scored.candidates, keep, head);
      kept.insert(kept.end(), own.begin(), own.end());
    }
  }});
  for (const Request& request : requests) {
    EXPECT_OK(scheduler->Submit(request));
  }
  std::deque<StepResult> answers;
  Effects effects;
  StepPlan plan;
  uint64_t num_rejected = 0;
  while (scheduler->has_unfinished_requests()) {
    while (scheduler->Schedule(&plan)) {
      EXPECT_OK(engine.Run(plan, &answers.emplace_back()));
    }
    EXPECT_OK(scheduler->Update(answers.front(), &effects));
    answers.pop_front();
    scheduler->CheckInvariants();
    const SchedulerStats stats = scheduler->stats();
    const uint64_t rejected_before = num_rejected;
    num_rejected = stats.num_draft_tokens - stats.num_accepted_tokens;
    if (setting.command_after == 0 || run.commanded_at > 0 ||
        effects.tokens.size() < setting.command_after ||
        (max_drafts > 0 && num_rejected < rejected_before + 3)) {
      continue;
    }
    run.commanded_at = effects.tokens.size();
    EvictionCommand command = RecencyCommand(8);
    command.policy = Evicting("snapkv(window=8) | adakv", {}).policy;
    EXPECT_OK(scheduler->Evict(RequestId{1}, command));
  }
  for (const TokenEffect& effect : effects.tokens) {
    run.outputs[Index(effect.request)].push_back(effect.token);
  }
  run.stats = scheduler->stats();
  return run;
}

// Two prompts, and one that goes on from the first's, whose beginning is found
// in the cache.
std::vector<Request> Requests(const RequestEviction& eviction) {
  std::mt19937_64 random(3);
  std::vector<Request> requests;
  for (int32_t i = 0; i < 3; ++i) {
    Request request;
    request.id = absl::StrCat(i);
    request.prompt = RandomTokens(30 + 9 * i, 64, &random);
    if (i == 2) {
      std::copy(requests[0].prompt.begin(), requests[0].prompt.end(),
                request.prompt.begin());
    }
    request.max_tokens = 70;
    request.eviction = eviction;
    requests.push_back(request);
  }
  requests[1].stop_token_ids = {5};
  return requests;
}

void ExpectTheSame(const RequestEviction& eviction, bool expects_evictions) {
  for (const DType dtype :
       {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    const std::vector<Request> requests = Requests(eviction);
    const Outcome plain = Serve({.dtype = dtype}, requests);
    EXPECT_EQ(plain.stats.num_draft_tokens, 0u);
    EXPECT_EQ(!plain.kept.empty(), expects_evictions);
    for (const int32_t num_speculative_tokens : {1, 4, 9}) {
      for (const int32_t max_steps_in_flight : {1, 3}) {
        SCOPED_TRACE(absl::StrCat(num_speculative_tokens, " drafts, ",
                                  max_steps_in_flight, " in flight"));
        const Outcome run =
            Serve({.num_speculative_tokens = num_speculative_tokens,
                   .max_steps_in_flight = max_steps_in_flight,
                   .dtype = dtype},
                  requests);
        EXPECT_EQ(run.outputs, plain.outputs);
        EXPECT_EQ(run.kept, plain.kept);
        EXPECT_GT(run.stats.num_accepted_tokens, 0u);
        EXPECT_GT(run.stats.num_draft_tokens, run.stats.num_accepted_tokens);
      }
    }
  }
}

TEST(TinyDraftsTest, OutputsAreTheSameWithoutEviction) {
  ExpectTheSame({}, false);
}

TEST(TinyDraftsTest, OutputsAreTheSameAfterAnEviction) {
  ExpectTheSame(
      Evicting("snapkv(window=8) | adakv", EvictionMode::kAfterPrefill), true);
}

// Windows of queries before every length at which the sequence is compressed.
TEST(TinyDraftsTest, OutputsAreTheSameThroughEvictionsInDecode) {
  ExpectTheSame(Evicting("snapkv(window=8) | uniform", EvictionMode::kDecode),
                true);
  ExpectTheSame(Evicting("tova | uniform", EvictionMode::kDecode), true);
}

// An order that nobody foresaw, right after drafts that went further.
TEST(TinyDraftsTest, ACommandReadsTheQueriesOfTokensThatCount) {
  std::mt19937_64 random(5);
  for (int32_t i = 0; i < 8; ++i) {
    Request request;
    request.id = "r";
    request.prompt = RandomTokens(40, 64, &random);
    request.max_tokens = 90;
    const Outcome run =
        Serve({.num_speculative_tokens = 7, .command_after = 8}, {request});
    ASSERT_GT(run.commanded_at, 0u);
    const Outcome plain = Serve({.command_after = run.commanded_at}, {request});
    EXPECT_EQ(plain.commanded_at, run.commanded_at);
    EXPECT_EQ(run.kept.size(), 1u);
    EXPECT_EQ(run.kept, plain.kept);
    EXPECT_EQ(run.outputs, plain.outputs);
  }
}

TEST(TinyDraftsTest, WhoAccumulatesScoresHasNone) {
  const std::vector<Request> requests =
      Requests(Evicting("h2o | uniform", EvictionMode::kDecode));
  const Outcome plain = Serve({}, requests);
  const Outcome run = Serve({.num_speculative_tokens = 4}, requests);
  EXPECT_EQ(run.outputs, plain.outputs);
  EXPECT_EQ(run.kept, plain.kept);
  EXPECT_EQ(run.stats.num_draft_tokens, 0u);
}

}  // namespace
}  // namespace blockmgr
