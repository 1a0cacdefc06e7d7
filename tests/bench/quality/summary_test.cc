#include "bench/quality/summary.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace blockmgr {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

AnswerOutcome AnswerOf(bool correct, double kl, double depth) {
  return {.correct = correct,
          .token_share = correct ? 1.0 : 0.5,
          .nll = 1.0 + kl,
          .kl = kl,
          .depth = depth};
}

CellOutcome OutcomeOf(bool first, bool second, double kl) {
  return {.answers = {AnswerOf(first, kl, 0.1), AnswerOf(second, kl, 0.95)},
          .kept_share = 0.25,
          .held_bytes = 2048,
          .mean_entries = 136.5,
          .tokens_per_s = 10.0};
}

// Forty contexts with two questions. `a` and `b` answer every first question;
// `a` every second one, too, and `b` none of them. `c` answers as `a`.
std::vector<QualitySample> Examples() {
  std::vector<QualitySample> samples;
  for (uint64_t i = 0; i < 40; ++i) {
    const double noise = 0.001 * static_cast<double>(i % 7);
    samples.push_back(
        {.task = "fact",
         .num_tokens = 512,
         .index = i,
         .mode = "agnostic",
         .cells = {"full", "agnostic/0.2/a", "agnostic/0.2/b",
                   "agnostic/0.2/c"},
         .outcomes = {
             OutcomeOf(true, true, 0.0), OutcomeOf(true, true, 0.1 + noise),
             OutcomeOf(true, false, 0.3),
             OutcomeOf(true, true, 0.1 + (i % 2 == 0 ? -noise : 2 * noise))}});
  }
  return samples;
}

TEST(SummaryTest, FiguresByHand) {
  const std::vector<GroupSummary> groups = Summarize(Examples());
  ASSERT_EQ(groups.size(), 1u);
  const GroupSummary& group = groups[0];
  EXPECT_EQ(group.num_contexts, 40);
  EXPECT_EQ(group.num_answers, 80);
  ASSERT_EQ(group.cells.size(), 4u);
  EXPECT_EQ(group.cells[0].policy, "full");
  EXPECT_EQ(group.cells[0].target, "1");
  const CellSummary& b = group.cells[2];
  EXPECT_EQ(b.policy, "b");
  EXPECT_EQ(b.target, "0.2");
  EXPECT_DOUBLE_EQ(b.accuracy.mean, 0.5);
  // Every context has one of two.
  EXPECT_DOUBLE_EQ(b.accuracy.low, 0.5);
  EXPECT_DOUBLE_EQ(b.accuracy_of_full.mean, 0.5);
  EXPECT_DOUBLE_EQ(b.accuracy_difference.mean, -0.5);
  EXPECT_DOUBLE_EQ(b.token_share.mean, 0.75);
  EXPECT_NEAR(b.kl.mean, 0.3, 1e-12);
  EXPECT_NEAR(b.nll.mean, 1.3, 1e-12);
  EXPECT_DOUBLE_EQ(b.kept_share, 0.25);
  EXPECT_DOUBLE_EQ(b.held_bytes, 2048.0);
  EXPECT_DOUBLE_EQ(b.mean_entries, 136.5);
  ASSERT_EQ(b.by_turn.size(), 2u);
  EXPECT_DOUBLE_EQ(b.by_turn[0].accuracy, 1.0);
  EXPECT_DOUBLE_EQ(b.by_turn[1].accuracy, 0.0);
  EXPECT_EQ(b.by_turn[1].num_answers, 40);
  EXPECT_DOUBLE_EQ(b.by_depth[0].accuracy, 1.0);
  EXPECT_EQ(b.by_depth[2].num_answers, 0);
  EXPECT_DOUBLE_EQ(b.by_depth[4].accuracy, 0.0);
}

TEST(SummaryTest, AVerdictNeedsAnIntervalWithoutZero) {
  const GroupSummary group = Summarize(Examples())[0];
  EXPECT_EQ(group.cells[1].verdict, "");  // what is compared with
  EXPECT_EQ(group.cells[2].verdict, "less correct, more KL");
  EXPECT_EQ(group.cells[3].verdict, "");  // it does not differ
}

// Five contexts all differ to one side by chance alone in one of sixteen
// experiments.
TEST(SummaryTest, NothingIsSaidOfFiveContexts) {
  std::vector<QualitySample> samples = Examples();
  samples.resize(6);
  EXPECT_EQ(Summarize(samples)[0].cells[2].verdict, "less correct, more KL");
  samples.resize(5);
  EXPECT_EQ(Summarize(samples)[0].cells[2].verdict, "");
}

TEST(SummaryTest, NoShareOfNothing) {
  std::vector<QualitySample> samples = Examples();
  for (QualitySample& sample : samples) {
    for (CellOutcome& outcome : sample.outcomes) {
      outcome = OutcomeOf(false, false, 0.3);
    }
  }
  const std::vector<GroupSummary> groups = Summarize(samples);
  EXPECT_THAT(SummaryTable(groups),
              HasSubstr("| 1 | full | 0.000 [0.000, 0.000] | - |"));
  EXPECT_TRUE(
      SummaryToJson(groups)[0]["cells"][1]["accuracy_of_full"].is_null());
}

TEST(SummaryTest, NothingIsSaidOfATinyKl) {
  std::vector<QualitySample> samples = Examples();
  for (QualitySample& sample : samples) {
    sample.outcomes[1] = OutcomeOf(true, true, 0.001);
    sample.outcomes[2] = OutcomeOf(true, true, 0.004);
    sample.outcomes[3] = OutcomeOf(true, true, 0.006);
  }
  const GroupSummary group = Summarize(samples)[0];
  EXPECT_EQ(group.cells[2].verdict, "");
  EXPECT_EQ(group.cells[3].verdict, "more KL");
}

TEST(SummaryTest, GroupsAreApart) {
  std::vector<QualitySample> samples = Examples();
  samples[3].mode = "aware";
  samples[4].num_tokens = 1024;
  samples[5].task = "needle";
  samples[6].cells.back() = "agnostic/0.2/d";  // of another run
  const std::vector<GroupSummary> groups = Summarize(samples);
  ASSERT_EQ(groups.size(), 4u);
  EXPECT_EQ(groups[0].num_contexts, 36);
  EXPECT_EQ(groups[1].num_contexts, 1);
}

TEST(SummaryTest, TableAndJsonHaveTheFigures) {
  const std::vector<GroupSummary> groups = Summarize(Examples());
  const std::string table = SummaryTable(groups);
  EXPECT_THAT(table,
              HasSubstr("fact, 512 tokens, agnostic: 40 contexts, 80 answers"));
  EXPECT_THAT(table, HasSubstr("| 0.2 | b | 0.500 [0.500, 0.500] |"));
  EXPECT_THAT(table, HasSubstr("less correct, more KL"));
  EXPECT_THAT(table, Not(HasSubstr("nan")));
  const nlohmann::ordered_json json = SummaryToJson(groups);
  EXPECT_EQ(json[0]["num_answers"], 80);
  EXPECT_EQ(json[0]["cells"][2]["policy"], "b");
  EXPECT_EQ(json[0]["cells"][2]["accuracy"]["mean"], 0.5);
  EXPECT_EQ(json[0]["cells"][2]["mean_entries"], 136.5);
  EXPECT_EQ(json[0]["cells"][2]["by_turn"][1]["accuracy"], 0.0);
}

}  // namespace
}  // namespace blockmgr
