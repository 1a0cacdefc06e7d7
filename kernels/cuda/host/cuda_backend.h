// Backend on a GPU: drives the kernels of this folder.
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
#include "kernels/cuda/host/device_pool.h"
#include "kernels/cuda/host/device_runtime.h"
#include "kernels/cuda/host/device_scorer.h"
#include "kernels/cuda/host/device_selector.h"

namespace blockmgr {

struct CudaBackendOptions {
  // What computes a sequence's single query.
  enum class Decode : uint8_t {
    // Decode attention; lists are cut at fixed places, so that a sequence's
    // bits do not depend on what else is in the batch.
    kInvariant,
    // Decode attention, cut evenly over the device: the fastest. Bits depend
    // on the batch, and on nothing else.
    kBalanced,
    // Chunk attention for everything. A token's bits do not depend on how its
    // tokens were split into calls either; one CTA per head and sequence.
    kChunked,
  };
  Decode decode = Decode::kInvariant;
  // Bytes of device memory for staging: of blocks on their way to or from host
  // memory, and of rows that are compacted in place. One block, or one group of
  // moves, is staged even if it is larger. Large copies use the link best, and
  // the memory is kept.
  int64_t staged_bytes = int64_t{16} << 20;
};

// CudaBackend owns a pool on a device, laid out by
// KvPoolLayout::PageContiguous, and runs every operation on the device's one
// stream. Inputs and results of the interface are the host's: they are rounded
// to the pool's elements (queries, projections) and sent with each call.
// Engines whose tensors are on the device already call the launchers
// (attention_launch.h, row_mover_launch.h, select_launch.h).
//
// Results are CpuBackend's to the error of the elements (for attention and
// scores against float64 on the same inputs ||out - ref|| <= 4e-3 ||ref|| in
// bf16, 5e-4 in fp16); moves, copies
// and selections bit for bit. What Backend says of bits across calls holds as
// far as CudaBackendOptions::Decode says, and not for AddAttention: the last
// bits of its sums depend on how queries were split into calls.
//
// Kernels exist for bf16 and fp16 rows of 64, 128 or 256 elements, pages of 16
// or 32 tokens, groups of 1 to 16 query heads, for every scorer and every
// policy. The statistics of expected_attention are the host's: queries come
// from there, and sums of squares want double.
//
// Append, Move, CopyBlocks and Compact return before the device is done. Ids
// outside the pool are the caller's bug; kernels write nothing for them and set
// an error word: Flush() returns what it says, calls that read results abort
// on it, as they do when the device itself fails.
//
// Cost: a batch is one upload, one to five launches and, where it has results,
// one download. Moves take 16 bytes of upload each; those in place take an
// upload and two launches for every staged_bytes of rows. Device memory grows
// to the largest call and is kept: nothing is allocated in a steady step.
// Thread-compatible.
class CudaBackend final : public Backend {
 public:
  // OK for a layout that kernels exist for; else InvalidArgument, naming the
  // field.
  static absl::Status CheckLayout(const ModelLayout& layout);

  // What CheckLayout says; ResourceExhausted where the device has no room for
  // the pool; the device's own error where it cannot run the kernels.
  static absl::StatusOr<std::unique_ptr<CudaBackend>> Create(
      const ModelLayout& layout, const CudaBackendOptions& options,
      std::unique_ptr<DeviceRuntime> runtime);
  ~CudaBackend() override;

  const ModelLayout& layout() const override { return pool_.layout; }
  void Append(const AppendBatch& batch) override;
  void Attention(const AttentionBatch& batch) override;
  void Score(const ScoreBatch& batch) override { scorer_.Score(batch); }
  void AddAttention(const AttentionSumBatch& batch) override {
    scorer_.AddAttention(batch);
  }
  // REQUIRES: batch.model_dim is a multiple of 8.
  void ValueNorms(const ValueNormBatch& batch) override {
    scorer_.ValueNorms(batch);
  }
  // On the host; equal to CpuBackend's bit for bit.
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

  // Waits for everything enqueued. What went wrong since the last Flush: the
  // device's failure, or InvalidArgument with the ids that kernels refused.
  absl::Status Flush();

  // Device memory beside the pool, bytes.
  int64_t scratch_bytes() const { return memory_.capacity_bytes(); }

 private:
  // The part of a tail's block table that kernels get: without a window, and
  // behind a region, all.
  // They begin with a whole tile, so that their tiles are those of the tail.
  struct TailPart {
    int32_t begin = 0;       // first page
    int32_t first_page = 0;  // that a query attends to; ids before are not read
    int32_t end = 0;
    int32_t length = 0;  // tokens from page `begin` on
  };
  // The sequences of a batch that one kernel takes.
  struct QuerySet {
    std::vector<int32_t> sequences;      // of the batch
    std::vector<int32_t> query_offsets;  // [sequences + 1]
    std::vector<int32_t> work_offsets;   // tiles of lists, or CTAs
  };
  // Tables of the call: rows are sequences, those of decode first.
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
  };
  // Arrays of decode attention.
  struct DecodeCall {
    int32_t num_ctas = 0;
    int32_t chunk_tiles = 0;
    CallMemory::Array<uint16_t> queries;
    CallMemory::Array<uint16_t> output;
    CallMemory::Array<int32_t> tile_offsets;
    CallMemory::Array<float> partial_output;
    CallMemory::Array<float> partial_stats;
  };

  CudaBackend(const ModelLayout& layout, const CudaBackendOptions& options,
              std::unique_ptr<DeviceRuntime> runtime, char* pool);

  // Executes moves with one launch, staged or not. Does not wait.
  void MoveAtOnce(std::span<const SlotMove> moves, bool staged);

  // The pages of some blocks, staged side by side.
  struct Staging {
    CallMemory::Array<int32_t> pages;
    CallMemory::Array<std::byte> bytes;
  };
  // How many of the transfers are staged at a time.
  int64_t BlocksPerStaging() const;
  void AddPages(std::span<const BlockTransfer> transfers, Staging* staging);
  StagePages Stage(const Staging& staging);

  // Fills decode_ and chunk_.
  void SplitBatch(const AttentionBatch& batch);
  TailPart TailOf(const AttentionBatch& batch, int32_t sequence) const;
  Tables AddTables(const AttentionBatch& batch);
  void FillRow(const SequenceKv& sequence, const TailPart& tail,
               const Tables& tables, int32_t row, int32_t* num_pages);
  // The queries of a set, side by side.
  CallMemory::Array<uint16_t> AddQueriesOf(const AttentionBatch& batch,
                                           const QuerySet& set);
  void StoreOutput(const AttentionBatch& batch, const QuerySet& set,
                   const CallMemory::Array<uint16_t>& output);
  DecodeCall AddDecode(const AttentionBatch& batch);
  void RunDecode(const AttentionBatch& batch, const Tables& tables,
                 const DecodeCall& call);
  AttentionLists Lists(const AttentionBatch& batch, const Tables& tables,
                       int32_t first_row, const QuerySet& set) const;

  const CudaBackendOptions options_;
  const std::unique_ptr<DeviceRuntime> runtime_;
  mutable CallMemory memory_;
  DevicePool pool_;
  DeviceScorer scorer_;
  DeviceSelector selector_;
  int32_t num_decode_ctas_ = 1;
  QuerySet decode_;
  QuerySet chunk_;
};

}  // namespace blockmgr

#endif  // KERNELS_CUDA_HOST_CUDA_BACKEND_H_
