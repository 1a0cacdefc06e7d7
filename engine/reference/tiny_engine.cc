#include "engine/reference/tiny_engine.h"

#include <string>
#include <utility>

#include "blockmgr/base/check.h"
#include "blockmgr/base/status_macros.h"
#include "kernels/cuda/host/device_runtime.h"

namespace blockmgr {

TinyEngine::TinyEngine(std::shared_ptr<const LanguageModel> model,
                       const ModelLayout& layout,
                       std::vector<std::unique_ptr<Backend>> backends,
                       const TinyEngineOptions& options,
                       std::unique_ptr<ForwardPass> forward)
    : model_(std::move(model)),
      layout_(layout),
      max_drafts_(options.max_drafts),
      query_stats_(options.query_stats),
      token_texts_(options.token_texts),
      threads_(options.num_threads),
      sampler_(model_->shape().vocabulary),
      tables_(layout_, options.max_sequences, options.num_host_blocks),
      forward_(std::move(forward)),
      graphs_(options.captures_graphs && forward_ != nullptr &&
                      forward_->device() != nullptr
                  ? &forward_->device()->runtime()
                  : nullptr),
      slot_mappings_(static_cast<size_t>(layout_.num_groups())) {
  ModelLayout expected = MakeLayout(model_->shape(), layout_.page_size,
                                    layout_.dtype, layout_.num_blocks);
  expected.num_shards = layout_.num_shards;
  BM_CHECK(layout_ == expected);
  BM_CHECK(std::ssize(backends) == layout_.num_shards);
  const ModelShape& shape = model_->shape();
  for (const auto& [name, table] : query_stats_) {
    BM_CHECK(
        table->CheckShape(shape.num_layers, shape.num_q_heads, shape.head_dim)
            .ok());
  }
  if (forward_ == nullptr) {
    forward_ = std::make_unique<ModelForward>(model_.get(), &threads_);
  }
  for (std::unique_ptr<Backend>& backend : backends) {
    shards_.emplace_back(model_.get(), &tables_,
                         static_cast<int32_t>(shards_.size()),
                         std::move(backend), max_drafts_);
    shards_.back().set_query_stats(&query_stats_);
  }
  if (DevicePass* pass = forward_->device(); pass != nullptr) {
    const ModelLayout own = layout_.ShardLayout();
    history_.emplace(&pass->runtime(),
                     QueryHistory::Shape{.num_layers = shape.num_layers,
                                         .num_shards = layout_.num_shards,
                                         .row_bytes = int64_t{own.num_q_heads} *
                                                      own.row_bytes()});
  }
}

void TinyEngine::Reset() {
  tables_.Reset();
  for (TinyShard& shard : shards_) shard.Reset();
  lost_.clear();
  lost_host_.clear();
  infos_.clear();
  if (history_.has_value()) history_->Clear();
  decode_error_ = absl::OkStatus();
  step_times_.Skip();
}

absl::Status TinyEngine::Run(const StepPlan& plan, StepResult* result) {
  const auto begin = std::chrono::steady_clock::now();
  BM_RETURN_IF_ERROR(tables_.Apply(plan));
  result->id = plan.id;
  result->sampled.assign(plan.slots.size(), -1);
  result->evictions.assign(plan.evictions.size(), {});
  result->num_accepted.assign(plan.num_drafts.size(), 0);
  result->accepted.clear();
  result->logprobs.clear();
  result->stop_matches.clear();
  result->num_drafts.assign(max_drafts_ > 0 ? plan.slots.size() : 0, 0);
  result->lost_blocks.clear();
  result->lost_host_blocks.clear();
  SwapOutSequences(plan, result);
  if (!lost_.empty()) ForgetLosses(plan, result);
  StartSequences(plan);
  NoteSwapIns(plan, result);
  if (!plan.slots.empty()) {
    LayOutBatch(plan);
    if (!lost_.empty() && layout_.has_windows()) SpreadLosses(plan);
    const TinyBatch batch{.slot_mappings = slot_mappings_,
                          .query_offsets = query_offsets_};
    for (TinyShard& shard : shards_) shard.BeginStep(plan, batch);
    decode_rows_ = 0;
    is_steady_ = true;
    if (!RunDecode(plan, batch)) RunLayers(plan, batch);
    Sample(plan, result);
  }
  for (size_t i = 0; i < plan.evictions.size(); ++i) {
    EvictionOutcome& outcome = result->evictions[i];
    const absl::Status status = Evict(plan, plan.evictions[i], &outcome);
    outcome.ok = status.ok();
    outcome.error = std::string(status.message());
    if (!outcome.ok) outcome.counts.clear();
  }
  if (fault_) Lose(fault_(plan), result);
  if (host_fault_) LoseHostBlocks(host_fault_(plan), result);
  NoteTime(plan, begin);
  return absl::OkStatus();
}

void TinyEngine::RunLayers(const StepPlan& plan, const TinyBatch& batch) {
  DevicePass* const pass = forward_->device();
  if (pass != nullptr) pass->runtime().StartTimer();
  forward_->Begin(tokens_, positions_);
  for (int32_t layer = 0; layer < model_->shape().num_layers; ++layer) {
    forward_->Project(layer);
    for (TinyShard& shard : shards_) {
      shard.RunLayer(plan, batch, layer, forward_.get());
    }
    forward_->Finish(layer);
  }
  if (pass != nullptr) pass->runtime().StopTimer();
}

void TinyEngine::StartSequences(const StepPlan& plan) {
  NoteInfos(plan);
  if (observer_.on_start) {
    for (const SequenceStart& start : plan.starts) observer_.on_start(start);
  }
  if (history_.has_value()) {
    for (const SequenceSlot slot : plan.released) history_->Forget(Index(slot));
    for (const SequenceStart& start : plan.starts) {
      history_->Forget(Index(start.slot));
    }
  }
  for (TinyShard& shard : shards_) shard.Start(plan);
}

void TinyEngine::LayOutBatch(const StepPlan& plan) {
  tokens_.clear();
  positions_.clear();
  for (std::vector<int64_t>& mapping : slot_mappings_) mapping.clear();
  query_offsets_.assign(1, 0);
  for (size_t i = 0; i < plan.slots.size(); ++i) {
    const SequenceTable& table = tables_.row(plan.slots[i]);
    for (int32_t p = plan.positions[i]; p < table.num_computed; ++p) {
      tokens_.push_back(table.tokens[static_cast<size_t>(p)]);
      positions_.push_back(p);
    }
    for (size_t group = 0; group < slot_mappings_.size(); ++group) {
      const GroupTable& own = table.groups[group];
      for (int32_t p = plan.positions[i]; p < table.num_computed; ++p) {
        const int32_t row = p - own.region.cut;
        const BlockId block =
            own.blocks[static_cast<size_t>(row / layout_.page_size)];
        slot_mappings_[group].push_back(int64_t{Index(block)} *
                                            layout_.page_size +
                                        row % layout_.page_size);
      }
    }
    query_offsets_.push_back(static_cast<int32_t>(tokens_.size()));
  }
}

absl::Status TinyEngine::Evict(const StepPlan& plan, const EvictionOrder& order,
                               EvictionOutcome* outcome) {
  BM_RETURN_IF_ERROR(tables_.CheckOrder(plan, order));
  if (IsDamaged(order.slot)) {
    return absl::DataLossError("the sequence holds lost blocks");
  }
  if (order.policy.query_window() > 0) TakeQueries(order.slot);
  std::vector<TinySelection> selections;
  std::vector<int32_t>& counts = outcome->counts;
  counts.resize(static_cast<size_t>(layout_.pages_per_block()));
  for (TinyShard& shard : shards_) {
    const auto index = static_cast<int32_t>(selections.size());
    BM_ASSIGN_OR_RETURN(selections.emplace_back(), shard.Select(order));
    for (int32_t i = 0; i < layout_.shard_pages_per_block(); ++i) {
      counts[static_cast<size_t>(layout_.shard_head_index(index, i))] =
          selections.back().count(static_cast<size_t>(i));
    }
  }
  BM_RETURN_IF_ERROR(tables_.CheckCounts(order, counts));
  for (size_t i = 0; i < shards_.size(); ++i) {
    if (!observer_.on_eviction) break;
    observer_.on_eviction(order, static_cast<int32_t>(i), selections[i].scored,
                          selections[i].keep);
  }
  uint64_t checksum = 0;
  for (size_t i = 0; i < shards_.size(); ++i) {
    checksum += shards_[i].Evict(plan, order, selections[i]);
  }
  outcome->layout_checksum = checksum;
  tables_.Commit(plan, order, counts);
  for (const BlockId block : EngineTables::Destinations(plan, order)) {
    lost_.erase(block);
  }
  return absl::OkStatus();
}

}  // namespace blockmgr
