#include "scheduler/server/wire.h"

#include <limits>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include <absl/strings/str_cat.h>
#include <google/protobuf/repeated_field.h>

#include "blockmgr/base/check.h"
#include "blockmgr/base/status_macros.h"
#include "scheduler/server/peer_text.h"

namespace blockmgr {
namespace {

constexpr size_t kMaxIdBytes = 128;

template <typename... Args>
absl::Status Invalid(const Args&... args) {
  return absl::InvalidArgumentError(absl::StrCat(args...));
}

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

absl::Status TokensFromProto(
    absl::string_view field,
    const google::protobuf::RepeatedField<uint32_t>& proto,
    std::vector<int32_t>* tokens) {
  constexpr uint32_t kMax = std::numeric_limits<int32_t>::max();
  tokens->reserve(static_cast<size_t>(proto.size()));
  for (int i = 0; i < proto.size(); ++i) {
    if (proto[i] > kMax) {
      return Invalid(field, "[", i, "]: expected at most ", kMax, ", got ",
                     proto[i]);
    }
    tokens->push_back(static_cast<int32_t>(proto[i]));
  }
  return absl::OkStatus();
}

}  // namespace

grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()),
                      Shorten(status.message()));
}

absl::Status CheckId(absl::string_view field, const std::string& id) {
  if (id.empty() || id.size() > kMaxIdBytes) {
    return Invalid(field, ": expected 1..", kMaxIdBytes, " bytes, got ",
                   id.size());
  }
  return absl::OkStatus();
}

namespace {

absl::StatusOr<RequestEviction> EvictionFromProto(
    const v1::RequestEviction& proto) {
  RequestEviction eviction;
  switch (proto.mode()) {
    case v1::EVICTION_MODE_NONE:
      // Nobody who asks for an eviction wants none.
      if (proto.ByteSizeLong() > 0) {
        return Invalid(
            "eviction.mode: expected one of the modes with the eviction's "
            "other fields, got EVICTION_MODE_NONE");
      }
      return eviction;
    case v1::EVICTION_MODE_AFTER_PREFILL:
      eviction.mode = EvictionMode::kAfterPrefill;
      break;
    case v1::EVICTION_MODE_EVERY_CHUNK:
      eviction.mode = EvictionMode::kEveryChunk;
      break;
    case v1::EVICTION_MODE_DECODE:
      eviction.mode = EvictionMode::kDecode;
      break;
    case v1::EVICTION_MODE_PRESSURE:
      eviction.mode = EvictionMode::kPressure;
      break;
    default:
      return Invalid("eviction.mode: unknown value ", proto.mode());
  }
  eviction.compress_every = proto.compress_every();
  eviction.share_prefix = proto.share_prefix();
  eviction.share_multiple = proto.share_multiple();
  BM_ASSIGN_OR_RETURN(eviction.policy, FromProto(proto.policy()));
  BM_ASSIGN_OR_RETURN(eviction.target, FromProto(proto.target()));
  if (eviction.policy.scorer.kind == ScorerKind::kExternal ||
      eviction.policy.budget.kind == BudgetKind::kExternal) {
    return Invalid(
        "eviction.policy: external scores and budgets come with "
        "EvictionService, not with the request");
  }
  return eviction;
}

}  // namespace

absl::StatusOr<Request> FromProto(const v1::SubmitRequest& proto) {
  BM_RETURN_IF_ERROR(CheckId("client_session", proto.client_session()));
  BM_RETURN_IF_ERROR(CheckId("request_id", proto.request_id()));
  Request request;
  request.id = proto.request_id();
  if (proto.prompt_token_ids().empty()) {
    return Invalid("prompt_token_ids: expected at least one token, got none");
  }
  BM_RETURN_IF_ERROR(TokensFromProto(
      "prompt_token_ids", proto.prompt_token_ids(), &request.prompt));
  if (proto.max_tokens() < 1) {
    return Invalid("max_tokens: expected at least 1, got ", proto.max_tokens());
  }
  request.max_tokens = proto.max_tokens();
  BM_RETURN_IF_ERROR(TokensFromProto("stop_token_ids", proto.stop_token_ids(),
                                     &request.stop_token_ids));
  request.priority = proto.priority();
  request.fork_of = proto.fork_of();
  request.scope.tenant = proto.tenant();
  request.scope.lora = proto.lora();
  request.scope.cache_salt = proto.cache_salt();
  for (const v1::MediaItem& item : proto.media()) {
    request.scope.media.push_back(
        {.begin = item.begin(), .length = item.length(), .hash = item.hash()});
  }
  request.engine_data = proto.engine_data();
  for (const v1::RetentionWish& wish : proto.retention()) {
    RetentionWish& out = request.retention.emplace_back();
    out.begin = wish.begin();
    out.end = wish.end();
    if (wish.has_priority()) out.priority = wish.priority();
    out.duration_ms = wish.duration_ms();
  }
  BM_ASSIGN_OR_RETURN(request.eviction, EvictionFromProto(proto.eviction()));
  return request;
}

absl::StatusOr<EvictionCommand> FromProto(const v1::EvictRequest& proto) {
  BM_RETURN_IF_ERROR(CheckId("request_id", proto.request_id()));
  EvictionCommand command;
  BM_ASSIGN_OR_RETURN(command.policy, FromProto(proto.policy()));
  BM_ASSIGN_OR_RETURN(command.target, FromProto(proto.target()));
  if (proto.cut() < 0) {
    return Invalid("cut: expected at least 0, got ", proto.cut());
  }
  command.cut = proto.cut();
  const bool external = command.policy.budget.kind == BudgetKind::kExternal;
  if (external != !proto.budgets().empty()) {
    return Invalid("budgets: expected ", external ? "values" : "none",
                   " with the budget of this policy, got ",
                   proto.budgets().size());
  }
  if (!external) return command;
  for (int i = 0; i < proto.budgets().size(); ++i) {
    if (proto.budgets(i) < 0) {
      return Invalid("budgets[", i, "]: expected at least 0, got ",
                     proto.budgets(i));
    }
  }
  command.budgets = std::make_shared<const std::vector<int32_t>>(
      proto.budgets().begin(), proto.budgets().end());
  return command;
}

void ToProto(const EvictionEffect& effect, v1::EvictResponse* proto) {
  proto->set_cut(effect.cut);
  proto->set_evicted_entries(effect.evicted_entries);
  proto->set_freed_blocks(effect.freed_blocks);
  proto->set_freed_bytes(effect.freed_bytes);
  AddAll(effect.kept_entries, proto->mutable_kept_entries());
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
  AddAll(plan.window_offsets, proto->mutable_window_offsets());
  AddIds(plan.window_blocks, proto->mutable_window_blocks());
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
  result->lost_blocks.clear();
  for (const int32_t block : proto.lost_blocks()) {
    result->lost_blocks.push_back(BlockId{block});
  }
  result->lost_host_blocks.clear();
  for (const int32_t block : proto.lost_host_blocks()) {
    result->lost_host_blocks.push_back(HostBlockId{block});
  }
}

void ToProto(const CoreStats& stats, v1::GetStatsResponse* proto) {
  proto->set_engine_attached(stats.engine_attached);
  proto->set_engine_name(stats.engine_name);
  if (stats.layout.has_value()) ToProto(*stats.layout, proto->mutable_layout());
  proto->set_epoch(stats.epoch);
  proto->set_generation(stats.generation);
  const SchedulerStats& scheduler = stats.scheduler;
  proto->set_num_waiting(scheduler.num_waiting);
  proto->set_num_waiting_tokens(scheduler.num_waiting_tokens);
  for (const TenantUse& use : scheduler.tenants) {
    v1::TenantUse* added = proto->add_tenants();
    added->set_name(use.name);
    added->set_num_requests(use.num_requests);
    added->set_queued_tokens(use.queued_tokens);
    added->set_reserved_blocks(use.reserved_blocks);
  }
  proto->set_num_running(scheduler.num_running);
  proto->set_num_steps_in_flight(scheduler.num_steps_in_flight);
  proto->set_num_steps(scheduler.num_steps);
  proto->set_num_finished(scheduler.num_finished);
  proto->set_num_preemptions(scheduler.num_preemptions);
  proto->set_num_prompt_tokens(scheduler.num_prompt_tokens);
  proto->set_num_cached_tokens(scheduler.num_cached_tokens);
  proto->set_num_cached_region_tokens(scheduler.num_cached_region_tokens);
  proto->set_num_computed_tokens(scheduler.num_computed_tokens);
  proto->set_num_recomputed_tokens(scheduler.num_recomputed_tokens);
  proto->set_num_output_tokens(scheduler.num_output_tokens);
  proto->set_num_draft_tokens(scheduler.num_draft_tokens);
  proto->set_num_accepted_tokens(scheduler.num_accepted_tokens);
  proto->set_num_evictions(scheduler.num_evictions);
  proto->set_num_refused_evictions(scheduler.num_refused_evictions);
  proto->set_num_squeezes(scheduler.num_squeezes);
  proto->set_num_forks(scheduler.num_forks);
  proto->set_num_lost_blocks(scheduler.num_lost_blocks);
  proto->set_num_cut_requests(scheduler.num_cut_requests);
  proto->set_num_swap_outs(scheduler.num_swap_outs);
  proto->set_num_swap_ins(scheduler.num_swap_ins);
  proto->set_num_swapped_in_tokens(scheduler.num_swapped_in_tokens);
  proto->set_num_lost_host_blocks(scheduler.num_lost_host_blocks);
  proto->set_num_swapped(scheduler.num_swapped);
  proto->set_host_blocks(scheduler.host_blocks);
  proto->set_used_host_blocks(scheduler.used_host_blocks);
  proto->set_evicted_entries(scheduler.evicted_entries);
  proto->set_evicted_blocks(scheduler.evicted_blocks);
  proto->set_evicted_bytes(scheduler.evicted_bytes);
  proto->set_kept_entries_min(scheduler.kept_entries_min);
  proto->set_kept_entries_median(scheduler.kept_entries_median);
  proto->set_kept_entries_max(scheduler.kept_entries_max);
  const BlockManagerStats& blocks = scheduler.blocks;
  proto->set_num_blocks(blocks.num_blocks);
  proto->set_free_blocks(blocks.free_blocks);
  proto->set_cached_blocks(blocks.cached_blocks);
  proto->set_fenced_blocks(blocks.fenced_blocks);
  proto->set_used_blocks(blocks.used_blocks);
  proto->set_reclaimed_blocks(blocks.reclaimed_blocks);
  proto->set_metadata_bytes(scheduler.metadata_bytes);
  proto->set_running_request_seconds(stats.running_request_seconds);
  proto->set_clock_seconds(stats.clock_seconds);
  proto->set_max_running(stats.max_running);
  proto->set_max_used_blocks(stats.max_used_blocks);
  proto->set_peaks_since_seconds(stats.peaks_since_seconds);
}

}  // namespace blockmgr
