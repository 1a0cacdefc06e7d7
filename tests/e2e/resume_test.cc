// What requests compute after a preemption, after a loss of blocks, over what
// others have compressed, and as forks: what they would compute anyway.

#include <algorithm>
#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include <absl/strings/str_cat.h>
#include <gtest/gtest.h>

#include "tests/e2e/jobs.h"
#include "tests/e2e/line.h"

namespace blockmgr {
namespace {

struct ResumeCase {
  std::vector<int32_t> windows;
  v1::EvictionMode mode = v1::EVICTION_MODE_NONE;
  // Of a pool in which requests are preempted.
  int32_t num_blocks = 21;
};

class ResumeTest : public ::testing::TestWithParam<ResumeCase> {
 protected:
  // Everybody is admitted who can take a step.
  static LineOptions Options(int32_t num_blocks) {
    LineOptions options{.model = SmallWindowModel(23, GetParam().windows),
                        .num_blocks = num_blocks,
                        .page_size = 16,
                        .scheduler = SmallScheduler(true, 3)};
    options.scheduler.admission = AdmissionPolicy::kMaxUtilization;
    return options;
  }
};

const std::vector<int32_t> kNoWindows = {0, 0};
INSTANTIATE_TEST_SUITE_P(
    Modes, ResumeTest,
    ::testing::Values(ResumeCase{kNoWindows},
                      ResumeCase{kNoWindows, v1::EVICTION_MODE_AFTER_PREFILL},
                      ResumeCase{kNoWindows, v1::EVICTION_MODE_EVERY_CHUNK},
                      ResumeCase{kNoWindows, v1::EVICTION_MODE_DECODE}));
INSTANTIATE_TEST_SUITE_P(
    Windows, ResumeTest,
    ::testing::Values(ResumeCase{.windows = {32, 0, 0}, .num_blocks = 44},
                      ResumeCase{.windows = {20, 0, 48, 20}, .num_blocks = 90},
                      ResumeCase{.windows = {40, 40}, .num_blocks = 18}));

// Copies to host memory fail, or that memory loses what it had: who waits for
// it is computed again, and who has had it back goes on from what is left.
TEST_P(ResumeTest, OutputsEqualThoseOfARunWhoseSwapsNeverFail) {
  std::mt19937_64 random(37);
  const std::vector<v1::SubmitRequest> requests =
      RequestsFor(RandomJobs(24, 120, 3, &random), GetParam().mode);
  const Served fresh = Serve(Options(2000), requests);
  EXPECT_EQ(fresh.stats.num_preemptions(), 0u);
  LineOptions options = Options(GetParam().num_blocks);
  options.num_host_blocks = 100;
  int32_t num_swaps = 0;
  options.host_fault = [&](const StepPlan& plan) -> std::vector<HostBlockId> {
    if (plan.swap_outs.empty() || ++num_swaps % 2 == 0) return {};
    return {plan.transfers_out.front().host};
  };
  const Served damaged = Serve(options, requests);
  EXPECT_GE(damaged.stats.num_lost_host_blocks(), 1u);  // or it shows nothing
  ExpectSameTokens(damaged.answers, fresh.answers);
}

// Blocks lose their content while steps that read them are in flight: nothing
// computed from them is believed.
TEST_P(ResumeTest, OutputsEqualThoseOfARunThatLosesNothing) {
  std::mt19937_64 random(29);
  const std::vector<v1::SubmitRequest> requests =
      RequestsFor(RandomJobs(16, 120, 3, &random), GetParam().mode);
  const Served fresh = Serve(Options(2000), requests);
  EXPECT_EQ(fresh.stats.num_lost_blocks(), 0u);
  const int32_t num_blocks = 2 * GetParam().num_blocks;
  LineOptions options = Options(num_blocks);
  int32_t num_steps = 0;
  options.fault = [&](const StepPlan&) -> std::vector<BlockId> {
    if (++num_steps % 3 != 0 || num_steps > 240) return {};
    const auto first = static_cast<int32_t>(random() % (num_blocks - 3));
    return {BlockId{1 + first}, BlockId{2 + first}, BlockId{3 + first}};
  };
  const Served damaged = Serve(options, requests);
  EXPECT_GE(damaged.stats.num_cut_requests(), 5u);  // or this shows nothing
  ExpectSameTokens(damaged.answers, fresh.answers);
}

// Prefix caching, mode of eviction, share_prefix, windows.
class ForkLineTest
    : public ::testing::TestWithParam<
          std::tuple<bool, v1::EvictionMode, bool, std::vector<int32_t>>> {
 protected:
  static constexpr int32_t kPrompt = 90;
  // Beams go on from so many outputs, in mode decode behind a compression.
  static constexpr int32_t kOutputs = 40;

  // Samples are forks of a prompt that nobody compresses, or whose compressed
  // prefix is shared; beams are forks of all whose windows have not passed.
  void ExpectForks(const std::map<std::string, Answer>& answers,
                   uint64_t num_forks) const {
    const auto& [caching, mode, shares, windows] = GetParam();
    const bool are_samples_forks = mode == v1::EVICTION_MODE_NONE || shares;
    const uint64_t num_beams = windows == kNoWindows ? 2 : 0;
    EXPECT_GE(num_forks, num_beams + (are_samples_forks ? 3 : 0));
    for (const auto& [id, answer] : answers) {
      SCOPED_TRACE(id);
      if (id == "same" || id == "other") {
        if (num_beams > 0) {
          EXPECT_EQ(answer.num_cached_tokens, kPrompt + kOutputs - 1);
        }
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
                       ::testing::Values(false),
                       ::testing::Values(kNoWindows)));

INSTANTIATE_TEST_SUITE_P(
    Windows, ForkLineTest,
    ::testing::Combine(::testing::Bool(),
                       ::testing::Values(v1::EVICTION_MODE_NONE),
                       ::testing::Values(false),
                       ::testing::Values(std::vector<int32_t>{32, 0, 0},
                                         std::vector<int32_t>{20, 0, 48, 20},
                                         std::vector<int32_t>{40, 40})));

INSTANTIATE_TEST_SUITE_P(
    SharedPrefixes, ForkLineTest,
    ::testing::Combine(::testing::Bool(),
                       ::testing::Values(v1::EVICTION_MODE_AFTER_PREFILL,
                                         v1::EVICTION_MODE_EVERY_CHUNK,
                                         v1::EVICTION_MODE_DECODE),
                       ::testing::Values(true), ::testing::Values(kNoWindows)));

// Four samples of each prompt, and two beams that go on from the middle of an
// output, one with the token that comes there anyway: they attend to what is
// left of their leader's prompt, and all logits are those of the dense model,
// which masks what the leader has evicted.
TEST_P(ForkLineTest, ForksComputeWhatTheyWouldAlone) {
  const auto& [caching, mode, shares, windows] = GetParam();
  // The leader is between kOutputs and its next compression in mode decode when
  // the beams come.
  Line line({.model = SmallWindowModel(37, windows),
             .num_blocks = 800,
             .page_size = 16,
             .scheduler = SmallScheduler(caching, 3),
             .hold_at_step = 56});
  line.Open();
  std::mt19937_64 random(37);
  const std::vector<int32_t> prompt = RandomTokens(kPrompt, &random);
  v1::SubmitRequest leader = Line::MakeRequest("leader", prompt, 120);
  if (mode != v1::EVICTION_MODE_NONE) {
    SetEviction(mode, &leader)->set_share_prefix(shares);
  }
  std::vector<v1::SubmitRequest> requests = {leader};
  for (int32_t i = 0; i < 3; ++i) {
    requests.push_back(
        Line::MakeRequest(absl::StrCat("sample", i), prompt, 40));
    requests.back().set_fork_of("leader");
  }
  line.SubmitTogether(requests);
  line.WaitForHold();
  line.WaitForTokens("leader", kOutputs);
  const std::vector<int32_t> outputs = line.TokensOf("leader");
  std::vector<v1::SubmitRequest> beams;
  for (const bool same : {true, false}) {
    std::vector<int32_t> tokens = prompt;
    tokens.insert(tokens.end(), outputs.begin(), outputs.begin() + kOutputs);
    if (!same) tokens.back() = (tokens.back() + 1) % kVocabulary;
    beams.push_back(Line::MakeRequest(same ? "same" : "other", tokens, 30));
    beams.back().set_fork_of("leader");
  }
  line.SubmitTogether(beams);
  const Served outcome = Finish(&line, 6);
  ExpectForks(outcome.answers, outcome.stats.num_forks());
  const std::vector<int32_t>& alone = outcome.answers.at("leader").tokens;
  for (const auto& [id, answer] : outcome.answers) {
    if (id == "other") continue;
    const auto begin = alone.begin() + (id == "same" ? kOutputs : 0);
    EXPECT_TRUE(std::equal(answer.tokens.begin(), answer.tokens.end(), begin))
        << id;
  }
}

}  // namespace
}  // namespace blockmgr
