#include "wire/plan_wire.h"

#include <iterator>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include <google/protobuf/repeated_field.h>

#include "blockmgr/base/invalid.h"
#include "blockmgr/base/status_macros.h"
#include "wire/policy_wire.h"
#include "wire/sampling_wire.h"

namespace blockmgr {
namespace {

// An id type is its number.
template <typename Id, typename Number>
void AddIds(const std::vector<Id>& ids,
            google::protobuf::RepeatedField<Number>* field) {
  field->Reserve(static_cast<int>(ids.size()));
  for (const Id id : ids) field->AddAlreadyReserved(Index(id));
}

template <typename Number>
void AddAll(const std::vector<Number>& values,
            google::protobuf::RepeatedField<Number>* field) {
  field->Add(values.begin(), values.end());
}

template <typename Id>
void AssignIds(const google::protobuf::RepeatedField<int32_t>& from,
               std::vector<Id>* to) {
  to->reserve(static_cast<size_t>(from.size()));
  for (const int32_t id : from) to->push_back(Id{id});
}

absl::Status AddTransfers(const v1::Transfers& proto,
                          std::vector<BlockTransfer>* transfers) {
  if (proto.blocks_size() != proto.host_blocks_size()) {
    return Invalid("transfers: expected as many blocks as host blocks, got ",
                   proto.blocks_size(), " and ", proto.host_blocks_size());
  }
  for (int i = 0; i < proto.blocks_size(); ++i) {
    transfers->push_back({.block = BlockId{proto.blocks(i)},
                          .host = HostBlockId{proto.host_blocks(i)}});
  }
  return absl::OkStatus();
}

absl::Status SwapsFromProto(const v1::StepPlan& proto, StepPlan* plan) {
  for (const uint64_t swap : proto.dropped_swaps()) {
    plan->dropped_swaps.push_back(SwapId{swap});
  }
  for (const v1::SwapOut& out : proto.swap_outs()) {
    plan->swap_outs.push_back(
        {.slot = SequenceSlot{out.slot()},
         .swap = SwapId{out.swap()},
         .num_tokens = out.num_tokens(),
         .transfer_begin = std::ssize(plan->transfers_out),
         .num_transfers = out.transfers().blocks_size()});
    BM_RETURN_IF_ERROR(AddTransfers(out.transfers(), &plan->transfers_out));
  }
  return absl::OkStatus();
}

absl::StatusOr<EvictionOrder> OrderFromProto(const v1::EvictionOrder& proto) {
  EvictionOrder order;
  order.slot = SequenceSlot{proto.slot()};
  order.group = proto.group();
  order.cut = proto.cut();
  order.length = proto.length();
  BM_ASSIGN_OR_RETURN(order.policy, FromProto(proto.policy()));
  BM_ASSIGN_OR_RETURN(order.target, FromProto(proto.target()));
  order.destination_begin = proto.destination_begin();
  order.num_destinations = proto.num_destinations();
  order.page_total = proto.page_total();
  order.shard_page_totals.assign(proto.shard_page_totals().begin(),
                                 proto.shard_page_totals().end());
  order.region = RegionId{proto.region()};
  if (order.policy.scorer.kind == ScorerKind::kExternal) {
    order.scores = std::make_shared<const std::vector<float>>(
        proto.scores().begin(), proto.scores().end());
  }
  if (order.policy.budget.kind == BudgetKind::kExternal) {
    order.budgets = std::make_shared<const std::vector<int32_t>>(
        proto.budgets().begin(), proto.budgets().end());
  }
  return order;
}

absl::StatusOr<std::shared_ptr<const RequestInfo>> InfoFromProto(
    const v1::RequestInfo& proto) {
  RequestInfo info{.id = proto.request_id(),
                   .num_prompt_tokens = proto.num_prompt_tokens(),
                   .lora = proto.lora(),
                   .media = {},
                   .engine_data = proto.engine_data()};
  for (const v1::MediaItem& item : proto.media()) {
    info.media.push_back(
        {.begin = item.begin(), .length = item.length(), .hash = item.hash()});
  }
  if (proto.has_sampling()) {
    BM_ASSIGN_OR_RETURN(info.sampling, FromProto(proto.sampling()));
  }
  BM_RETURN_IF_ERROR(TokensFromProto("stop_token_ids", proto.stop_token_ids(),
                                     &info.stop_token_ids));
  return std::make_shared<const RequestInfo>(std::move(info));
}

}  // namespace

absl::Status FromProto(const v1::StepPlan& proto, StepPlan* plan) {
  plan->Clear();
  plan->id = StepId{proto.step()};
  BM_RETURN_IF_ERROR(SwapsFromProto(proto, plan));
  AssignIds(proto.released(), &plan->released);
  plan->starts.reserve(static_cast<size_t>(proto.starts_size()));
  for (const v1::SequenceStart& start : proto.starts()) {
    if (!v1::ScorerState_IsValid(start.scorer_state())) {
      return Invalid("starts[", plan->starts.size(),
                     "]: scorer_state: unknown value ", start.scorer_state());
    }
    BM_ASSIGN_OR_RETURN(std::shared_ptr<const RequestInfo> info,
                        InfoFromProto(start.info()));
    plan->starts.push_back(
        {.slot = SequenceSlot{start.slot()},
         .request = RequestId{start.request()},
         .token_begin = start.token_begin(),
         .num_tokens = start.num_tokens(),
         .num_cached_tokens = start.num_cached_tokens(),
         .source = start.has_source() ? SequenceSlot{start.source()}
                                      : kNoSequenceSlot,
         .region = RegionId{start.region()},
         .swap = SwapId{start.swap()},
         .transfer_begin = std::ssize(plan->transfers_in),
         .num_transfers = start.transfers().blocks_size(),
         .query_window = start.query_window(),
         .scorer_state = static_cast<ScorerState>(start.scorer_state()),
         .state_begin = start.state_begin(),
         .info = std::move(info)});
    BM_RETURN_IF_ERROR(AddTransfers(start.transfers(), &plan->transfers_in));
  }
  plan->start_tokens.assign(proto.start_tokens().begin(),
                            proto.start_tokens().end());
  for (const uint64_t region : proto.dropped_regions()) {
    plan->dropped_regions.push_back(RegionId{region});
  }
  for (const v1::CopyOnWrite& copy : proto.copies()) {
    plan->copies.push_back(
        {.slot = SequenceSlot{copy.slot()},
         .blocks = {BlockId{copy.source()}, BlockId{copy.destination()}},
         .num_tokens = copy.num_tokens(),
         .group = copy.group()});
  }
  AssignIds(proto.slots(), &plan->slots);
  plan->positions.assign(proto.positions().begin(), proto.positions().end());
  plan->num_tokens.assign(proto.num_tokens().begin(), proto.num_tokens().end());
  plan->samples.assign(proto.samples().begin(), proto.samples().end());
  plan->block_offsets.assign(proto.block_offsets().begin(),
                             proto.block_offsets().end());
  AssignIds(proto.blocks(), &plan->blocks);
  AssignIds(proto.destinations(), &plan->destinations);
  plan->num_drafts.assign(proto.num_drafts().begin(), proto.num_drafts().end());
  for (const v1::EvictionOrder& message : proto.evictions()) {
    absl::StatusOr<EvictionOrder> order = OrderFromProto(message);
    if (!order.ok()) {
      return Invalid("evictions[", plan->evictions.size(),
                     "]: ", order.status().message());
    }
    plan->evictions.push_back(*std::move(order));
  }
  return absl::OkStatus();
}

namespace {

void ToProto(const RequestInfo& info, v1::RequestInfo* proto) {
  proto->set_request_id(info.id);
  proto->set_num_prompt_tokens(info.num_prompt_tokens);
  proto->set_lora(info.lora);
  for (const MediaItem& item : info.media) {
    v1::MediaItem* added = proto->add_media();
    added->set_begin(item.begin);
    added->set_length(item.length);
    added->set_hash(item.hash);
  }
  proto->set_engine_data(info.engine_data);
  if (info.sampling.has_value()) {
    ToProto(*info.sampling, proto->mutable_sampling());
  }
  proto->mutable_stop_token_ids()->Add(info.stop_token_ids.begin(),
                                       info.stop_token_ids.end());
}

void AddTransfers(const std::vector<BlockTransfer>& all, int64_t begin,
                  int32_t count, v1::Transfers* proto) {
  for (const BlockTransfer& transfer : std::span(all).subspan(
           static_cast<size_t>(begin), static_cast<size_t>(count))) {
    proto->add_blocks(Index(transfer.block));
    proto->add_host_blocks(Index(transfer.host));
  }
}

void ToProto(const EvictionOrder& order, v1::EvictionOrder* proto) {
  proto->set_slot(Index(order.slot));
  proto->set_group(order.group);
  proto->set_cut(order.cut);
  proto->set_length(order.length);
  ToProto(order.policy, proto->mutable_policy());
  ToProto(order.target, proto->mutable_target());
  proto->set_destination_begin(order.destination_begin);
  proto->set_num_destinations(order.num_destinations);
  proto->set_page_total(order.page_total);
  proto->mutable_shard_page_totals()->Add(order.shard_page_totals.begin(),
                                          order.shard_page_totals.end());
  proto->set_region(Index(order.region));
  if (order.scores != nullptr) AddAll(*order.scores, proto->mutable_scores());
  if (order.budgets != nullptr) {
    AddAll(*order.budgets, proto->mutable_budgets());
  }
}

}  // namespace

void ToProto(const StepPlan& plan, v1::StepPlan* proto) {
  proto->set_step(Index(plan.id));
  for (const SwapId swap : plan.dropped_swaps) {
    proto->add_dropped_swaps(Index(swap));
  }
  for (const SwapOut& out : plan.swap_outs) {
    v1::SwapOut* added = proto->add_swap_outs();
    added->set_slot(Index(out.slot));
    added->set_swap(Index(out.swap));
    added->set_num_tokens(out.num_tokens);
    AddTransfers(plan.transfers_out, out.transfer_begin, out.num_transfers,
                 added->mutable_transfers());
  }
  AddIds(plan.released, proto->mutable_released());
  for (const SequenceStart& start : plan.starts) {
    v1::SequenceStart* added = proto->add_starts();
    added->set_slot(Index(start.slot));
    added->set_request(Index(start.request));
    added->set_token_begin(start.token_begin);
    added->set_num_tokens(start.num_tokens);
    added->set_num_cached_tokens(start.num_cached_tokens);
    added->set_query_window(start.query_window);
    added->set_scorer_state(
        static_cast<v1::ScorerState>(static_cast<int>(start.scorer_state)));
    added->set_state_begin(start.state_begin);
    added->set_region(Index(start.region));
    if (start.source != kNoSequenceSlot) {
      added->set_source(Index(start.source));
    }
    if (start.info != nullptr) ToProto(*start.info, added->mutable_info());
    if (start.swap == kNoSwap) continue;
    added->set_swap(Index(start.swap));
    AddTransfers(plan.transfers_in, start.transfer_begin, start.num_transfers,
                 added->mutable_transfers());
  }
  AddAll(plan.start_tokens, proto->mutable_start_tokens());
  for (const RegionId region : plan.dropped_regions) {
    proto->add_dropped_regions(Index(region));
  }
  for (const CopyOnWrite& copy : plan.copies) {
    v1::CopyOnWrite* added = proto->add_copies();
    added->set_slot(Index(copy.slot));
    added->set_source(Index(copy.blocks.source));
    added->set_destination(Index(copy.blocks.destination));
    added->set_num_tokens(copy.num_tokens);
    added->set_group(copy.group);
  }
  AddIds(plan.slots, proto->mutable_slots());
  AddAll(plan.positions, proto->mutable_positions());
  AddAll(plan.num_tokens, proto->mutable_num_tokens());
  proto->mutable_samples()->assign(plan.samples.begin(), plan.samples.end());
  AddAll(plan.block_offsets, proto->mutable_block_offsets());
  AddIds(plan.blocks, proto->mutable_blocks());
  for (const EvictionOrder& order : plan.evictions) {
    ToProto(order, proto->add_evictions());
  }
  AddIds(plan.destinations, proto->mutable_destinations());
  AddAll(plan.num_drafts, proto->mutable_num_drafts());
}

void FromProto(const v1::StepResult& proto, StepResult* result) {
  result->id = StepId{proto.step()};
  result->sampled.assign(proto.sampled().begin(), proto.sampled().end());
  result->evictions.resize(static_cast<size_t>(proto.evictions().size()));
  for (int i = 0; i < proto.evictions().size(); ++i) {
    const v1::EvictionOutcome& from = proto.evictions(i);
    EvictionOutcome& to = result->evictions[static_cast<size_t>(i)];
    to.ok = from.ok();
    to.error = from.error();
    to.counts.assign(from.counts().begin(), from.counts().end());
    to.layout_checksum.reset();
    if (from.has_layout_checksum()) {
      to.layout_checksum = from.layout_checksum();
    }
  }
  result->num_accepted.assign(proto.num_accepted().begin(),
                              proto.num_accepted().end());
  result->accepted.assign(proto.accepted().begin(), proto.accepted().end());
  result->num_drafts.assign(proto.num_drafts().begin(),
                            proto.num_drafts().end());
  result->token_data.assign(proto.token_data().begin(),
                            proto.token_data().end());
  result->logprobs.resize(static_cast<size_t>(proto.logprobs_size()));
  for (size_t i = 0; i < result->logprobs.size(); ++i) {
    const v1::RunLogProbs& from = proto.logprobs(static_cast<int>(i));
    RunLogProbs& to = result->logprobs[i];
    to.run = from.run();
    FromProto(from.prompt(), &to.prompt);
    FromProto(from.outputs(), &to.outputs);
  }
  result->stop_matches.clear();
  for (const v1::StopMatch& match : proto.stop_matches()) {
    result->stop_matches.push_back({.run = match.run(), .stop = match.stop()});
  }
  result->lost_blocks.clear();
  for (const int32_t block : proto.lost_blocks()) {
    result->lost_blocks.push_back(BlockId{block});
  }
  result->lost_host_blocks.clear();
  for (const int32_t block : proto.lost_host_blocks()) {
    result->lost_host_blocks.push_back(HostBlockId{block});
  }
}

void ToProto(const StepResult& result, v1::StepResult* proto) {
  proto->set_step(Index(result.id));
  proto->mutable_sampled()->Add(result.sampled.begin(), result.sampled.end());
  for (const EvictionOutcome& outcome : result.evictions) {
    v1::EvictionOutcome* message = proto->add_evictions();
    message->set_ok(outcome.ok);
    message->set_error(outcome.error);
    message->mutable_counts()->Add(outcome.counts.begin(),
                                   outcome.counts.end());
    if (outcome.layout_checksum.has_value()) {
      message->set_layout_checksum(*outcome.layout_checksum);
    }
  }
  proto->mutable_num_accepted()->Add(result.num_accepted.begin(),
                                     result.num_accepted.end());
  proto->mutable_accepted()->Add(result.accepted.begin(),
                                 result.accepted.end());
  proto->mutable_num_drafts()->Add(result.num_drafts.begin(),
                                   result.num_drafts.end());
  proto->mutable_token_data()->Add(result.token_data.begin(),
                                   result.token_data.end());
  for (const RunLogProbs& rows : result.logprobs) {
    v1::RunLogProbs* message = proto->add_logprobs();
    message->set_run(rows.run);
    if (!rows.prompt.tokens.empty()) {
      ToProto(rows.prompt, message->mutable_prompt());
    }
    if (!rows.outputs.tokens.empty()) {
      ToProto(rows.outputs, message->mutable_outputs());
    }
  }
  for (const StopMatch& match : result.stop_matches) {
    v1::StopMatch* message = proto->add_stop_matches();
    message->set_run(match.run);
    message->set_stop(match.stop);
  }
  for (const BlockId block : result.lost_blocks) {
    proto->add_lost_blocks(Index(block));
  }
  for (const HostBlockId block : result.lost_host_blocks) {
    proto->add_lost_host_blocks(Index(block));
  }
}

}  // namespace blockmgr
