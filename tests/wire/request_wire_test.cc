#include "wire/request_wire.h"

#include <string>

#include <absl/strings/ascii.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_replace.h>
#include <absl/strings/string_view.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/testing/is_invalid.h"
#include "tests/testing/status_matchers.h"

namespace blockmgr {
namespace {

TEST(RequestWireTest, ErrorsOfThePromptNameTheFieldOfTheMessage) {
  const auto named = [](const char* message) {
    return std::string(
        NamePrompt(absl::InvalidArgumentError(message), "tokens").message());
  };
  EXPECT_EQ(named("prompt: expected"), "tokens: expected");
  EXPECT_EQ(named("prompt[2]: expected"), "tokens[2]: expected");
  EXPECT_EQ(named("prompts: expected"), "prompts: expected");
  EXPECT_EQ(named("a prompt: expected"), "a prompt: expected");
  EXPECT_OK(NamePrompt(absl::OkStatus(), "tokens"));
}

TEST(RequestWireTest, ErrorsNameTheField) {
  v1::EvictRequest request;
  request.set_request_id("r");
  request.mutable_policy()->mutable_streaming();
  request.mutable_policy()->mutable_external_budgets();
  request.mutable_target()->set_keep_ratio("0.5");
  EXPECT_THAT(FromProto(request), IsInvalid("budgets"));
  request.add_budgets(5);
  request.add_budgets(-1);
  EXPECT_THAT(FromProto(request), IsInvalid("budgets[1]"));
}

TEST(RequestWireTest, RequestCarriesScopeRetentionAndPriority) {
  v1::SubmitRequest proto;
  proto.set_client_session("c");
  proto.set_request_id("r");
  proto.add_prompt_token_ids(1);
  proto.set_max_tokens(2);
  proto.set_priority(-3);
  proto.set_fork_of("other");
  proto.set_tenant("t");
  proto.set_lora("l");
  proto.set_cache_salt("s");
  v1::MediaItem* item = proto.add_media();
  item->set_begin(4);
  item->set_length(5);
  item->set_hash("h");
  proto.set_engine_data("d");
  proto.mutable_sampling()->set_top_k(9);
  proto.add_retention()->set_begin(6);
  v1::RetentionWish* wish = proto.add_retention();
  wish->set_end(7);
  wish->set_priority(0);
  wish->set_duration_ms(8);
  const absl::StatusOr<Request> request = FromProto(proto);
  ASSERT_OK(request);
  EXPECT_EQ(request->priority, -3);
  EXPECT_EQ(request->fork_of, "other");
  EXPECT_EQ(request->scope.tenant, "t");
  EXPECT_EQ(request->scope.lora, "l");
  EXPECT_EQ(request->scope.cache_salt, "s");
  EXPECT_EQ(request->engine_data, "d");
  EXPECT_EQ(request->sampling, SamplingParams{.top_k = 9});
  ASSERT_EQ(request->scope.media.size(), 1u);
  EXPECT_EQ(request->scope.media[0].begin, 4);
  EXPECT_EQ(request->scope.media[0].length, 5);
  EXPECT_EQ(request->scope.media[0].hash, "h");
  ASSERT_EQ(request->retention.size(), 2u);
  EXPECT_EQ(request->retention[0].begin, 6);
  EXPECT_EQ(request->retention[0].priority, kDefaultPriority);
  EXPECT_EQ(request->retention[1].end, 7);
  EXPECT_EQ(request->retention[1].priority, 0);
  EXPECT_EQ(request->retention[1].duration_ms, 8);
}

// A frontend that forgets the mode is told so.
TEST(SubmitRequestTest, AnEvictionHasAMode) {
  v1::SubmitRequest proto;
  proto.set_client_session("client");
  proto.set_request_id("a");
  proto.add_prompt_token_ids(1);
  proto.set_max_tokens(1);
  proto.mutable_eviction();
  EXPECT_THAT(FromProto(proto), IsOk());
  proto.mutable_eviction()->set_share_prefix(true);
  EXPECT_THAT(FromProto(proto), IsInvalid("eviction.mode"));
  proto.mutable_eviction()->set_share_prefix(false);
  proto.mutable_eviction()->mutable_target()->set_tokens_per_head(8);
  EXPECT_THAT(FromProto(proto), IsInvalid("eviction.mode"));
}

TEST(RequestEvictionTest, EveryModeArrivesWithItsOptions) {
  v1::SubmitRequest proto;
  proto.set_client_session("client");
  proto.set_request_id("a");
  proto.add_prompt_token_ids(1);
  proto.set_max_tokens(1);
  const auto num_modes = static_cast<int>(EnumNames<EvictionMode>().size());
  ASSERT_EQ(v1::EvictionMode_descriptor()->value_count(), num_modes);
  for (int number = 1; number < num_modes; ++number) {
    RequestEviction sent;
    sent.mode = static_cast<EvictionMode>(number);
    sent.compress_every = 32;
    sent.share_prefix = true;
    sent.share_multiple = 64;
    proto.clear_eviction();
    ToProto(sent, proto.mutable_eviction());
    EXPECT_EQ(v1::EvictionMode_Name(proto.eviction().mode()),
              absl::StrCat("EVICTION_MODE_",
                           absl::StrReplaceAll(
                               absl::AsciiStrToUpper(EnumName(sent.mode)),
                               {{"-", "_"}})));
    EXPECT_EQ(proto.eviction().compress_every(), 32);
    EXPECT_EQ(proto.eviction().share_multiple(), 64);
    ASSERT_OK_AND_ASSIGN(const Request received, FromProto(proto));
    EXPECT_EQ(received.eviction.mode, sent.mode);
    EXPECT_EQ(received.eviction.compress_every, 32);
    EXPECT_TRUE(received.eviction.share_prefix);
    EXPECT_EQ(received.eviction.share_multiple, 64);
  }
  proto.mutable_eviction()->set_mode(static_cast<v1::EvictionMode>(num_modes));
  EXPECT_THAT(FromProto(proto), IsInvalid("eviction.mode: unknown value 5"));
}

TEST(GetStatsTest, NumbersArriveUnderTheirNames) {
  CoreStats sent;
  int num_rows = 0;
  VisitSchedulerStats(sent.scheduler,
                      [&](StatKind, absl::string_view, auto& value, auto&&...) {
                        value = 100 + ++num_rows;
                      });
  // 11 fields are those of CoreStats, and the tenants.
  EXPECT_EQ(num_rows + 11, v1::GetStatsResponse::descriptor()->field_count());
  v1::GetStatsResponse message;
  ToProto(sent, &message);
  EXPECT_EQ(message.num_waiting(), 101);
  SchedulerStats received;
  FromProto(message, &received);
  num_rows = 0;
  VisitSchedulerStats(received, [&](StatKind, absl::string_view name,
                                    const auto& value, auto&&...) {
    EXPECT_EQ(static_cast<int>(value), 100 + ++num_rows) << name;
  });
}

}  // namespace
}  // namespace blockmgr
