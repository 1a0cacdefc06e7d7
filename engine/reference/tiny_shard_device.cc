// Layers of a shard whose rows are on the backend's device.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "blockmgr/base/dtype.h"
#include "blockmgr/base/status_macros.h"
#include "engine/reference/forward_pass.h"
#include "engine/reference/tiny_shard.h"
#include "kernels/cuda/host/decode_step.h"

namespace blockmgr {

void TinyShard::RunLayerOnDevice(const StepPlan& plan, const TinyBatch& batch,
                                 int32_t layer, DevicePass* pass) {
  const LayerPlace& place = model_.groups().layers[static_cast<size_t>(layer)];
  const DeviceRows rows = pass->rows(shard_);
  backend_->Append(AppendBatch{
      .layer = place.slot,
      .slot_mapping = batch.slot_mappings[static_cast<size_t>(place.group)],
      .device_keys = rows.keys,
      .device_values = rows.values,
      .device_token_stride = rows.kv_stride});
  ObserveOnDevice(plan, batch, place, pass);
  FindCaches(plan, place);
  backend_->Attention(AttentionBatch{.layer = place.slot,
                                     .sequences = kv_,
                                     .query_offsets = batch.query_offsets,
                                     .scale = scale_,
                                     .window = place.window,
                                     .device_queries = rows.queries,
                                     .device_output = rows.attention});
}

void TinyShard::ObserveOnDevice(const StepPlan& plan, const TinyBatch& batch,
                                const LayerPlace& place, DevicePass* pass) {
  // Scores are the host's business, and few sequences need any.
  int32_t first = batch.query_offsets.back();
  int32_t end = 0;
  bool needs_raw = false;
  for (size_t i = 0; i < plan.slots.size(); ++i) {
    const ScoringState& state = sequence(plan.slots[i]).scoring;
    const int32_t last = batch.query_offsets[i + 1];
    int32_t count = last - batch.query_offsets[i];
    if (state.kind == ScorerState::kNone || place.group > 0) {
      count = std::min(count, state.num_rows);
    } else if (state.kind == ScorerState::kQueryStatistics) {
      needs_raw = true;
    }
    if (count == 0) continue;
    first = std::min(first, last - count);
    end = last;
  }
  if (first >= end) return;
  const auto width = static_cast<size_t>(layout_.num_q_heads) *
                     static_cast<size_t>(layout_.head_dim);
  const size_t offset = static_cast<size_t>(first) * width;
  queries_.resize(batch.num_rows() * width);
  pass->CopyQueries(shard_, first, end - first, queries_.data() + offset);
  if (place.group > 0) {
    KeepQueries(plan, batch, place, queries_.data());
    return;
  }
  raw_queries_.resize(queries_.size());
  if (needs_raw) {
    pass->CopyRawQueries(shard_, first, end - first,
                         raw_queries_.data() + offset);
  }
  Observe(plan, batch, place.slot, queries_.data(), raw_queries_.data());
}

bool TinyShard::CanDecode(const StepPlan& plan) const {
  if (backend_->decode_step() == nullptr) return false;
  for (const SequenceSlot slot : plan.slots) {
    if (sequence(slot).scoring.kind != ScorerState::kNone) return false;
    const SequenceTable& table = tables_.row(slot);
    for (int32_t group = 0; group < layout_.num_groups(); ++group) {
      if (layout_.window_of(group) > 0 &&
          table.groups[static_cast<size_t>(group)].attended_region() !=
              nullptr) {
        return false;
      }
    }
  }
  return true;
}

absl::Status TinyShard::PrepareDecode(const StepPlan& plan,
                                      const TinyBatch& batch, int32_t num_rows,
                                      std::vector<uint64_t>* arguments) {
  DecodeStep& step = *backend_->decode_step();
  step.Begin(num_rows);
  for (const LayerPlace& place : model_.groups().layers) {
    const bool has_tables = step.HasTables(place.group);
    if (!has_tables) FindCaches(plan, place);
    const std::span<const int64_t> mapping =
        batch.slot_mappings[static_cast<size_t>(place.group)];
    step.Add({.layer = place.slot,
              .group = place.group,
              .window = place.window,
              .scale = scale_,
              .slot_mapping = mapping,
              .sequences = kv_});
  }
  BM_RETURN_IF_ERROR(step.Send());
  const std::span<const uint64_t> own = step.arguments();
  arguments->insert(arguments->end(), own.begin(), own.end());
  return absl::OkStatus();
}

void TinyShard::RunDecode(int32_t layer, DevicePass* pass) {
  const DeviceRows rows = pass->rows(shard_);
  backend_->decode_step()->Run(static_cast<size_t>(layer),
                               {.queries = rows.queries,
                                .keys = rows.keys,
                                .values = rows.values,
                                .kv_stride = rows.kv_stride,
                                .output = rows.attention});
}

void TinyShard::KeepDecoded(SequenceSlot slot, int32_t position,
                            std::span<const std::byte> queries) {
  const auto width = static_cast<size_t>(layout_.num_q_heads) *
                     static_cast<size_t>(layout_.head_dim);
  std::vector<uint16_t> elements(width);
  queries_.resize(width);
  for (const LayerPlace& place : model_.groups().layers) {
    const size_t row_bytes = width * sizeof(uint16_t);
    std::memcpy(elements.data(), queries.data(), row_bytes);
    queries = queries.subspan(row_bytes);
    std::ranges::transform(
        elements, queries_.begin(),
        layout_.dtype == DType::kFloat16 ? FromFloat16 : FromBFloat16);
    scoring_.KeepQueries(place.group * layout_.num_layers + place.slot,
                         position, 1, queries_.data(), &sequence(slot).scoring);
  }
}

}  // namespace blockmgr
