// Backend on the CPU: the reference for the other backends, and what the tests
// and small models run on.
#ifndef KERNELS_CPU_CPU_BACKEND_H_
#define KERNELS_CPU_CPU_BACKEND_H_

#include <cstdint>
#include <span>
#include <vector>

#include "blockmgr/base/ids.h"
#include "blockmgr/base/model_layout.h"
#include "blockmgr/base/moves.h"
#include "blockmgr/eviction/compaction_moves.h"
#include "blockmgr/eviction/select.h"
#include "kernels/backend.h"
#include "kernels/cpu/attention_scores.h"
#include "kernels/cpu/expected_attention.h"
#include "kernels/cpu/key_scores.h"
#include "kernels/cpu/kv_arena.h"
#include "kernels/cpu/tile_ops.h"
#include "kernels/cpu/value_norms.h"

namespace blockmgr {

// CpuBackend runs every operation on the calling thread, K and V in the dtype
// of the layout, everything else in fp32.
//
// A query's output is a function of its query vectors and of the ordered list
// of rows it attends, and of nothing else: the list is cut into tiles of
// kTileRows by rank, from its first row on, and tiles are taken in order.
// Neither batch, nor chunk, nor page boundaries move a tile. A region, whose
// rows stand in position order, thus gives the same bits wherever its pages
// are, and one that keeps every entry gives the bits of the sequence it
// replaced. A window moves no tile either: it leaves rows out of the first one,
// and tiles before it altogether; of a region, rows out of any.
//
// Cost: Attention reads each row once per query that attends to it and pair of
// q_heads, from the cache of the CPU after the first time. Scores: see the
// scorers. Scratch memory grows to the largest call and is kept.
class CpuBackend final : public Backend {
 public:
  explicit CpuBackend(KvArena arena);

  const ModelLayout& layout() const override { return arena_.layout(); }
  void Append(const AppendBatch& batch) override;
  void Attention(const AttentionBatch& batch) override;
  void Score(const ScoreBatch& batch) override;
  void AddAttention(const AttentionSumBatch& batch) override;
  void ValueNorms(const ValueNormBatch& batch) override;
  void AddQueries(const float* queries, int32_t num_tokens,
                  QueryStatistics* statistics) override;
  KeepSets Select(const SelectBatch& batch) override;
  std::vector<int32_t> Compact(const Compaction& compaction) override;
  void Move(const CompactionMoves& moves) override;
  void CopyBlocks(std::span<const BlockCopy> copies) override;
  void CopyToHost(std::span<const BlockTransfer> transfers,
                  std::span<std::byte> host) override;
  void CopyFromHost(std::span<const BlockTransfer> transfers,
                    std::span<const std::byte> host) override;
  void ReadSlot(SlotIndex slot, std::span<float> out) const override;
  void Poison() override;

 private:
  // The attention list of one head of one sequence.
  struct HeadList {
    const PageId* region_pages = nullptr;
    const int32_t* region_positions = nullptr;
    int32_t region_length = 0;
    int32_t cut = 0;
    const BlockId* tail_blocks = nullptr;
    int32_t layer = 0;
    int32_t head = 0;
  };
  // Consecutive query tokens of one sequence, seen by one head.
  struct QueryBlock {
    int64_t first_token = 0;  // in the batch
    int32_t num_tokens = 0;
    int64_t first_length = 0;  // rows the first token attends; one more each
  };

  HeadList MakeHeadList(const SequenceKv& sequence, int32_t layer,
                        int32_t head) const;
  // Points rows [first_row, num_rows) of the tile at those of the list from
  // rank begin + first_row on. REQUIRES: first_row < num_rows.
  void GatherTile(const HeadList& list, int64_t begin, int32_t first_row,
                  int32_t num_rows);
  // The tile's rows [first_row, num_rows) as a tile; valid until the next call.
  const KvTile& TileFrom(int32_t first_row, int32_t num_rows);
  // Of those that begin at rank `begin` of a list with positions, the rows from
  // a position on; *num_rows becomes their number.
  const KvTile& TileInWindow(const HeadList& list, int64_t begin,
                             int64_t first_position, int32_t* num_rows);
  void AttendBlock(const AttentionBatch& batch, const HeadList& list,
                   const QueryBlock& block);
  // Copies rows one by one. REQUIRES: no destination is a source.
  void CopyRows(std::span<const SlotMove> moves);
  // Reads all rows before it writes the first one.
  void CopyRowsStaged(std::span<const SlotMove> moves);
  void StoreRow(const float* values, std::byte* row) const;

  KvArena arena_;
  std::vector<std::byte> staged_rows_;  // of the largest group of moves so far
  KvTile tile_;
  KvTile window_tile_;  // of the queries whose window begins inside tile_
  std::vector<SoftmaxState> states_;  // [kQueryBlockTokens, group_size]
  AttentionScorer attention_scorer_;
  KeyScorer key_scorer_;
  ExpectedAttentionScorer expected_attention_scorer_;
  ValueNormer value_normer_;
};

}  // namespace blockmgr

#endif  // KERNELS_CPU_CPU_BACKEND_H_
