// The tiny engine over real gRPC against a dense float64 model: preemption,
// prefix sharing, evictions, replays.

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/e2e/line.h"

namespace blockmgr {
namespace {

using ::testing::HasSubstr;

constexpr int32_t kVocabulary = 64;

std::shared_ptr<const TinyModel> SmallModel(uint64_t seed) {
  return std::make_shared<TinyModel>(TinyShape{.num_layers = 2,
                                               .num_q_heads = 4,
                                               .num_heads = 2,
                                               .head_dim = 16,
                                               .hidden = 64,
                                               .mlp = 128,
                                               .vocabulary = kVocabulary},
                                     seed);
}

struct Job {
  std::vector<int32_t> prompt;
  int32_t max_tokens = 0;
};

std::vector<int32_t> RandomTokens(int32_t count, std::mt19937_64* random) {
  std::vector<int32_t> tokens(count);
  for (int32_t& token : tokens) {
    token = static_cast<int32_t>((*random)() % kVocabulary);
  }
  return tokens;
}

// Prompts of 1 to `longest` tokens; with `num_prefixes`, most begin with one of
// as many common prefixes of 70 tokens.
std::vector<Job> RandomJobs(int32_t count, int32_t longest,
                            int32_t num_prefixes, std::mt19937_64* random) {
  std::vector<std::vector<int32_t>> prefixes;
  prefixes.reserve(num_prefixes);
  for (int32_t i = 0; i < num_prefixes; ++i) {
    prefixes.push_back(RandomTokens(70, random));
  }
  std::vector<Job> jobs;
  for (int32_t i = 0; i < count; ++i) {
    Job job;
    if (num_prefixes > 0 && (*random)() % 4 != 0) {
      job.prompt = prefixes[(*random)() % prefixes.size()];
    }
    const std::vector<int32_t> own = RandomTokens(
        1 + static_cast<int32_t>((*random)() % static_cast<uint64_t>(longest)),
        random);
    job.prompt.insert(job.prompt.end(), own.begin(), own.end());
    job.max_tokens = 1 + static_cast<int32_t>((*random)() % 100);
    jobs.push_back(std::move(job));
  }
  return jobs;
}

SchedulerOptions SmallScheduler(bool prefix_caching, int32_t steps_in_flight) {
  SchedulerOptions options;
  options.max_num_seqs = 12;
  options.max_num_batched_tokens = 64;
  options.max_model_len = 1024;
  options.watermark = 0.0;
  options.max_steps_in_flight = steps_in_flight;
  options.enable_prefix_caching = prefix_caching;
  return options;
}

v1::EvictionPolicy SnapKvAdaKv(int32_t window) {
  v1::EvictionPolicy policy;
  policy.mutable_snapkv()->set_window(window);
  policy.mutable_snapkv()->set_kernel(7);
  policy.mutable_adakv()->set_alpha(0.2);
  policy.mutable_topk();
  return policy;
}

// Asks a request to keep 40 % when `mode` says so.
v1::RequestEviction* SetEviction(v1::EvictionMode mode,
                                 v1::SubmitRequest* request) {
  v1::RequestEviction* eviction = request->mutable_eviction();
  eviction->set_mode(mode);
  *eviction->mutable_policy() = SnapKvAdaKv(8);
  eviction->mutable_target()->set_keep_ratio("0.4");
  return eviction;
}

class EvictionOffTest : public ::testing::TestWithParam<bool> {};

INSTANTIATE_TEST_SUITE_P(PrefixSharing, EvictionOffTest, ::testing::Bool());

TEST_P(EvictionOffTest, EqualsTheDenseModelAndItselfAloneUnderPreemption) {
  const bool shares_prefixes = GetParam();
  constexpr uint64_t kSeed = 2026;
  SCOPED_TRACE(absl::StrCat("seed ", kSeed));
  std::mt19937_64 random(kSeed);
  const std::vector<Job> jobs =
      RandomJobs(64, 90, shares_prefixes ? 3 : 0, &random);
  const LineOptions options{.model = SmallModel(kSeed),
                            .num_blocks = 21,
                            .page_size = 16,
                            .scheduler = SmallScheduler(shares_prefixes, 4)};
  Line line(options);
  line.Open();
  for (size_t i = 0; i < jobs.size(); ++i) {
    ASSERT_TRUE(
        line.Submit(Line::MakeRequest(absl::StrCat("r", i), jobs[i].prompt,
                                      jobs[i].max_tokens))
            .ok());
  }
  const std::map<std::string, Answer>& answers =
      line.WaitForAnswers(jobs.size());
  ASSERT_EQ(answers.size(), jobs.size());
  line.ExpectNothingLeaked();
  const v1::GetStatsResponse stats = line.GetStats();
  EXPECT_GE(stats.num_preemptions(), 20u);  // constant, or this shows nothing
  if (shares_prefixes) {
    EXPECT_GE(stats.num_cached_tokens(), 500u);
  }
  line.Close();
  EXPECT_GE(line.checker().num_logits_checked(),
            static_cast<int64_t>(stats.num_output_tokens()));

  for (size_t i = 0; i < jobs.size(); ++i) {
    SCOPED_TRACE(absl::StrCat("request ", i));
    const Answer& answer = answers.at(absl::StrCat("r", i));
    EXPECT_EQ(answer.reason, v1::FINISH_REASON_LENGTH);
    std::vector<int32_t> alone;
    const auto logits =
        RunAlone(options, jobs[i].prompt, jobs[i].max_tokens, &alone);
    EXPECT_EQ(answer.tokens, alone);
    const auto found = line.checker().logits().find(jobs[i].prompt);
    ASSERT_NE(found, line.checker().logits().end());
    for (const auto& [position, row] : logits) {
      // Bit for bit: vectors of floats, no tolerance.
      EXPECT_EQ(found->second.at(position), row) << "position " << position;
    }
  }
}

TEST(DefaultShapeTest, EqualsTheDenseModel) {
  std::mt19937_64 random(7);
  const auto model = std::make_shared<TinyModel>(TinyShape{}, 7);
  Line line(
      {.model = model, .num_blocks = 17, .scheduler = SmallScheduler(true, 3)});
  line.Open();
  const std::vector<Job> jobs = RandomJobs(6, 80, 0, &random);
  for (size_t i = 0; i < jobs.size(); ++i) {
    ASSERT_TRUE(
        line.Submit(Line::MakeRequest(absl::StrCat("r", i), jobs[i].prompt, 8))
            .ok());
  }
  line.WaitForAnswers(jobs.size());
  line.ExpectNothingLeaked();
  line.Close();
  EXPECT_GE(line.checker().num_logits_checked(), 48);
}

struct EvictionCase {
  const char* name;
  CompactionPreference compaction;
  int32_t steps_in_flight;
  bool streaming;
};

class EvictionOnTest : public ::testing::TestWithParam<EvictionCase> {};

INSTANTIATE_TEST_SUITE_P(
    Cases, EvictionOnTest,
    ::testing::Values(EvictionCase{"CopyOneStep",
                                   CompactionPreference::kFreshFirst, 1, false},
                      EvictionCase{"CopyFourSteps",
                                   CompactionPreference::kFreshFirst, 4, false},
                      EvictionCase{"InPlaceOneStep",
                                   CompactionPreference::kInPlace, 1, false},
                      EvictionCase{"InPlaceFourSteps",
                                   CompactionPreference::kInPlace, 4, false},
                      EvictionCase{"StreamingFourSteps",
                                   CompactionPreference::kFreshFirst, 4, true}),
    [](const auto& case_info) { return case_info.param.name; });

// Requests that evict after their prompt, in a pool so small that they are
// preempted and replayed, next to others that share their prefixes and do not
// evict. The checker holds every kept set and every logit against the dense
// model with the evicted entries masked.
TEST_P(EvictionOnTest, KeepsAndComputesWhatTheDenseModelSays) {
  std::mt19937_64 random(11);
  const std::vector<Job> jobs = RandomJobs(40, 120, 2, &random);
  SchedulerOptions scheduler = SmallScheduler(true, GetParam().steps_in_flight);
  scheduler.compaction = GetParam().compaction;
  Line line({.model = SmallModel(11),
             .num_blocks = 25,
             .page_size = 16,
             .scheduler = scheduler});
  line.Open();
  for (size_t i = 0; i < jobs.size(); ++i) {
    v1::SubmitRequest request = Line::MakeRequest(
        absl::StrCat("r", i), jobs[i].prompt, jobs[i].max_tokens);
    if (i % 4 != 3) {
      v1::RequestEviction* eviction =
          SetEviction(v1::EVICTION_MODE_AFTER_PREFILL, &request);
      if (GetParam().streaming) {
        eviction->mutable_policy()->mutable_streaming()->set_sinks(3);
        eviction->mutable_policy()->mutable_uniform();
        eviction->mutable_policy()->mutable_topk();
      }
    }
    ASSERT_TRUE(line.Submit(request).ok());
  }
  for (const auto& [id, answer] : line.WaitForAnswers(jobs.size())) {
    EXPECT_EQ(answer.reason, v1::FINISH_REASON_LENGTH) << id << answer.error;
  }
  line.ExpectNothingLeaked();
  const v1::GetStatsResponse stats = line.GetStats();
  line.Close();
  EXPECT_GE(stats.num_preemptions(), 5u);
  EXPECT_GE(stats.num_evictions(), 20u);
  EXPECT_GT(stats.evicted_blocks(), 40u);
  EXPECT_GE(line.checker().num_evictions_checked(),
            static_cast<int64_t>(stats.num_evictions()));
  EXPECT_GE(line.checker().num_replays_checked(), 1);
}

class ResumeTest : public ::testing::TestWithParam<v1::EvictionMode> {
 protected:
  // What each of the jobs outputs in a pool of this size, where everybody is
  // admitted who can take a step.
  static std::map<std::string, Answer> Serve(const std::vector<Job>& jobs,
                                             int32_t num_blocks,
                                             v1::GetStatsResponse* stats,
                                             const TinyFault& fault = {}) {
    SchedulerOptions scheduler = SmallScheduler(true, 3);
    scheduler.admission = AdmissionPolicy::kMaxUtilization;
    Line line({.model = SmallModel(23),
               .num_blocks = num_blocks,
               .page_size = 16,
               .scheduler = scheduler,
               .fault = fault});
    line.Open();
    for (size_t i = 0; i < jobs.size(); ++i) {
      v1::SubmitRequest request = Line::MakeRequest(
          absl::StrCat("r", i), jobs[i].prompt, jobs[i].max_tokens);
      if (GetParam() != v1::EVICTION_MODE_NONE) {
        v1::RequestEviction* eviction = SetEviction(GetParam(), &request);
        if (GetParam() != v1::EVICTION_MODE_AFTER_PREFILL) {
          eviction->set_compress_every(32);
        }
      }
      EXPECT_TRUE(line.Submit(request).ok());
    }
    std::map<std::string, Answer> answers = line.WaitForAnswers(jobs.size());
    line.ExpectNothingLeaked();
    *stats = line.GetStats();
    line.Close();
    return answers;
  }

  static void ExpectSameTokens(const std::map<std::string, Answer>& answers,
                               const std::map<std::string, Answer>& expected) {
    ASSERT_EQ(answers.size(), expected.size());
    for (const auto& [id, answer] : answers) {
      EXPECT_EQ(answer.reason, v1::FINISH_REASON_LENGTH) << id << answer.error;
      EXPECT_EQ(answer.tokens, expected.at(id).tokens) << id;
    }
  }
};

INSTANTIATE_TEST_SUITE_P(Modes, ResumeTest,
                         ::testing::Values(v1::EVICTION_MODE_NONE,
                                           v1::EVICTION_MODE_AFTER_PREFILL,
                                           v1::EVICTION_MODE_EVERY_CHUNK,
                                           v1::EVICTION_MODE_DECODE));

// Preempted whenever blocks are short, and replayed on whatever of its prefix
// is still cached: the outputs are those of a run that never was.
TEST_P(ResumeTest, OutputsEqualThoseOfARunThatIsNeverPreempted) {
  std::mt19937_64 random(23);
  const std::vector<Job> jobs = RandomJobs(24, 120, 3, &random);
  v1::GetStatsResponse stats;
  const auto fresh = Serve(jobs, 2000, &stats);
  EXPECT_EQ(stats.num_preemptions(), 0u);
  const auto resumed = Serve(jobs, 21, &stats);
  EXPECT_GE(stats.num_preemptions(), 3u);  // or this shows nothing
  ExpectSameTokens(resumed, fresh);
}

// Blocks lose their content while steps that read them are in flight: nothing
// computed from them is believed.
TEST_P(ResumeTest, OutputsEqualThoseOfARunThatLosesNothing) {
  std::mt19937_64 random(29);
  const std::vector<Job> jobs = RandomJobs(16, 120, 3, &random);
  v1::GetStatsResponse stats;
  const auto fresh = Serve(jobs, 200, &stats);
  EXPECT_EQ(stats.num_lost_blocks(), 0u);
  int32_t num_steps = 0;
  const TinyFault fault = [&](const StepPlan&) -> std::vector<BlockId> {
    if (++num_steps % 3 != 0 || num_steps > 240) return {};
    const auto first = static_cast<int32_t>(random() % 197);
    return {BlockId{1 + first}, BlockId{2 + first}, BlockId{3 + first}};
  };
  const auto damaged = Serve(jobs, 200, &stats, fault);
  EXPECT_GE(stats.num_cut_requests(), 10u);  // or this shows nothing
  ExpectSameTokens(damaged, fresh);
}

enum class OrderKind { kPolicy, kBudgets, kScores };

// Orders an eviction of a live request in one of the three ways.
grpc::Status Order(OrderKind kind, const std::string& id, Line* line,
                   std::mt19937_64* random, v1::EvictResponse* response) {
  v1::EvictRequest request;
  request.set_request_id(id);
  *request.mutable_policy() = SnapKvAdaKv(16);
  request.mutable_target()->set_keep_ratio("0.5");
  switch (kind) {
    case OrderKind::kPolicy:
      return line->Evict(request, response);
    case OrderKind::kBudgets:
      request.mutable_policy()->mutable_external_budgets();
      for (const int32_t budget : {16, 48, 32, 64}) request.add_budgets(budget);
      return line->Evict(request, response);
    case OrderKind::kScores:
      break;
  }
  request.mutable_policy()->mutable_external_scores();
  request.set_cut(96);
  std::vector<float> scores(size_t{4} * 96);
  for (float& score : scores) score = static_cast<float>((*random)() % 1000);
  return line->EvictByScores(request, scores, response);
}

// What was freed, kept and evicted must add up.
void ExpectAddsUp(const v1::EvictResponse& response, int64_t block_bytes) {
  EXPECT_EQ(response.freed_bytes(), response.freed_blocks() * block_bytes);
  EXPECT_EQ(response.kept_entries_size(), 4);
  int64_t kept = 0;
  for (const int32_t entries : response.kept_entries()) kept += entries;
  EXPECT_EQ(kept + response.evicted_entries(), 4 * response.cut());
}

// Orders from outside on running requests, by policy, budgets and scores, while
// decoding goes on and other requests force preemptions.
TEST(EvictionServiceTest, EvictsLiveSequencesWhileTheyDecode) {
  std::mt19937_64 random(13);
  const auto model = SmallModel(13);
  const LineOptions options{.model = model,
                            .num_blocks = 60,
                            .page_size = 16,
                            .scheduler = SmallScheduler(true, 4)};
  Line line(options);
  line.Open();
  constexpr int32_t kNumRequests = 9;
  for (int32_t i = 0; i < kNumRequests; ++i) {
    ASSERT_TRUE(
        line.Submit(Line::MakeRequest(absl::StrCat("r", i),
                                      RandomTokens(100 + 5 * i, &random), 160))
            .ok());
  }
  const int64_t block_bytes =
      MakeLayout(model->shape(), 16, DType::kFloat32, 60).block_bytes();
  int64_t num_evicted = 0;
  for (int32_t i = 0; i < 6; ++i) {
    const std::string id = absl::StrCat("r", i);
    SCOPED_TRACE(id);
    line.WaitForTokens(id, 10);
    const auto kind = static_cast<OrderKind>(i % 3);
    v1::EvictResponse response;
    const grpc::Status status = Order(kind, id, &line, &random, &response);
    // Preempted before it could be carried out: allowed, and nothing happened.
    if (status.error_code() == grpc::StatusCode::ABORTED) continue;
    ASSERT_TRUE(status.ok()) << status.error_message();
    if (response.freed_blocks() == 0) continue;  // replayed; nothing to gain
    ++num_evicted;
    ExpectAddsUp(response, block_bytes);
    if (kind == OrderKind::kBudgets) {
      EXPECT_THAT(response.kept_entries(),
                  ::testing::ElementsAre(16, 48, 32, 64));
    }
  }
  EXPECT_GE(num_evicted, 3);
  for (const auto& [id, answer] : line.WaitForAnswers(kNumRequests)) {
    EXPECT_EQ(answer.reason, v1::FINISH_REASON_LENGTH) << id;
    EXPECT_EQ(answer.tokens.size(), 160u) << id;
  }
  line.ExpectNothingLeaked();
  line.Close();
  EXPECT_GE(line.checker().num_evictions_checked(), num_evicted);
}

TEST(EvictionServiceTest, RefusesUnknownRequests) {
  std::mt19937_64 random(17);
  Line line({.model = SmallModel(17),
             .num_blocks = 8,
             .page_size = 16,
             .scheduler = SmallScheduler(true, 1)});
  line.Open();
  v1::EvictResponse response;
  const grpc::Status status =
      Order(OrderKind::kPolicy, "nobody", &line, &random, &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_THAT(status.error_message(), HasSubstr("nobody"));
}

}  // namespace
}  // namespace blockmgr
