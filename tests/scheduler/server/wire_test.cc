#include "scheduler/server/wire.h"

#include <memory>
#include <string>
#include <vector>

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <google/protobuf/descriptor.h>
#include <gtest/gtest.h>

#include "scheduler/server/peer_text.h"
#include "tests/scheduler/server/fake_scheduler.h"
#include "tests/testing/status_matchers.h"

namespace blockmgr {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;

TEST(WireTest, ErrorsNameTheField) {
  v1::EvictRequest request;
  request.set_request_id("r");
  request.mutable_policy()->mutable_streaming();
  request.mutable_policy()->mutable_external_budgets();
  request.mutable_target()->set_keep_ratio("0.5");
  EXPECT_THAT(FromProto(request), StatusIs(kInvalid, HasSubstr("budgets")));
  request.add_budgets(5);
  request.add_budgets(-1);
  EXPECT_THAT(FromProto(request), StatusIs(kInvalid, HasSubstr("budgets[1]")));
}

TEST(WireTest, LongMessagesAreShortened) {
  const grpc::Status status =
      ToGrpc(absl::InternalError(std::string(100'000, 'x')));
  EXPECT_EQ(status.error_code(), grpc::INTERNAL);
  EXPECT_LT(status.error_message().size(), 2 * kMaxTextBytes);
}

TEST(WireTest, RequestCarriesScopeRetentionAndPriority) {
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

StepPlan FullPlan() {
  StepPlan plan;
  plan.id = StepId{9};
  plan.released = {SequenceSlot{3}};
  plan.starts = {{.slot = SequenceSlot{4},
                  .request = RequestId{77},
                  .num_tokens = 5,
                  .num_cached_tokens = 16,
                  .source = SequenceSlot{0},
                  .region = RegionId{5},
                  .query_window = 32,
                  .info = std::make_shared<const RequestInfo>(
                      RequestInfo{.id = "r",
                                  .num_prompt_tokens = 4,
                                  .lora = "l",
                                  .media = {{1, 2, "h"}},
                                  .engine_data = "d"})},
                 {.slot = SequenceSlot{5},
                  .num_tokens = 1,
                  .swap = SwapId{6},
                  .transfer_begin = 1,
                  .num_transfers = 1}};
  plan.transfers_in = {{BlockId{1}, HostBlockId{2}},
                       {BlockId{13}, HostBlockId{14}}};
  plan.dropped_swaps = {SwapId{7}};
  plan.swap_outs = {{.slot = SequenceSlot{3},
                     .swap = SwapId{8},
                     .num_tokens = 30,
                     .transfer_begin = 0,
                     .num_transfers = 2}};
  plan.transfers_out = {{BlockId{15}, HostBlockId{16}},
                        {BlockId{17}, HostBlockId{0}}};
  plan.copies = {{.slot = SequenceSlot{4},
                  .blocks = {BlockId{20}, BlockId{21}},
                  .num_tokens = 7,
                  .group = 2}};
  plan.dropped_regions = {RegionId{3}, RegionId{5}};
  plan.start_tokens = {1, 2, 3, 4, 5};
  plan.slots = {SequenceSlot{4}, SequenceSlot{0}};
  plan.positions = {16, 99};
  plan.num_tokens = {4, 1};
  plan.samples = {0, 1};
  plan.num_drafts = {0, 3};
  plan.block_offsets = {0, 2, 2};
  plan.blocks = {BlockId{10}, BlockId{11}};
  plan.window_offsets = {0, 1, 2, 2, 3};
  plan.window_blocks = {kNullBlock, BlockId{22}, BlockId{23}};
  EvictionOrder order;
  order.slot = SequenceSlot{4};
  order.cut = 16;
  order.length = 20;
  order.policy.scorer.kind = ScorerKind::kExternal;
  order.destination_begin = 0;
  order.num_destinations = 1;
  order.page_total = 6;
  order.region = RegionId{8};
  order.scores = std::make_shared<std::vector<float>>(3, 0.5f);
  order.budgets = std::make_shared<std::vector<int32_t>>(2, 8);
  order.shard_page_totals = {6, 2};
  order.group = 3;
  plan.evictions = {order};
  plan.destinations = {BlockId{12}};
  return plan;
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
  EXPECT_THAT(FromProto(proto), StatusIs(kInvalid, HasSubstr("eviction.mode")));
  proto.mutable_eviction()->set_share_prefix(false);
  proto.mutable_eviction()->mutable_target()->set_tokens_per_head(8);
  EXPECT_THAT(FromProto(proto), StatusIs(kInvalid, HasSubstr("eviction.mode")));
}

TEST(WireTest, StartsSayWhatToRun) {
  v1::StepPlan proto;
  ToProto(FullPlan(), &proto);
  ASSERT_EQ(proto.starts_size(), 2);
  EXPECT_FALSE(proto.starts(1).has_info());
  const v1::RequestInfo& info = proto.starts(0).info();
  EXPECT_EQ(info.request_id(), "r");
  EXPECT_EQ(info.num_prompt_tokens(), 4);
  EXPECT_EQ(info.lora(), "l");
  ASSERT_EQ(info.media_size(), 1);
  EXPECT_EQ(info.media(0).begin(), 1);
  EXPECT_EQ(info.media(0).length(), 2);
  EXPECT_EQ(info.media(0).hash(), "h");
  EXPECT_EQ(info.engine_data(), "d");
  EXPECT_EQ(info.GetDescriptor()->field_count(), 5);
}

TEST(WireTest, PlanCarriesEveryField) {
  v1::StepPlan proto;
  ToProto(FullPlan(), &proto);
  EXPECT_EQ(proto.step(), 9u);
  EXPECT_THAT(proto.released(), ElementsAre(3));
  ASSERT_EQ(proto.starts_size(), 2);
  EXPECT_EQ(proto.starts(0).slot(), 4);
  EXPECT_EQ(proto.starts(0).request(), 77u);
  EXPECT_EQ(proto.starts(0).token_begin(), 0);
  EXPECT_EQ(proto.starts(0).num_tokens(), 5);
  EXPECT_EQ(proto.starts(0).num_cached_tokens(), 16);
  EXPECT_EQ(proto.starts(0).query_window(), 32);
  EXPECT_EQ(proto.starts(0).region(), 5u);
  EXPECT_TRUE(proto.starts(0).has_source());
  EXPECT_EQ(proto.starts(0).source(), 0);
  EXPECT_FALSE(proto.starts(1).has_source());
  EXPECT_FALSE(proto.starts(0).has_transfers());
  EXPECT_EQ(proto.starts(1).swap(), 6u);
  EXPECT_THAT(proto.starts(1).transfers().blocks(), ElementsAre(13));
  EXPECT_THAT(proto.starts(1).transfers().host_blocks(), ElementsAre(14));
  EXPECT_EQ(proto.starts(0).GetDescriptor()->field_count(), 13);
  EXPECT_THAT(proto.dropped_swaps(), ElementsAre(7u));
  ASSERT_EQ(proto.swap_outs_size(), 1);
  EXPECT_EQ(proto.swap_outs(0).slot(), 3);
  EXPECT_EQ(proto.swap_outs(0).swap(), 8u);
  EXPECT_EQ(proto.swap_outs(0).num_tokens(), 30);
  EXPECT_THAT(proto.swap_outs(0).transfers().blocks(), ElementsAre(15, 17));
  EXPECT_THAT(proto.swap_outs(0).transfers().host_blocks(), ElementsAre(16, 0));
  ASSERT_EQ(proto.copies_size(), 1);
  EXPECT_EQ(proto.copies(0).slot(), 4);
  EXPECT_EQ(proto.copies(0).source(), 20);
  EXPECT_EQ(proto.copies(0).destination(), 21);
  EXPECT_EQ(proto.copies(0).num_tokens(), 7);
  EXPECT_EQ(proto.copies(0).group(), 2);
  EXPECT_EQ(proto.copies(0).GetDescriptor()->field_count(), 5);
  EXPECT_THAT(proto.dropped_regions(), ElementsAre(3u, 5u));
  EXPECT_THAT(proto.start_tokens(), ElementsAre(1, 2, 3, 4, 5));
  EXPECT_THAT(proto.slots(), ElementsAre(4, 0));
  EXPECT_THAT(proto.positions(), ElementsAre(16, 99));
  EXPECT_THAT(proto.num_tokens(), ElementsAre(4, 1));
  EXPECT_EQ(proto.samples(), std::string("\0\1", 2));
  EXPECT_THAT(proto.block_offsets(), ElementsAre(0, 2, 2));
  EXPECT_THAT(proto.blocks(), ElementsAre(10, 11));
  EXPECT_THAT(proto.window_offsets(), ElementsAre(0, 1, 2, 2, 3));
  EXPECT_THAT(proto.window_blocks(), ElementsAre(0, 22, 23));
  ASSERT_EQ(proto.evictions_size(), 1);
  EXPECT_EQ(proto.evictions(0).slot(), 4);
  EXPECT_EQ(proto.evictions(0).cut(), 16);
  EXPECT_EQ(proto.evictions(0).length(), 20);
  EXPECT_EQ(proto.evictions(0).num_destinations(), 1);
  EXPECT_EQ(proto.evictions(0).page_total(), 6);
  EXPECT_EQ(proto.evictions(0).region(), 8u);
  EXPECT_TRUE(proto.evictions(0).policy().has_external_scores());
  EXPECT_THAT(proto.evictions(0).scores(), ElementsAre(0.5f, 0.5f, 0.5f));
  EXPECT_THAT(proto.evictions(0).budgets(), ElementsAre(8, 8));
  EXPECT_THAT(proto.evictions(0).shard_page_totals(), ElementsAre(6, 2));
  EXPECT_EQ(proto.evictions(0).group(), 3);
  EXPECT_EQ(proto.evictions(0).GetDescriptor()->field_count(), 13);
  EXPECT_THAT(proto.destinations(), ElementsAre(12));
  EXPECT_THAT(proto.num_drafts(), ElementsAre(0, 3));
  // A field added to the message must be filled, and tested, here.
  EXPECT_EQ(proto.GetDescriptor()->field_count(), 19);
}

TEST(WireTest, ResultReplacesWhatWasThere) {
  StepResult result;
  result.sampled = {9, 9, 9};
  result.evictions.resize(3);
  result.evictions[0].layout_checksum = 7;
  result.lost_blocks = {BlockId{1}};
  result.lost_host_blocks = {HostBlockId{1}};
  result.num_accepted = {1};
  result.accepted = {8};
  result.num_drafts = {2, 2, 2};
  result.token_data = {"of before"};
  v1::StepResult proto;
  proto.set_step(4);
  proto.add_sampled(-1);
  proto.add_sampled(17);
  v1::EvictionOutcome* outcome = proto.add_evictions();
  outcome->set_error("no room");
  outcome->add_counts(5);
  proto.add_evictions()->set_layout_checksum(~uint64_t{2});
  proto.add_lost_blocks(6);
  proto.add_lost_blocks(2);
  proto.add_lost_host_blocks(8);
  proto.add_num_accepted(0);
  proto.add_num_accepted(2);
  proto.add_accepted(15);
  proto.add_accepted(16);
  proto.add_num_drafts(0);
  proto.add_num_drafts(4);
  proto.add_token_data("a");
  proto.add_token_data("");
  FromProto(proto, &result);
  EXPECT_EQ(result.id, StepId{4});
  EXPECT_THAT(result.sampled, ElementsAre(-1, 17));
  ASSERT_EQ(result.evictions.size(), 2u);
  EXPECT_FALSE(result.evictions[0].ok);
  EXPECT_EQ(result.evictions[0].error, "no room");
  EXPECT_THAT(result.evictions[0].counts, ElementsAre(5));
  EXPECT_EQ(result.evictions[0].layout_checksum, std::nullopt);
  EXPECT_EQ(result.evictions[1].layout_checksum, ~uint64_t{2});
  EXPECT_THAT(result.lost_blocks, ElementsAre(BlockId{6}, BlockId{2}));
  EXPECT_THAT(result.lost_host_blocks, ElementsAre(HostBlockId{8}));
  EXPECT_THAT(result.num_accepted, ElementsAre(0, 2));
  EXPECT_THAT(result.accepted, ElementsAre(15, 16));
  EXPECT_THAT(result.num_drafts, ElementsAre(0, 4));
  EXPECT_THAT(result.token_data, ElementsAre("a", ""));
  EXPECT_EQ(proto.GetDescriptor()->field_count(), 9);
}

TEST(WireTest, StatusKeepsCodeAndText) {
  const grpc::Status status = ToGrpc(absl::AbortedError("why"));
  EXPECT_EQ(status.error_code(), grpc::ABORTED);
  EXPECT_EQ(status.error_message(), "why");
  EXPECT_TRUE(ToGrpc(absl::OkStatus()).ok());
}

}  // namespace
}  // namespace blockmgr
