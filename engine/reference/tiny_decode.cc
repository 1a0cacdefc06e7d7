// Decode steps on a device, which graphs are captured of, and their times.

#include <chrono>
#include <cstdint>

#include <absl/status/status.h>

#include "blockmgr/base/check.h"
#include "engine/reference/tiny_engine.h"
#include "kernels/cuda/host/device_runtime.h"

namespace blockmgr {

bool TinyEngine::CanDecode(const StepPlan& plan) const {
  if (forward_->device() == nullptr) return false;
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

bool TinyEngine::RunDecode(const StepPlan& plan, const TinyBatch& batch) {
  if (!CanDecode(plan)) return false;
  DevicePass& pass = *forward_->device();
  const int32_t num_rows =
      graphs_.PadRows(static_cast<int32_t>(plan.slots.size()));
  graph_arguments_.clear();
  pass.PrepareDecode(tokens_, positions_, num_rows, &graph_arguments_);
  for (TinyShard& shard : shards_) {
    const absl::Status prepared =
        shard.PrepareDecode(plan, batch, num_rows, &graph_arguments_);
    // Layer by layer, tables take less memory.
    if (absl::IsResourceExhausted(prepared)) return false;
    BM_CHECK_OK(prepared);
  }
  decode_rows_ = num_rows;
  pass.runtime().StartTimer();
  graphs_.Run(graph_arguments_, [&] {
    pass.BeginDecode();
    for (int32_t layer = 0; layer < model_->shape().num_layers; ++layer) {
      forward_->Project(layer);
      for (TinyShard& shard : shards_) shard.RunDecode(layer, &pass);
      forward_->Finish(layer);
    }
    pass.FinishDecode();
  });
  pass.runtime().StopTimer();
  return true;
}

void TinyEngine::NoteTime(const StepPlan& plan,
                          std::chrono::steady_clock::time_point begin) {
  DevicePass* const pass = forward_->device();
  if (pass == nullptr) return;
  // A step that samples has waited for the device.
  const bool was_idle = device_is_idle_;
  device_is_idle_ = !logit_rows_.empty() && plan.evictions.empty();
  if (!was_idle || !device_is_idle_ || plan.slots.empty()) {
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
