// Plans and results are compared as messages: each direction with one that is
// written out here.
#include "wire/plan_wire.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <set>
#include <vector>

#include <gmock/gmock.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include "tests/testing/is_invalid.h"
#include "tests/testing/status_matchers.h"
#include "wire/policy_wire.h"
#include "wire/sampling_wire.h"

namespace blockmgr {
namespace {

template <typename Message>
Message Parse(const char* text) {
  Message message;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &message));
  return message;
}

// Adds the fields of a message, and of those in it, that are set.
void FindFieldsSet(const google::protobuf::Message& message,
                   std::set<const google::protobuf::FieldDescriptor*>* set) {
  const google::protobuf::Reflection& reflection = *message.GetReflection();
  std::vector<const google::protobuf::FieldDescriptor*> fields;
  reflection.ListFields(message, &fields);
  for (const google::protobuf::FieldDescriptor* field : fields) {
    set->insert(field);
    if (field->message_type() == nullptr) continue;
    if (!field->is_repeated()) {
      FindFieldsSet(reflection.GetMessage(message, field), set);
      continue;
    }
    for (int i = 0; i < reflection.FieldSize(message, field); ++i) {
      FindFieldsSet(reflection.GetRepeatedMessage(message, field, i), set);
    }
  }
}

// A field that is added to one of these messages must be set in `message`.
void ExpectEveryFieldIsSet(
    const google::protobuf::Message& message,
    const std::vector<const google::protobuf::Descriptor*>& types) {
  std::set<const google::protobuf::FieldDescriptor*> set;
  FindFieldsSet(message, &set);
  for (const google::protobuf::Descriptor* type : types) {
    for (int i = 0; i < type->field_count(); ++i) {
      EXPECT_TRUE(set.contains(type->field(i))) << type->field(i)->full_name();
    }
  }
}

constexpr char kPlan[] = R"pb(
  step: 9
  released: 3
  starts {
    slot: 4
    request: 77
    token_begin: 2
    num_tokens: 5
    num_cached_tokens: 16
    query_window: 32
    scorer_state: SCORER_STATE_QUERY_STATISTICS
    state_begin: 3
    region: 5
    source: 0
    info {
      request_id: "r"
      num_prompt_tokens: 4
      lora: "l"
      media { begin: 1 length: 2 hash: "h" }
      engine_data: "d"
      stop_token_ids: 8
      stop_token_ids: 9
    }
  }
  starts {
    slot: 5
    request: 78
    num_tokens: 1
    swap: 6
    transfers { blocks: 13 host_blocks: 14 }
    info {}
  }
  start_tokens: [ 1, 2, 3, 4, 5 ]
  slots: [ 4, 0 ]
  positions: [ 16, 99 ]
  num_tokens: [ 4, 1 ]
  samples: "\000\001"
  block_offsets: [ 0, 2, 3, 3, 4 ]
  blocks: [ 10, 11, 0, 22 ]
  evictions {
    slot: 4
    cut: 16
    length: 20
    destination_begin: 1
    num_destinations: 1
    page_total: 6
    scores: [ 0.5, 0.5, 0.5 ]
    budgets: [ 8, 8 ]
    region: 8
    shard_page_totals: [ 6, 2 ]
    group: 3
  }
  destinations: [ 11, 12 ]
  dropped_regions: [ 3, 5 ]
  copies { slot: 4 source: 20 destination: 21 num_tokens: 7 group: 2 }
  dropped_swaps: 7
  swap_outs {
    slot: 3
    swap: 8
    num_tokens: 30
    transfers { blocks: 15 blocks: 17 host_blocks: 16 host_blocks: 0 }
  }
  swap_outs {
    slot: 2
    swap: 10
    num_tokens: 31
    transfers { blocks: 18 host_blocks: 1 }
  }
  num_drafts: [ 0, 3 ]
)pb";

// Policies, targets and parameters have tests of their own.
EvictionPolicy ExternalPolicy() {
  EvictionPolicy policy;
  policy.scorer.kind = ScorerKind::kExternal;
  policy.budget.kind = BudgetKind::kExternal;
  return policy;
}

// Doubles the arrays, and reverses the order of their elements.
void Lengthen(auto*... arrays) {
  const auto lengthen = [](auto* array) {
    const auto copy = *array;
    array->insert(array->end(), copy.begin(), copy.end());
    std::ranges::reverse(*array);
  };
  (lengthen(arrays), ...);
}

EvictionTarget Target() {
  EvictionTarget target;
  target.kind = EvictionTarget::Kind::kTokens;
  target.tokens = 4;
  return target;
}

v1::StepPlan PlanMessage() {
  auto proto = Parse<v1::StepPlan>(kPlan);
  ToProto(SamplingParams{.top_k = 4},
          proto.mutable_starts(0)->mutable_info()->mutable_sampling());
  ToProto(ExternalPolicy(), proto.mutable_evictions(0)->mutable_policy());
  ToProto(Target(), proto.mutable_evictions(0)->mutable_target());
  return proto;
}

EvictionOrder Order() {
  EvictionOrder order;
  order.slot = SequenceSlot{4};
  order.cut = 16;
  order.length = 20;
  order.policy = ExternalPolicy();
  order.target = Target();
  order.destination_begin = 1;
  order.num_destinations = 1;
  order.page_total = 6;
  order.region = RegionId{8};
  order.scores = std::make_shared<std::vector<float>>(3, 0.5f);
  order.budgets = std::make_shared<std::vector<int32_t>>(2, 8);
  order.shard_page_totals = {6, 2};
  order.group = 3;
  return order;
}

StepPlan Plan() {
  StepPlan plan;
  plan.id = StepId{9};
  plan.released = {SequenceSlot{3}};
  plan.starts = {{.slot = SequenceSlot{4},
                  .request = RequestId{77},
                  .token_begin = 2,
                  .num_tokens = 5,
                  .num_cached_tokens = 16,
                  .source = SequenceSlot{0},
                  .region = RegionId{5},
                  .query_window = 32,
                  .scorer_state = ScorerState::kQueryStatistics,
                  .state_begin = 3,
                  .info = std::make_shared<const RequestInfo>(
                      RequestInfo{.id = "r",
                                  .num_prompt_tokens = 4,
                                  .lora = "l",
                                  .media = {{1, 2, "h"}},
                                  .engine_data = "d",
                                  .sampling = SamplingParams{.top_k = 4},
                                  .stop_token_ids = {8, 9}})},
                 {.slot = SequenceSlot{5},
                  .request = RequestId{78},
                  .num_tokens = 1,
                  .swap = SwapId{6},
                  .transfer_begin = 1,
                  .num_transfers = 1,
                  .info = std::make_shared<const RequestInfo>()}};
  plan.transfers_in = {{BlockId{1}, HostBlockId{2}},
                       {BlockId{13}, HostBlockId{14}}};
  plan.dropped_swaps = {SwapId{7}};
  plan.swap_outs = {{.slot = SequenceSlot{3},
                     .swap = SwapId{8},
                     .num_tokens = 30,
                     .transfer_begin = 0,
                     .num_transfers = 2},
                    {.slot = SequenceSlot{2},
                     .swap = SwapId{10},
                     .num_tokens = 31,
                     .transfer_begin = 2,
                     .num_transfers = 1}};
  plan.transfers_out = {{BlockId{15}, HostBlockId{16}},
                        {BlockId{17}, HostBlockId{0}},
                        {BlockId{18}, HostBlockId{1}}};
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
  plan.evictions = {Order()};
  plan.destinations = {BlockId{11}, BlockId{12}};
  return plan;
}

TEST(PlanWireTest, EveryFieldOfAPlanLeaves) {
  v1::StepPlan proto;
  ToProto(Plan(), &proto);
  EXPECT_EQ(proto.DebugString(), PlanMessage().DebugString());
  ExpectEveryFieldIsSet(
      proto, {v1::StepPlan::descriptor(), v1::SequenceStart::descriptor(),
              v1::RequestInfo::descriptor(), v1::MediaItem::descriptor(),
              v1::SwapOut::descriptor(), v1::Transfers::descriptor(),
              v1::CopyOnWrite::descriptor(), v1::EvictionOrder::descriptor()});
}

// Nothing is lost of a plan that is read, and nothing is left of the plan that
// was there before.
TEST(PlanWireTest, EveryFieldOfAPlanArrives) {
  StepPlan longer = Plan();
  longer.id = StepId{8};
  Lengthen(&longer.dropped_swaps, &longer.swap_outs, &longer.transfers_out,
           &longer.released, &longer.starts, &longer.transfers_in,
           &longer.start_tokens, &longer.dropped_regions, &longer.copies,
           &longer.slots, &longer.positions, &longer.num_tokens,
           &longer.samples, &longer.num_drafts, &longer.block_offsets,
           &longer.blocks, &longer.evictions, &longer.destinations);
  for (StepPlan plan : {StepPlan(), longer}) {
    ASSERT_OK(FromProto(PlanMessage(), &plan));
    v1::StepPlan proto;
    ToProto(plan, &proto);
    EXPECT_EQ(proto.DebugString(), PlanMessage().DebugString());
  }
}

TEST(PlanWireTest, AStartMayLackInfo) {
  StepPlan plan;
  plan.starts.emplace_back();
  v1::StepPlan proto;
  ToProto(plan, &proto);
  EXPECT_FALSE(proto.starts(0).has_info());
}

TEST(PlanWireTest, TransfersArePairs) {
  v1::StepPlan proto = PlanMessage();
  proto.mutable_starts(1)->mutable_transfers()->add_blocks(3);
  StepPlan plan;
  EXPECT_THAT(FromProto(proto, &plan),
              IsInvalid("as many blocks as host blocks, got 2 and 1"));
}

constexpr char kResult[] = R"pb(
  step: 5
  sampled: [ -1, 9 ]
  evictions {
    ok: true
    counts: [ 16, 32 ]
    layout_checksum: 0xFFFFFFFFFFFFFFFA
  }
  evictions { error: "no queries" }
  lost_blocks: [ 7, 3 ]
  lost_host_blocks: [ 0, 4 ]
  num_accepted: [ 0, 2 ]
  accepted: [ 7, 8 ]
  num_drafts: [ 0, 5 ]
  token_data: ""
  token_data: "b"
  logprobs {
    prompt {
      first_index: 2
      num_top: 1
      token_ids: [ 4, 6 ]
      logprobs: [ -1, -2 ]
    }
  }
  logprobs {
    run: 1
    outputs { token_ids: 5 logprobs: -2 }
  }
  stop_matches { run: 1 stop: 3 }
)pb";

StepResult Result() {
  StepResult result;
  result.id = StepId{5};
  result.sampled = {-1, 9};
  result.num_accepted = {0, 2};
  result.accepted = {7, 8};
  result.num_drafts = {0, 5};
  result.token_data = {"", "b"};
  result.logprobs = {{.run = 0,
                      .prompt = {.first_index = 2,
                                 .num_top = 1,
                                 .tokens = {4, 6},
                                 .logprobs = {-1, -2}}},
                     {.run = 1, .outputs = {.tokens = {5}, .logprobs = {-2}}}};
  result.stop_matches = {{.run = 1, .stop = 3}};
  result.evictions = {{.ok = true,
                       .error = "",
                       .counts = {16, 32},
                       .layout_checksum = ~uint64_t{5}},
                      {.ok = false, .error = "no queries", .counts = {}}};
  result.lost_blocks = {BlockId{7}, BlockId{3}};
  result.lost_host_blocks = {HostBlockId{0}, HostBlockId{4}};
  return result;
}

TEST(PlanWireTest, EveryFieldOfAResultLeaves) {
  v1::StepResult proto;
  ToProto(Result(), &proto);
  EXPECT_EQ(proto.DebugString(), Parse<v1::StepResult>(kResult).DebugString());
  ExpectEveryFieldIsSet(
      proto, {v1::StepResult::descriptor(), v1::EvictionOutcome::descriptor(),
              v1::RunLogProbs::descriptor(), v1::TokenLogProbs::descriptor(),
              v1::StopMatch::descriptor()});
}

TEST(PlanWireTest, EveryFieldOfAResultArrives) {
  const auto sent = Parse<v1::StepResult>(kResult);
  StepResult longer = Result();
  longer.id = StepId{4};
  Lengthen(&longer.sampled, &longer.num_accepted, &longer.accepted,
           &longer.num_drafts, &longer.token_data, &longer.logprobs,
           &longer.stop_matches, &longer.evictions, &longer.lost_blocks,
           &longer.lost_host_blocks);
  for (StepResult result : {StepResult(), longer}) {
    FromProto(sent, &result);
    v1::StepResult proto;
    ToProto(result, &proto);
    EXPECT_EQ(proto.DebugString(), sent.DebugString());
  }
}

}  // namespace
}  // namespace blockmgr
