// Where the rows of K and V are, for device kernels. Plain data, C++17.
#ifndef KERNELS_CUDA_POOL_VIEW_H_
#define KERNELS_CUDA_POOL_VIEW_H_

#include <cstdint>

#include "kernels/cuda/simt_types.h"

namespace blockmgr {

// A K row, and the slot's token position. The V row is a stride further that
// all rows of one side of a copy share.
struct RowPlace {
  char* key = nullptr;
  int32_t* position = nullptr;  // null: not kept
  bool valid = false;           // false: no such row, touch nothing
};

// The pool as a device sees it: the fields of ModelLayout and KvPoolLayout that
// addresses need. Strides are in bytes. All arithmetic on them is in 64 bits.
//
// A page is (layer * num_blocks + block) * num_heads + head, a slot
// page * page_size + offset, as in base/model_layout.h.
struct PoolView {
  // The address of layer l is layer_bases[l], or without an array
  // base + l * layer_stride: own pools are one allocation, engines often have
  // one tensor per layer.
  char* base = nullptr;
  char* const* layer_bases = nullptr;  // [num_layers]
  int64_t layer_stride = 0;
  int64_t block_stride = 0;
  int64_t head_stride = 0;
  int64_t kv_stride = 0;     // from a token's K row to its V row
  int64_t token_stride = 0;  // a multiple of 16, as all strides
  int32_t num_layers = 0;
  int32_t num_blocks = 0;
  int32_t num_heads = 0;
  int32_t page_size = 0;  // tokens
  int32_t row_bytes = 0;  // a multiple of 16
  // Token position of every slot, or null.
  int32_t* positions = nullptr;  // [num_slots()]

  SIMT_HOST_DEVICE int64_t num_slots() const {
    return static_cast<int64_t>(num_layers) * num_blocks * num_heads *
           page_size;
  }

  // REQUIRES: layer, block, head and offset are inside the pool.
  SIMT_HOST_DEVICE RowPlace Row(int32_t layer, int32_t block, int32_t head,
                                int32_t offset) const {
    RowPlace row;
    char* layer_base = layer_bases != nullptr ? layer_bases[layer]
                                              : base + layer * layer_stride;
    row.key = layer_base + block * block_stride + head * head_stride +
              offset * token_stride;
    if (positions != nullptr) {
      const int64_t page =
          (static_cast<int64_t>(layer) * num_blocks + block) * num_heads + head;
      row.position = positions + page * page_size + offset;
    }
    row.valid = true;
    return row;
  }

  // Not valid outside the pool. Page ids fit 31 bits, so that divisions by
  // anything but the page size are short ones.
  SIMT_HOST_DEVICE RowPlace RowOfSlot(int64_t slot) const {
    if (slot < 0 || slot >= num_slots()) return RowPlace();
    const auto size = static_cast<uint32_t>(page_size);
    const uint64_t wide = static_cast<uint64_t>(slot);
    // Nearly every page size is a power of two.
    const bool shifts = (size & (size - 1)) == 0;
    uint32_t page;
    if (shifts) {
      uint32_t shift = 0;
      while ((1u << shift) < size) ++shift;
      page = static_cast<uint32_t>(wide >> shift);
    } else {
      page = static_cast<uint32_t>(wide / size);
    }
    const auto offset =
        static_cast<int32_t>(wide - static_cast<uint64_t>(page) * size);
    const auto heads = static_cast<uint32_t>(num_heads);
    const uint32_t line = page / heads;
    const uint32_t layer = line / static_cast<uint32_t>(num_blocks);
    return Row(
        static_cast<int32_t>(layer),
        static_cast<int32_t>(line - layer * static_cast<uint32_t>(num_blocks)),
        static_cast<int32_t>(page - line * heads), offset);
  }
};

}  // namespace blockmgr

#endif  // KERNELS_CUDA_POOL_VIEW_H_
