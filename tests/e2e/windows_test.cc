// Models with sliding windows over real gRPC: whatever falls out of windows, is
// shared, preempted, swapped, lost and evicted meanwhile, every logit is the
// dense model's and every output the one of a request alone.

#include <cstdint>
#include <ostream>
#include <random>
#include <string>
#include <vector>

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/e2e/jobs.h"
#include "tests/e2e/line.h"
#include "tests/testing/case_count.h"
#include "tests/testing/test_tables.h"
#include "wire/policy_wire.h"

namespace blockmgr {
namespace {

using ::testing::HasSubstr;

struct WindowCase {
  const char* name;
  std::vector<int32_t> windows;
  // Of a pool in which requests are preempted.
  int32_t num_blocks;
  friend void PrintTo(const WindowCase& windows, std::ostream* out) {
    *out << windows.name;
  }
};

// One window group, padded; groups of two windows, more than the other layers
// fill; no other layers.
const WindowCase kOneWindow = {"OneWindow", {32, 0, 0}, 44};
const WindowCase kTwoWindows = {"TwoWindows", {20, 0, 48, 20}, 90};
const WindowCase kAllWindows = {"AllWindows", {40, 40}, 18};

constexpr int32_t kAmpleBlocks = 4000;

class WindowsLineTest : public ::testing::TestWithParam<WindowCase> {
 protected:
  LineOptions Options(uint64_t seed, int32_t num_blocks) const {
    LineOptions options{.model = SmallWindowModel(seed, GetParam().windows),
                        .num_blocks = num_blocks,
                        .page_size = 16,
                        .scheduler = SmallScheduler(true, 3)};
    options.scheduler.admission = AdmissionPolicy::kMaxUtilization;
    const ModelShape& shape = options.model->shape();
    options.query_stats = MeasuredQueryStats(
        shape.num_layers, shape.num_q_heads, shape.head_dim, 1);
    return options;
  }
};

std::string NameOfCase(const ::testing::TestParamInfo<WindowCase>& info) {
  return info.param.name;
}

INSTANTIATE_TEST_SUITE_P(Models, WindowsLineTest,
                         ::testing::Values(kOneWindow, kTwoWindows,
                                           kAllWindows),
                         NameOfCase);

TEST_P(WindowsLineTest, EqualsTheDenseModelAndItselfAloneUnderPreemption) {
  for (const bool caching : {false, true}) {
    SCOPED_TRACE(caching);
    std::mt19937_64 random(61);
    const std::vector<Job> jobs = RandomJobs(32, 90, caching ? 2 : 0, &random);
    LineOptions options = Options(61, GetParam().num_blocks);
    options.scheduler = SmallScheduler(caching, 3);
    options.scheduler.admission = AdmissionPolicy::kMaxUtilization;
    const Served outcome = Serve(options, RequestsFor(jobs));
    EXPECT_GE(outcome.stats.num_preemptions(), 1u);  // or this shows nothing
    EXPECT_GE(outcome.stats.num_cached_tokens(), caching ? 32u : 0u);
    ExpectAsAlone(options, jobs, outcome);
  }
}

TEST_P(WindowsLineTest, OutputsEqualThoseOfARunThatIsNeverSwapped) {
  std::mt19937_64 random(62);
  const std::vector<v1::SubmitRequest> requests =
      RequestsFor(RandomJobs(40, 120, 3, &random));
  const Served fresh = Serve(Options(62, kAmpleBlocks), requests);
  EXPECT_EQ(fresh.stats.num_preemptions(), 0u);
  for (const int32_t num_host_blocks : {200, 15}) {
    SCOPED_TRACE(num_host_blocks);
    LineOptions options = Options(62, GetParam().num_blocks);
    options.num_host_blocks = num_host_blocks;
    const Served resumed = Serve(options, requests);
    if (num_host_blocks > 15) {
      EXPECT_GE(resumed.stats.num_swap_ins(), 2u);
    }
    EXPECT_EQ(resumed.stats.used_host_blocks(), 0);
    ExpectSameTokens(resumed.answers, fresh.answers);
  }
}

TEST_P(WindowsLineTest, DraftsChangeNoOutput) {
  std::mt19937_64 random(63);
  const std::vector<Job> jobs = RandomJobs(16, 60, 3, &random);
  LineOptions options = Options(63, GetParam().num_blocks);
  options.scheduler.num_speculative_tokens = 4;
  options.max_drafts = 6;
  const Served outcome = Serve(options, RequestsFor(jobs));
  EXPECT_GT(outcome.stats.num_accepted_tokens(), 20u);
  EXPECT_GT(outcome.stats.num_draft_tokens(),
            outcome.stats.num_accepted_tokens() + 20);
  options.max_drafts = 0;
  ExpectAsAlone(options, jobs, outcome);
}

// Blocks lose their content while steps that read them are in flight.
TEST_P(WindowsLineTest, OutputsEqualThoseOfARunThatLosesNothing) {
  std::mt19937_64 random(64);
  const std::vector<v1::SubmitRequest> requests =
      RequestsFor(RandomJobs(12, 120, 3, &random));
  const Served fresh = Serve(Options(64, kAmpleBlocks), requests);
  const int32_t num_blocks = 2 * GetParam().num_blocks;
  LineOptions options = Options(64, num_blocks);
  int32_t num_steps = 0;
  options.fault = [&](const StepPlan&) -> std::vector<BlockId> {
    if (++num_steps % 3 != 0 || num_steps > 240) return {};
    const auto first = static_cast<int32_t>(random() % (num_blocks - 3));
    return {BlockId{1 + first}, BlockId{2 + first}, BlockId{3 + first}};
  };
  const Served damaged = Serve(options, requests);
  EXPECT_GE(damaged.stats.num_cut_requests(), 3u);  // or this shows nothing
  ExpectSameTokens(damaged.answers, fresh.answers);
}

// Samples of a prompt, and beams that go on from the middle of an output.
TEST_P(WindowsLineTest, ForksComputeWhatTheyWouldAlone) {
  for (const bool caching : {false, true}) {
    SCOPED_TRACE(caching);
    LineOptions options = Options(65, 800);
    options.scheduler = SmallScheduler(caching, 3);
    options.hold_at_step = 60;  // The leader has 50 tokens, and not all.
    std::mt19937_64 random(65);
    const Served served = ServeForks(
        options, Line::MakeRequest("leader", RandomTokens(90, &random), 120),
        50);
    EXPECT_GE(served.stats.num_forks(), 3u);
  }
}

class HybridLineTest : public WindowsLineTest {};

// One window is left to nightly tests where two show the same.
INSTANTIATE_TEST_SUITE_P(Models, HybridLineTest,
                         ::testing::ValuesIn(kBrief ? std::vector{kTwoWindows}
                                                    : std::vector{kOneWindow,
                                                                  kTwoWindows}),
                         NameOfCase);

// Evictions from windows, too, as a target may ask; those from the other layers
// alone are RandomPreemptionsTest's.
TEST_P(HybridLineTest, RegionsInWindowsComputeWhatTheDenseModelDoes) {
  for (const v1::EvictionMode mode :
       {v1::EVICTION_MODE_AFTER_PREFILL, v1::EVICTION_MODE_EVERY_CHUNK,
        v1::EVICTION_MODE_DECODE}) {
    SCOPED_TRACE(v1::EvictionMode_Name(mode));
    std::mt19937_64 random(68);
    std::vector<v1::SubmitRequest> requests =
        RequestsFor(RandomJobs(40, 120, 3, &random), mode);
    for (size_t i = 0; i < requests.size(); ++i) {
      v1::RequestEviction& eviction = *requests[i].mutable_eviction();
      eviction.mutable_target()->set_window_keep_ratio("0.3");
      if (i % 2 == 0) continue;
      ToProto(*ParsePolicy("expected_attention(n_future=32,stats=measured) "
                           "| adakv"),
              eviction.mutable_policy());
    }
    const Served fresh = Serve(Options(68, kAmpleBlocks), requests);
    EXPECT_GE(fresh.stats.num_evictions(), 10u);
    EXPECT_GE(fresh.checked.window_evictions, 10);
    EXPECT_EQ(fresh.stats.num_preemptions(), 0u);
    for (const int32_t num_host_blocks : {0, 100}) {
      // Every mode with one of them, and with both in nightly tests.
      const bool decodes = mode == v1::EVICTION_MODE_DECODE;
      if (kBrief && decodes == (num_host_blocks == 0)) continue;
      LineOptions options = Options(68, GetParam().num_blocks);
      options.num_host_blocks = num_host_blocks;
      const Served resumed = Serve(options, requests);
      EXPECT_GE(resumed.stats.num_preemptions(), 1u);
      EXPECT_EQ(resumed.stats.num_swap_ins() > 0, num_host_blocks > 0);
      ExpectSameTokens(resumed.answers, fresh.answers);
    }
  }
}

// What is left of prompts is shared, that of windows with the rest. A page
// after the cut is whole, so the windows are wide enough to gain by that.
const WindowCase kOneWide = {"OneWideWindow", {64, 0, 0}, 44};
const WindowCase kTwoWide = {"TwoWideWindows", {44, 0, 76, 44}, 90};

class SharedWindowsLineTest : public WindowsLineTest {
 protected:
  static constexpr int32_t kPrefix = 80;
  static constexpr int32_t kRequests = 24;

  // Requests that begin with one of two prefixes, compressed at the last
  // multiple of so many tokens; 0: of page_size.
  static std::vector<v1::SubmitRequest> Sharers(v1::EvictionMode mode,
                                                int32_t share_multiple,
                                                std::mt19937_64* random) {
    const std::vector<int32_t> prefixes[] = {RandomTokens(kPrefix, random),
                                             RandomTokens(kPrefix, random)};
    std::vector<v1::SubmitRequest> requests;
    for (int32_t i = 0; i < kRequests; ++i) {
      std::vector<int32_t> prompt = prefixes[i % 2];
      const auto num_own = static_cast<int32_t>(1 + (*random)() % 60);
      const std::vector<int32_t> own = RandomTokens(num_own, random);
      prompt.insert(prompt.end(), own.begin(), own.end());
      requests.push_back(
          Line::MakeRequest(absl::StrCat("r", i), prompt,
                            static_cast<int32_t>(1 + (*random)() % 50)));
      v1::RequestEviction* eviction = SetEviction(mode, &requests.back());
      // As many, however long the prompt.
      eviction->mutable_target()->set_tokens_per_head(32);
      eviction->mutable_target()->set_window_keep_ratio("0.5");
      eviction->set_share_prefix(true);
      eviction->set_share_multiple(share_multiple);
    }
    return requests;
  }

  // Or what the outcome shows is little.
  static void ExpectShared(const Served& outcome) {
    EXPECT_GE(outcome.stats.num_cached_region_tokens(), 100u);
    EXPECT_GE(outcome.checked.window_evictions, 2);
    EXPECT_GE(outcome.checked.window_regions_taken, 4);
  }
};

INSTANTIATE_TEST_SUITE_P(Models, SharedWindowsLineTest,
                         ::testing::ValuesIn(kBrief ? std::vector{kTwoWide}
                                                    : std::vector{kOneWide,
                                                                  kTwoWide}),
                         NameOfCase);

// Prompts that are compressed wherever they end: what a request computes
// depends on whose prefix it finds, and is what the dense model computes with
// all that made that masked.
TEST_P(SharedWindowsLineTest, ComputesWhatTheDenseModelDoes) {
  for (const v1::EvictionMode mode :
       {v1::EVICTION_MODE_AFTER_PREFILL, v1::EVICTION_MODE_EVERY_CHUNK,
        v1::EVICTION_MODE_DECODE}) {
    SCOPED_TRACE(v1::EvictionMode_Name(mode));
    std::mt19937_64 random(69);
    const std::vector<v1::SubmitRequest> requests = Sharers(mode, 0, &random);
    LineOptions options = Options(69, GetParam().num_blocks);
    options.num_host_blocks = 100;
    const Served outcome = Serve(options, requests);
    ExpectShared(outcome);
    EXPECT_GE(outcome.stats.num_swap_ins(), 1u);
  }
}

// Prompts that are compressed where their prefixes end: it does not matter
// whether one finds what another has left, nor when.
TEST_P(SharedWindowsLineTest, OutputsEqualThoseOfRequestsThatShareNothing) {
  for (const v1::EvictionMode mode :
       {v1::EVICTION_MODE_AFTER_PREFILL, v1::EVICTION_MODE_EVERY_CHUNK,
        v1::EVICTION_MODE_DECODE}) {
    SCOPED_TRACE(v1::EvictionMode_Name(mode));
    std::mt19937_64 random(70);
    const std::vector<v1::SubmitRequest> requests =
        Sharers(mode, kPrefix, &random);
    LineOptions options = Options(70, kAmpleBlocks);
    options.scheduler = SmallScheduler(false, 3);
    const Served fresh = Serve(options, requests);
    EXPECT_EQ(fresh.stats.num_cached_tokens(), 0u);
    EXPECT_EQ(fresh.checked.window_regions_taken, 0);
    for (const int32_t num_blocks : {kAmpleBlocks, GetParam().num_blocks}) {
      const Served shared = Serve(Options(70, num_blocks), requests);
      ExpectShared(shared);
      EXPECT_EQ(shared.stats.num_preemptions() > 0, num_blocks < kAmpleBlocks);
      ExpectSameTokens(shared.answers, fresh.answers);
    }
  }
}

TEST(AllWindowsTest, RefusesToEvict) {
  Line line({.model = SmallWindowModel(67, kAllWindows.windows),
             .num_blocks = 40,
             .scheduler = SmallScheduler(true, 2)});
  line.Open();
  v1::SubmitRequest request = Line::MakeRequest("r", {1, 2, 3}, 4);
  SetEviction(v1::EVICTION_MODE_AFTER_PREFILL, &request);
  const grpc::Status refused = line.Submit(request);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(refused.error_message(), HasSubstr("sliding"));
}

}  // namespace
}  // namespace blockmgr
