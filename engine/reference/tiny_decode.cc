// Decode steps on a device: graphs are captured of them, and they are timed.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>

#include <absl/status/status.h>

#include "blockmgr/base/check.h"
#include "blockmgr/base/status_macros.h"
#include "engine/reference/tiny_engine.h"
#include "kernels/cuda/host/device_runtime.h"

namespace blockmgr {

bool TinyEngine::CanDecode(const StepPlan& plan) const {
  if (forward_->device() == nullptr || !decode_error_.ok()) return false;
  // One token each, after which one is sampled.
  if (tokens_.size() != plan.slots.size()) return false;
  for (const uint8_t samples : plan.samples) {
    if (samples == 0) return false;
  }
  for (const TinyShard& shard : shards_) {
    if (!shard.CanDecode(plan)) return false;
  }
  return true;
}

bool TinyEngine::KeepsQuery(const QueryHistory::Row& row) const {
  const SequenceSlot slot{row.slot};
  return row.position >= tables_.row(slot).num_computed -
                             shards_.front().CountKeptQueries(slot);
}

void TinyEngine::KeepQuery(const QueryHistory::Row& row, int32_t shard,
                           std::span<const std::byte> queries) {
  shards_[static_cast<size_t>(shard)].KeepDecoded(SequenceSlot{row.slot},
                                                  row.position, queries);
}

void TinyEngine::TakeQueries(SequenceSlot slot) {
  if (!history_.has_value()) return;
  history_->Take(
      Index(slot), [this](const auto& row) { return KeepsQuery(row); },
      [this](const auto&... row) { KeepQuery(row...); });
}

absl::Status TinyEngine::PrepareDecode(const StepPlan& plan,
                                       const TinyBatch& batch,
                                       int32_t num_rows) {
  int32_t num_kept = 0;
  history_rows_.clear();
  for (size_t i = 0; i < plan.slots.size(); ++i) {
    const int32_t own = shards_.front().CountKeptQueries(plan.slots[i]);
    num_kept = std::max(num_kept, own);
    history_rows_.push_back({Index(plan.slots[i]), positions_[i]});
  }
  if (num_kept == 0) {
    history_rows_.clear();
  } else {
    BM_RETURN_IF_ERROR(history_->Prepare(
        num_kept, num_rows, [this](const auto& row) { return KeepsQuery(row); },
        [this](const auto&... row) { KeepQuery(row...); }));
  }
  graph_arguments_.clear();
  BM_RETURN_IF_ERROR(forward_->device()->PrepareDecode(
      tokens_, positions_, num_rows, &graph_arguments_));
  for (TinyShard& shard : shards_) {
    BM_RETURN_IF_ERROR(
        shard.PrepareDecode(plan, batch, num_rows, &graph_arguments_));
  }
  return absl::OkStatus();
}

bool TinyEngine::RunDecode(const StepPlan& plan, const TinyBatch& batch) {
  if (!CanDecode(plan)) return false;
  DevicePass& pass = *forward_->device();
  const int32_t num_rows =
      graphs_.PadRows(static_cast<int32_t>(plan.slots.size()));
  const absl::Status prepared = PrepareDecode(plan, batch, num_rows);
  // Layer by layer, a step takes less memory, and no history.
  if (absl::IsResourceExhausted(prepared)) {
    decode_error_ = prepared;
    if (history_.has_value()) {
      history_->Flush([this](const auto& row) { return KeepsQuery(row); },
                      [this](const auto&... row) { KeepQuery(row...); });
    }
    return false;
  }
  BM_CHECK_OK(prepared);
  decode_rows_ = num_rows;
  pass.runtime().StartTimer();
  is_steady_ = graphs_.Run(graph_arguments_, [&] {
    pass.BeginDecode();
    for (int32_t layer = 0; layer < model_->shape().num_layers; ++layer) {
      forward_->Project(layer);
      for (TinyShard& shard : shards_) shard.RunDecode(layer, &pass);
      forward_->Finish(layer);
    }
    pass.FinishDecode();
  });
  if (!history_rows_.empty()) {
    history_->Push(pass.decode_queries(), history_rows_);
  }
  pass.runtime().StopTimer();
  return true;
}

void TinyEngine::NoteTime(const StepPlan& plan,
                          std::chrono::steady_clock::time_point begin) {
  DevicePass* const pass = forward_->device();
  if (pass == nullptr) return;
  // A step that samples has waited for the device.
  const bool was_idle = device_is_idle_;
  device_is_idle_ =
      !plan.slots.empty() && !logit_rows_.empty() && plan.evictions.empty();
  if (!was_idle || !device_is_idle_ || !is_steady_) {
    step_times_.Skip();
    return;
  }
  const double device_s = pass->runtime().TimerSeconds();
  step_times_.Add({.begin = begin,
                   .end = std::chrono::steady_clock::now(),
                   .device_s = device_s,
                   .num_rows = decode_rows_});
}

}  // namespace blockmgr
