// The tiny engine over real gRPC against a dense float64 model: preemption,
// prefix sharing, evictions, replays.

#include <cstdint>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/e2e/jobs.h"
#include "tests/e2e/line.h"

namespace blockmgr {
namespace {

using ::testing::HasSubstr;

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
  const Served served = Serve(options, RequestsFor(jobs));
  // Constant, or this shows nothing.
  EXPECT_GE(served.stats.num_preemptions(), 20u);
  if (shares_prefixes) {
    EXPECT_GE(served.stats.num_cached_tokens(), 500u);
  }
  ExpectAsAlone(options, jobs, served);
}

TEST(DefaultShapeTest, EqualsTheDenseModel) {
  std::mt19937_64 random(7);
  std::vector<Job> jobs = RandomJobs(6, 80, 0, &random);
  for (Job& job : jobs) job.max_tokens = 8;
  const Served served = Serve({.model = RandomModel(ModelShape{}, 7),
                               .num_blocks = 17,
                               .scheduler = SmallScheduler(true, 3)},
                              RequestsFor(jobs));
  EXPECT_GE(served.checked.logits, 48);
}

// A prompt that no pool of this size ever holds is told so at once, and nobody
// else is the worse for it.
TEST(DefaultShapeTest, RefusesWhatCanNeverFit) {
  const auto model = RandomModel(ModelShape{}, 7);
  Line line(
      {.model = model, .num_blocks = 5, .scheduler = SmallScheduler(true, 2)});
  line.Open();
  const auto page_size =
      static_cast<size_t>(line.GetStats().layout().page_size());
  const std::vector<int32_t> too_long(5 * page_size, 3);
  const grpc::Status refused =
      line.Submit(Line::MakeRequest("long", too_long, 8));
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(refused.error_message(), HasSubstr("can never fit"));
  EXPECT_EQ(line.GetStats().num_waiting() + line.GetStats().num_running(), 0);
  ASSERT_TRUE(line.Submit(Line::MakeRequest("r", {1, 2, 3}, 4)).ok());
  Finish(&line, 1);
}

// What a frontend wishes to be kept outlives younger prefixes.
TEST(RetentionLineTest, AWishOutlivesYoungerPrefixes) {
  constexpr uint64_t kSeed = 5;
  SCOPED_TRACE(absl::StrCat("seed ", kSeed));
  std::mt19937_64 random(kSeed);
  Line line({.model = SmallModel(kSeed),
             .num_blocks = 13,
             .scheduler = SmallScheduler(true, 1)});
  line.Open();
  const std::vector<int32_t> kept = RandomTokens(50, &random);
  const std::vector<int32_t> left = RandomTokens(50, &random);
  size_t num_requests = 0;
  const auto serve = [&](const std::vector<int32_t>& prompt, int32_t priority) {
    const std::string id = absl::StrCat("r", num_requests++);
    v1::SubmitRequest request = Line::MakeRequest(id, prompt, 1);
    v1::RetentionWish* wish = request.add_retention();
    wish->set_end(32);
    wish->set_priority(priority);
    EXPECT_TRUE(line.Submit(request).ok());
    return line.WaitForAnswers(num_requests).at(id).num_cached_tokens;
  };
  serve(kept, 80);
  serve(left, kDefaultPriority);
  for (int32_t i = 0; i < 6; ++i) {
    serve(RandomTokens(50, &random), kDefaultPriority);
  }
  // Two pages of 16 were wished for; of others a few rows may be equal.
  EXPECT_EQ(serve(kept, 80) / 16, 2);
  EXPECT_EQ(serve(left, kDefaultPriority) / 16, 0);
  line.ExpectNothingLeaked();
  line.Close();
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
  std::vector<v1::SubmitRequest> requests = RequestsFor(jobs);
  for (size_t i = 0; i < jobs.size(); ++i) {
    if (i % 4 == 3) continue;
    v1::RequestEviction* eviction =
        SetEviction(v1::EVICTION_MODE_AFTER_PREFILL, &requests[i]);
    if (GetParam().streaming) {
      eviction->mutable_policy()->mutable_streaming()->set_sinks(3);
      eviction->mutable_policy()->mutable_uniform();
      eviction->mutable_policy()->mutable_topk();
    }
  }
  const Served served = Serve({.model = SmallModel(11),
                               .num_blocks = 25,
                               .page_size = 16,
                               .scheduler = scheduler},
                              requests);
  EXPECT_GE(served.stats.num_preemptions(), 5u);
  EXPECT_GE(served.stats.num_evictions(), 20u);
  EXPECT_GT(served.stats.evicted_blocks(), 40u);
  EXPECT_GE(served.checked.replays, 1);
}

enum class OrderKind { kPolicy, kBudgets, kScores };

// A head that keeps nothing has only its tail left.
constexpr int32_t kBudgets[] = {0, 47, 32, 64};

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
      request.mutable_policy()->set_rounding(
          v1::EvictionPolicy::ROUNDING_TOKEN);
      request.mutable_budgets()->Assign(std::begin(kBudgets),
                                        std::end(kBudgets));
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
  std::vector<v1::SubmitRequest> requests;
  requests.reserve(kNumRequests);
  for (int32_t i = 0; i < kNumRequests; ++i) {
    requests.push_back(Line::MakeRequest(
        absl::StrCat("r", i), RandomTokens(100 + 5 * i, &random), 160));
  }
  line.SubmitTogether(requests);
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
                  ::testing::ElementsAreArray(kBudgets));
    }
  }
  EXPECT_GE(num_evicted, 3);
  const Served served = Finish(&line, kNumRequests);
  for (const auto& [id, answer] : served.answers) {
    EXPECT_EQ(answer.tokens.size(), 160u) << id;
  }
  EXPECT_GE(served.checked.evictions, num_evicted);
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
