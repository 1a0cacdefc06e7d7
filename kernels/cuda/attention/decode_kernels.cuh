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
SIMT_DEVICE void StorePartial(const DecodeParams& params, int64_t slot,
                              int32_t q_rows, int32_t q_head, int32_t element,
                              const WeightedSum& part) {
  const int64_t row = slot * q_rows + q_head;
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
      StorePartial<kDim>(params, slot, 8 * kQTiles, q_head, element, total);
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
  int32_t list_index = ListOfTile(params, range.begin);
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
    if (tile == piece.list_end) ++list_index;
  }
}

// Returns the CTA whose share holds a tile: the last CTA with a share that
// begins at the tile or before, c T / n < tile + 1.
SIMT_DEVICE int32_t OwnerOfTile(const DecodeParams& params, int32_t num_tiles,
                                int32_t tile) {
  return static_cast<int32_t>(((int64_t{tile} + 1) * params.num_ctas - 1) /
                              num_tiles);
}

// The result of one part for a query head: a lane's elements, 32 apart.
template <int kElements>
struct LanePart {
  float max = -INFINITY;
  float sum = 0.0f;
  float values[kElements] = {};

  SIMT_DEVICE void Load(const DecodeParams& params, int64_t slot,
                        int32_t q_head) {
    const int64_t row = slot * (params.group_size > 8 ? 16 : 8) + q_head;
    max = params.partial_stats[row * 2];
    sum = params.partial_stats[row * 2 + 1];
    const float* const output =
        params.partial_output + row * (kElements * 32) + LaneIndex();
    SIMT_UNROLL
    for (int i = 0; i < kElements; ++i) values[i] = output[i * 32];
  }

  SIMT_DEVICE void Add(const LanePart& part) {
    WeightedSum head{max, sum, 0.0f};
    const PartScales scales = head.AddWeights(part.max, part.sum);
    max = head.max;
    sum = head.sum;
    SIMT_UNROLL
    for (int i = 0; i < kElements; ++i) {
      values[i] = values[i] * scales.mine + part.values[i] * scales.theirs;
    }
  }
};

// The parts of a list: its chunks, or the CTAs that share it.
SIMT_DEVICE TileRange PartsOf(const DecodeParams& params, int32_t list) {
  const int32_t begin = params.tile_offsets[list];
  const int32_t end = params.tile_offsets[list + 1];
  TileRange parts;
  if (params.chunk_tiles > 0) {
    parts.end = (end - begin + params.chunk_tiles - 1) / params.chunk_tiles;
  } else {
    const int32_t num_tiles = CountTiles(params);
    parts.begin = OwnerOfTile(params, num_tiles, begin);
    parts.end = OwnerOfTile(params, num_tiles, end - 1) + 1;
  }
  return parts;
}

// The slots of parts, one after another.
class PartSlots {
 public:
  static constexpr int64_t kNoSlot = -1;

  SIMT_DEVICE PartSlots(const DecodeParams& params, int32_t list, int32_t part)
      : list_begin_(params.tile_offsets[list]),
        chunked_(params.chunk_tiles > 0),
        cta_(part) {
    if (chunked_) {
      chunk_ = SlotOfChunk(params, list, list_begin_, part);
      return;
    }
    const int32_t num_tiles = CountTiles(params);
    num_ctas_ = params.num_ctas;
    begin_ = ShareBegin(num_tiles, part, num_ctas_);
    rest_ = static_cast<int32_t>(int64_t{num_tiles} * part -
                                 int64_t{begin_} * num_ctas_);
    tiles_ = num_tiles / num_ctas_;
    more_ = num_tiles - tiles_ * num_ctas_;
  }

  // Returns kNoSlot if the share is empty.
  SIMT_DEVICE int64_t Next() {
    if (chunked_) return chunk_++;
    // Computes the next ShareBegin without its division.
    const int32_t begin = begin_;
    rest_ += more_;
    const bool carries = rest_ >= num_ctas_;
    rest_ -= carries ? num_ctas_ : 0;
    begin_ += tiles_ + (carries ? 1 : 0);
    const int32_t cta = cta_++;
    return begin < begin_ ? SlotOfCta(cta, begin <= list_begin_) : kNoSlot;
  }

 private:
  int32_t list_begin_;
  bool chunked_;
  int32_t cta_;
  int32_t num_ctas_ = 0;
  int32_t begin_ = 0;  // of the CTA's share: (tiles cta - rest_) / num_ctas_
  int32_t rest_ = 0;
  int32_t tiles_ = 0;  // of a share, and what is left of all of them
  int32_t more_ = 0;
  int64_t chunk_ = 0;
};

// Adds up some parts, in order, for the lane's elements of a query head. A few
// loads are under way at once: a list of millions of tokens has hundreds of
// parts.
template <int kElements>
SIMT_DEVICE LanePart<kElements> MergeParts(const DecodeParams& params,
                                           int32_t list, TileRange parts,
                                           int32_t q_head) {
  constexpr int kBatch = kElements > 4 ? 2 : 4;  // of registers
  PartSlots slots(params, list, parts.begin);
  LanePart<kElements> total;
  for (int32_t first = parts.begin; first < parts.end; first += kBatch) {
    LanePart<kElements> batch[kBatch];
    bool exist[kBatch];
    SIMT_UNROLL
    for (int k = 0; k < kBatch; ++k) {
      const int64_t slot =
          first + k < parts.end ? slots.Next() : PartSlots::kNoSlot;
      exist[k] = slot != PartSlots::kNoSlot;
      if (exist[k]) batch[k].Load(params, slot, q_head);
    }
    SIMT_UNROLL
    for (int k = 0; k < kBatch; ++k) {
      if (exist[k]) total.Add(batch[k]);
    }
  }
  return total;
}

// The results of the warps: {max, sum} of each, then their elements.
template <int kDim>
struct MergeShape {
  static constexpr int kWarps = kDecodeThreads / 32;
  static constexpr int kStatFloats = 2 * kWarps;
  static constexpr int kSharedBytes = 4 * (kStatFloats + kWarps * kDim);
};

// Grid: {lists, any number of blocks that share the query heads}. The blocks of
// a list in one piece return at once. Runs after DecodeAttention. Shared
// memory: MergeShape::kSharedBytes.
//
// Each warp takes a quarter of the parts. The quarters depend on the number of
// parts alone. They are added up in order.
template <typename T, int kDim>
SIMT_KERNEL(kDecodeThreads, 8)
void MergeDecodeAttention(DecodeParams params) {
  using Shape = MergeShape<kDim>;
  constexpr int kElements = kDim / 32;
  // The tile offsets of the plan may be read early, because DecodeAttention
  // only reads them.
  const bool has_room = HasRoom(params);
  const int32_t list = static_cast<int32_t>(simt::BlockX());
  TileRange parts = PartsOf(params, list);
  const int32_t num_parts = parts.end - parts.begin;
  simt::AwaitEarlierKernels();
  if (!has_room || num_parts == 1) return;
  const int32_t warp = WarpIndex();
  const int32_t first = parts.begin;
  parts.begin = first + num_parts * warp / Shape::kWarps;
  parts.end = first + num_parts * (warp + 1) / Shape::kWarps;
  const auto stats = simt::Shared<float>(0, Shape::kStatFloats);
  const auto values =
      simt::Shared<float>(4 * Shape::kStatFloats, Shape::kWarps * kDim);
  for (int32_t q_head = static_cast<int32_t>(simt::BlockY());
       q_head < params.group_size;
       q_head += static_cast<int32_t>(simt::num_blocks_y())) {
    const LanePart<kElements> mine =
        MergeParts<kElements>(params, list, parts, q_head);
    if (LaneIndex() == 0) {
      stats.Store(warp * 2, mine.max);
      stats.Store(warp * 2 + 1, mine.sum);
    }
    SIMT_UNROLL
    for (int i = 0; i < kElements; ++i) {
      values.Store(warp * kDim + i * 32 + LaneIndex(), mine.values[i]);
    }
    simt::SyncBlock();
    for (int32_t e = Thread(); e < kDim; e += kDecodeThreads) {
      WeightedSum total;
      for (int32_t w = 0; w < Shape::kWarps; ++w) {
        total.Add(stats.Load(w * 2), stats.Load(w * 2 + 1),
                  values.Load(w * kDim + e));
      }
      StoreFinal<T, kDim>(params, list, q_head, e, total);
    }
    simt::SyncBlock();
  }
}

}  // namespace SIMT_SPACE
}  // namespace blockmgr

#endif  // KERNELS_CUDA_ATTENTION_DECODE_KERNELS_CUH_
