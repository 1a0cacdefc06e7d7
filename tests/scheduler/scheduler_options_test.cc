#include "scheduler/scheduler_options.h"

#include <cstddef>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/testing/is_invalid.h"
#include "tests/testing/status_matchers.h"

namespace blockmgr {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(SchedulerOptionsTest, DefaultsAreValid) {
  EXPECT_THAT(SchedulerOptions().Validate(), IsOk());
}

TEST(SchedulerOptionsTest, LengthsAreBoundedByTheModels) {
  SchedulerOptions options;
  options.max_model_len = 100;
  EXPECT_THAT(options.CheckLength(60, 40), IsOk());
  const auto error = [](const char* part) { return IsInvalid(part); };
  EXPECT_THAT(options.CheckLength(61, 40), error("prompt: expected prompt and "
                                                 "max_tokens together at most "
                                                 "100 (max_model_len), got 61 "
                                                 "+ 40"));
  EXPECT_THAT(options.CheckLength(1, 0),
              error("max_tokens: expected 1 to 100"));
  EXPECT_THAT(options.CheckLength(1, 101), error("max_tokens: expected 1 to"));
  EXPECT_THAT(options.CheckLength(int64_t{1} << 40, 1), error("prompt: "));
}

TEST(SchedulerOptionsTest, NamesTheFieldAtFault) {
  using Change = std::function<void(SchedulerOptions*)>;
  const std::vector<std::pair<std::string, Change>> changes = {
      {"max_num_seqs", [](SchedulerOptions* o) { o->max_num_seqs = 0; }},
      {"max_num_batched_tokens",
       [](SchedulerOptions* o) { o->max_num_batched_tokens = 255; }},
      {"max_model_len", [](SchedulerOptions* o) { o->max_model_len = 1; }},
      {"prefix_aging", [](SchedulerOptions* o) { o->prefix_aging = 0; }},
      {"max_bypasses", [](SchedulerOptions* o) { o->max_bypasses = -1; }},
      {"min_prefix_wait_tokens",
       [](SchedulerOptions* o) { o->min_prefix_wait_tokens = -1; }},
      {"max_prefix_wait_steps",
       [](SchedulerOptions* o) { o->max_prefix_wait_steps = -1; }},
      {"long_prefill_token_threshold",
       [](SchedulerOptions* o) { o->long_prefill_token_threshold = -1; }},
      {"max_long_prefills",
       [](SchedulerOptions* o) { o->max_long_prefills = 1; }},
      {"max_steps_in_flight",
       [](SchedulerOptions* o) { o->max_steps_in_flight = 0; }},
      {"max_steps_in_flight",
       [](SchedulerOptions* o) { o->max_steps_in_flight = 5; }},
      {"num_speculative_tokens",
       [](SchedulerOptions* o) { o->num_speculative_tokens = 1025; }},
      {"max_waiting", [](SchedulerOptions* o) { o->max_waiting = 0; }},
      {"max_waiting_tokens",
       [](SchedulerOptions* o) { o->max_waiting_tokens = 0; }},
      {"max_num_blocks", [](SchedulerOptions* o) { o->max_num_blocks = 1; }},
      {"query_window", [](SchedulerOptions* o) { o->query_window = -1; }},
      {"num_host_blocks",
       [](SchedulerOptions* o) { o->engine.num_host_blocks = -1; }},
      {"num_host_blocks",
       [](SchedulerOptions* o) { o->engine.num_host_blocks = (1 << 24) + 1; }},
      {"num_scorer_states",
       [](SchedulerOptions* o) { o->engine.num_scorer_states = -1; }},
      {"watermark", [](SchedulerOptions* o) { o->watermark = 1.0; }},
      {"watermark", [](SchedulerOptions* o) { o->watermark = -0.1; }},
      {"max_tenants", [](SchedulerOptions* o) { o->max_tenants = 0; }},
      {"tenant_limits.max_blocks",
       [](SchedulerOptions* o) { o->tenant_limits.max_blocks = -1; }},
      {"tenant_limits.max_requests",
       [](SchedulerOptions* o) { o->tenant_limits.max_requests = -1; }},
      {"tenant_limits.max_queued_tokens",
       [](SchedulerOptions* o) { o->tenant_limits.max_queued_tokens = -1; }},
      {"tenants['x'].weight",
       [](SchedulerOptions* o) { o->tenants["x"].weight = 1001; }},
      {"query_stats",
       [](SchedulerOptions* o) { o->engine.query_stats["a b"] = "1"; }},
      {"query_stats['x']",
       [](SchedulerOptions* o) { o->engine.query_stats["x"].assign(65, '1'); }},
      {"query_stats",
       [](SchedulerOptions* o) {
         for (int i = 0; i < 257; ++i) {
           o->engine.query_stats[absl::StrCat(i)] = "";
         }
       }},
  };
  for (const auto& [field, change] : changes) {
    SchedulerOptions options;
    change(&options);
    EXPECT_THAT(options.Validate(), IsInvalid(field + ": expected"));
  }
}

struct AnyValue {
  template <typename T>
  operator T() const;  // NOLINT(google-explicit-constructor)
};

// Returns the number of members of an aggregate: the largest number of values
// of any type that can initialize it.
template <typename Aggregate, typename... Values>
consteval size_t CountMembers(Values... values) {
  if constexpr (requires { Aggregate{values..., AnyValue{}}; }) {
    return CountMembers<Aggregate>(values..., AnyValue{});
  } else {
    return sizeof...(values);
  }
}

struct RowCounter {
  size_t num_rows = 0;

  void Number(auto&&...) { ++num_rows; }
  void Fraction(auto&&...) { ++num_rows; }
  void Bool(auto&&...) { ++num_rows; }
  void Choice(auto&&...) { ++num_rows; }
};

TEST(SchedulerOptionsTest, EveryMemberHasARow) {
  RowCounter options;
  const SchedulerOptions defaults;
  VisitSchedulerOptions(defaults, options);
  // query_stats and `sampling` are no numbers.
  RowCounter abilities;
  VisitEngineAbilities(defaults.engine, abilities);
  EXPECT_EQ(abilities.num_rows + 2, CountMembers<EngineAbilities>());
  // tenant_limits and tenants are parsed by ParseTenant. sampling_seed is
  // drawn.
  EXPECT_EQ(options.num_rows - abilities.num_rows + 4,
            CountMembers<SchedulerOptions>());
  RowCounter limits;
  VisitTenantLimits(defaults.tenant_limits, limits);
  EXPECT_EQ(limits.num_rows, CountMembers<TenantLimits>());
}

TEST(ParseTenantTest, ReadsLimitsOfOneOrOfAllOthers) {
  SchedulerOptions options;
  EXPECT_THAT(ParseTenant("a:weight=3,max-blocks=100", &options), IsOk());
  EXPECT_THAT(ParseTenant("b:c:max-queued-tokens=5000000000", &options),
              IsOk());
  EXPECT_THAT(ParseTenant("*:max-requests=7", &options), IsOk());
  ASSERT_EQ(options.tenants.size(), 2u);
  EXPECT_EQ(options.tenants.at("a").weight, 3);
  EXPECT_EQ(options.tenants.at("a").max_blocks, 100);
  EXPECT_EQ(options.tenants.at("a").max_requests, 0);
  EXPECT_EQ(options.tenants.at("b:c").max_queued_tokens, 5'000'000'000);
  EXPECT_EQ(options.tenant_limits.max_requests, 7);
}

TEST(ParseTenantTest, RejectsWhatItCannotRead) {
  for (const char* text :
       {"a", "a:", "a:weight", "a:weight=", "a:weight=x", "a:weight=0",
        "a:weight=1001", "a:max-blocks=-1", "a:max-blocks=3000000000",
        "a:speed=3", "a:weight=1,weight=2", "taken:weight=2"}) {
    SchedulerOptions options;
    options.tenants["taken"].weight = 5;
    EXPECT_THAT(ParseTenant(text, &options), IsInvalid("tenant")) << text;
    EXPECT_EQ(options.tenants.size(), 1u);
    EXPECT_EQ(options.tenants.at("taken").weight, 5);
  }
  SchedulerOptions options;
  EXPECT_EQ(ParseTenant("a:speed=3", &options).message(),
            "tenant: expected NAME:LIMIT=N[,LIMIT=N...] with limits weight, "
            "max-blocks, max-requests or max-queued-tokens, got 'a:speed=3': "
            "there is no limit 'speed'");
  EXPECT_THAT(ParseTenant("*:weight=2", &options), IsOk());
  EXPECT_THAT(ParseTenant("*:weight=3", &options),
              IsInvalid("'*' comes twice"));
  EXPECT_EQ(options.tenant_limits.weight, 2);
}

TEST(DescribeTenantLimitsTest, HasTheMeaningOfEveryLimit) {
  const std::string text = DescribeTenantLimits();
  EXPECT_THAT(text, StartsWith("weight: The tenant's part of a fair share"));
  EXPECT_THAT(text, HasSubstr(". max-blocks: Blocks that "));
  EXPECT_THAT(text, HasSubstr(". max-requests: Requests, "));
  EXPECT_THAT(text, HasSubstr(". max-queued-tokens: Tokens of prompts "));
}

}  // namespace
}  // namespace blockmgr
