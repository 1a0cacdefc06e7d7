// The backend on a GPU. It drives the kernels of kernels/cuda.
#ifndef KERNELS_CUDA_HOST_CUDA_BACKEND_H_
#define KERNELS_CUDA_HOST_CUDA_BACKEND_H_

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include "blockmgr/base/ids.h"
#include "blockmgr/base/model_layout.h"
#include "blockmgr/base/moves.h"
#include "blockmgr/eviction/compaction_moves.h"
#include "blockmgr/eviction/select.h"
#include "kernels/backend.h"
#include "kernels/cuda/host/call_memory.h"
#include "kernels/cuda/host/decode_step.h"
#include "kernels/cuda/host/device_pool.h"
#include "kernels/cuda/host/device_runtime.h"
#include "kernels/cuda/host/device_scorer.h"
#include "kernels/cuda/host/device_selector.h"
#include "kernels/cuda/host/tail_part.h"

namespace blockmgr {

struct CudaBackendOptions {
  // The kernel that computes a sequence's single query.
  enum class Decode : uint8_t {
    // Decode attention. Lists are cut at fixed places, so that the bits of a
    // sequence do not depend on the rest of the batch. They do depend on how
    // its tokens were split into calls.
    kInvariant,
    // Decode attention, cut evenly over the device: the fastest. Bits depend on
    // the batch, and on how tokens were split into calls.
    kBalanced,
    // Chunk attention for all queries, with one CTA per head and sequence. The
    // bits of a token depend on neither.
    kChunked,
  };
  Decode decode = Decode::kInvariant;
  // Device memory for staging, bytes: for blocks on their way to or from host
  // memory, and for rows that are compacted in place. One block, or one group
  // of moves, is staged even if it is larger. Large copies use the link best.
  // The memory is kept.
  int64_t staged_bytes = int64_t{16} << 20;
};

// CudaBackend owns a pool on a device, in the layout
// KvPoolLayout::PageContiguous, and runs every operation on one stream of the
// device. Backends may share a runtime, as the shards of an engine do. The
// inputs and results of the interface are in host memory, except for rows that
// the caller has on the device (AppendBatch, AttentionBatch). Queries and
// projections from the host are rounded to the pool's elements and sent with
// each call.
// Engines whose tensors are on the device call the launchers instead
// (attention_launch.h, row_mover_launch.h, select_launch.h).
//
// Attention and scores are equal to CpuBackend's up to the error of the
// elements: against float64 on the same inputs ||out - ref|| <= 4e-3 ||ref|| in
// bf16, 5e-4 in fp16. Moves, copies and selections are equal bit for bit.
// CudaBackendOptions::Decode says how far the bits of attention depend on the
// batch and on calls. The last bits of the sums of AddAttention depend on how
// queries were split into calls.
//
// Kernels exist for bf16 and fp16 rows of 64, 128 or 256 elements, for pages of
// 16 or 32 tokens, and for groups of 1 to 16 query heads. The host computes the
// statistics of expected_attention: queries come from the host, and sums of
// squares need double.
//
// Append, Move, CopyBlocks and Compact return before the device has finished.
// An id outside the pool is a bug in the caller. Kernels write nothing for such
// an id and set an error word. Flush() returns the error. Calls that read
// results abort on it, and also abort when the device fails.
//
// decode_step() computes a step of single queries with one upload for all
// layers, or two if there are regions.
//
// Cost: a batch is one upload, one to five launches (a selection up to twelve,
// see device_selector.h) and, if it has results, one
// download. A move takes 16 bytes of upload. Moves in place take an upload and
// two launches for every staged_bytes of rows. Device memory grows to the
// largest call and is kept: a steady step allocates nothing. Thread-compatible.
class CudaBackend final : public Backend {
 public:
  // Returns OK for a layout that kernels exist for, or InvalidArgument with the
  // name of the field.
  static absl::Status CheckLayout(const ModelLayout& layout);

  // Errors: the error of CheckLayout; ResourceExhausted if the device has no
  // room for the pool; the device's own error if it cannot run the kernels.
  static absl::StatusOr<std::unique_ptr<CudaBackend>> Create(
      const ModelLayout& layout, const CudaBackendOptions& options,
      std::shared_ptr<DeviceRuntime> runtime);
  ~CudaBackend() override;

  const ModelLayout& layout() const override { return pool_.layout; }
  DeviceRuntime* device_runtime() override { return runtime_.get(); }
  DecodeStep* decode_step() override { return &decode_step_; }
  void Append(const AppendBatch& batch) override;
  void Attention(const AttentionBatch& batch) override;
  bool HasScorer(ScorerKind kind) const override {
    return DeviceScorer::HasScorer(kind);
  }
  void Score(const ScoreBatch& batch) override { scorer_.Score(batch); }
  void AddAttention(const AttentionSumBatch& batch) override {
    scorer_.AddAttention(batch);
  }
  // REQUIRES: batch.model_dim is a multiple of 8.
  void ValueNorms(const ValueNormBatch& batch) override {
    scorer_.ValueNorms(batch);
  }
  // Runs on the host. Equal to CpuBackend's result bit for bit.
  void AddQueries(const float* queries, int32_t num_tokens,
                  QueryStatistics* statistics) override;
  KeepSets Select(const SelectBatch& batch) override {
    return selector_.Select(batch);
  }
  std::vector<int32_t> Compact(const Compaction& compaction) override;
  void Move(const CompactionMoves& moves) override;
  void CopyBlocks(std::span<const BlockCopy> copies) override;
  void CopyToHost(std::span<const BlockTransfer> transfers,
                  std::span<std::byte> host) override;
  void CopyFromHost(std::span<const BlockTransfer> transfers,
                    std::span<const std::byte> host) override;
  void ReadSlot(SlotIndex slot, std::span<float> out) const override;
  void Poison() override;

  // Waits for all enqueued work. Returns the first error since the last Flush:
  // the device's failure, or InvalidArgument with the ids that kernels refused.
  absl::Status Flush();

  // Device memory beside the pool, bytes.
  int64_t scratch_bytes() const {
    return memory_.capacity_bytes() + decode_step_.capacity_bytes();
  }

 private:
  // The sequences of a batch that one kernel computes.
  struct QuerySet {
    std::vector<int32_t> sequences;      // indices into the batch
    std::vector<int32_t> query_offsets;  // [sequences + 1]
    std::vector<int32_t> work_offsets;   // tiles of lists, or CTAs
  };
  // The tables of the call. Rows are sequences, the sequences of decode first.
  struct Tables {
    CallMemory::Array<int32_t> region_lengths;
    CallMemory::Array<int64_t> region_offsets;
    CallMemory::Array<int32_t> region_pages;
    CallMemory::Array<int32_t> region_positions;
    CallMemory::Array<int32_t> cuts;
    CallMemory::Array<int32_t> tail_blocks;
    CallMemory::Array<int32_t> tail_lengths;
    int64_t tail_stride = 0;
    bool has_regions = false;
    bool has_positions = false;
    CallMemory::Array<float> sinks;
    bool has_sinks = false;
  };
  // The arrays of decode attention.
  struct DecodeCall {
    int32_t num_ctas = 0;
    int32_t chunk_tiles = 0;
    CallMemory::Array<int32_t> tile_offsets;
    CallMemory::Array<float> partial_output;
    CallMemory::Array<float> partial_stats;
    CallMemory::Array<uint32_t> merge_counters;
  };
  // The arrays of chunk attention.
  struct ChunkCall {
    CallMemory::Array<int32_t> query_offsets;
    CallMemory::Array<int32_t> block_offsets;
  };
  // Device memory, [tokens of a set, num_q_heads, head_dim].
  struct QueryRows {
    const void* queries = nullptr;
    void* output = nullptr;
  };

  CudaBackend(const ModelLayout& layout, const CudaBackendOptions& options,
              std::shared_ptr<DeviceRuntime> runtime, char* pool);

  // Executes moves with one launch, staged or not. Does not wait.
  void MoveAtOnce(std::span<const SlotMove> moves, bool staged);

  // The pages of some blocks, staged side by side.
  struct Staging {
    CallMemory::Array<int32_t> pages;
    CallMemory::Array<std::byte> bytes;
  };
  // Returns the number of transfers that are staged at a time.
  int64_t CountBlocksPerStaging() const;
  void AddPages(std::span<const BlockTransfer> transfers, Staging* staging);
  StagePages Stage(const Staging& staging);

  // Attends with rows that are on the device: run by run of neighbours whose
  // queries the same kernel computes, because their rows are contiguous.
  void AttendOnDevice(const AttentionBatch& batch);
  // REQUIRES: one kernel computes all sequences of the batch.
  void AttendRun(const AttentionBatch& batch);
  // Fills decode_ and chunk_.
  void SplitBatch(const AttentionBatch& batch);
  TailPart TailOf(const AttentionBatch& batch, int32_t sequence) const;
  Tables AddTables(const AttentionBatch& batch);
  void FillRow(const SequenceKv& sequence, const TailPart& tail,
               const Tables& tables, int32_t row, int32_t* num_pages);
  // Adds the queries of a set, side by side.
  CallMemory::Array<uint16_t> AddQueriesOf(const AttentionBatch& batch,
                                           const QuerySet& set);
  void StoreOutput(const AttentionBatch& batch, const QuerySet& set,
                   const CallMemory::Array<uint16_t>& output);
  DecodeCall AddDecode();
  void RunDecode(const AttentionBatch& batch, const Tables& tables,
                 const DecodeCall& call, const QueryRows& rows);
  ChunkCall AddChunk();
  void RunChunk(const AttentionBatch& batch, const Tables& tables,
                const ChunkCall& call, const QueryRows& rows);
  const float* SinksOf(const Tables& tables) const {
    return tables.has_sinks ? memory_.Device(tables.sinks) : nullptr;
  }
  AttentionLists Lists(const AttentionBatch& batch, const Tables& tables,
                       int32_t first_row, const QuerySet& set) const;

  const CudaBackendOptions options_;
  const std::shared_ptr<DeviceRuntime> runtime_;
  mutable CallMemory memory_;
  DevicePool pool_;
  DeviceScorer scorer_;
  DeviceSelector selector_;
  int32_t num_decode_ctas_ = 1;
  DecodeStep decode_step_;
  QuerySet decode_;
  QuerySet chunk_;
};

}  // namespace blockmgr

#endif  // KERNELS_CUDA_HOST_CUDA_BACKEND_H_
