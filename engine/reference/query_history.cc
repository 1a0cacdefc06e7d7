#include "engine/reference/query_history.h"

#include "blockmgr/base/check.h"
#include "blockmgr/base/status_macros.h"

namespace blockmgr {

absl::Status QueryHistory::Prepare(int32_t num_steps, int32_t num_rows,
                                   const Wants& wants, const Keep& keep) {
  BM_CHECK(num_steps > 0);
  if (std::ssize(steps_) < num_steps) {
    // The order of steps does not matter: rows are read before they are
    // overwritten.
    next_ = steps_.size();
    steps_.emplace_back(runtime_);
  } else {
    next_ = (next_ + 1) % steps_.size();
  }
  Step& step = steps_[next_];
  ReadAll(&step, wants, keep);
  step.rows.clear();
  step.num_rows = num_rows;
  absl::Status reserved =
      step.memory.Reserve(static_cast<size_t>(StepBytes(num_rows)));
  if (reserved.ok()) return reserved;
  Flush(wants, keep);
  return reserved;
}

void QueryHistory::Flush(const Wants& wants, const Keep& keep) {
  for (Step& kept : steps_) ReadAll(&kept, wants, keep);
  steps_.clear();
}

void QueryHistory::ReadAll(Step* step, const Wants& wants, const Keep& keep) {
  for (size_t row = 0; row < step->rows.size(); ++row) {
    if (step->rows[row].slot != kNoSlot) Read(step, row, wants, keep);
  }
}

void QueryHistory::Push(const char* queries, std::span<const Row> rows) {
  Step& step = steps_[next_];
  BM_CHECK(std::ssize(rows) <= step.num_rows);
  runtime_->Copy(step.memory.data(), queries, StepBytes(step.num_rows));
  step.rows.assign(rows.begin(), rows.end());
}

void QueryHistory::Read(Step* step, size_t row, const Wants& wants,
                        const Keep& keep) {
  const Row taken = step->rows[row];
  step->rows[row].slot = kNoSlot;
  if (!wants(taken)) return;
  queries_.resize(static_cast<size_t>(shape_.num_layers * shape_.row_bytes));
  const int64_t layer_bytes = StepBytes(step->num_rows) / shape_.num_layers;
  for (int32_t shard = 0; shard < shape_.num_shards; ++shard) {
    const int64_t first =
        int64_t{shard} * step->num_rows + static_cast<int64_t>(row);
    runtime_->DownloadRows(queries_,
                           step->memory.data() + first * shape_.row_bytes,
                           shape_.row_bytes, layer_bytes);
    // If the device fails in the middle of a step, no recovery is possible.
    BM_CHECK_OK(runtime_->status());
    keep(taken, shard, queries_);
  }
}

void QueryHistory::Take(int32_t slot, const Wants& wants, const Keep& keep) {
  for (Step& step : steps_) {
    for (size_t row = 0; row < step.rows.size(); ++row) {
      if (step.rows[row].slot == slot) Read(&step, row, wants, keep);
    }
  }
}

void QueryHistory::Forget(int32_t slot) {
  for (Step& step : steps_) {
    for (Row& row : step.rows) {
      if (row.slot == slot) row.slot = kNoSlot;
    }
  }
}

}  // namespace blockmgr
