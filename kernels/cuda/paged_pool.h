// The places of the rows of K and V, for device kernels. Plain data, C++17.
#ifndef KERNELS_CUDA_PAGED_POOL_H_
#define KERNELS_CUDA_PAGED_POOL_H_

#include <cstdint>

#include "kernels/cuda/simt_types.h"

namespace blockmgr {

// A K row, and the token position of its slot. The V row is at a distance that
// is the same for all rows of one side of a copy.
struct RowPlace {
  char* key = nullptr;
  int32_t* position = nullptr;  // null if the pool keeps no positions
  bool valid = false;           // false if there is no such row
};

// `positions` has the positions of all slots that `slot` counts, or is null.
SIMT_HOST_DEVICE RowPlace MakeRow(char* key, int32_t* positions, int64_t slot) {
  return {key, positions == nullptr ? nullptr : positions + slot, true};
}

// Divides by a number that the host knows: n / d = (n * multiplier) >> shift,
// exact for 0 <= n < 2^31 (Granlund and Montgomery, 1994). The multiplier is
// 2^shift / d, rounded up, with a shift of 31 + ceil(log2 d).
struct Divider {
  uint32_t divisor = 1;
  uint32_t multiplier = 1u << 31;
  uint32_t shift = 31;
};

// REQUIRES: 0 < divisor < 2^31.
inline Divider MakeDivider(uint32_t divisor) {
  uint32_t log2 = 0;
  while ((uint64_t{1} << log2) < divisor) ++log2;
  Divider result;
  result.divisor = divisor;
  result.shift = 31 + log2;
  // The multiplier is at most 2^32 - 1. Only powers of two reach 2^shift / d =
  // 2^31 exactly.
  result.multiplier = static_cast<uint32_t>(
      ((uint64_t{1} << result.shift) + divisor - 1) / divisor);
  return result;
}

SIMT_HOST_DEVICE int32_t Divide(int32_t n, const Divider& by) {
  return static_cast<int32_t>(
      (static_cast<uint64_t>(static_cast<uint32_t>(n)) * by.multiplier) >>
      by.shift);
}

// Divides any n >= 0. A pool may have more than 2^31 rows and slots, but the
// memory of a device hardly ever holds so many. The long division is rarely
// executed.
SIMT_HOST_DEVICE int64_t DivideWide(int64_t n, const Divider& by) {
  return n >> 31 == 0 ? Divide(static_cast<int32_t>(n), by) : n / by.divisor;
}

// PagedPool is a pool as kernels see it: the fields of ModelLayout and
// KvPoolLayout that addresses need. MakePagedPool() of host/device_pool.h makes
// a PagedPool from them. Code that fills a PagedPool by hand calls Prepared()
// at the end. Strides are in bytes and may be negative. All arithmetic on
// strides is in 64 bits.
//
// A page is (layer * num_blocks + block) * num_heads + head. A slot is page *
// page_size + offset, as in base/model_layout.h.
struct PagedPool {
  // The address of layer l is layer_bases[l]. If layer_bases is null, the
  // address is base + l * layer_stride. Our own pools are one allocation.
  // Engines often have one tensor per layer.
  char* base = nullptr;
  char* const* layer_bases = nullptr;  // [num_layers]
  int64_t layer_stride = 0;
  int64_t block_stride = 0;
  int64_t head_stride = 0;
  int64_t kv_stride = 0;     // distance of a token's V row from its K row
  int64_t token_stride = 0;  // all strides are multiples of 16
  int32_t num_layers = 0;
  int32_t num_blocks = 0;
  int32_t num_heads = 0;
  int32_t page_size = 0;  // tokens
  int32_t row_bytes = 0;  // a multiple of 16
  // The token position of every slot, or null.
  int32_t* positions = nullptr;  // [num_slots()]
  // Prepared() sets the fields below.
  Divider by_heads = {};
  Divider by_blocks = {};
  Divider by_page_size = {};
  int32_t page_shift = 4;  // the binary logarithm of page_size, rounded down

  SIMT_HOST_DEVICE int64_t num_pages() const {
    return static_cast<int64_t>(num_layers) * num_blocks * num_heads;
  }
  SIMT_HOST_DEVICE int64_t num_slots() const { return num_pages() * page_size; }

  // REQUIRES: layer, block, head and offset are inside the pool.
  SIMT_HOST_DEVICE char* KeyRow(int32_t layer, int32_t block, int32_t head,
                                int32_t offset) const {
    char* layer_base = layer_bases != nullptr ? layer_bases[layer]
                                              : base + layer * layer_stride;
    return layer_base + block * block_stride + head * head_stride +
           offset * token_stride;
  }
  SIMT_HOST_DEVICE RowPlace Row(int32_t layer, int32_t block, int32_t head,
                                int32_t offset) const {
    const int64_t page =
        (static_cast<int64_t>(layer) * num_blocks + block) * num_heads + head;
    return MakeRow(KeyRow(layer, block, head, offset), positions,
                   page * page_size + offset);
  }

  // REQUIRES: page and offset are inside the pool. Page ids fit 31 bits.
  SIMT_HOST_DEVICE RowPlace RowOfPage(int32_t page, int32_t offset) const {
    const int32_t line = Divide(page, by_heads);
    const int32_t layer = Divide(line, by_blocks);
    return MakeRow(KeyRow(layer, line - layer * num_blocks,
                          page - line * num_heads, offset),
                   positions, int64_t{page} * page_size + offset);
  }

  // Returns an invalid RowPlace for a slot outside the pool.
  SIMT_HOST_DEVICE RowPlace RowOfSlot(int64_t slot) const {
    if (slot < 0 || slot >= num_slots()) return RowPlace();
    const int64_t page = DivideWide(slot, by_page_size);
    return RowOfPage(static_cast<int32_t>(page),
                     static_cast<int32_t>(slot - page * page_size));
  }
};

// Returns the pool with the fields that follow from its counts. REQUIRES: the
// counts of layers, blocks, heads and tokens are set and above 0.
inline PagedPool Prepared(PagedPool pool) {
  pool.by_heads = MakeDivider(static_cast<uint32_t>(pool.num_heads));
  pool.by_blocks = MakeDivider(static_cast<uint32_t>(pool.num_blocks));
  pool.by_page_size = MakeDivider(static_cast<uint32_t>(pool.page_size));
  pool.page_shift = 0;
  while (pool.page_size >> pool.page_shift > 1) ++pool.page_shift;
  return pool;
}

}  // namespace blockmgr

#endif  // KERNELS_CUDA_PAGED_POOL_H_
