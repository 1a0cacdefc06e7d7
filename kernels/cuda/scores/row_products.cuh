// Products of the entries' rows of K or V with matrices, reduced along the
// columns. The products are never stored in memory.
//
// This is a matrix product on the tensor cores whose epilogue adds up along the
// rows. The rows stay in shared memory, slabs of the matrices stream through
// shared memory, and products and sums stay in registers.
#ifndef KERNELS_CUDA_SCORES_ROW_PRODUCTS_CUH_
#define KERNELS_CUDA_SCORES_ROW_PRODUCTS_CUH_

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/mma_rows.cuh"
#include "kernels/cuda/scores/entry_lists.h"
#include "kernels/cuda/scores/entry_rows.cuh"
#include "kernels/cuda/simt.h"

namespace blockmgr {
inline namespace SIMT_SPACE {

// The shared memory: kProductRows rows, kStages slabs of kSlabRows x kColumns
// elements of the matrices, and row sums. There are eight warps, four by two.
// Each has 64 rows and 64 columns.
template <typename T, int kDim>
struct ProductShape {
  static constexpr int kColumns = 128;
  static constexpr int kSlabRows = 64;
  // Rows of 256 elements leave room for two stages.
  static constexpr int kStages = kDim == 256 ? 2 : 3;
  static constexpr int kSlabsPerBlock = kDim / kSlabRows;
  static constexpr int kSlabElements = kSlabRows * kColumns;
  static constexpr int kMTiles = 4;
  static constexpr int kNTiles = 8;
  static constexpr size_t kRowBytes = sizeof(T) * kProductRows * kDim;
  static constexpr size_t kSlabBytes = sizeof(T) * kStages * kSlabElements;
  static constexpr size_t kSharedBytes =
      kRowBytes + kSlabBytes + sizeof(float) * 2 * kProductRows;
  static_assert(kSharedBytes <= kMaxSharedBytes, "does not fit an SM");

  static SIMT_DEVICE int32_t StageAfter(int32_t stage) {
    return stage + 1 < kStages ? stage + 1 : 0;
  }
};

// The matrices [count, kDim, num_columns], one after another.
template <typename T>
struct MatrixList {
  const T* first = nullptr;  // null means zeros, at no cost
  int64_t num_columns = 0;
  int32_t count = 0;
};

// One slab: the rows [64 part, 64 part + 64) of a matrix, its columns [128
// block, 128 block + 128).
struct MatrixSlab {
  int32_t matrix = 0;
  int32_t block = 0;
  int32_t part = 0;
};

// Goes through the slabs in the order of their multiplication, matrix after
// matrix and block after block, and through their stages.
template <typename Shape>
struct SlabCursor {
  MatrixSlab slab;
  int32_t stage = 0;

  SIMT_DEVICE void Advance(int32_t num_blocks) {
    stage = Shape::StageAfter(stage);
    if (++slab.part < Shape::kSlabsPerBlock) return;
    slab.part = 0;
    if (++slab.block < num_blocks) return;
    slab.block = 0;
    ++slab.matrix;
  }
};

// Columns after the last are zeros and add nothing.
template <typename Shape, typename T, int kDim>
SIMT_DEVICE void CopySlab(const MatrixList<T>& matrices, const MatrixSlab& slab,
                          T* to) {
  constexpr int kChunks = Shape::kColumns / kChunk;
  const T* matrix = matrices.first + (int64_t{slab.matrix} * kDim +
                                      slab.part * Shape::kSlabRows) *
                                         matrices.num_columns;
  SIMT_UNROLL
  for (int i = 0; i < Shape::kSlabRows * kChunks / kProductThreads; ++i) {
    const int32_t element = i * kProductThreads + Thread();
    const int32_t row = element / kChunks;
    const int32_t chunk = element % kChunks;
    const int64_t column =
        int64_t{slab.block} * Shape::kColumns + chunk * kChunk;
    const bool exists = column < matrices.num_columns;
    const T* from =
        exists ? matrix + row * matrices.num_columns + column : matrix;
    simt::CopyAsync16(to + SwizzledChunk<Shape::kColumns>(row, chunk), from,
                      exists);
  }
}

// The values that a warp holds of its 64 rows and columns.
template <typename Shape>
struct ProductTiles {
  float products[Shape::kMTiles][Shape::kNTiles][4];
  float sums[Shape::kMTiles][2];  // rows lane / 4 and + 8, this lane's columns

  SIMT_DEVICE void ResetProducts() {
    SIMT_UNROLL
    for (int m = 0; m < Shape::kMTiles; ++m) {
      SIMT_UNROLL
      for (int n = 0; n < Shape::kNTiles; ++n) {
        SIMT_UNROLL
        for (int j = 0; j < 4; ++j) products[m][n][j] = 0.0f;
      }
    }
  }
  SIMT_DEVICE void ResetSums() {
    SIMT_UNROLL
    for (int m = 0; m < Shape::kMTiles; ++m) sums[m][0] = sums[m][1] = 0.0f;
  }
};

template <typename Shape, typename T, int kDim>
SIMT_DEVICE void MultiplySlab(const T* rows, const T* slab, int32_t part,
                              ProductTiles<Shape>* tiles) {
  const int32_t first_row = WarpIndex() / 2 * 64;
  const int32_t first_chunk = WarpIndex() % 2 * 8;
  SIMT_UNROLL
  for (int k = 0; k < Shape::kSlabRows / 16; ++k) {
    uint32_t a[Shape::kMTiles][4];
    SIMT_UNROLL
    for (int m = 0; m < Shape::kMTiles; ++m) {
      LoadRowsA<kDim>(rows, first_row + m * 16,
                      part * (Shape::kSlabRows / 16) + k, a[m]);
    }
    SIMT_UNROLL
    for (int n = 0; n < Shape::kNTiles; n += 2) {
      uint32_t b[4];
      LoadColumnsB<Shape::kColumns>(slab, k * 16, first_chunk + n, b);
      SIMT_UNROLL
      for (int m = 0; m < Shape::kMTiles; ++m) {
        simt::Mma16816<T>(tiles->products[m][n], a[m], b[0], b[1]);
        simt::Mma16816<T>(tiles->products[m][n + 1], a[m], b[2], b[3]);
      }
    }
  }
}

// Sums over the lanes of a row, then over the two warps that share the row.
// Thread r gets the sum of row r.
template <typename Shape>
SIMT_DEVICE float SumOfRow(const ProductTiles<Shape>& tiles) {
  const auto sums = simt::Shared<float>(Shape::kRowBytes + Shape::kSlabBytes,
                                        2 * kProductRows);
  SIMT_UNROLL
  for (int m = 0; m < Shape::kMTiles; ++m) {
    SIMT_UNROLL
    for (int half = 0; half < 2; ++half) {
      const float sum = SumOverColumns(tiles.sums[m][half]);
      const int32_t row =
          WarpIndex() / 2 * 64 + m * 16 + LaneIndex() / 4 + half * 8;
      if (LaneIndex() % 4 == 0) {
        sums.Store(WarpIndex() % 2 * kProductRows + row, sum);
      }
    }
  }
  simt::SyncBlock();
  return sums.Load(Thread()) + sums.Load(kProductRows + Thread());
}

// Loads the CTA's rows: kProductRows entries from `begin` on, zeros after the
// last. The rows are K, or V `shift` bytes further.
struct ProductRows {
  PagedPool pool;
  EntrySpan entries;
  int32_t begin = 0;
  int64_t shift = 0;
};

// For every matrix in turn: calls add(matrix, block, &tiles) as soon as the
// products with the columns [128 block, 128 block + 128) are complete; `add`
// adds them to the sums. At the end calls finish(matrix, sum), where thread r
// has the sum of row r. The rows are in shared memory from its first byte on,
// swizzled.
template <typename T, int kDim, typename Add, typename Finish>
SIMT_DEVICE void ForEachProduct(const ProductRows& rows,
                                const MatrixList<T>& matrices, const Add& add,
                                const Finish& finish) {
  using Shape = ProductShape<T, kDim>;
  T* const tile = reinterpret_cast<T*>(simt::SharedBytes());
  T* const slabs = tile + kProductRows * kDim;
  for (int32_t row = WarpIndex() * 32; row < WarpIndex() * 32 + 32; row += 16) {
    const int32_t begin = rows.begin + row;
    CopyEntryRows<kDim>(rows.pool,
                        LoadSlot(rows.entries, begin, rows.entries.size), begin,
                        rows.entries.size, rows.shift, tile, row);
  }
  const int32_t num_blocks = static_cast<int32_t>(
      (matrices.num_columns + Shape::kColumns - 1) / Shape::kColumns);
  SlabCursor<Shape> next;  // to be copied
  const auto copy_next = [&] {
    if (next.slab.matrix < matrices.count && matrices.first != nullptr) {
      CopySlab<Shape, T, kDim>(matrices, next.slab,
                               slabs + next.stage * Shape::kSlabElements);
    }
    simt::CommitCopies();  // the first group holds the rows too
    next.Advance(num_blocks);
  };
  for (int32_t i = 0; i < Shape::kStages - 1; ++i) copy_next();
  ProductTiles<Shape> tiles;
  int32_t stage = 0;
  for (int32_t matrix = 0; matrix < matrices.count; ++matrix) {
    tiles.ResetSums();
    for (int32_t block = 0; block < num_blocks; ++block) {
      // The loop is unrolled, so that the first products are not added to
      // zeros.
      tiles.ResetProducts();
      SIMT_UNROLL
      for (int32_t part = 0; part < Shape::kSlabsPerBlock; ++part) {
        simt::WaitCopies<Shape::kStages - 2>();
        simt::SyncBlock();
        copy_next();
        if (matrices.first != nullptr) {
          MultiplySlab<Shape, T, kDim>(
              tile, slabs + stage * Shape::kSlabElements, part, &tiles);
        }
        stage = Shape::StageAfter(stage);
      }
      add(matrix, block, &tiles);
    }
    finish(matrix, SumOfRow<Shape>(tiles));
  }
}

}  // namespace SIMT_SPACE
}  // namespace blockmgr

#endif  // KERNELS_CUDA_SCORES_ROW_PRODUCTS_CUH_
