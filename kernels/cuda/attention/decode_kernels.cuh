// The two kernels of decode_attention.h: the attention, then the merge of lists
// that several CTAs or several chunks computed.
#ifndef KERNELS_CUDA_ATTENTION_DECODE_KERNELS_CUH_
#define KERNELS_CUDA_ATTENTION_DECODE_KERNELS_CUH_

#include <cstdint>

#include "kernels/cuda/attention/decode_attention.cuh"
#include "kernels/cuda/attention/decode_attention.h"
#include "kernels/cuda/attention/decode_pieces.cuh"
#include "kernels/cuda/attention/sink_logits.cuh"
#include "kernels/cuda/mma_rows.cuh"
#include "kernels/cuda/rows/row_mover.h"
#include "kernels/cuda/simt.h"

namespace blockmgr {
inline namespace SIMT_SPACE {

// The factors of two sums before they are added.
struct PartScales {
  float mine = 1.0f;
  float theirs = 1.0f;
};

// An output element of a query head, not yet divided: the weighted sum of rows
// whose weights, relative to 2^max, add up to `sum`.
struct WeightedSum {
  float max = -INFINITY;
  float sum = 0.0f;
  float value = 0.0f;

  // The order decides the last bit: parts come in order along the list.
  SIMT_DEVICE void Add(float part_max, float part_sum, float part_value) {
    const PartScales scales = AddWeights(part_max, part_sum);
    value = value * scales.mine + part_value * scales.theirs;
  }
  // Adds the weights of a part. The caller adds the value.
  SIMT_DEVICE PartScales AddWeights(float part_max, float part_sum) {
    const float joint = fmaxf(max, part_max);
    const float base = FiniteMax(joint);
    PartScales scales;
    scales.mine = simt::Exp2(max - base);
    scales.theirs = simt::Exp2(part_max - base);
    sum = sum * scales.mine + part_sum * scales.theirs;
    max = joint;
    return scales;
  }
};

// Stores the final value of `element` of query head `q_head` of the group of
// `list`.
template <typename T, int kDim>
SIMT_DEVICE void StoreFinal(const DecodeParams& params, int32_t list,
                            int32_t q_head, int32_t element,
                            WeightedSum total) {
  const int64_t row = int64_t{list} * params.group_size + q_head;
  if (params.sinks != nullptr) {
    const int32_t sequence = Divide(list, params.pool.by_heads);
    const int32_t head = list - sequence * params.lists.num_heads;
    const float sink = params.sinks[head * params.group_size + q_head];
    total.value *= AddSink(sink, &total.max, &total.sum);
  }
  // Not "sum > 0": NaN in a live row must stay visible.
  const bool empty = total.sum == 0.0f;
  static_cast<T*>(params.output)[row * kDim + element] =
      simt::FromFloat<T>(empty ? 0.0f : total.value / total.sum);
  if (element == 0 && params.lse != nullptr) {
    params.lse[row] =
        empty ? -INFINITY : kLn2 * (total.max + simt::Log2(total.sum));
  }
}

template <int kDim>
SIMT_DEVICE void StorePartial(const DecodeParams& params, int64_t row,
                              int32_t element, const WeightedSum& part) {
  params.partial_output[row * kDim + element] = part.value;
  if (element == 0) {
    params.partial_stats[row * 2] = part.max;
    params.partial_stats[row * 2 + 1] = part.sum;
  }
}

// Adds up the states of the warps for 8 query heads, in the order of the warps,
// and stores the result. If the piece is a whole list, the result is final.
template <typename T, int kDim, int kQTiles>
SIMT_DEVICE void CombineWarps(const DecodeParams& params,
                              const DecodePiece& piece, int32_t q_tile,
                              const float (&output)[kDim / 16][4],
                              const float (&max)[2], const float (&sum)[2]) {
  using Shape = DecodeShape<T, kDim, kQTiles>;
  const auto results =
      simt::Shared<float>(Shape::kRowBytes, Shape::kResultFloats);
  const auto stats = simt::Shared<float>(
      Shape::kRowBytes + sizeof(float) * Shape::kResultFloats,
      Shape::kStatFloats);
  const int32_t lane = LaneIndex();
  SIMT_UNROLL
  for (int j = 0; j < 2; ++j) {
    const int32_t row = WarpIndex() * 8 + (lane % 4) * 2 + j;
    const float all_rows = SumOverRows(sum[j]);
    if (lane < 4) {
      stats.Store(row * 2, max[j]);
      stats.Store(row * 2 + 1, all_rows);
    }
    SIMT_UNROLL
    for (int i = 0; i < kDim / 16; ++i) {
      const int32_t place = row * Shape::kResultStride + i * 16 + lane / 4;
      results.Store(place, output[i][j]);
      results.Store(place + 8, output[i][j + 2]);
    }
  }
  simt::SyncBlock();
  const bool whole = piece.IsWhole();
  const int64_t slot = whole ? 0 : SlotOfPiece(params, piece);
  for (int32_t e = Thread(); e < 8 * kDim; e += kDecodeThreads) {
    const int32_t q_row = e / kDim;
    const int32_t element = e % kDim;
    const int32_t q_head = q_tile * 8 + q_row;
    if (q_head >= params.group_size) continue;
    WeightedSum total;
    for (int32_t warp = 0; warp < Shape::kWarps; ++warp) {
      const int32_t row = warp * 8 + q_row;
      total.Add(stats.Load(row * 2), stats.Load(row * 2 + 1),
                results.Load(row * Shape::kResultStride + element));
    }
    if (whole) {
      StoreFinal<T, kDim>(params, piece.list, q_head, element, total);
    } else {
      StorePartial<kDim>(params, slot * (8 * kQTiles) + q_head, element, total);
    }
  }
  simt::SyncBlock();
}

// One tile: waits for it, attends it, frees its stage.
template <typename T, int kDim, int kQTiles>
SIMT_DEVICE void AttendDecodeTile(
    const DecodeParams& params, const AttentionList& list,
    const DecodePiece& piece, int32_t tile, const T* rows,
    const DecodeQueries<kDim / 16, kQTiles>& queries,
    DecodeState<kDim / 16, kQTiles>* state) {
  using Shape = DecodeShape<T, kDim, kQTiles>;
  simt::WaitCopies<Shape::kStages - 1>();
  simt::SyncWarp();
  const int32_t rank =
      RankOfTile(list, tile - piece.list_begin) + WarpIndex() * Shape::kRows;
  const int32_t num_before = RowsBeforeWindow(list, rank);
  const int32_t num_live = LiveRows(list, rank);
  float logits[kQTiles][4];
  DecodeLogits<T, kDim, kQTiles>(rows, queries, logits);
  if (params.logits != nullptr) {
    StoreLogits<kQTiles>(params,
                         int64_t{piece.list_begin} * kDecodeTileRanks + rank,
                         num_live, logits);
  }
  const int32_t row = LaneIndex() / 4;
  bool live[2] = {row >= num_before && row < num_live,
                  row + 8 >= num_before && row + 8 < num_live};
  if (list.region_positions != nullptr && rank < list.region_slots) {
    const int32_t first = list.position_shift + list.num_ranks;
    const int32_t* positions = list.region_positions + rank + row;
    live[0] = live[0] && positions[0] >= first;
    live[1] = live[1] && positions[8] >= first;
  }
  DecodeRows<T, kDim, kQTiles>(rows + Shape::kRows * kDim, live,
                               params.scale * kLog2E, logits, state);
  simt::SyncWarp();
}

SIMT_DEVICE void ResetMergeCounters(const DecodeParams& params, int32_t list) {
  if (Thread() < params.group_size) {
    params.merge_counters[int64_t{list} * params.group_size + Thread()] = 0;
  }
}

// Grid: num_ctas blocks. Shared memory: DecodeShape::kSharedBytes.
template <typename T, int kDim, int kQTiles>
SIMT_KERNEL(kDecodeThreads, 2)
void DecodeAttention(DecodeParams params) {
  simt::AwaitEarlierKernels();
  using Shape = DecodeShape<T, kDim, kQTiles>;
  if (!HasRoom(params)) {
    if (simt::BlockX() == 0 && Thread() == 0) {
      simt::AtomicOr(params.error, static_cast<uint32_t>(kTilesOutOfRoom));
    }
    return;
  }
  const TileRange range =
      RangeOfCta(params, static_cast<int32_t>(simt::BlockX()));
  if (range.begin >= range.end) return;
  T* const rows = reinterpret_cast<T*>(simt::SharedBytes()) +
                  WarpIndex() * Shape::kStages * Shape::kStageElements;
  int32_t list_index = range.list;
  DecodeLoader<Shape, T, kDim> loader;
  loader.Enter(params, list_index);
  loader.tile = range.begin;
  loader.end = range.end;
  for (int i = 0; i < Shape::kStages - 1; ++i) loader.CopyNext(params, rows);

  DecodeState<kDim / 16, kQTiles> state;
  DecodeQueries<kDim / 16, kQTiles> queries;
  int32_t stage = 0;
  for (int32_t tile = range.begin; tile < range.end;) {
    const DecodePiece piece = PieceAt(params, range, list_index, tile);
    const int32_t sequence = Divide(list_index, params.pool.by_heads);
    const AttentionList list =
        LoadList(params.lists, params.pool.page_shift, sequence,
                 list_index - sequence * params.lists.num_heads);
    queries.Load(params, list_index);
    state.Reset();
    for (; tile < piece.end; ++tile) {
      loader.CopyNext(params, rows);
      AttendDecodeTile<T, kDim, kQTiles>(params, list, piece, tile,
                                         rows + stage * Shape::kStageElements,
                                         queries, &state);
      stage = stage + 1 == Shape::kStages ? 0 : stage + 1;
    }
    SIMT_UNROLL
    for (int t = 0; t < kQTiles; ++t) {
      CombineWarps<T, kDim, kQTiles>(params, piece, t, state.output[t],
                                     state.max[t], state.sum[t]);
    }
    if (piece.begin == piece.list_begin) ResetMergeCounters(params, piece.list);
    if (tile == piece.list_end) ++list_index;
  }
}

// Rows of a query head in the slots of a list: `count` rows, `step` apart.
struct PartRows {
  int64_t first = 0;
  int32_t count = 0;
  int32_t step = 0;
  int32_t shift = 0;  // of row 0

  SIMT_DEVICE int64_t Row(int32_t i) const {
    return first + int64_t{i} * step + (i == 0 ? shift : 0);
  }
  // Returns at most 32 rows, from row `i` on.
  SIMT_DEVICE PartRows Next32(int32_t i) const {
    const int32_t rest = count - i;
    return {first + int64_t{i} * step, rest < 32 ? rest : 32, step,
            i == 0 ? shift : 0};
  }
};

// The parts of a list: its chunks, or the shares of CTAs that it is in.
class ListParts {
 public:
  SIMT_DEVICE ListParts(const DecodeParams& params, int32_t list) {
    const int32_t begin = params.tile_offsets[list];
    const int32_t end = params.tile_offsets[list + 1];
    if (params.chunk_tiles > 0) {
      count_ = (end - begin + params.chunk_tiles - 1) / params.chunk_tiles;
      slot_ = SlotOfChunk(params, list, begin, 0);
      return;
    }
    const int32_t num_tiles = CountTiles(params);
    const int32_t num_shares = CountShares(params, num_tiles);
    const int32_t first = OwnerOfTile(num_tiles, begin, num_shares);
    count_ = OwnerOfTile(num_tiles, end - 1, num_shares) + 1 - first;
    slot_ = SlotOfCta(first, false);
    slots_per_part_ = static_cast<int32_t>(SlotOfCta(1, false));
    // The list begins in its first share, and not in the others.
    first_shift_ = static_cast<int32_t>(SlotOfCta(0, true));
  }

  SIMT_DEVICE int32_t count() const { return count_; }
  SIMT_DEVICE int32_t CountGroups() const {
    return (count_ + kMergeParts - 1) / kMergeParts;
  }
  // Returns the rows of `count` parts from `first` on, `stride` apart.
  SIMT_DEVICE PartRows Rows(const DecodeParams& params, int32_t first,
                            int32_t count, int32_t stride) const {
    const int32_t q_rows = params.group_size > 8 ? 16 : 8;
    return {(slot_ + int64_t{first} * slots_per_part_) * q_rows, count,
            stride * slots_per_part_ * q_rows,
            first == 0 ? first_shift_ * q_rows : 0};
  }
  SIMT_DEVICE PartRows RowsOfGroup(const DecodeParams& params,
                                   int32_t group) const {
    const int32_t first = group * kMergeParts;
    const int32_t rest = count_ - first;
    return Rows(params, first, rest < kMergeParts ? rest : kMergeParts, 1);
  }

 private:
  int64_t slot_ = 0;
  int32_t count_ = 0;
  int32_t slots_per_part_ = 1;
  int32_t first_shift_ = 0;
};

// The group of parts of a list that a block merges.
struct MergeGroup {
  int32_t list = 0;
  int32_t group = 0;
};

// C. Block l has the first group of list l. If tiles are cut in runs of
// kMergeParts parts, the list that holds the last tile of run r has the group
// of block num_lists + r: a list has at least as many of those tiles as it has
// groups after the first. Blocks without a group get a group that no list has.
SIMT_DEVICE MergeGroup GroupOfBlock(const DecodeParams& params, int32_t block) {
  const int32_t num_lists = CountLists(params);
  if (block < num_lists) return {block, 0};
  const int32_t num_tiles = CountTiles(params);
  const int32_t num_shares = CountShares(params, num_tiles);
  const bool chunked = params.chunk_tiles > 0;
  const int32_t run = block - num_lists;
  const int32_t part = (run + 1) * kMergeParts;
  const int32_t end = chunked ? part * params.chunk_tiles
                              : ShareBegin(num_tiles, part, num_shares);
  MergeGroup group{0, INT32_MAX};
  if (end > num_tiles) return group;
  group.list = ListOfTile(params, end - 1);
  const int32_t begin = params.tile_offsets[group.list];
  const int32_t first_part = chunked
                                 ? begin / params.chunk_tiles
                                 : OwnerOfTile(num_tiles, begin, num_shares);
  group.group = run - first_part / kMergeParts + 1;
  return group;
}

// The shared memory of the merge: for each warp the weights of 32 parts.
inline constexpr int kMergeSharedBytes = 4 * kDecodeThreads;
// The parts of a list whose values are under way at once: first a few, which is
// all that most lists have, then more, until there are 32.
inline constexpr int kFirstMergeBatch = 4;
inline constexpr int kMergeBatch = 14;
static_assert((32 - kFirstMergeBatch) % kMergeBatch == 0, "parts of a lane");

// The sum of some parts for a query head: a thread's elements, kDecodeThreads
// apart.
template <int kDim>
struct PartSum {
  static constexpr int kElements =
      kDim > kDecodeThreads ? kDim / kDecodeThreads : 1;
  float max = -INFINITY;
  float sum = 0.0f;
  float values[kElements] = {};

  SIMT_DEVICE void Add(const PartSum& part) {
    WeightedSum head{max, sum, 0.0f};
    const PartScales scales = head.AddWeights(part.max, part.sum);
    max = head.max;
    sum = head.sum;
    SIMT_UNROLL
    for (int i = 0; i < kElements; ++i) {
      values[i] = values[i] * scales.mine + part.values[i] * scales.theirs;
    }
  }

  // Calls store(element, sum) for each of the thread's elements.
  template <typename Store>
  SIMT_DEVICE void ForElements(const Store& store) const {
    SIMT_UNROLL
    for (int i = 0; i < kElements; ++i) {
      const int32_t element = Thread() + i * kDecodeThreads;
      if (element < kDim) store(element, WeightedSum{max, sum, values[i]});
    }
  }
};

// Adds the values of the parts [i, i + kBatch) to the sum. weigh() is called
// before their weights are read. The loads of all of them are under way by
// then, because no condition is around more than one load.
template <int kBatch, int kDim, typename Weigh>
SIMT_DEVICE void AddBatch(const DecodeParams& params, const PartRows& rows,
                          int32_t i, const simt::SharedArray<float>& weights,
                          const Weigh& weigh, PartSum<kDim>* sum) {
  constexpr int kElements = PartSum<kDim>::kElements;
  float values[kBatch][kElements];
  SIMT_UNROLL
  for (int k = 0; k < kBatch; ++k) {
    const float* const row = params.partial_output + rows.Row(i + k) * kDim +
                             simt::ThreadIndex() % kDim;
    SIMT_UNROLL
    for (int e = 0; e < kElements; ++e) {
      values[k][e] = i + k < rows.count ? row[e * kDecodeThreads] : 0.0f;
    }
  }
  weigh();
  SIMT_UNROLL
  for (int k = 0; k < kBatch; ++k) {
    const float weight = weights.Load(static_cast<uint32_t>(i + k));
    SIMT_UNROLL
    for (int e = 0; e < kElements; ++e) {
      sum->values[e] += values[k][e] * weight;
    }
  }
}

// C. Adds up at most 32 parts, in order. A lane weighs one of them, while the
// first values are under way.
template <int kDim>
SIMT_DEVICE PartSum<kDim> SumOf32(const DecodeParams& params,
                                  const PartRows& rows) {
  const auto weights =
      simt::Shared<float>(static_cast<uint32_t>(WarpIndex()) * 32 * 4, 32);
  float max = -INFINITY;
  float sum = 0.0f;
  if (LaneIndex() < rows.count) {
    const int64_t row = rows.Row(LaneIndex());
    max = params.partial_stats[row * 2];
    sum = params.partial_stats[row * 2 + 1];
  }
  PartSum<kDim> total;
  const auto weigh = [&] {
    total.max = MaxOverLanes(max);
    const float weight = simt::Exp2(max - FiniteMax(total.max));
    total.sum = SumOverLanes(sum * weight);
    weights.Store(simt::Lane(), weight);
    simt::SyncWarp();
  };
  AddBatch<kFirstMergeBatch>(params, rows, 0, weights, weigh, &total);
  for (int32_t i = kFirstMergeBatch; i < rows.count; i += kMergeBatch) {
    AddBatch<kMergeBatch>(
        params, rows, i, weights, [] {}, &total);
  }
  simt::SyncWarp();
  return total;
}

// C. Adds up any number of parts, in order.
template <int kDim>
SIMT_DEVICE PartSum<kDim> SumOfParts(const DecodeParams& params,
                                     const PartRows& rows) {
  PartSum<kDim> total = SumOf32<kDim>(params, rows.Next32(0));
  for (int32_t i = 32; i < rows.count; i += 32) {
    total.Add(SumOf32<kDim>(params, rows.Next32(i)));
  }
  return total;
}

// Merges a group of parts for a query head. The last block that is done with a
// group of the list merges the sums of all groups, each of which has taken the
// place of its first part.
template <typename T, int kDim>
SIMT_DEVICE void MergeGroups(const DecodeParams& params, int32_t list,
                             int32_t num_groups, PartRows rows,
                             int32_t q_head) {
  rows.first += q_head;
  if (num_groups > 1) {
    static_assert(kMergeParts <= 32, "a lane weighs one part");
    const PartSum<kDim> sum = SumOf32<kDim>(params, rows);
    // Other warps read the stats that the stats of the sum replace.
    simt::SyncBlock();
    sum.ForElements([&](int32_t element, const WeightedSum& total) {
      StorePartial<kDim>(params, rows.Row(0), element, total);
    });
    uint32_t* const counter =
        params.merge_counters + int64_t{list} * params.group_size + q_head;
    if (!simt::LastBlockDone(counter, static_cast<uint32_t>(num_groups))) {
      return;
    }
    // Computed again: registers are for values under way.
    rows = ListParts(params, list).Rows(params, 0, num_groups, kMergeParts);
    rows.first += q_head;
  }
  const PartSum<kDim> sum = SumOfParts<kDim>(params, rows);
  sum.ForElements([&](int32_t element, const WeightedSum& total) {
    StoreFinal<T, kDim>(params, list, q_head, element, total);
  });
}

// Grid: {CountMergeBlocks, any number of blocks that share the query heads}.
// The blocks of a list in one piece return at once. Runs after DecodeAttention.
// Shared memory: kMergeSharedBytes.
template <typename T, int kDim>
SIMT_KERNEL(kDecodeThreads, 8)
void MergeDecodeAttention(DecodeParams params) {
  // The tile offsets of the plan may be read early, because DecodeAttention
  // only reads them.
  const bool has_room = HasRoom(params);
  const MergeGroup group =
      GroupOfBlock(params, static_cast<int32_t>(simt::BlockX()));
  const ListParts parts(params, group.list);
  simt::AwaitEarlierKernels();
  const int32_t num_groups = parts.CountGroups();
  if (!has_room || parts.count() == 1 || group.group >= num_groups) return;
  const PartRows rows = parts.RowsOfGroup(params, group.group);
  for (int32_t q_head = static_cast<int32_t>(simt::BlockY());
       q_head < params.group_size;
       q_head += static_cast<int32_t>(simt::num_blocks_y())) {
    MergeGroups<T, kDim>(params, group.list, num_groups, rows, q_head);
  }
}

}  // namespace SIMT_SPACE
}  // namespace blockmgr

#endif  // KERNELS_CUDA_ATTENTION_DECODE_KERNELS_CUH_
