#include "wire/plan_wire.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <google/protobuf/descriptor.h>
#include <gtest/gtest.h>

#include "tests/testing/status_matchers.h"

namespace blockmgr {
namespace {

using ::testing::ElementsAre;
using ::testing::SizeIs;

TEST(PlanWireTest, EveryFieldOfAPlanArrives) {
  v1::StepPlan proto;
  proto.set_step(42);
  proto.add_released(3);
  v1::SequenceStart* start = proto.add_starts();
  start->set_slot(1);
  start->set_request(77);
  start->set_token_begin(2);
  start->set_num_tokens(3);
  start->set_num_cached_tokens(16);
  start->set_query_window(8);
  proto.add_start_tokens(5);
  proto.add_slots(1);
  proto.add_positions(16);
  proto.add_num_tokens(4);
  proto.set_samples(std::string("\x01", 1));
  proto.add_block_offsets(0);
  proto.add_block_offsets(2);
  proto.add_blocks(9);
  proto.add_blocks(10);
  proto.add_destinations(11);
  v1::EvictionOrder* order = proto.add_evictions();
  order->set_slot(1);
  order->set_cut(16);
  order->set_length(20);
  order->mutable_policy()->mutable_external_scores();
  order->mutable_policy()->mutable_external_budgets();
  order->mutable_target()->set_tokens_per_head(4);
  order->set_num_destinations(1);
  order->set_page_total(6);
  order->add_scores(0.5f);
  order->add_budgets(4);
  order->add_shard_page_totals(5);
  order->add_shard_page_totals(6);
  order->set_group(2);

  StepPlan plan;
  plan.slots = {SequenceSlot{99}};  // of the plan before
  ASSERT_OK(FromProto(proto, &plan));
  EXPECT_EQ(plan.id, StepId{42});
  EXPECT_THAT(plan.released, ElementsAre(SequenceSlot{3}));
  ASSERT_THAT(plan.starts, SizeIs(1));
  EXPECT_EQ(plan.starts[0].slot, SequenceSlot{1});
  EXPECT_EQ(plan.starts[0].request, RequestId{77});
  EXPECT_EQ(plan.starts[0].token_begin, 2);
  EXPECT_EQ(plan.starts[0].num_tokens, 3);
  EXPECT_EQ(plan.starts[0].num_cached_tokens, 16);
  EXPECT_EQ(plan.starts[0].query_window, 8);
  EXPECT_THAT(plan.start_tokens, ElementsAre(5));
  EXPECT_THAT(plan.slots, ElementsAre(SequenceSlot{1}));
  EXPECT_THAT(plan.positions, ElementsAre(16));
  EXPECT_THAT(plan.num_tokens, ElementsAre(4));
  EXPECT_THAT(plan.samples, ElementsAre(1));
  EXPECT_THAT(plan.block_offsets, ElementsAre(0, 2));
  EXPECT_THAT(plan.blocks, ElementsAre(BlockId{9}, BlockId{10}));
  EXPECT_THAT(plan.destinations, ElementsAre(BlockId{11}));
  ASSERT_THAT(plan.evictions, SizeIs(1));
  EXPECT_EQ(plan.evictions[0].slot, SequenceSlot{1});
  EXPECT_EQ(plan.evictions[0].cut, 16);
  EXPECT_EQ(plan.evictions[0].length, 20);
  EXPECT_EQ(plan.evictions[0].policy.scorer.kind, ScorerKind::kExternal);
  EXPECT_EQ(plan.evictions[0].policy.budget.kind, BudgetKind::kExternal);
  EXPECT_EQ(plan.evictions[0].target.tokens, 4);
  EXPECT_EQ(plan.evictions[0].num_destinations, 1);
  EXPECT_EQ(plan.evictions[0].page_total, 6);
  EXPECT_THAT(*plan.evictions[0].scores, ElementsAre(0.5f));
  EXPECT_THAT(*plan.evictions[0].budgets, ElementsAre(4));
  EXPECT_THAT(plan.evictions[0].shard_page_totals, ElementsAre(5, 6));
  EXPECT_EQ(plan.evictions[0].group, 2);
}

TEST(PlanWireTest, WhatToRunArrives) {
  v1::StepPlan proto;
  v1::RequestInfo* info = proto.add_starts()->mutable_info();
  info->set_request_id("r");
  info->set_num_prompt_tokens(2);
  info->set_lora("l");
  v1::MediaItem* item = info->add_media();
  item->set_begin(1);
  item->set_length(4);
  item->set_hash("h");
  info->set_engine_data("d");
  info->mutable_sampling()->set_seed(5);
  info->add_stop_token_ids(8);
  proto.add_starts()->mutable_info();
  StepPlan plan;
  ASSERT_OK(FromProto(proto, &plan));
  ASSERT_THAT(plan.starts, SizeIs(2));
  EXPECT_EQ(plan.starts[0].info->id, "r");
  EXPECT_EQ(plan.starts[0].info->num_prompt_tokens, 2);
  EXPECT_EQ(plan.starts[0].info->lora, "l");
  EXPECT_THAT(plan.starts[0].info->media, ElementsAre(MediaItem{1, 4, "h"}));
  EXPECT_EQ(plan.starts[0].info->engine_data, "d");
  EXPECT_EQ(plan.starts[0].info->sampling, SamplingParams{.seed = 5});
  EXPECT_THAT(plan.starts[0].info->stop_token_ids, ElementsAre(8));
  EXPECT_EQ(plan.starts[1].info->sampling, std::nullopt);
}

TEST(PlanWireTest, DraftsArrive) {
  v1::StepPlan proto;
  proto.add_num_drafts(0);
  proto.add_num_drafts(3);
  StepPlan plan;
  plan.num_drafts = {9};  // of the plan before
  ASSERT_OK(FromProto(proto, &plan));
  EXPECT_THAT(plan.num_drafts, ElementsAre(0, 3));
}

TEST(PlanWireTest, BlocksArrive) {
  v1::StepPlan proto;
  for (const int64_t offset : {0, 2, 3}) proto.add_block_offsets(offset);
  for (const int32_t block : {0, 7, 5}) proto.add_blocks(block);
  StepPlan plan;
  plan.block_offsets = {9};  // of the plan before
  ASSERT_OK(FromProto(proto, &plan));
  EXPECT_THAT(plan.block_offsets, ElementsAre(0, 2, 3));
  EXPECT_THAT(plan.blocks, ElementsAre(kNullBlock, BlockId{7}, BlockId{5}));
}

TEST(PlanWireTest, RegionsArriveByName) {
  v1::StepPlan proto;
  proto.add_starts()->set_region(5);
  proto.add_dropped_regions(3);
  v1::EvictionOrder* order = proto.add_evictions();
  order->set_region(12);
  order->mutable_policy()->mutable_knorm();
  order->mutable_policy()->mutable_uniform();
  order->mutable_target()->set_tokens_per_head(4);
  StepPlan plan;
  ASSERT_OK(FromProto(proto, &plan));
  EXPECT_EQ(plan.starts[0].region, RegionId{5});
  EXPECT_THAT(plan.dropped_regions, ElementsAre(RegionId{3}));
  EXPECT_EQ(plan.evictions[0].region, RegionId{12});
}

TEST(PlanWireTest, SourcesAndCopiesArrive) {
  v1::StepPlan proto;
  proto.add_starts()->set_source(0);
  proto.add_starts();
  v1::CopyOnWrite* copy = proto.add_copies();
  copy->set_slot(3);
  copy->set_source(8);
  copy->set_destination(9);
  copy->set_num_tokens(5);
  copy->set_group(2);
  StepPlan plan;
  ASSERT_OK(FromProto(proto, &plan));
  EXPECT_EQ(plan.starts[0].source, SequenceSlot{0});
  EXPECT_EQ(plan.starts[1].source, kNoSequenceSlot);
  const CopyOnWrite expected = {.slot = SequenceSlot{3},
                                .blocks = {BlockId{8}, BlockId{9}},
                                .num_tokens = 5,
                                .group = 2};
  EXPECT_THAT(plan.copies, ElementsAre(expected));
}

TEST(PlanWireTest, SwapsArriveWithTheirTransfers) {
  v1::StepPlan proto;
  proto.add_dropped_swaps(4);
  for (const int32_t slot : {6, 7}) {
    v1::SwapOut* out = proto.add_swap_outs();
    out->set_slot(slot);
    out->set_swap(10 + slot);
    out->set_num_tokens(30 + slot);
    out->mutable_transfers()->add_blocks(slot);
    out->mutable_transfers()->add_host_blocks(slot - 6);
  }
  proto.add_starts()->set_slot(1);
  v1::SequenceStart* start = proto.add_starts();
  start->set_swap(9);
  for (const int32_t block : {5, 8}) {
    start->mutable_transfers()->add_blocks(block);
    start->mutable_transfers()->add_host_blocks(20 + block);
  }
  StepPlan plan;
  ASSERT_OK(FromProto(proto, &plan));
  EXPECT_THAT(plan.dropped_swaps, ElementsAre(SwapId{4}));
  ASSERT_THAT(plan.swap_outs, SizeIs(2));
  EXPECT_EQ(plan.swap_outs[1].slot, SequenceSlot{7});
  EXPECT_EQ(plan.swap_outs[1].swap, SwapId{17});
  EXPECT_EQ(plan.swap_outs[1].num_tokens, 37);
  EXPECT_EQ(plan.swap_outs[1].transfer_begin, 1);
  EXPECT_EQ(plan.swap_outs[1].num_transfers, 1);
  EXPECT_THAT(plan.transfers_out,
              ElementsAre(BlockTransfer{BlockId{6}, HostBlockId{0}},
                          BlockTransfer{BlockId{7}, HostBlockId{1}}));
  EXPECT_EQ(plan.starts[0].swap, kNoSwap);
  EXPECT_EQ(plan.starts[0].num_transfers, 0);
  EXPECT_EQ(plan.starts[1].swap, SwapId{9});
  EXPECT_EQ(plan.starts[1].transfer_begin, 0);
  EXPECT_EQ(plan.starts[1].num_transfers, 2);
  EXPECT_THAT(plan.transfers_in,
              ElementsAre(BlockTransfer{BlockId{5}, HostBlockId{25}},
                          BlockTransfer{BlockId{8}, HostBlockId{28}}));

  start->mutable_transfers()->add_blocks(3);
  EXPECT_THAT(FromProto(proto, &plan),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       testing::HasSubstr("as many blocks as host blocks, got "
                                          "3 and 2")));
}

TEST(PlanWireTest, EveryFieldOfAResultLeaves) {
  StepResult result;
  result.lost_host_blocks = {HostBlockId{0}, HostBlockId{4}};
  result.lost_blocks = {BlockId{7}, BlockId{3}};
  result.id = StepId{5};
  result.sampled = {-1, 9};
  result.num_accepted = {0, 2};
  result.accepted = {7, 8};
  result.num_drafts = {0, 5};
  result.token_data = {"", "b"};
  result.logprobs = {{.run = 0, .prompt = {.tokens = {4}, .logprobs = {-1}}},
                     {.run = 1, .outputs = {.tokens = {5}, .logprobs = {-2}}}};
  result.stop_matches = {{.run = 1, .stop = 3}};
  result.evictions = {{.ok = true,
                       .error = "",
                       .counts = {16, 32},
                       .layout_checksum = ~uint64_t{5}},
                      {.ok = false, .error = "no queries", .counts = {}}};
  v1::StepResult proto;
  ToProto(result, &proto);
  EXPECT_EQ(proto.step(), 5u);
  EXPECT_THAT(proto.sampled(), ElementsAre(-1, 9));
  ASSERT_THAT(proto.evictions(), SizeIs(2));
  EXPECT_TRUE(proto.evictions(0).ok());
  EXPECT_THAT(proto.evictions(0).counts(), ElementsAre(16, 32));
  EXPECT_EQ(proto.evictions(0).layout_checksum(), ~uint64_t{5});
  EXPECT_FALSE(proto.evictions(1).has_layout_checksum());
  EXPECT_FALSE(proto.evictions(1).ok());
  EXPECT_EQ(proto.evictions(1).error(), "no queries");
  EXPECT_THAT(proto.lost_blocks(), ElementsAre(7, 3));
  EXPECT_THAT(proto.lost_host_blocks(), ElementsAre(0, 4));
  EXPECT_THAT(proto.num_accepted(), ElementsAre(0, 2));
  EXPECT_THAT(proto.accepted(), ElementsAre(7, 8));
  EXPECT_THAT(proto.num_drafts(), ElementsAre(0, 5));
  EXPECT_THAT(proto.token_data(), ElementsAre("", "b"));
  ASSERT_EQ(proto.logprobs_size(), 2);
  EXPECT_THAT(proto.logprobs(0).prompt().token_ids(), ElementsAre(4));
  EXPECT_FALSE(proto.logprobs(0).has_outputs());
  EXPECT_EQ(proto.logprobs(1).run(), 1);
  EXPECT_FALSE(proto.logprobs(1).has_prompt());
  EXPECT_THAT(proto.logprobs(1).outputs().logprobs(), ElementsAre(-2));
  EXPECT_EQ(proto.logprobs(1).GetDescriptor()->field_count(), 3);
  ASSERT_EQ(proto.stop_matches_size(), 1);
  EXPECT_EQ(proto.stop_matches(0).run(), 1);
  EXPECT_EQ(proto.stop_matches(0).stop(), 3);
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
                                  .engine_data = "d",
                                  .sampling = SamplingParams{.top_k = 4},
                                  .stop_token_ids = {8, 9}})},
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
  plan.block_offsets = {0, 2, 3, 3, 4};
  plan.blocks = {BlockId{10}, BlockId{11}, kNullBlock, BlockId{22}};
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

TEST(PlanWireTest, StartsSayWhatToRun) {
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
  EXPECT_EQ(info.sampling().top_k(), 4);
  EXPECT_THAT(info.stop_token_ids(), ElementsAre(8, 9));
  EXPECT_EQ(info.GetDescriptor()->field_count(), 7);
}

TEST(PlanWireTest, PlanCarriesEveryField) {
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
  EXPECT_THAT(proto.block_offsets(), ElementsAre(0, 2, 3, 3, 4));
  EXPECT_THAT(proto.blocks(), ElementsAre(10, 11, 0, 22));
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
  EXPECT_EQ(proto.GetDescriptor()->field_count(), 17);
}

TEST(PlanWireTest, ResultReplacesWhatWasThere) {
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
  result.logprobs = {{.run = 3, .prompt = {.tokens = {4}, .logprobs = {-1}}}};
  result.stop_matches = {{.run = 0, .stop = 1}, {.run = 1, .stop = 0}};
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
  v1::RunLogProbs* rows = proto.add_logprobs();
  rows->set_run(1);
  rows->mutable_outputs()->set_num_top(1);
  for (const uint32_t token : {6, 7}) {
    rows->mutable_outputs()->add_token_ids(token);
    rows->mutable_outputs()->add_logprobs(-0.5f);
  }
  v1::StopMatch* match = proto.add_stop_matches();
  match->set_run(1);
  match->set_stop(63);
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
  ASSERT_THAT(result.logprobs, SizeIs(1));
  EXPECT_EQ(result.logprobs[0].run, 1);
  EXPECT_THAT(result.logprobs[0].prompt.tokens, testing::IsEmpty());
  EXPECT_EQ(result.logprobs[0].outputs,
            (TokenLogProbs{
                .num_top = 1, .tokens = {6, 7}, .logprobs = {-0.5f, -0.5f}}));
  ASSERT_THAT(result.stop_matches, SizeIs(1));
  EXPECT_EQ(result.stop_matches[0].run, 1);
  EXPECT_EQ(result.stop_matches[0].stop, 63);
  EXPECT_EQ(proto.GetDescriptor()->field_count(), 11);
}

}  // namespace
}  // namespace blockmgr
