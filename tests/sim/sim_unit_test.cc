// The simulator's own parts, and the runs that once failed.

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/sim/audited_scheduler.h"
#include "tests/sim/event.h"
#include "tests/sim/options.h"
#include "tests/sim/random.h"
#include "tests/sim/report.h"
#include "tests/sim/run.h"
#include "tests/sim/transport.h"
#include "tests/testing/sanitizers.h"
#include "tests/testing/status_matchers.h"

namespace blockmgr::sim {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::Not;

TEST(RandomTest, CoversItsRangeEvenly) {
  Random random(1);
  std::vector<int32_t> counts(7);
  for (int32_t i = 0; i < 7000; ++i) ++counts[random.Between(-3, 3) + 3];
  for (const int32_t count : counts) EXPECT_NEAR(count, 1000, 150);
}

// The numbers of SplitMix64 are published: whoever computes others breaks every
// stored run.
TEST(RandomTest, IsTheSameEverywhere) {
  Random random(0);
  EXPECT_EQ(random.Next(), SplitMix64(SplitMix64(0) + 0x9E3779B97F4A7C15ull));
}

TEST(TransportTest, KeepsTheOrderOfAChannelOnly) {
  Transport transport;
  Transport::Channel channel = 0;
  std::vector<int32_t> seen;
  const auto see = [&seen](int32_t number) {
    return [&seen, number] { seen.push_back(number); };
  };
  transport.SendInOrder(&channel, 5, see(1));
  transport.SendInOrder(&channel, 0, see(2));
  transport.Send(3, see(3));
  transport.Send(3, see(4));
  while (transport.DeliverNext(4)) {
  }
  EXPECT_THAT(seen, ElementsAre(3, 4));
  EXPECT_EQ(transport.now(), 4);
  while (transport.DeliverNext(5)) {
  }
  EXPECT_THAT(seen, ElementsAre(3, 4, 1, 2));
}

// A run of libFuzzer found that the ledger expected AlreadyExists there.
TEST(LedgerTest, ARequestMayBeMalformedAndHaveANameInUse) {
  const ModelLayout layout{.num_layers = 1,
                           .num_heads = 1,
                           .num_q_heads = 1,
                           .head_dim = 8,
                           .num_blocks = 100};
  Report report;
  AuditedScheduler scheduler(layout, {}, true, &report);
  Request request{.id = "r", .prompt = {1, 2, 3}};
  EXPECT_OK(scheduler.Submit(request));
  EXPECT_EQ(scheduler.Submit(request).status().code(),
            absl::StatusCode::kAlreadyExists);
  request.scope.media = {{.begin = 0, .length = 0}};
  EXPECT_EQ(scheduler.Submit(request).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(report.message(), "");
}

TEST(ScriptTest, SurvivesItsTextForm) {
  Script script = ScriptOfSeed(17, 50);
  script.reaches = {"forks", "swap_ins"};
  const auto parsed = ParseScript(FormatScript(script));
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->reaches, script.reaches);
  EXPECT_EQ(parsed->options, script.options);
  EXPECT_EQ(parsed->events, script.events);
}

TEST(ScriptTest, RejectsWhatItDoesNotKnow) {
  const std::string text = FormatScript(ScriptOfSeed(17, 1));
  EXPECT_FALSE(ParseScript("page_size 2\n").ok());
  EXPECT_FALSE(ParseScript(absl::StrCat("page_sizes 2\n", text)).ok());
  EXPECT_FALSE(ParseScript(absl::StrCat("reaches fork\n", text)).ok());
  EXPECT_FALSE(ParseScript(absl::StrCat(text, "explode 12\n")).ok());
  EXPECT_FALSE(ParseScript(absl::StrCat(text, "submit\n")).ok());
}

TEST(ScriptTest, FailsWhereItDoesNotReachWhatItIsFor) {
  Script script = ScriptOfSeed(17, 0);
  script.reaches = {"requests", "forks"};
  EXPECT_EQ(RunInChild(script, 60).value_or("passed"), "reached no forks");
}

TEST(ShrinkTest, LeavesOnlyWhatFails) {
  const Script script = ScriptOfSeed(17, 200);
  const Event first = script.events[30];
  const Event second = script.events[170];
  const auto fails = [&](const Script& candidate) {
    const auto has = [&](const Event& event) {
      return std::ranges::count(candidate.events, event) > 0;
    };
    return has(first) && has(second);
  };
  const Script small = Shrink(script, fails, 1000);
  EXPECT_THAT(small.events, ElementsAre(first, second));
}

TEST(RunTest, SameSeedGivesTheSameTrace) {
  const SeedRange range{.first = 300, .num = 3, .steps = 200};
  const RangeResult once = RunRange(range, 100);
  const RangeResult again = RunRange(range, 100);
  ASSERT_FALSE(once.failure.has_value()) << once.failure->message;
  EXPECT_EQ(once.hash, again.hash);
  EXPECT_NE(once.hash,
            RunRange({.first = 301, .num = 3, .steps = 200}, 100).hash);
}

TEST(RunTest, AScriptOfASeedIsThatSeed) {
  Report of_seed;
  int64_t num_events = 0;
  RunSeed(305, 150, &of_seed, &num_events);
  Report of_script;
  RunScript(ScriptOfSeed(305, num_events), &of_script);
  EXPECT_EQ(of_seed.message(), "");
  EXPECT_EQ(of_seed.hash(), of_script.hash());
}

// What happens in worlds, all of them and those of a kind.
struct WorldCounts {
  RunCounts all;
  RunCounts calm;      // of those with rare faults
  RunCounts promised;  // of those with guaranteed admission
  RunCounts faulty;    // of those where answers go astray all the time
  RunCounts windowed;  // of those with window groups
  RunCounts sharded;   // of those with several shards
  int32_t num_calm = 0;
  int32_t num_faulty = 0;

  void Add(const SimOptions& options, const RunCounts& counts) {
    all.Add(counts);
    if (options.weights[static_cast<size_t>(EventKind::kAdvance)] > 100) {
      calm.Add(counts);
      ++num_calm;
    }
    if (options.Scheduler().admission == AdmissionPolicy::kGuaranteed) {
      promised.Add(counts);
    }
    if (options.answer_fault_one_in > 0) {
      faulty.Add(counts);
      ++num_faulty;
    }
    if (options.group_window_1 > 0) windowed.Add(counts);
    if (options.num_shards > 1) sharded.Add(counts);
  }
};

// What worlds are for must happen in them. Floors are half of what a hundred
// seeds had when they were written. Sanitizers look at a part of the seeds.
TEST(RunTest, WorldsAreFull) {
  WorldCounts worlds;
  for (int32_t seed = 1; seed <= (kSanitized ? 25 : 100); ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    Report report;
    RunSeed(seed, 500, &report, nullptr);
    ASSERT_EQ(report.message(), "");
    worlds.Add(OptionsForSeed(seed), report.counts());
  }
  if (kSanitized) return;
  const RunCounts& counts = worlds.all;
  const RunCounts& calm = worlds.calm;
  const RunCounts& promised = worlds.promised;
  SCOPED_TRACE(counts.ToString());
  EXPECT_GE(worlds.num_calm, 35);
  EXPECT_LE(worlds.num_calm, 65);
  EXPECT_GE(calm.steps, 150 * calm.engine_losses);
  EXPECT_LE(3 * counts.refused, 2 * counts.requests);
  EXPECT_GE(counts.preemptions, 300);
  EXPECT_GE(counts.passes, 800);
  EXPECT_GE(counts.prefix_waits, 240);
  EXPECT_GE(counts.deep_steps, 2100);
  EXPECT_GE(counts.squeezes, 47);
  EXPECT_GE(counts.swap_ins, 90);
  EXPECT_GE(counts.region_swap_ins, 27);
  EXPECT_GE(counts.forks, 70);
  EXPECT_GE(counts.region_forks, 14);
  EXPECT_GE(counts.other_media, 36);
  EXPECT_GE(counts.media_hits, 77);
  EXPECT_GE(counts.full_states, 490);
  EXPECT_GE(counts.region_hits, 95);
  EXPECT_GE(counts.table_hits, 14);
  EXPECT_GE(counts.table_evictions, 160);
  EXPECT_GE(counts.parts, 160);
  EXPECT_GE(counts.evictions, 900);
  EXPECT_GE(counts.accepted_drafts, 3000);
  EXPECT_GE(counts.rejected_drafts, 1400);
  EXPECT_GE(counts.left_behind, 12000);
  EXPECT_GE(counts.window_evictions, 240);
  EXPECT_GE(counts.left_regions, 85);
  EXPECT_GE(counts.cut_requests, 120);
  EXPECT_GE(counts.wrong_results, 160);
  EXPECT_GE(counts.wire_faults, 55);
  EXPECT_GE(counts.held_streams, 95);
  EXPECT_GE(counts.lost_plans, 80);
  // About a tenth of all answers, and a few are never given.
  EXPECT_GE(worlds.num_faulty, 25);
  EXPECT_GE(100 * worlds.faulty.wire_faults, 8 * worlds.faulty.steps);
  EXPECT_GE(worlds.windowed.region_hits, 28);
  EXPECT_GE(worlds.sharded.region_hits, 20);
  // What the ledger's rule of promised blocks is about.
  SCOPED_TRACE(promised.ToString());
  EXPECT_GE(promised.steps, 7000);
  EXPECT_GE(promised.evictions, 170);
  EXPECT_GE(promised.region_hits, 15);
  EXPECT_GE(promised.cached_tokens, 3600);
  EXPECT_GE(promised.forks, 50);
}

// Every run stored in seeds/ has failed once, and still comes to where it did.
TEST(SeedsTest, StoredRunsPass) {
  int32_t num_runs = 0;
  for (const auto& file :
       std::filesystem::directory_iterator(BLOCKMGR_SIM_SEEDS)) {
    if (file.path().extension() != ".txt") continue;
    SCOPED_TRACE(file.path().filename().string());
    const auto script = ReadScript(file.path().string());
    ASSERT_TRUE(script.ok()) << script.status();
    EXPECT_THAT(script->reaches, Not(IsEmpty()));
    EXPECT_EQ(RunInChild(*script, 60).value_or("passed"), "passed");
    ++num_runs;
  }
  EXPECT_GT(num_runs, 0);
}

}  // namespace
}  // namespace blockmgr::sim
