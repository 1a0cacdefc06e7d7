#include "bench/evict/key_volume.h"

#include <cmath>
#include <cstddef>
#include <vector>

namespace blockmgr {
namespace {

// Returns ln det of a symmetric positive definite matrix, of whose rows only
// the part up to the diagonal is read and overwritten.
double LogDeterminant(size_t size, std::vector<double>* matrix) {
  std::vector<double>& m = *matrix;
  double sum = 0.0;
  for (size_t i = 0; i < size; ++i) {
    for (size_t j = 0; j <= i; ++j) {
      double rest = m[i * size + j];
      for (size_t k = 0; k < j; ++k) rest -= m[i * size + k] * m[j * size + k];
      m[i * size + j] = i == j ? std::sqrt(rest) : rest / m[j * size + j];
    }
    sum += 2.0 * std::log(m[i * size + i]);
  }
  return sum;
}

}  // namespace

double KeyLogDeterminant(std::span<const float> keys, int32_t head_dim,
                         std::span<const int32_t> kept) {
  const size_t size = Unsigned(head_dim);
  // det(I + U U^T) = det(I + U^T U), which has one row per dimension.
  std::vector<double> matrix(size * size);
  for (size_t i = 0; i < size; ++i) matrix[i * size + i] = 1.0;
  for (const int32_t position : kept) {
    const auto key = keys.subspan(Unsigned(position) * size, size);
    double square = 0.0;
    for (const float value : key) square += double{value} * double{value};
    if (square == 0.0) continue;
    for (size_t i = 0; i < size; ++i) {
      const double scaled = double{key[i]} / square;
      for (size_t j = 0; j <= i; ++j) {
        matrix[i * size + j] += scaled * double{key[j]};
      }
    }
  }
  return LogDeterminant(size, &matrix);
}

double MeanKeyLogDeterminant(const KeepSets& keep, const Tensors& tensors) {
  const size_t num_heads = Unsigned(tensors.num_heads);
  const size_t num_lists = keep.offsets.size() - 1;
  const size_t head_size =
      Unsigned(tensors.length) * Unsigned(tensors.head_dim);
  double sum = 0.0;
  for (size_t i = 0; i < num_lists; ++i) {
    const auto begin = Unsigned(keep.offsets[i]);
    const auto count = Unsigned(keep.offsets[i + 1]) - begin;
    sum += KeyLogDeterminant(std::span(tensors.layers[i / num_heads].keys)
                                 .subspan(i % num_heads * head_size, head_size),
                             tensors.head_dim,
                             std::span(keep.ranks).subspan(begin, count));
  }
  return sum / static_cast<double>(num_lists);
}

}  // namespace blockmgr
