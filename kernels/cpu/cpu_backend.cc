// Backend on the CPU: the reference for the other backends, and what the tests
// and small models run on.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include <absl/container/inlined_vector.h>
#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include "blockmgr/base/check.h"
#include "blockmgr/base/dtype.h"
#include "blockmgr/base/ids.h"
#include "blockmgr/base/invalid.h"
#include "blockmgr/base/model_layout.h"
#include "blockmgr/base/moves.h"
#include "blockmgr/base/status_macros.h"
#include "blockmgr/eviction/compaction_moves.h"
#include "blockmgr/eviction/policy_fields.h"
#include "blockmgr/eviction/select.h"
#include "kernels/backend.h"
#include "kernels/cpu/attention_scores.h"
#include "kernels/cpu/cpu_scorer.h"
#include "kernels/cpu/entry_tiles.h"
#include "kernels/cpu/kv_arena.h"
#include "kernels/cpu/query_statistics.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/cpu/tile_ops.h"
#include "kernels/cpu/value_norms.h"

namespace blockmgr {
namespace {

// Queries that share a pass over the tiles: their outputs of one GQA group (64
// KiB at 8 q_heads of 128) stay in the cache next to a tile.
constexpr int32_t kQueryBlockTokens = 16;

// So many queries are worth copies of the rows in fp32. Converting a row takes
// about as long as one pair of queries.
constexpr int64_t kManyQueries = 12;

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

struct HeadBlock {
  HeadList list;
  QueryBlock queries;
};

// Attention of one block of queries: its scratch memory, so that several
// threads can compute blocks of one batch.
class BlockAttention {
 public:
  // Both are borrowed.
  BlockAttention(KvArena* arena, const AttentionBatch* batch)
      : arena_(*arena), layout_(arena->layout()), batch_(*batch) {
    gathered_.keys.fill(nullptr);
    gathered_.kv_stride = arena_.kv_stride();
    gathered_.head_dim = layout_.head_dim;
    gathered_.dtype = layout_.dtype;
    part_.keys.fill(nullptr);
  }

  // Attends the queries of a block to the list of their head.
  void Attend(const HeadList& list, const QueryBlock& block) {
    const int64_t group_size = layout_.group_size();
    const int64_t head_dim = layout_.head_dim;
    const int64_t token_stride = layout_.num_q_heads * head_dim;
    const int64_t offset =
        block.first_token * token_stride + list.head * group_size * head_dim;
    const float* queries = batch_.queries + offset;
    float* output = batch_.output + offset;
    states_.assign(block.num_tokens * group_size, SoftmaxState{});
    for (int32_t j = 0; j < block.num_tokens; ++j) {
      std::fill_n(output + j * token_stride, group_size * head_dim, 0.0f);
    }
    if (layout_.dtype != DType::kFloat32 &&
        block.num_tokens * group_size >= kManyQueries) {
      wide_.keys.fill(nullptr);
      floats_ = std::make_unique_for_overwrite<float[]>(
          static_cast<std::size_t>(WideTileFloats(layout_.head_dim)));
    }

    // Positions of a region have gaps, so that only the positions of its rows
    // tell which of them are in the window.
    const bool by_position = batch_.window > 0 && list.region_length > 0;
    // The first rank that a query with so many rows up to its own attends to.
    const auto first_rank = [&](int64_t length) {
      return batch_.window == 0 || by_position
                 ? 0
                 : std::max<int64_t>(0, length - batch_.window);
    };
    const int64_t last_length = block.first_length + block.num_tokens - 1;
    const int64_t first = first_rank(block.first_length);
    for (int64_t begin = first / kTileRows * kTileRows; begin < last_length;
         begin += kTileRows) {
      const auto row_of = [begin](int64_t rank) {
        return static_cast<int32_t>(
            std::clamp<int64_t>(rank - begin, 0, kTileRows));
      };
      const KvTile& tile =
          MakeTile(list, begin, row_of(first), row_of(last_length));
      for (int32_t j = 0, next = 1; j < block.num_tokens; j = next) {
        const int64_t length = block.first_length + j;
        const int32_t first_row = row_of(first_rank(length));
        int32_t num_rows = row_of(length) - first_row;
        // The tokens from j on that attend to the same rows.
        next = j + 1;
        while (!by_position && next < block.num_tokens &&
               row_of(block.first_length + next) == first_row + num_rows &&
               row_of(first_rank(block.first_length + next)) == first_row) {
          ++next;
        }
        if (num_rows <= 0) continue;
        const KvTile* rows = nullptr;
        if (by_position) {
          const int64_t end = list.cut + length - list.region_length;
          rows =
              &RowsInWindow(tile, list, begin, end - batch_.window, &num_rows);
          if (num_rows == 0) continue;
        } else {
          rows = &RowsFrom(tile, first_row, first_row + num_rows);
        }
        AttendTile(*rows, num_rows, batch_.scale,
                   {.queries = queries + j * token_stride,
                    .output = output + j * token_stride,
                    .token_stride = token_stride,
                    .group_size = group_size,
                    .states = std::span(states_).subspan(
                        j * group_size, (next - j) * group_size)});
      }
    }
    Normalize(block, list.head, output);
  }

 private:
  // Divides the output of each query by the sum of its weights and its sink's.
  void Normalize(const QueryBlock& block, int32_t head, float* output) const {
    const int64_t group_size = layout_.group_size();
    const int64_t head_dim = layout_.head_dim;
    const int64_t token_stride = layout_.num_q_heads * head_dim;
    for (int32_t j = 0; j < block.num_tokens; ++j) {
      for (int64_t g = 0; g < group_size; ++g) {
        const SoftmaxState& state = states_[j * group_size + g];
        float sum = state.sum;
        // A sink far above the logits makes the sum infinite and the output 0.
        if (batch_.sinks != nullptr) {
          sum += std::exp(batch_.sinks[head * group_size + g] - state.max);
        }
        float* row = output + j * token_stride + g * head_dim;
        for (int64_t i = 0; i < head_dim; ++i) row[i] /= sum;
      }
    }
  }

  // Returns a tile whose rows [first_row, num_rows) are those of the list from
  // rank begin + first_row on. Valid until the next call.
  const KvTile& MakeTile(const HeadList& list, int64_t begin, int32_t first_row,
                         int32_t num_rows) {
    GatherTile(list, begin, first_row, num_rows);
    if (floats_ == nullptr) return gathered_;
    WidenTile(gathered_, first_row, num_rows, floats_.get(), &wide_);
    return wide_;
  }

  // REQUIRES: first_row < num_rows.
  void GatherTile(const HeadList& list, int64_t begin, int32_t first_row,
                  int32_t num_rows) {
    const int32_t page_size = layout_.page_size;
    int32_t row = first_row;
    while (row < num_rows) {
      const int64_t rank = begin + row;
      const bool in_region = rank < list.region_length;
      const int64_t local = in_region ? rank : rank - list.region_length;
      const int64_t page_index = local / page_size;
      const int32_t offset = static_cast<int32_t>(local % page_size);
      const PageId page =
          in_region ? list.region_pages[page_index]
                    : layout_.page_id(list.layer, list.tail_blocks[page_index],
                                      list.head);
      // Up to the end of the page, of the region, of the tile.
      int64_t run = std::min(page_size - offset, num_rows - row);
      if (in_region) run = std::min(run, list.region_length - rank);
      const std::byte* key = arena_.page(page) + offset * arena_.token_stride();
      for (const int64_t end = row + run; row < end; ++row) {
        gathered_.keys[row] = key;
        key += arena_.token_stride();
      }
    }
    for (; row % kRowGroup != 0; ++row) {
      gathered_.keys[row] = gathered_.keys[row - 1];
    }
  }

  // Returns the tile's rows [first_row, num_rows) as a tile. Valid until the
  // next call.
  const KvTile& RowsFrom(const KvTile& tile, int32_t first_row,
                         int32_t num_rows) {
    if (first_row == 0) return tile;
    CopyShape(tile, &part_);
    const auto end =
        std::copy(tile.keys.begin() + first_row, tile.keys.begin() + num_rows,
                  part_.keys.begin());
    std::fill(end, part_.keys.end(), tile.keys[first_row]);
    return part_;
  }

  // Returns the rows from a position on as a tile. The given tile begins at
  // rank `begin` of a list with positions. Sets *num_rows to their number.
  const KvTile& RowsInWindow(const KvTile& tile, const HeadList& list,
                             int64_t begin, int64_t first_position,
                             int32_t* num_rows) {
    CopyShape(tile, &part_);
    int32_t num_left = 0;
    for (int32_t row = 0; row < *num_rows; ++row) {
      const int64_t rank = begin + row;
      const int64_t position = rank < list.region_length
                                   ? list.region_positions[rank]
                                   : list.cut + rank - list.region_length;
      if (position < first_position) continue;
      part_.keys[num_left++] = tile.keys[row];
    }
    std::fill(part_.keys.begin() + num_left, part_.keys.end(), part_.keys[0]);
    *num_rows = num_left;
    return part_;
  }

  static void CopyShape(const KvTile& from, KvTile* to) {
    to->kv_stride = from.kv_stride;
    to->head_dim = from.head_dim;
    to->dtype = from.dtype;
    to->is_near = from.is_near;
  }

  KvArena& arena_;
  const ModelLayout& layout_;
  const AttentionBatch& batch_;
  KvTile gathered_;
  KvTile wide_;  // copies of the rows of gathered_ in floats_
  KvTile part_;  // the rows of a tile that are in a query's window
  std::unique_ptr<float[]> floats_;  // null if the block has few queries
  // [kQueryBlockTokens, group_size]
  absl::InlinedVector<SoftmaxState, std::size_t{8} * kQueryBlockTokens> states_;
};

// CpuBackend runs every operation on the calling thread, and attention also on
// the threads of its batch. K and V have the dtype of the layout, everything
// else is fp32.
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
  explicit CpuBackend(KvArena arena)
      : arena_(std::move(arena)),
        attention_weights_(layout()),
        value_normer_(layout()) {}

  const ModelLayout& layout() const override { return arena_.layout(); }

  void Append(const AppendBatch& batch) override {
    const ModelLayout& shape = layout();
    BM_CHECK(batch.layer >= 0 && batch.layer < shape.num_layers);
    const int64_t num_slots = int64_t{shape.num_blocks} * shape.page_size;
    const float* key = batch.keys;
    const float* value = batch.values;
    for (const int64_t slot : batch.slot_mapping) {
      BM_CHECK(slot >= -1 && slot < num_slots);
      if (slot == -1) {
        key += int64_t{shape.num_heads} * shape.head_dim;
        value += int64_t{shape.num_heads} * shape.head_dim;
        continue;
      }
      const BlockId block{static_cast<int32_t>(slot / shape.page_size)};
      const int64_t row_offset = slot % shape.page_size * arena_.token_stride();
      for (int32_t head = 0; head < shape.num_heads; ++head) {
        std::byte* row =
            arena_.page(shape.page_id(batch.layer, block, head)) + row_offset;
        StoreRow(key, row);
        StoreRow(value, row + arena_.kv_stride());
        key += shape.head_dim;
        value += shape.head_dim;
      }
    }
  }

  void Attention(const AttentionBatch& batch) override {
    BM_CHECK(batch.layer >= 0 && batch.layer < layout().num_layers);
    BM_CHECK(batch.query_offsets.size() == batch.sequences.size() + 1);
    BM_CHECK(batch.window >= 0);
    blocks_.clear();
    for (std::size_t s = 0; s < batch.sequences.size(); ++s) {
      const SequenceKv& sequence = batch.sequences[s];
      const bool region_has_positions = sequence.region_positions != nullptr;
      BM_CHECK(batch.window == 0 || sequence.region_pages == nullptr ||
               region_has_positions);
      const int32_t query_begin = batch.query_offsets[s];
      const int32_t num_queries = batch.query_offsets[s + 1] - query_begin;
      BM_CHECK(num_queries >= 0);
      // A query's own row is in the tail, so no list is empty.
      BM_CHECK(num_queries <= sequence.tail_length);
      for (int32_t head = 0; head < layout().num_heads; ++head) {
        const HeadList list = MakeHeadList(sequence, batch.layer, head);
        const int64_t first_length = int64_t{list.region_length} +
                                     sequence.tail_length - num_queries + 1;
        for (int32_t j = 0; j < num_queries; j += kQueryBlockTokens) {
          blocks_.push_back(
              {list,
               {.first_token = query_begin + j,
                .num_tokens = std::min(kQueryBlockTokens, num_queries - j),
                .first_length = first_length + j}});
        }
      }
    }
    const auto attend = [&](int32_t i) {
      const HeadBlock& block = blocks_[static_cast<std::size_t>(i)];
      BlockAttention(&arena_, &batch).Attend(block.list, block.queries);
    };
    const auto num_blocks = static_cast<int32_t>(blocks_.size());
    if (batch.threads != nullptr) {
      batch.threads->ParallelFor(num_blocks, attend);
    } else {
      for (int32_t i = 0; i < num_blocks; ++i) attend(i);
    }
  }

  void Score(const ScoreBatch& batch) override {
    CheckEntries(layout(), batch.layer, batch.entries);
    BM_CHECK(batch.scores.size() == batch.entries.slots.size());
    BM_CHECK(HasScorer(batch.scorer.kind));
    std::unique_ptr<CpuScorer>& scorer =
        scorers_[static_cast<std::size_t>(batch.scorer.kind)];
    if (scorer == nullptr) {
      scorer = MakeCpuScorer(batch.scorer.kind, layout());
    }
    scorer->Score(arena_, batch);
  }

  bool HasScorer(ScorerKind kind) const override { return HasCpuScorer(kind); }

  void AddAttention(const AttentionSumBatch& batch) override {
    attention_weights_.AddTo(arena_, batch);
  }

  void ValueNorms(const ValueNormBatch& batch) override {
    value_normer_.Run(arena_, batch);
  }

  void AddQueries(const float* queries, int32_t num_tokens,
                  QueryStatistics* statistics) override {
    AddQueriesTo(layout(), queries, num_tokens, statistics);
  }

  KeepSets Select(const SelectBatch& batch) override {
    return SelectEntries(batch.policy, batch.target, batch.shape, batch.range,
                         batch.entries, batch.external);
  }

  std::vector<int32_t> Compact(const Compaction& compaction) override {
    CompactionMoves moves;
    std::vector<int32_t> positions =
        PlaceSurvivors(layout(), compaction, &moves);
    Move(moves);
    return positions;
  }

  void Move(const CompactionMoves& moves) override {
    const std::span<const SlotMove> all = moves.moves;
    if (!moves.in_place) return CopyRows(all);
    int64_t begin = 0;
    for (const int64_t end : moves.group_ends) {
      CopyRowsStaged(all.subspan(begin, end - begin));
      begin = end;
    }
  }

  void CopyBlocks(std::span<const BlockCopy> copies) override {
    for (int32_t layer = 0; layer < layout().num_layers; ++layer) {
      for (const BlockCopy& copy : copies) {
        const auto source = arena_.layer_block(layer, copy.source);
        const auto destination = arena_.layer_block(layer, copy.destination);
        std::memcpy(destination.data(), source.data(), source.size());
      }
    }
  }

  void CopyToHost(std::span<const BlockTransfer> transfers,
                  std::span<std::byte> host) override {
    const int64_t block_bytes = layout().block_bytes();
    for (const BlockTransfer& transfer : transfers) {
      std::byte* to =
          host.subspan(Index(transfer.host) * block_bytes, block_bytes).data();
      for (int32_t layer = 0; layer < layout().num_layers; ++layer) {
        const auto source = arena_.layer_block(layer, transfer.block);
        to = std::ranges::copy(source, to).out;
      }
    }
  }

  void CopyFromHost(std::span<const BlockTransfer> transfers,
                    std::span<const std::byte> host) override {
    const int64_t block_bytes = layout().block_bytes();
    for (const BlockTransfer& transfer : transfers) {
      auto from = host.subspan(Index(transfer.host) * block_bytes, block_bytes);
      for (int32_t layer = 0; layer < layout().num_layers; ++layer) {
        const auto destination = arena_.layer_block(layer, transfer.block);
        std::ranges::copy(from.first(destination.size()), destination.begin());
        from = from.subspan(destination.size());
      }
    }
  }

  void ReadSlot(SlotIndex slot, std::span<float> out) const override {
    const int64_t head_dim = layout().head_dim;
    BM_CHECK(std::ssize(out) == 2 * head_dim);
    const std::byte* key = arena_.key_row(slot);
    for (const int64_t part : {0, 1}) {
      const std::byte* row = key + part * arena_.kv_stride();
      float* values = out.data() + part * head_dim;
      for (int64_t i = 0; i < head_dim; ++i) {
        values[i] = LoadElement(layout().dtype, row, i);
      }
    }
  }

  void Poison() override {
    // All bits set is a NaN in every dtype.
    std::ranges::fill(arena_.bytes(), std::byte{0xFF});
  }

 private:
  HeadList MakeHeadList(const SequenceKv& sequence, int32_t layer,
                        int32_t head) const {
    HeadList list;
    list.tail_blocks = sequence.tail_blocks;
    list.layer = layer;
    list.head = head;
    if (sequence.region_pages == nullptr) return list;
    const int32_t begin = sequence.region_offsets[head];
    const int64_t num_pages = sequence.region_offsets[head + 1] - begin;
    list.region_pages = sequence.region_pages + begin;
    if (sequence.region_positions != nullptr) {
      list.region_positions =
          sequence.region_positions + int64_t{begin} * layout().page_size;
    }
    list.cut = sequence.cut;
    list.region_length = sequence.region_lengths[head];
    BM_CHECK(list.region_length >= 0);
    BM_CHECK(list.region_length <= num_pages * layout().page_size);
    return list;
  }

  // Copies rows one by one. REQUIRES: no destination is a source.
  void CopyRows(std::span<const SlotMove> moves) {
    const std::size_t row_bytes =
        static_cast<std::size_t>(layout().row_bytes());
    for (const SlotMove& move : moves) {
      const std::byte* source = arena_.key_row(move.source);
      std::byte* destination = arena_.key_row(move.destination);
      std::memcpy(destination, source, row_bytes);
      std::memcpy(destination + arena_.kv_stride(), source + arena_.kv_stride(),
                  row_bytes);
    }
  }

  // Reads all rows before it writes the first one.
  void CopyRowsStaged(std::span<const SlotMove> moves) {
    const std::size_t row_bytes =
        static_cast<std::size_t>(layout().row_bytes());
    if (staged_rows_.size() < moves.size() * 2 * row_bytes) {
      staged_rows_.resize(moves.size() * 2 * row_bytes);
    }
    std::byte* staged = staged_rows_.data();
    for (const SlotMove& move : moves) {
      const std::byte* source = arena_.key_row(move.source);
      std::memcpy(staged, source, row_bytes);
      std::memcpy(staged + row_bytes, source + arena_.kv_stride(), row_bytes);
      staged += 2 * row_bytes;
    }
    staged = staged_rows_.data();
    for (const SlotMove& move : moves) {
      std::byte* destination = arena_.key_row(move.destination);
      std::memcpy(destination, staged, row_bytes);
      std::memcpy(destination + arena_.kv_stride(), staged + row_bytes,
                  row_bytes);
      staged += 2 * row_bytes;
    }
  }

  void StoreRow(const float* values, std::byte* row) const {
    const std::size_t dim = static_cast<std::size_t>(layout().head_dim);
    switch (layout().dtype) {
      case DType::kFloat32:
        std::memcpy(row, values, dim * sizeof(float));
        return;
      case DType::kBFloat16:
        EncodeBFloat16({values, dim}, {reinterpret_cast<uint16_t*>(row), dim});
        return;
      case DType::kFloat16:
        EncodeFloat16({values, dim}, {reinterpret_cast<uint16_t*>(row), dim});
        return;
    }
  }

  KvArena arena_;
  std::vector<std::byte> staged_rows_;  // of the largest group of moves so far
  std::vector<HeadBlock> blocks_;       // of the current call of Attention
  // By ScorerKind, made at the first call of the kind.
  std::array<std::unique_ptr<CpuScorer>, EnumNames<ScorerKind>().size()>
      scorers_;
  AttentionWeights attention_weights_;
  ValueNormer value_normer_;
};

absl::Status CheckOneShard(const ModelLayout& layout) {
  if (layout.num_shards == 1) return absl::OkStatus();
  return Invalid("num_shards: expected the layout of one shard, got ",
                 layout.num_shards, " shards");
}

}  // namespace

absl::StatusOr<std::unique_ptr<Backend>> CreateCpuBackend(
    const ModelLayout& layout) {
  BM_RETURN_IF_ERROR(CheckOneShard(layout));
  BM_ASSIGN_OR_RETURN(KvArena arena, KvArena::Create(layout));
  return std::make_unique<CpuBackend>(std::move(arena));
}

absl::StatusOr<std::unique_ptr<Backend>> CreateCpuBackendOn(
    const ModelLayout& layout, std::span<std::byte> pool) {
  BM_RETURN_IF_ERROR(CheckOneShard(layout));
  BM_ASSIGN_OR_RETURN(KvArena arena, KvArena::Over(layout, pool));
  return std::make_unique<CpuBackend>(std::move(arena));
}

absl::StatusOr<std::vector<std::unique_ptr<Backend>>> CreateCpuShards(
    const ModelLayout& layout) {
  BM_RETURN_IF_ERROR(layout.Validate());
  std::vector<std::unique_ptr<Backend>> shards;
  for (int32_t shard = 0; shard < layout.num_shards; ++shard) {
    BM_ASSIGN_OR_RETURN(shards.emplace_back(),
                        CreateCpuBackend(layout.ShardLayout()));
  }
  return shards;
}

}  // namespace blockmgr
