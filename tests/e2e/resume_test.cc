// What requests compute after a preemption, after a loss of blocks, over what
// others have compressed, and as forks: what they would compute anyway.

#include <cstdint>
#include <random>
#include <tuple>
#include <vector>

#include <absl/strings/str_cat.h>
#include <gtest/gtest.h>

#include "tests/e2e/jobs.h"
#include "tests/e2e/line.h"

namespace blockmgr {
namespace {

class ResumeTest : public ::testing::TestWithParam<v1::EvictionMode> {
 protected:
  // Everybody is admitted who can take a step.
  static LineOptions Options(int32_t num_blocks, int32_t num_host_blocks = 0) {
    LineOptions options{.model = SmallModel(23),
                        .num_blocks = num_blocks,
                        .page_size = 16,
                        .scheduler = SmallScheduler(true, 3),
                        .num_host_blocks = num_host_blocks};
    options.scheduler.admission = AdmissionPolicy::kMaxUtilization;
    return options;
  }
};

INSTANTIATE_TEST_SUITE_P(Modes, ResumeTest,
                         ::testing::Values(v1::EVICTION_MODE_NONE,
                                           v1::EVICTION_MODE_AFTER_PREFILL,
                                           v1::EVICTION_MODE_EVERY_CHUNK,
                                           v1::EVICTION_MODE_DECODE));

// Preempted whenever blocks are short, with their KV in host memory meanwhile,
// as far as there is room: for all of them, and for a few. Those that are
// computed again are RandomPreemptionsTest's.
TEST_P(ResumeTest, OutputsEqualThoseOfARunThatIsNeverSwapped) {
  std::mt19937_64 random(31);
  const std::vector<v1::SubmitRequest> requests =
      RequestsFor(RandomJobs(24, 120, 3, &random), GetParam());
  const Served fresh = Serve(Options(2000), requests);
  EXPECT_EQ(fresh.stats.num_preemptions(), 0u);
  for (const int32_t num_host_blocks : {100, 9}) {
    const Served resumed = Serve(Options(21, num_host_blocks), requests);
    EXPECT_GE(resumed.stats.num_swap_ins(), num_host_blocks > 9 ? 3u : 1u);
    EXPECT_EQ(resumed.stats.host_blocks(), num_host_blocks);
    EXPECT_EQ(resumed.stats.used_host_blocks(), 0);
    ExpectSameTokens(resumed.answers, fresh.answers);
  }
}

// Copies to host memory fail, or that memory loses what it had: who waits for
// it is computed again, and who has had it back goes on from what is left.
TEST_P(ResumeTest, OutputsEqualThoseOfARunWhoseSwapsNeverFail) {
  std::mt19937_64 random(37);
  const std::vector<v1::SubmitRequest> requests =
      RequestsFor(RandomJobs(24, 120, 3, &random), GetParam());
  const Served fresh = Serve(Options(2000), requests);
  int32_t num_swaps = 0;
  LineOptions options = Options(21, 100);
  options.host_fault = [&](const StepPlan& plan) -> std::vector<HostBlockId> {
    if (plan.swap_outs.empty() || ++num_swaps % 2 == 0) return {};
    return {plan.transfers_out.front().host};
  };
  const Served damaged = Serve(options, requests);
  EXPECT_GE(damaged.stats.num_lost_host_blocks(), 2u);  // or this shows nothing
  ExpectSameTokens(damaged.answers, fresh.answers);
}

// Blocks lose their content while steps that read them are in flight: nothing
// computed from them is believed.
TEST_P(ResumeTest, OutputsEqualThoseOfARunThatLosesNothing) {
  std::mt19937_64 random(29);
  const std::vector<v1::SubmitRequest> requests =
      RequestsFor(RandomJobs(16, 120, 3, &random), GetParam());
  const Served fresh = Serve(Options(200), requests);
  EXPECT_EQ(fresh.stats.num_lost_blocks(), 0u);
  int32_t num_steps = 0;
  LineOptions options = Options(200);
  options.fault = [&](const StepPlan&) -> std::vector<BlockId> {
    if (++num_steps % 3 != 0 || num_steps > 240) return {};
    const auto first = static_cast<int32_t>(random() % 197);
    return {BlockId{1 + first}, BlockId{2 + first}, BlockId{3 + first}};
  };
  const Served damaged = Serve(options, requests);
  EXPECT_GE(damaged.stats.num_cut_requests(), 10u);  // or this shows nothing
  ExpectSameTokens(damaged.answers, fresh.answers);
}

class SharedRegionLineTest : public ::testing::TestWithParam<v1::EvictionMode> {
};

INSTANTIATE_TEST_SUITE_P(Modes, SharedRegionLineTest,
                         ::testing::Values(v1::EVICTION_MODE_AFTER_PREFILL,
                                           v1::EVICTION_MODE_EVERY_CHUNK,
                                           v1::EVICTION_MODE_DECODE));

// What a request computes over a compressed prefix that another has left, and
// computes again after a preemption, is what the dense model computes with all
// that made the prefix masked.
TEST_P(SharedRegionLineTest, ComputesWhatTheDenseModelSays) {
  LineOptions options{.model = SmallModel(41),
                      .num_blocks = 26,
                      .page_size = 16,
                      .scheduler = SmallScheduler(true, 3)};
  options.scheduler.admission = AdmissionPolicy::kMaxUtilization;
  std::mt19937_64 random(41);
  const std::vector<int32_t> prefix = RandomTokens(80, &random);
  std::vector<v1::SubmitRequest> requests;
  for (int32_t i = 0; i < 24; ++i) {
    std::vector<int32_t> prompt = prefix;
    const std::vector<int32_t> own =
        RandomTokens(static_cast<int32_t>(1 + random() % 40), &random);
    prompt.insert(prompt.end(), own.begin(), own.end());
    const auto max_tokens = static_cast<int32_t>(1 + random() % 80);
    v1::SubmitRequest request =
        Line::MakeRequest(absl::StrCat("r", i), prompt, max_tokens);
    v1::RequestEviction* eviction = SetEviction(GetParam(), &request);
    eviction->set_share_prefix(true);
    eviction->set_compress_every(32);
    requests.push_back(request);
  }
  const v1::GetStatsResponse stats = Serve(options, requests).stats;
  EXPECT_GE(stats.num_cached_region_tokens(), 100u);  // or this shows nothing
  EXPECT_GE(stats.num_preemptions(), 2u);
}

// Prefix caching, mode of eviction, share_prefix.
class ForkLineTest : public ::testing::TestWithParam<
                         std::tuple<bool, v1::EvictionMode, bool>> {
 protected:
  static constexpr int32_t kPrompt = 90;
  // Beams go on from so many outputs, in mode decode behind a compression.
  static constexpr int32_t kOutputs = 40;

  // Samples are forks of a prompt that nobody compresses, or whose compressed
  // prefix is shared; beams are forks of all.
  static void ExpectForks(const Served& served) {
    const auto [caching, mode, shares] = GetParam();
    const bool are_samples_forks = mode == v1::EVICTION_MODE_NONE || shares;
    EXPECT_GE(served.stats.num_forks(), are_samples_forks ? 5u : 2u);
    for (const auto& [id, answer] : served.answers) {
      SCOPED_TRACE(id);
      if (id == "same" || id == "other") {
        EXPECT_EQ(answer.num_cached_tokens, kPrompt + kOutputs - 1);
      } else if (id != "leader" && are_samples_forks) {
        // What is compressed ends at the last whole page; a page is not waited
        // for.
        EXPECT_GE(answer.num_cached_tokens, shares ? 80 : kPrompt - 1 - 16);
      }
    }
  }
};

INSTANTIATE_TEST_SUITE_P(
    CachingAndModes, ForkLineTest,
    ::testing::Combine(::testing::Bool(),
                       ::testing::Values(v1::EVICTION_MODE_NONE,
                                         v1::EVICTION_MODE_AFTER_PREFILL,
                                         v1::EVICTION_MODE_EVERY_CHUNK,
                                         v1::EVICTION_MODE_DECODE),
                       ::testing::Values(false)));

INSTANTIATE_TEST_SUITE_P(
    SharedPrefixes, ForkLineTest,
    ::testing::Combine(::testing::Bool(),
                       ::testing::Values(v1::EVICTION_MODE_AFTER_PREFILL,
                                         v1::EVICTION_MODE_EVERY_CHUNK,
                                         v1::EVICTION_MODE_DECODE),
                       ::testing::Values(true)));

// Four samples of each prompt, and two beams that go on from the middle of an
// output, one with the token that comes there anyway: they attend to what is
// left of their leader's prompt, and all logits are those of the dense model,
// which masks what the leader has evicted.
TEST_P(ForkLineTest, ForksComputeWhatTheyWouldAlone) {
  const auto [caching, mode, shares] = GetParam();
  // The leader is between kOutputs and its next compression in mode decode when
  // the beams come.
  const LineOptions options{.model = SmallModel(37),
                            .num_blocks = 400,
                            .page_size = 16,
                            .scheduler = SmallScheduler(caching, 3),
                            .hold_at_step = 56};
  std::mt19937_64 random(37);
  v1::SubmitRequest leader =
      Line::MakeRequest("leader", RandomTokens(kPrompt, &random), 120);
  if (mode != v1::EVICTION_MODE_NONE) {
    v1::RequestEviction* eviction = SetEviction(mode, &leader);
    eviction->set_compress_every(32);
    eviction->set_share_prefix(shares);
  }
  ExpectForks(ServeForks(options, leader, kOutputs));
}

}  // namespace
}  // namespace blockmgr
