// One kernel for every copy of K and V rows; see row_mover.h.
//
// A warp takes kRowsPerWarp pairs at a time. A source functor and a destination
// functor turn the number of a pair into addresses, each lane for one pair. If
// all lanes computed the addresses of one pair after another, the addresses
// would take far more instructions than the copy. All lanes then copy 16-byte
// vectors of each pair: the K row's vectors, then the V row's. All loads of
// kRowsInFlight pairs come before their stores. At head_dim 128 and 2 bytes
// this is one vector per lane and pair: 2 KiB in flight per warp.
#ifndef KERNELS_CUDA_ROWS_ROW_MOVER_CUH_
#define KERNELS_CUDA_ROWS_ROW_MOVER_CUH_

#include <cstdint>

#include "kernels/cuda/rows/row_mover.h"
#include "kernels/cuda/simt.h"

namespace blockmgr {
inline namespace SIMT_SPACE {

// A Places functor turns the number of a pair into its rows. It sets a bit of
// *error if a row is outside the pool.

struct PoolRows {
  PagedPool pool;

  SIMT_DEVICE int64_t KvStride() const { return pool.kv_stride; }
  SIMT_DEVICE RowPlace OfSlot(int64_t slot, uint32_t* error) const {
    const RowPlace pair = pool.RowOfSlot(slot);
    if (!pair.valid) *error = kSlotOutOfPool;
    return pair;
  }
};

struct SlotRows : PoolRows {
  const int64_t* slots;
  SIMT_DEVICE RowPlace At(int64_t row, uint32_t* error) const {
    return OfSlot(slots[row], error);
  }
};

template <bool kIsSource>
struct MovedRows : PoolRows {
  const RowMove* moves;
  SIMT_DEVICE RowPlace At(int64_t row, uint32_t* error) const {
    return OfSlot(kIsSource ? moves[row].source : moves[row].destination,
                  error);
  }
};

// The rows of one layer's new tokens: pair = token * num_heads + head.
struct TokenRows {
  AppendRows append;
  SIMT_DEVICE RowPlace At(int64_t row, uint32_t*) const {
    const int64_t token = DivideWide(row, append.pool.by_heads);
    const int64_t head = row - token * append.pool.num_heads;
    return MakeRow(const_cast<char*>(append.keys) +
                       token * append.token_stride + head * append.head_stride,
                   const_cast<int32_t*>(append.positions), token);
  }
  SIMT_DEVICE int64_t KvStride() const {
    return static_cast<int64_t>(reinterpret_cast<uintptr_t>(append.values) -
                                reinterpret_cast<uintptr_t>(append.keys));
  }
};

struct TailRows : PoolRows {
  int32_t layer;
  const int64_t* slot_mapping;
  SIMT_DEVICE RowPlace At(int64_t row, uint32_t* error) const {
    const int64_t token = DivideWide(row, pool.by_heads);
    const auto head = static_cast<int32_t>(row - token * pool.num_heads);
    const int64_t slot = slot_mapping[token];
    if (slot == -1) return RowPlace();
    const int64_t num_slots =
        static_cast<int64_t>(pool.num_blocks) * pool.page_size;
    const bool inside =
        slot >= 0 && slot < num_slots && layer >= 0 && layer < pool.num_layers;
    if (!inside) {
      *error = kSlotOutOfPool;
      return RowPlace();
    }
    const int64_t block = DivideWide(slot, pool.by_page_size);
    return pool.Row(layer, static_cast<int32_t>(block), head,
                    static_cast<int32_t>(slot - block * pool.page_size));
  }
};

// Packed rows, [row][K, V][row_bytes].
struct PackedRows {
  char* rows;
  int32_t* positions;
  int64_t row_bytes;
  SIMT_DEVICE RowPlace At(int64_t row, uint32_t*) const {
    return MakeRow(rows + row * 2 * row_bytes, positions, row);
  }
  SIMT_DEVICE int64_t KvStride() const { return row_bytes; }
};

// The staged rows of moves whose sources are inside the pool.
struct StagedMoveRows : PackedRows {
  int64_t num_slots;
  const RowMove* moves;
  SIMT_DEVICE RowPlace At(int64_t row, uint32_t* error) const {
    RowPlace pair = PackedRows::At(row, error);
    const int64_t source = moves[row].source;
    pair.valid = source >= 0 && source < num_slots;
    return pair;
  }
};

// pair = ((copy * num_layers + layer) * num_heads + head) * page_size + offset.
template <bool kIsSource>
struct BlockRows : PoolRows {
  Divider by_layers;
  const BlockPair* pairs;
  SIMT_DEVICE RowPlace At(int64_t row, uint32_t* error) const {
    const auto page = static_cast<int32_t>(DivideWide(row, pool.by_page_size));
    const int32_t line = Divide(page, pool.by_heads);
    const int32_t copy = Divide(line, by_layers);
    const int32_t block =
        kIsSource ? pairs[copy].source : pairs[copy].destination;
    if (block < 0 || block >= pool.num_blocks) {
      *error = kBlockOutOfPool;
      return RowPlace();
    }
    return pool.Row(line - copy * pool.num_layers, block,
                    page - line * pool.num_heads,
                    static_cast<int32_t>(row - int64_t{page} * pool.page_size));
  }
};

// pair = page in the list * page_size + offset.
struct PageRows : PoolRows {
  const int32_t* pages;
  SIMT_DEVICE RowPlace At(int64_t row, uint32_t* error) const {
    const int64_t index = DivideWide(row, pool.by_page_size);
    const int32_t page = pages[index];
    if (page < 0 || page >= pool.num_pages()) {
      *error = kPageOutOfPool;
      return RowPlace();
    }
    return pool.RowOfPage(page,
                          static_cast<int32_t>(row - index * pool.page_size));
  }
};

// Staged pages, [page][K, V][page_size][row_bytes].
struct StagedPageRows {
  char* staged;
  int32_t* positions;
  int64_t row_bytes;
  Divider by_page_size;
  SIMT_DEVICE RowPlace At(int64_t row, uint32_t*) const {
    // The earlier pages have V rows as well.
    const int64_t page = DivideWide(row, by_page_size);
    return MakeRow(staged + (row + page * by_page_size.divisor) * row_bytes,
                   positions, row);
  }
  SIMT_DEVICE int64_t KvStride() const {
    return row_bytes * by_page_size.divisor;
  }
};

// Converts as base/dtype.h does, NaN included. The device's own conversions
// drop the sign and the payload of a NaN, but stored rows must be equal bit for
// bit.
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

// The bytes of the source that become 16 bytes of the destination.
template <RowConversion kConversion>
inline constexpr uint32_t kSourceBytes = 8;
template <>
inline constexpr uint32_t kSourceBytes<RowConversion::kNone> = 16;
template <>
inline constexpr uint32_t kSourceBytes<RowConversion::kFloatToBFloat16> = 32;
template <>
inline constexpr uint32_t kSourceBytes<RowConversion::kFloatToHalf> = 32;

// The bytes of the source, as loaded. Conversions have branches, and a load
// behind a branch would wait for the load before it.
template <RowConversion kConversion>
struct SourceWords {
  uint32_t words[kSourceBytes<kConversion> / 4];
};

template <RowConversion kConversion>
SIMT_DEVICE SourceWords<kConversion> LoadSource(const char* from) {
  SourceWords<kConversion> source;
  if constexpr (kSourceBytes<kConversion> == 8) {
    const uint64_t words = *reinterpret_cast<const uint64_t*>(from);
    source.words[0] = static_cast<uint32_t>(words);
    source.words[1] = static_cast<uint32_t>(words >> 32);
  } else {
    SIMT_UNROLL
    for (uint32_t i = 0; i < kSourceBytes<kConversion> / 4; i += 4) {
      const simt::Vector16 in = simt::LoadGlobal16(from + i * 4);
      SIMT_UNROLL
      for (uint32_t j = 0; j < 4; ++j) source.words[i + j] = in.words[j];
    }
  }
  return source;
}

// Turns the bits of a float into the bits of the pool's element.
template <RowConversion kConversion>
SIMT_DEVICE uint32_t Narrow(uint32_t bits) {
  const float value = simt::BitsToFloat(bits);
  return kConversion == RowConversion::kFloatToHalf ? HalfBits(value)
                                                    : simt::BFloat16Bits(value);
}

template <RowConversion kConversion>
SIMT_DEVICE simt::Vector16 Convert(const SourceWords<kConversion>& source) {
  simt::Vector16 result;
  SIMT_UNROLL
  for (uint32_t i = 0; i < 4; ++i) {
    if constexpr (kSourceBytes<kConversion> == 16) {
      result.words[i] = source.words[i];
    } else if constexpr (kSourceBytes<kConversion> == 32) {
      result.words[i] = Narrow<kConversion>(source.words[2 * i]) |
                        Narrow<kConversion>(source.words[2 * i + 1]) << 16;
    } else {
      const auto bits =
          static_cast<uint16_t>(source.words[i / 2] >> (i % 2 * 16));
      result.words[i] =
          simt::FloatBits(kConversion == RowConversion::kBFloat16ToFloat
                              ? simt::ToFloat(simt::BFloat16{bits})
                              : HalfToFloat(bits));
    }
  }
  return result;
}

template <typename Source, typename Destination>
struct RowMoverParams {
  Source source;
  Destination destination;
  RowCount rows;
  uint32_t row_vectors;  // 16-byte vectors of a destination row
  uint32_t* error;
};

// The K rows of a pair, or nulls if there is nothing to copy; a token position
// and its destination, or null.
struct RowPair {
  const char* from = nullptr;
  char* to = nullptr;
  int32_t* position_to = nullptr;
  int32_t position = 0;
};

template <typename Source, typename Destination>
SIMT_DEVICE RowPair FindPair(const RowMoverParams<Source, Destination>& p,
                             int64_t row) {
  uint32_t error = 0;
  const RowPlace source = p.source.At(row, &error);
  const RowPlace destination = p.destination.At(row, &error);
  if (error != 0) simt::AtomicOr(p.error, error);
  if (!source.valid || !destination.valid) return RowPair();
  const bool has_position =
      source.position != nullptr && destination.position != nullptr;
  return {source.key, destination.key,
          has_position ? destination.position : nullptr,
          has_position ? *source.position : 0};
}

// C. Returns the address of another lane, plus an offset. For lanes without a
// pair the result is a number that is never used as a pointer.
SIMT_DEVICE uint64_t ShuffleAddress(const char* address, uint32_t source_lane,
                                    int64_t offset) {
  return simt::Shuffle(reinterpret_cast<uint64_t>(address), source_lane) +
         static_cast<uint64_t>(offset);
}

// C. Copies the pairs whose rows the first kRowsPerWarp lanes have found.
template <RowConversion kConversion, typename Source, typename Destination>
SIMT_DEVICE void CopyPairs(const RowMoverParams<Source, Destination>& p,
                           const RowPair& mine) {
  const uint32_t num_vectors = 2 * p.row_vectors;
  const uint32_t found = simt::Ballot(mine.to != nullptr);
  for (uint32_t turn = 0; turn < num_vectors; turn += simt::kWarpThreads) {
    const uint32_t v = turn + simt::Lane();
    const bool is_key = v < p.row_vectors;
    const uint32_t index = is_key ? v : v - p.row_vectors;
    const int64_t from_offset =
        (is_key ? 0 : p.source.KvStride()) + index * kSourceBytes<kConversion>;
    const int64_t to_offset =
        (is_key ? 0 : p.destination.KvStride()) + index * 16;
    const uint32_t copied = v < num_vectors ? found : 0;
    SIMT_UNROLL
    for (uint32_t first = 0; first < kRowsPerWarp; first += kRowsInFlight) {
      SourceWords<kConversion> sources[kRowsInFlight];
      SIMT_UNROLL
      for (uint32_t i = 0; i < kRowsInFlight; ++i) {
        const uint64_t from = ShuffleAddress(mine.from, first + i, from_offset);
        if ((copied >> (first + i) & 1) == 0) continue;
        // Shuffles take numbers: NOLINTNEXTLINE(performance-no-int-to-ptr)
        const char* const bytes = reinterpret_cast<const char*>(from);
        sources[i] = LoadSource<kConversion>(bytes);
      }
      SIMT_UNROLL
      for (uint32_t i = 0; i < kRowsInFlight; ++i) {
        const uint64_t to = ShuffleAddress(mine.to, first + i, to_offset);
        if ((copied >> (first + i) & 1) == 0) continue;
        // NOLINTNEXTLINE(performance-no-int-to-ptr)
        char* const bytes = reinterpret_cast<char*>(to);
        simt::StoreGlobal16(bytes, Convert<kConversion>(sources[i]));
      }
    }
  }
}

template <RowConversion kConversion, typename Source, typename Destination>
SIMT_KERNEL(kRowMoverThreads, kRowBlocksPerProcessor)
void RowMover(RowMoverParams<Source, Destination> p) {
  simt::AwaitEarlierKernels();
  int64_t num_rows = p.rows.count;
  if (p.rows.device_count != nullptr) {
    const int64_t device_count = *p.rows.device_count;
    if (device_count < num_rows) num_rows = device_count;
  }
  const int64_t warps_per_block = simt::num_threads() / simt::kWarpThreads;
  const int64_t stride = simt::num_blocks_x() * warps_per_block * kRowsPerWarp;
  const int64_t first = (simt::BlockX() * warps_per_block + simt::Warp()) *
                        static_cast<int64_t>(kRowsPerWarp);
  for (int64_t row = first; row < num_rows; row += stride) {
    const int64_t my_row = row + simt::Lane();
    RowPair mine;
    if (simt::Lane() < kRowsPerWarp && my_row < num_rows) {
      mine = FindPair(p, my_row);
    }
    CopyPairs<kConversion>(p, mine);
    // The position comes last, so that rows do not wait for its load.
    if (mine.position_to != nullptr) *mine.position_to = mine.position;
  }
}

}  // namespace SIMT_SPACE
}  // namespace blockmgr

#endif  // KERNELS_CUDA_ROWS_ROW_MOVER_CUH_
