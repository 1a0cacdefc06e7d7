// Every named method through the whole line, once after prefill and once after
// every chunk: what the engine keeps is what the policy keeps on dense float64
// tensors, and what it computes is the dense model without the evicted.

#include <cstdint>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include <absl/strings/str_cat.h>
#include <absl/strings/string_view.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "blockmgr/eviction/lukv_profile.h"
#include "blockmgr/eviction/policy_fields.h"
#include "tests/e2e/jobs.h"
#include "tests/e2e/line.h"
#include "tests/testing/temp_folder.h"
#include "tests/testing/test_tables.h"
#include "wire/policy_wire.h"

namespace blockmgr {
namespace {

using ::testing::HasSubstr;

constexpr int32_t kNumLayers = 2;
// Of every shard.
constexpr int32_t kNumHeads = 2;

std::shared_ptr<const LanguageModel> Model(int32_t num_shards) {
  return RandomModel(ModelShape{.num_layers = kNumLayers,
                                .num_q_heads = 4 * num_shards,
                                .num_heads = kNumHeads * num_shards,
                                .head_dim = 16,
                                .hidden = 64,
                                .mlp = 128,
                                .vocabulary = 64},
                     7);
}

// Writes the tables that headkv and lukv name. Returns --budget-tables.
std::vector<std::string> WriteTables(int32_t num_shards,
                                     const TempFolder& folder) {
  LuKvProfile profile;
  profile.num_layers = kNumLayers;
  profile.num_heads = kNumHeads * num_shards;
  profile.calibration_length = 1000;
  profile.rho = {0.0f, 0.5f, 1.0f};
  profile.r = {0.0f,  0.0f,  0.0f, 0.0f, 0.25f, 0.75f,
               0.40f, 0.60f, 1.0f, 1.0f, 1.0f,  1.0f};
  std::string scores =
      R"({"num_layers":2,"num_heads":2,"scores":[[4,1],[2,1]]})";
  if (num_shards == 2) {
    // Shards whose heads get different totals.
    profile.r = {0.0f, 0.0f,  0.0f,  0.0f, 0.0f,  0.0f,  0.0f,  0.0f,
                 0.2f, 0.35f, 0.65f, 0.8f, 0.45f, 0.35f, 0.65f, 0.55f,
                 1.0f, 1.0f,  1.0f,  1.0f, 1.0f,  1.0f,  1.0f,  1.0f};
    scores = R"({"num_layers":2,"num_heads":4,"scores":[[4,1,1,1],[2,3,1,1]]})";
  }
  return {"measured=" + folder.Write("profile", EncodeLuKvProfile(profile)),
          "needle=" + folder.Write("scores", scores)};
}

LineOptions Options(int32_t num_shards, int32_t num_blocks,
                    int32_t max_num_seqs) {
  LineOptions options{.model = Model(num_shards),
                      .num_blocks = num_blocks,
                      .page_size = 16,
                      .num_shards = num_shards,
                      .scheduler = {}};
  options.scheduler.max_num_seqs = max_num_seqs;
  options.scheduler.max_num_batched_tokens = 72;
  options.scheduler.max_model_len = 512;
  return options;
}

QueryStatsTables Measured(int32_t num_shards) {
  return MeasuredQueryStats(kNumLayers, 4 * num_shards, 16, 3);
}

std::vector<int32_t> SomePrompt() {
  std::vector<int32_t> prompt(130);
  for (size_t i = 0; i < prompt.size(); ++i) {
    prompt[i] = static_cast<int32_t>(i * i % 61);
  }
  return prompt;
}

// Strings, whose text is in the names of tests; of pointers the address is.
std::vector<std::string> Policies() {
  return {
      "snapkv(window=8)",
      "snapkv(window=8,pool=avg,kernel=5,order=kvpress,group=max) | adakv",
      "h2o | adakv",
      "h2o(norm=count,recent=8)",
      "h2o(obs_window=16) | uniform",
      "tova",
      "tova | uniform | critical(gqa_product=true)",
      ("keydiff | adakv(alpha=0.3,mode=floor) | topk | "
       "protect(sinks=4,recent=1)"),
      "keydiff | lukv(profile=measured) | topk | protect(sinks=4,recent=1)",
      "keydiff(anchor=raw)",
      "keydiff(anchor=raw,metric=dot) | adakv",
      "keydiff(anchor=median) | global",
      "keydiff(anchor=pairwise) | adakv",
      "keydiff(metric=euclidean) | uniform",
      "expected_attention(n_future=64)",
      "expected_attention(n_future=64,cov=false,vnorm=false) | adakv",
      "expected_attention(n_future=64,stats=measured) | adakv",
      "streaming(sinks=4) | pyramid",
      "knorm | ada_pyramid(beta=4)",
      "random(seed=3) | global",
      "snapkv(window=8) | headkv(profile=needle)",
      "dropkv(window=8) | adakv",
      "streaming(sinks=4) | duo(profile=needle) | topk | protect(recent=16)",
      "keydiff | adakv | topk | protect(sinks=4,recent=25%)",
      "snapkv(window=8) | pyramid(formula=kvpress,beta=3)",
      "snapkv(window=8) | pyramid(formula=factory,beta=3)",
      "snapkv(window=8) | global",
      "snapkv(window=8) | adakv | critical",
      "snapkv(window=8) | uniform | critical(gqa_product=true,norm=l2)",
      "keydiff | uniform | critical(first=0.25) | round(token)",
  };
}

// The last: shards of tensor parallelism, 1 or 2.
using Method = std::tuple<std::string, v1::EvictionMode, int32_t>;

class MethodTest : public testing::TestWithParam<Method> {};

INSTANTIATE_TEST_SUITE_P(
    Modes, MethodTest,
    testing::Combine(testing::ValuesIn(Policies()),
                     testing::Values(v1::EVICTION_MODE_AFTER_PREFILL,
                                     v1::EVICTION_MODE_EVERY_CHUNK),
                     testing::Values(1)));

// Every shard allocates budgets among its own heads.
INSTANTIATE_TEST_SUITE_P(
    Shards, MethodTest,
    testing::Combine(testing::ValuesIn(Policies()),
                     testing::Values(v1::EVICTION_MODE_EVERY_CHUNK),
                     testing::Values(2)));

// One of each kind of state that a scorer keeps between evictions.
INSTANTIATE_TEST_SUITE_P(
    LaterModes, MethodTest,
    testing::Combine(
        testing::Values("snapkv(window=8) | adakv", "h2o | uniform",
                        "keydiff | adakv", "expected_attention(n_future=64)",
                        "snapkv(window=8) | adakv | critical"),
        testing::Values(v1::EVICTION_MODE_DECODE, v1::EVICTION_MODE_PRESSURE),
        testing::Values(1, 2)));

TEST_P(MethodTest, KeepsAndComputesWhatTheDenseModelSays) {
  const auto& [text, mode, num_shards] = GetParam();
  SCOPED_TRACE(text);
  const TempFolder folder;
  const bool later =
      mode == v1::EVICTION_MODE_DECODE || mode == v1::EVICTION_MODE_PRESSURE;
  // The prompts take 10, 12 and 14 blocks, long outputs 7 more together.
  LineOptions options =
      Options(num_shards, mode == v1::EVICTION_MODE_PRESSURE ? 40 : 48, 8);
  options.scheduler.watermark = 0.0;
  options.scheduler.max_steps_in_flight = 2;
  options.scheduler.enable_prefix_caching = true;
  options.num_scorer_states = 8;
  options.query_stats = Measured(num_shards);
  options.budget_tables = WriteTables(num_shards, folder);
  std::mt19937_64 random(11);
  constexpr int32_t kNumRequests = 3;
  const int32_t num_outputs = later ? 40 : 12;
  std::vector<v1::SubmitRequest> requests;
  for (int32_t i = 0; i < kNumRequests; ++i) {
    requests.push_back(Line::MakeRequest(absl::StrCat("r", i),
                                         RandomTokens(150 + 33 * i, &random),
                                         num_outputs));
    SetPolicy(text, mode, &requests.back());
  }
  const Served served = Serve(options, requests);
  EXPECT_GT(served.stats.evicted_blocks(), 0u);
  EXPECT_EQ(served.stats.num_squeezes() > 0,
            mode == v1::EVICTION_MODE_PRESSURE);
  // Once each; or at 96, 144 and 192 tokens and the end, as far as they go; or
  // at the end of the prompt and 32 tokens later; or once at all.
  const int64_t num_evictions = mode == v1::EVICTION_MODE_DECODE        ? 6
                                : mode == v1::EVICTION_MODE_EVERY_CHUNK ? 6
                                : mode == v1::EVICTION_MODE_PRESSURE    ? 1
                                                                        : 3;
  EXPECT_GE(served.checked.evictions, num_evictions);
  EXPECT_GE(served.checked.logits, kNumRequests * num_outputs);
}

TEST(MethodsTest, EveryNameIsAmongThem) {
  std::set<absl::string_view> all;
  for (const std::string& text : Policies()) {
    const EvictionPolicy policy = *ParsePolicy(text);
    all.insert({EnumName(policy.scorer.kind), EnumName(policy.budget.kind),
                EnumName(policy.selector.kind)});
  }
  const auto expect_all = [&](auto names) {
    for (const absl::string_view name : names) {
      // External scores and budgets come with EvictionService.
      if (name == "external") continue;
      EXPECT_THAT(all, ::testing::Contains(name));
    }
  };
  expect_all(EnumNames<ScorerKind>());
  expect_all(EnumNames<BudgetKind>());
  expect_all(EnumNames<SelectorKind>());
}

// Attention goes on being summed up while a request decodes, and after an
// eviction: what a later eviction keeps is by all of it.
TEST(MethodsTest, H2oAccumulatesDuringDecode) {
  LineOptions options = Options(1, 80, 4);
  options.num_scorer_states = 4;
  Line line(options);
  line.Open();
  v1::SubmitRequest request = Line::MakeRequest("r", SomePrompt(), 200);
  SetPolicy("h2o | adakv", v1::EVICTION_MODE_AFTER_PREFILL, &request)
      ->mutable_target()
      ->set_keep_ratio("0.6");
  ASSERT_TRUE(line.Submit(request).ok());
  line.WaitForTokens("r", 60);
  v1::EvictRequest command;
  command.set_request_id("r");
  ToProto(*ParsePolicy("h2o(norm=count) | adakv"), command.mutable_policy());
  command.mutable_target()->set_keep_ratio("0.3");
  v1::EvictResponse response;
  const grpc::Status status = line.Evict(command, &response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_GT(response.freed_blocks(), 0);
  EXPECT_EQ(Finish(&line, 1).checked.evictions, 2);
}

// Queries that are expected from a table leave no state: the request takes a
// prefix hit, without an engine that accumulates scores.
TEST(MethodsTest, ATableOfQueryStatisticsTakesPrefixHits) {
  LineOptions options = Options(1, 80, 4);
  options.query_stats = Measured(1);
  Line line(options);
  line.Open();
  for (const std::string id : {"first", "hit"}) {
    v1::SubmitRequest request = Line::MakeRequest(id, SomePrompt(), 20);
    SetPolicy("expected_attention(n_future=64,stats=measured)",
              v1::EVICTION_MODE_AFTER_PREFILL, &request);
    ASSERT_TRUE(line.Submit(request).ok());
    line.WaitForAnswers(id == "first" ? 1 : 2);
  }
  const Served served = Finish(&line, 2);
  const Answer& first = served.answers.at("first");
  const Answer& hit = served.answers.at("hit");
  EXPECT_EQ(first.num_cached_tokens, 0);
  EXPECT_EQ(hit.num_cached_tokens, 128);
  EXPECT_EQ(hit.tokens, first.tokens);
  EXPECT_EQ(served.checked.evictions, 2);
}

void ExpectNotFound(const LineOptions& options, absl::string_view policy,
                    const char* text) {
  Line line(options);
  line.Open();
  v1::SubmitRequest request = Line::MakeRequest("r", {1, 2, 3}, 2);
  SetPolicy(policy, v1::EVICTION_MODE_AFTER_PREFILL, &request);
  const grpc::Status status = line.Submit(request);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_THAT(status.error_message(), HasSubstr(text));
  line.Close();
}

TEST(MethodsTest, AnUnknownTableIsRefusedByName) {
  ExpectNotFound({.model = Model(1), .scheduler = SchedulerOptions()},
                 "keydiff | lukv(profile=nobody)", "'nobody'");
}

TEST(MethodsTest, UnknownQueryStatisticsAreRefusedByName) {
  ExpectNotFound({.model = Model(1),
                  .scheduler = SchedulerOptions(),
                  .query_stats = Measured(1)},
                 "expected_attention(stats=nobody)",
                 "eviction.policy: stats: expected the name of a table of "
                 "query statistics of the engine (measured), got 'nobody'");
}

}  // namespace
}  // namespace blockmgr
