// QueryHistory: the queries of the last decode steps, on the device.
#ifndef ENGINE_REFERENCE_QUERY_HISTORY_H_
#define ENGINE_REFERENCE_QUERY_HISTORY_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <span>
#include <vector>

#include <absl/status/status.h>

#include "engine/reference/device_buffer.h"
#include "kernels/cuda/host/device_runtime.h"

namespace blockmgr {

// Scores read the last queries of a sequence, but only when something is
// evicted. QueryHistory therefore keeps the queries of decode steps where they
// are, and reads those of a sequence when they are needed: a step copies its
// queries on the device, and does not wait.
//
// A row is read at most once: when its sequence needs it (Take), or when its
// step is overwritten while the row is still wanted, because its sequence has
// paused. Memory: a step's queries for each step that is kept. It grows and is
// kept. The runtime is borrowed. Thread-compatible.
class QueryHistory {
 public:
  // Queries of a step are [layers, shards, rows, row_bytes].
  struct Shape {
    int32_t num_layers = 0;
    int32_t num_shards = 1;
    int64_t row_bytes = 0;  // of a shard's part of one row
  };
  // A row of a step: the query of a sequence at a position.
  struct Row {
    int32_t slot = 0;
    int32_t position = 0;
  };
  using Wants = std::function<bool(const Row& row)>;
  // Gets a shard's part of a row, [layers, row_bytes].
  using Keep = std::function<void(const Row& row, int32_t shard,
                                  std::span<const std::byte> queries)>;

  QueryHistory(DeviceRuntime* runtime, const Shape& shape)
      : runtime_(runtime), shape_(shape) {}

  // Makes room for a step of num_rows rows, so that the last num_steps steps
  // are kept. Reads the rows of the step that it overwrites and that `wants` is
  // true for. Returns ResourceExhausted if the device has no room. Then all
  // rows that are wanted have been read, and the memory has been given back.
  [[nodiscard]] absl::Status Prepare(int32_t num_steps, int32_t num_rows,
                                     const Wants& wants, const Keep& keep);
  // Enqueues a copy of the queries of a step. The first rows.size() of its rows
  // are sequences'. REQUIRES: Prepare came before, for as many rows.
  void Push(const char* queries, std::span<const Row> rows);
  // Reads the rows of a sequence that `wants` is true for, in any order, and
  // forgets the others. Waits for the device if there are any.
  void Take(int32_t slot, const Wants& wants, const Keep& keep);
  // Forgets the rows of a sequence.
  void Forget(int32_t slot);
  void Clear() { steps_.clear(); }
  // Reads all rows that `wants` is true for, and gives the memory back.
  void Flush(const Wants& wants, const Keep& keep);

 private:
  static constexpr int32_t kNoSlot = -1;

  struct Step {
    explicit Step(DeviceRuntime* runtime) : memory(runtime) {}
    DeviceBuffer memory;
    int32_t num_rows = 0;
    std::vector<Row> rows;  // kNoSlot: read, or forgotten
  };

  int64_t StepBytes(int32_t num_rows) const {
    return int64_t{shape_.num_layers} * shape_.num_shards * num_rows *
           shape_.row_bytes;
  }
  void ReadAll(Step* step, const Wants& wants, const Keep& keep);
  // Reads a row if it is wanted. Then forgets it.
  void Read(Step* step, size_t row, const Wants& wants, const Keep& keep);

  DeviceRuntime* const runtime_;
  const Shape shape_;
  std::deque<Step> steps_;
  size_t next_ = 0;  // of steps_: the one that Push fills
  std::vector<std::byte> queries_;
};

}  // namespace blockmgr

#endif  // ENGINE_REFERENCE_QUERY_HISTORY_H_
