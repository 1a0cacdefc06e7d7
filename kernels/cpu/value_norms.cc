#include "kernels/cpu/value_norms.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "blockmgr/base/check.h"
#include "blockmgr/base/dtype.h"

namespace blockmgr {
namespace {

// Tiles that share a block of columns of W: 128 KiB at 128 elements, in the
// second-level cache.
constexpr int32_t kNormTiles = 4;
// Columns of W used at a time: 32 KiB at 128 elements, read from the nearest
// caches for every panel of those tiles.
constexpr int32_t kBlockColumns = 60;
// Columns whose products are added in fp32 before they go to the double sums of
// the Gram matrix.
constexpr int32_t kGramColumns = 64;

// out = in^T, of [num_rows, num_columns], in squares that caches hold.
void Transpose(const float* in, int64_t num_rows, int64_t num_columns,
               float* out) {
  constexpr int64_t kSquare = 16;
  for (int64_t column = 0; column < num_columns; column += kSquare) {
    const int64_t column_end = std::min(column + kSquare, num_columns);
    for (int64_t row = 0; row < num_rows; row += kSquare) {
      const int64_t row_end = std::min(row + kSquare, num_rows);
      for (int64_t c = column; c < column_end; ++c) {
        for (int64_t r = row; r < row_end; ++r) {
          out[c * num_rows + r] = in[r * num_columns + c];
        }
      }
    }
  }
}

}  // namespace

ValueNormer::ValueNormer(const ModelLayout& layout)
    : layout_(layout), packed_(AllocatePacked(layout.head_dim, kNormTiles)) {}

void ValueNormer::L1(const KvArena& arena, const float* weights,
                     int32_t model_dim, std::span<const SlotIndex> slots,
                     std::span<float> norms) {
  const int64_t head_dim = layout_.head_dim;
  columns_.resize(model_dim * head_dim);
  Transpose(weights, head_dim, model_dim, columns_.data());
  rows_.resize(model_dim);
  for (int64_t m = 0; m < model_dim; ++m) rows_[m] = &columns_[m * head_dim];
  const std::span<const float* const> columns = rows_;
  std::array<float, int64_t{kNormTiles} * kTileRows> sums;
  for (int64_t first = 0; first < std::ssize(slots); first += sums.size()) {
    const int64_t num_rows =
        std::min<int64_t>(sums.size(), std::ssize(slots) - first);
    ForEachTile(arena, slots.subspan(first, num_rows), RowKind::kValues,
                [&](const KvTile& tile, int64_t begin, int32_t tile_rows) {
                  PackRows(tile, tile_rows, packed_.get() + begin * head_dim);
                });
    sums.fill(0.0f);
    for (int32_t m = 0; m < model_dim; m += kBlockColumns) {
      const auto block =
          columns.subspan(m, std::min(kBlockColumns, model_dim - m));
      for (int64_t begin = 0; begin < num_rows; begin += kTileRows) {
        AddAbsDots(packed_.get() + begin * head_dim, head_dim,
                   static_cast<int32_t>(
                       std::min<int64_t>(kTileRows, num_rows - begin)),
                   block, &sums[begin]);
      }
    }
    std::copy_n(sums.begin(), num_rows, norms.begin() + first);
  }
}

void ValueNormer::Gram(const float* weights, int32_t model_dim) {
  const int64_t head_dim = layout_.head_dim;
  gram_sums_.assign(head_dim * head_dim, 0.0);
  dots_.resize(head_dim * kTileRows);
  rows_.resize(head_dim);
  // Rows of W stand in for rows of a cache. Their tile has as many elements as
  // a block of columns, whose last may be padded with zeros.
  std::vector<float> padded(head_dim * kGramColumns);
  const AlignedFloats packed = AllocatePacked(kGramColumns);
  for (int64_t m = 0; m < model_dim; m += kGramColumns) {
    const int64_t count = std::min<int64_t>(kGramColumns, model_dim - m);
    std::ranges::fill(padded, 0.0f);
    for (int64_t i = 0; i < head_dim; ++i) {
      rows_[i] = &padded[i * kGramColumns];
      std::copy_n(weights + i * model_dim + m, count,
                  &padded[i * kGramColumns]);
    }
    for (int64_t begin = 0; begin < head_dim; begin += kTileRows) {
      const int32_t num_rows =
          static_cast<int32_t>(std::min<int64_t>(kTileRows, head_dim - begin));
      KvTile tile;
      tile.head_dim = kGramColumns;
      tile.dtype = DType::kFloat32;
      for (int32_t r = 0; r < kTileRows; ++r) {
        tile.keys[r] = reinterpret_cast<const std::byte*>(
            rows_[begin + std::min(r, num_rows - 1)]);
      }
      PackRows(tile, num_rows, packed.get());
      DotPacked(packed.get(), kGramColumns, num_rows, 1.0f, rows_, dots_.data(),
                kTileRows);
      for (int64_t i = 0; i < head_dim; ++i) {
        for (int32_t r = 0; r < num_rows; ++r) {
          gram_sums_[i * head_dim + begin + r] += dots_[i * kTileRows + r];
        }
      }
    }
  }
  gram_.assign(gram_sums_.begin(), gram_sums_.end());
}

void ValueNormer::L2(const KvArena& arena, const float* weights,
                     int32_t model_dim, std::span<const SlotIndex> slots,
                     std::span<float> norms) {
  const int64_t head_dim = layout_.head_dim;
  Gram(weights, model_dim);
  for (int64_t i = 0; i < head_dim; ++i) rows_[i] = &gram_[i * head_dim];
  std::array<float, kTileRows> forms;
  ForEachTile(arena, slots, RowKind::kValues,
              [&](const KvTile& tile, int64_t begin, int32_t num_rows) {
                PackRows(tile, num_rows, packed_.get());
                QuadraticForms(packed_.get(), num_rows, rows_, forms.data());
                for (int32_t r = 0; r < num_rows; ++r) {
                  // Rounding may leave a small negative number; NaN stays.
                  const float square = forms[r] < 0.0f ? 0.0f : forms[r];
                  norms[begin + r] = std::sqrt(square);
                }
              });
}

void ValueNormer::Run(const KvArena& arena, const ValueNormBatch& batch) {
  CheckEntries(layout_, batch.layer, batch.entries);
  BM_CHECK(batch.model_dim > 0);
  const int32_t group_size = layout_.group_size();
  BM_CHECK(batch.norms.size() == batch.entries.slots.size() *
                                     (batch.per_query_head ? group_size : 1));
  const int64_t matrix_size = int64_t{layout_.head_dim} * batch.model_dim;
  for (int32_t head = 0; head < layout_.num_heads; ++head) {
    const HeadEntries entries = EntriesOf(batch.entries, head);
    if (entries.size() == 0) continue;
    row_.resize(entries.size());
    std::span<float> mean;
    if (!batch.per_query_head) {
      mean = entries.Of(batch.norms);
      std::ranges::fill(mean, 0.0f);
    }
    for (int32_t g = 0; g < group_size; ++g) {
      const float* weights =
          batch.output_projection + (head * group_size + g) * matrix_size;
      const std::span<float> norms =
          batch.per_query_head
              ? batch.norms.subspan(
                    group_size * entries.begin + g * entries.size(),
                    entries.size())
              : std::span<float>(row_);
      if (batch.norm == ValueNorm::kL1) {
        L1(arena, weights, batch.model_dim, entries.slots, norms);
      } else {
        L2(arena, weights, batch.model_dim, entries.slots, norms);
      }
      for (std::size_t j = 0; j < mean.size(); ++j) mean[j] += norms[j];
    }
    for (float& norm : mean) norm /= static_cast<float>(group_size);
  }
}

}  // namespace blockmgr
