// Appends and attention of a step in which every sequence has one query.
//
// The tables of all layers are uploaded together, before the first layer. From
// then on a layer only launches kernels, with arguments that depend on nothing
// but arguments(): a graph can be captured of a step, and be replayed for other
// sequences, with other lists, as long as arguments() are equal.
//
//   step.Begin(num_rows);
//   for each layer: step.Add(layer);
//   step.Send();
//   for each layer: step.Run(index of the layer, rows);   // captured, or not
#ifndef KERNELS_CUDA_HOST_DECODE_STEP_H_
#define KERNELS_CUDA_HOST_DECODE_STEP_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <absl/status/status.h>

#include "kernels/backend.h"
#include "kernels/cuda/attention_lists.h"
#include "kernels/cuda/host/device_pool.h"
#include "kernels/cuda/host/tail_part.h"

namespace blockmgr {

// The kernel of the queries; see CudaBackendOptions::Decode.
struct DecodeChoice {
  bool is_chunked = false;  // chunk attention; the rest is for decode attention
  int32_t num_ctas = 1;
  int32_t chunk_tiles = 0;
};

// One layer of a step. Spans are borrowed for the call of Add.
struct DecodeLayer {
  int32_t layer = 0;  // of the pool
  // Layers of a group have the same mapping, tails and window.
  int32_t group = 0;
  int32_t window = 0;
  float scale = 1.0f;
  std::span<const int64_t> slot_mapping;  // [sequences]
  std::span<const SequenceKv> sequences;
};

// The rows of a layer in device memory, in the pool's elements.
struct DecodeRows {
  const void* queries = nullptr;  // [rows, num_q_heads, head_dim]
  const void* keys = nullptr;     // [rows, num_heads, head_dim]
  const void* values = nullptr;
  int64_t kv_stride = 0;  // bytes from one row's keys, or values, to the next
  void* output = nullptr;
};

// DecodeStep has memory on the device that grows to the largest step, with room
// for lists to grow, and is kept: a steady step allocates nothing. The pool and
// its parts are borrowed. Thread-compatible.
//
// Learned sinks are not supported: Backend::Attention computes layers with
// sinks.
//
// Rows behind the last sequence are dead. They append nothing and attend to
// nothing, so that a step can be padded to a number of rows that a graph was
// captured for.
//
// Cost: one upload, or two if there are regions. The host copies the tails of
// each group once, and the regions of each layer.
class DecodeStep {
 public:
  DecodeStep(const DevicePool* pool, const DecodeChoice& choice);
  DecodeStep(const DecodeStep&) = delete;
  DecodeStep& operator=(const DecodeStep&) = delete;
  ~DecodeStep();

  // Begins the tables of a step of num_rows rows.
  void Begin(int32_t num_rows);
  // Returns whether a layer of the group was added, and none of its sequences
  // has a region. Further layers of the group need no sequences.
  bool HasTables(int32_t group) const;
  // Adds a layer. REQUIRES: at most num_rows sequences; no region under a
  // window; ids are in the pool.
  void Add(const DecodeLayer& layer);
  // Uploads the tables. Returns ResourceExhausted if the device has no room:
  // the step cannot be run. Other errors are the runtime's.
  [[nodiscard]] absl::Status Send();

  // Returns numbers that describe the arguments of all kernels. If they are
  // equal for two steps with equal rows, Run passes equal arguments. REQUIRES:
  // a layer has the same group, window and scale in every step; Send was
  // successful.
  std::span<const uint64_t> arguments() const { return arguments_; }
  // Enqueues appends and attention of the layer that was added as the index-th.
  // Does not wait.
  void Run(size_t index, const DecodeRows& rows) const;

  // Returns the bytes of device memory that are held.
  int64_t capacity_bytes() const { return capacity_bytes_; }

 private:
  // The tables of a group, [rows], without those of its regions.
  struct Group {
    bool is_filled = false;
    bool has_regions = false;
    int64_t tail_stride = 0;  // with room; lives on from step to step
    std::vector<int64_t> mapping;
    std::vector<int32_t> tail_lengths;
    std::vector<int32_t> tail_blocks;  // [rows, tail_stride]
    std::vector<int32_t> tile_offsets;
    // Bytes from base_.
    int64_t mapping_place = 0;
    int64_t lengths_place = 0;
    int64_t blocks_place = 0;
    int64_t tiles_place = 0;
  };
  // A layer, and its lists if its group has regions.
  struct Layer {
    DecodeLayer layer;                    // without its spans
    std::vector<int32_t> region_lengths;  // [rows, num_heads]
    std::vector<int64_t> region_offsets;  // [rows, num_heads]
    std::vector<int32_t> tile_offsets;
    int64_t lengths_place = 0;
    int64_t offsets_place = 0;
    int64_t tiles_place = 0;
  };

  void FillTails(const DecodeLayer& layer, Group* group);
  void FillRegions(std::span<const SequenceKv> sequences, Layer* layer);
  // Writes the tile offsets of a layer's lists.
  void FillTiles(const DecodeLayer& layer, const Group& group,
                 std::span<const int32_t> region_lengths,
                 std::vector<int32_t>* offsets);
  // Lays the arrays out. Returns the bytes of memory.
  int64_t Place();
  // Returns the place of so many bytes, and moves *size behind them.
  static int64_t Take(int64_t bytes, int64_t* size);
  // Has room for `bytes`.
  absl::Status Reserve(int64_t bytes);
  void NoteArguments();
  int64_t num_lists() const;

  const DevicePool& pool_;
  const DecodeChoice choice_;
  char* base_ = nullptr;
  int64_t capacity_bytes_ = 0;

  int32_t num_rows_ = 0;
  std::vector<Group> groups_;
  // The first num_layers_ are the step's. The vectors keep their memory.
  std::vector<Layer> layers_;
  size_t num_layers_ = 0;
  std::vector<int32_t> region_pages_;
  std::vector<int32_t> row_offsets_;  // 0, 1, .. num_rows_
  // Room for so many pages of regions, and tiles of a layer.
  int64_t max_pages_ = 0;
  int64_t max_tiles_ = 0;

  // Bytes from base_.
  int64_t row_offsets_place_ = 0;
  int64_t pages_place_ = 0;  // the end of what is uploaded at once
  int64_t partial_output_place_ = 0;
  int64_t partial_stats_place_ = 0;
  int64_t merge_counters_place_ = 0;
  std::vector<std::byte> host_;
  std::vector<uint64_t> arguments_;
};

}  // namespace blockmgr

#endif  // KERNELS_CUDA_HOST_DECODE_STEP_H_
