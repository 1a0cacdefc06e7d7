// One kernel for every copy of K and V rows; see row_mover.h.
//
// A warp takes kRowsPerWarp pairs at a time. A source functor and a destination
// functor turn the number of a pair into addresses; lanes then copy 16-byte
// vectors, the K row's first, then the V row's, all loads of the pairs in
// flight before the stores. At head_dim 128 and 2 bytes that is one vector per
// lane and pair: 2 KiB in flight per warp.
#ifndef KERNELS_CUDA_ROW_MOVER_CUH_
#define KERNELS_CUDA_ROW_MOVER_CUH_

#include <cstdint>

#include "kernels/cuda/planted_bugs.h"
#include "kernels/cuda/row_mover.h"
#include "kernels/cuda/simt.h"

namespace blockmgr {
inline namespace SIMT_SPACE {

SIMT_DEVICE void ReportRowError(uint32_t* error, uint32_t bit) {
  if (simt::Lane() == 0) simt::AtomicOr(error, bit);
}

// Number of pair -> its rows. `error` is the bit for a pair out of the pool, 0
// where that is not one.

struct SlotSource {
  PoolView pool;
  const int64_t* slots;
  SIMT_DEVICE RowPlace At(int64_t row, uint32_t* error) const {
    const RowPlace pair = pool.RowOfSlot(slots[row]);
    if (!pair.valid) *error = kSlotOutOfPool;
    return pair;
  }
  SIMT_DEVICE int64_t KvStride() const { return pool.kv_stride; }
};

struct MoveSource {
  PoolView pool;
  const RowMove* moves;
  SIMT_DEVICE RowPlace At(int64_t row, uint32_t* error) const {
    const RowPlace pair = pool.RowOfSlot(moves[row].source);
    if (!pair.valid) *error = kSlotOutOfPool;
    return pair;
  }
  SIMT_DEVICE int64_t KvStride() const { return pool.kv_stride; }
};

struct MoveDestination {
  PoolView pool;
  const RowMove* moves;
  SIMT_DEVICE RowPlace At(int64_t row, uint32_t* error) const {
    const RowPlace pair = pool.RowOfSlot(moves[row].destination);
    if (!pair.valid) *error = kSlotOutOfPool;
    return pair;
  }
  SIMT_DEVICE int64_t KvStride() const { return pool.kv_stride; }
};

// Rows of one layer's new tokens: pair = token * num_heads + head.
struct TokenSource {
  AppendRows append;
  SIMT_DEVICE RowPlace At(int64_t row, uint32_t*) const {
    const int64_t token = row / append.pool.num_heads;
    const int64_t head = row - token * append.pool.num_heads;
    const int64_t offset =
        token * append.token_stride + head * append.head_stride;
    RowPlace pair;
    pair.key = const_cast<char*>(append.keys) + offset;
    if (append.positions != nullptr) {
      pair.position = const_cast<int32_t*>(append.positions) + token;
    }
    pair.valid = true;
    return pair;
  }
  SIMT_DEVICE int64_t KvStride() const {
    return static_cast<int64_t>(reinterpret_cast<uintptr_t>(append.values) -
                                reinterpret_cast<uintptr_t>(append.keys));
  }
};

struct TailDestination {
  PoolView pool;
  int32_t layer;
  const int64_t* slot_mapping;
  SIMT_DEVICE RowPlace At(int64_t row, uint32_t* error) const {
    const int64_t token = row / pool.num_heads;
    const auto head = static_cast<int32_t>(row - token * pool.num_heads);
    const int64_t slot = slot_mapping[token];
    if (slot == -1) return RowPlace();
    const int64_t num_slots =
        static_cast<int64_t>(pool.num_blocks) * pool.page_size;
    const bool inside =
        slot >= 0 && slot < num_slots && layer >= 0 && layer < pool.num_layers;
    if (!inside) {
      if (!BM_PLANTED(kAppendHidesError)) *error = kSlotOutOfPool;
      return RowPlace();
    }
    const int64_t block = slot / pool.page_size;
    return pool.Row(layer, static_cast<int32_t>(block), head,
                    static_cast<int32_t>(slot - block * pool.page_size));
  }
  SIMT_DEVICE int64_t KvStride() const { return pool.kv_stride; }
};

// Packed rows: [row][K, V][row_bytes].
struct PackedDestination {
  char* out;
  int32_t* positions;
  int64_t row_bytes;
  SIMT_DEVICE RowPlace At(int64_t row, uint32_t*) const {
    RowPlace pair;
    pair.key = out + row * 2 * row_bytes;
    pair.position = positions == nullptr ? nullptr : positions + row;
    pair.valid = true;
    return pair;
  }
  SIMT_DEVICE int64_t KvStride() const { return row_bytes; }
};

// Pair = ((copy * num_layers + layer) * num_heads + head) * page_size + offset.
template <bool kIsSource>
struct BlockRows {
  PoolView pool;
  const BlockPair* pairs;
  SIMT_DEVICE RowPlace At(int64_t row, uint32_t* error) const {
    const int64_t page = row / pool.page_size;
    const auto offset = static_cast<int32_t>(row - page * pool.page_size);
    const int64_t line = page / pool.num_heads;
    const auto head = static_cast<int32_t>(page - line * pool.num_heads);
    const int64_t copy = line / pool.num_layers;
    const auto layer = static_cast<int32_t>(line - copy * pool.num_layers);
    const int32_t block =
        kIsSource ? pairs[copy].source : pairs[copy].destination;
    if (block < 0 || block >= pool.num_blocks) {
      *error = kBlockOutOfPool;
      return RowPlace();
    }
    return pool.Row(layer, block, head, offset);
  }
  SIMT_DEVICE int64_t KvStride() const { return pool.kv_stride; }
};

// Pair = page in the list * page_size + offset.
struct PageRows {
  PoolView pool;
  const int32_t* pages;
  SIMT_DEVICE RowPlace At(int64_t row, uint32_t* error) const {
    const int64_t index = row / pool.page_size;
    const int64_t slot = static_cast<int64_t>(pages[index]) * pool.page_size +
                         (row - index * pool.page_size);
    const RowPlace pair = pool.RowOfSlot(slot);
    if (!pair.valid) *error = kPageOutOfPool;
    return pair;
  }
  SIMT_DEVICE int64_t KvStride() const { return pool.kv_stride; }
};

struct StagedRows {
  char* staged;
  int32_t* positions;
  int64_t row_bytes;
  int32_t page_size;
  SIMT_DEVICE RowPlace At(int64_t row, uint32_t*) const {
    const int64_t page = row / page_size;
    const int64_t offset = row - page * page_size;
    RowPlace pair;
    pair.key = staged + page * 2 * row_bytes * page_size + offset * row_bytes;
    pair.position = positions == nullptr ? nullptr : positions + row;
    pair.valid = true;
    return pair;
  }
  SIMT_DEVICE int64_t KvStride() const {
    return BM_PLANTED(kStageSwapsStrides) ? row_bytes : row_bytes * page_size;
  }
};

// As in base/dtype.h, NaN included, of which the device's own conversions drop
// sign and payload: stored rows must be equal bit for bit.
SIMT_DEVICE uint16_t HalfBits(float value) {
  const uint32_t bits = simt::FloatBits(value);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) {
    return static_cast<uint16_t>((bits >> 16 & 0x8000u) | 0x7E00u |
                                 (bits >> 13 & 0x3FFu));
  }
  return simt::FromFloat<simt::Half>(value).bits;
}
SIMT_DEVICE float HalfToFloat(uint16_t bits) {
  if ((bits & 0x7FFFu) > 0x7C00u) {
    return simt::BitsToFloat((bits & 0x8000u) << 16 | 0x7F800000u |
                             (bits & 0x7FFFu) << 13);
  }
  return simt::ToFloat(simt::Half{bits});
}

// 16 bytes of the destination, from vector `index` of a source row.
template <RowConversion kConversion>
SIMT_DEVICE simt::Vector16 LoadConverted(const char* row, uint32_t index) {
  if constexpr (kConversion == RowConversion::kNone) {
    return simt::LoadGlobal16(row + index * 16);
  } else if constexpr (kConversion == RowConversion::kFloatToBFloat16 ||
                       kConversion == RowConversion::kFloatToHalf) {
    simt::Vector16 result;
    SIMT_UNROLL
    for (uint32_t half = 0; half < 2; ++half) {
      const simt::Vector16 in =
          simt::LoadGlobal16(row + index * 32 + half * 16);
      SIMT_UNROLL
      for (uint32_t pair = 0; pair < 2; ++pair) {
        const uint32_t low = in.words[pair * 2];
        const uint32_t high = in.words[pair * 2 + 1];
        uint32_t word;
        if (BM_PLANTED(kAppendTruncates)) {
          word = low >> 16 | (high & 0xFFFF0000u);
        } else if constexpr (kConversion == RowConversion::kFloatToHalf) {
          word = HalfBits(simt::BitsToFloat(low)) |
                 static_cast<uint32_t>(HalfBits(simt::BitsToFloat(high))) << 16;
        } else {
          word =
              simt::BFloat16Bits(simt::BitsToFloat(low)) |
              static_cast<uint32_t>(simt::BFloat16Bits(simt::BitsToFloat(high)))
                  << 16;
        }
        result.words[half * 2 + pair] = word;
      }
    }
    return result;
  } else {
    // Four floats from 8 bytes; neighbours share a vector of the source.
    const simt::Vector16 in = simt::LoadGlobal16(row + index / 2 * 16);
    simt::Vector16 result;
    SIMT_UNROLL
    for (uint32_t i = 0; i < 4; ++i) {
      const uint32_t word =
          index % 2 == 0 ? in.words[i / 2] : in.words[2 + i / 2];
      const auto bits = static_cast<uint16_t>(word >> (i % 2 * 16));
      const float value = kConversion == RowConversion::kBFloat16ToFloat
                              ? simt::ToFloat(simt::BFloat16{bits})
                              : HalfToFloat(bits);
      result.words[i] = simt::FloatBits(value);
    }
    return result;
  }
}

template <typename Source, typename Destination>
struct RowMoverParams {
  Source source;
  Destination destination;
  RowCount rows;
  uint32_t row_vectors;  // 16-byte vectors of a destination row
  uint32_t* error;
};

template <RowConversion kConversion, typename Source, typename Destination>
SIMT_KERNEL(kRowMoverThreads, 3)
void RowMover(RowMoverParams<Source, Destination> p) {
  constexpr uint32_t kRows = kRowsPerWarp;
  int64_t num_rows = p.rows.count;
  if (p.rows.device_count != nullptr && !BM_PLANTED(kMoveIgnoresDeviceCount)) {
    const int64_t device_count = *p.rows.device_count;
    if (device_count < num_rows) num_rows = device_count;
  }
  if (BM_PLANTED(kMoveDropsLastRow)) --num_rows;
  const int64_t warps_per_block = simt::NumThreads() / simt::kWarpThreads;
  const int64_t stride = simt::NumBlocksX() * warps_per_block * kRows;
  const int64_t first = (simt::BlockX() * warps_per_block + simt::Warp()) *
                        static_cast<int64_t>(kRows);
  const uint32_t num_vectors =
      BM_PLANTED(kMoveSkipsValueRow) ? p.row_vectors : 2 * p.row_vectors;
  const int64_t from_stride = p.source.KvStride();
  const int64_t to_stride = p.destination.KvStride();
  for (int64_t row = first; row < num_rows; row += stride) {
    const char* from[kRows];
    char* to[kRows];  // null: nothing to copy
    SIMT_UNROLL
    for (uint32_t i = 0; i < kRows; ++i) {
      to[i] = nullptr;
      from[i] = nullptr;
      if (row + i >= num_rows) continue;
      uint32_t error = 0;
      const RowPlace source = p.source.At(row + i, &error);
      const RowPlace destination = p.destination.At(row + i, &error);
      if (error != 0) ReportRowError(p.error, error);
      if (!source.valid || !destination.valid) continue;
      from[i] = source.key;
      to[i] = destination.key;
      if (simt::Lane() == i && source.position != nullptr &&
          destination.position != nullptr && !BM_PLANTED(kMoveLosesPosition)) {
        *destination.position = *source.position;
      }
    }
    for (uint32_t v = simt::Lane(); v < num_vectors; v += simt::kWarpThreads) {
      const bool is_key = v < p.row_vectors;
      const uint32_t index = is_key ? v : v - p.row_vectors;
      simt::Vector16 vectors[kRows];
      SIMT_UNROLL
      for (uint32_t i = 0; i < kRows; ++i) {
        if (to[i] == nullptr) continue;
        vectors[i] = LoadConverted<kConversion>(
            from[i] + (is_key ? 0 : from_stride), index);
      }
      SIMT_UNROLL
      for (uint32_t i = 0; i < kRows; ++i) {
        if (to[i] == nullptr) continue;
        simt::StoreGlobal16(to[i] + (is_key ? 0 : to_stride) + index * 16,
                            vectors[i]);
      }
    }
  }
}

// The kernels' parameters, from what the operations are given.

SIMT_HOST_DEVICE uint32_t RowVectors(const PoolView& pool) {
  return static_cast<uint32_t>(pool.row_bytes) / 16;
}

using AppendParams = RowMoverParams<TokenSource, TailDestination>;

SIMT_HOST_DEVICE AppendParams MakeParams(const AppendRows& append) {
  return {{append},
          {append.pool, append.layer, append.slot_mapping},
          {append.num_tokens * append.pool.num_heads, nullptr},
          RowVectors(append.pool),
          append.error};
}

using GatherParams = RowMoverParams<SlotSource, PackedDestination>;

// `widening`: 2 where rows of 2-byte elements are given out as float, else 1.
SIMT_HOST_DEVICE GatherParams MakeParams(const GatherRows& gather,
                                         int32_t widening) {
  return {{gather.pool, gather.slots},
          {gather.out, gather.positions,
           static_cast<int64_t>(gather.pool.row_bytes) * widening},
          gather.rows,
          RowVectors(gather.pool) * static_cast<uint32_t>(widening),
          gather.error};
}

using MoveParams = RowMoverParams<MoveSource, MoveDestination>;

SIMT_HOST_DEVICE MoveParams MakeParams(const MoveRows& move) {
  return {{move.pool, move.moves},
          {move.pool, move.moves},
          move.rows,
          RowVectors(move.pool),
          move.error};
}

using CopyBlockParams = RowMoverParams<BlockRows<true>, BlockRows<false>>;

SIMT_HOST_DEVICE CopyBlockParams MakeParams(const CopyBlockRows& copy) {
  const int64_t rows_per_block = static_cast<int64_t>(copy.pool.num_layers) *
                                 copy.pool.num_heads * copy.pool.page_size;
  return {{copy.pool, copy.pairs},
          {copy.pool, copy.pairs},
          {copy.num_pairs * rows_per_block, nullptr},
          RowVectors(copy.pool),
          copy.error};
}

SIMT_HOST_DEVICE StagedRows MakeStagedRows(const StagePages& stage) {
  return {stage.staged, stage.positions, stage.pool.row_bytes,
          stage.pool.page_size};
}

using PackParams = RowMoverParams<PageRows, StagedRows>;

SIMT_HOST_DEVICE PackParams MakePackParams(const StagePages& stage) {
  return {{stage.pool, stage.pages},
          MakeStagedRows(stage),
          {stage.num_pages * stage.pool.page_size, nullptr},
          RowVectors(stage.pool),
          stage.error};
}

using UnpackParams = RowMoverParams<StagedRows, PageRows>;

SIMT_HOST_DEVICE UnpackParams MakeUnpackParams(const StagePages& stage) {
  return {MakeStagedRows(stage),
          {stage.pool, stage.pages},
          {stage.num_pages * stage.pool.page_size, nullptr},
          RowVectors(stage.pool),
          stage.error};
}

}  // namespace SIMT_SPACE
}  // namespace blockmgr

#endif  // KERNELS_CUDA_ROW_MOVER_CUH_
