#include "kernels/cpu/query_statistics.h"

#include <algorithm>
#include <cmath>

#include "blockmgr/base/check.h"

// Highway compiles this file once per instruction set.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/query_statistics.cc"
#include <hwy/foreach_target.h>
// Must come after foreach_target.h.
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace blockmgr::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

// Rows are a multiple of 4 elements, so there is no remainder.
using DoubleTag = hn::CappedTag<double, 4>;

// products[a .. a + 4)[b .. b + lanes) += of tokens' q_a q_b, in order.
HWY_INLINE void AddBlock(const double* HWY_RESTRICT q, int64_t num_tokens,
                         int64_t head_dim, int64_t a, int64_t b,
                         double* HWY_RESTRICT products) {
  const DoubleTag d;
  double* HWY_RESTRICT row = products + a * head_dim + b;
  auto s0 = hn::LoadU(d, row);
  auto s1 = hn::LoadU(d, row + head_dim);
  auto s2 = hn::LoadU(d, row + 2 * head_dim);
  auto s3 = hn::LoadU(d, row + 3 * head_dim);
  for (int64_t t = 0; t < num_tokens; ++t, q += head_dim) {
    const auto x = hn::LoadU(d, q + b);
    s0 = hn::MulAdd(hn::Set(d, q[a]), x, s0);
    s1 = hn::MulAdd(hn::Set(d, q[a + 1]), x, s1);
    s2 = hn::MulAdd(hn::Set(d, q[a + 2]), x, s2);
    s3 = hn::MulAdd(hn::Set(d, q[a + 3]), x, s3);
  }
  hn::StoreU(s0, d, row);
  hn::StoreU(s1, d, row + head_dim);
  hn::StoreU(s2, d, row + 2 * head_dim);
  hn::StoreU(s3, d, row + 3 * head_dim);
}

}  // namespace

void AddProductsImpl(const double* queries, int64_t num_tokens,
                     int64_t head_dim, bool upper_only, double* products) {
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(DoubleTag()));
  for (int64_t a = 0; a < head_dim; a += 4) {
    for (int64_t b = upper_only ? a : 0; b < head_dim; b += lanes) {
      AddBlock(queries, num_tokens, head_dim, a, b, products);
    }
  }
}

}  // namespace blockmgr::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace blockmgr {
namespace {

HWY_EXPORT(AddProductsImpl);

// Tokens whose queries of one head are converted at a time: 64 KiB at 128
// elements, in the cache of the CPU while they are used head_dim times.
constexpr int32_t kBlockTokens = 64;
// From so many tokens on, computing half of the products and copying the other
// half is less work than computing all of them. The bits are the same.
constexpr int32_t kMirrorTokens = 8;

// y = R x, elements `stride` apart.
void Rotate(const MeanRotation& rotation, double* x, int64_t stride) {
  const int64_t half = std::ssize(rotation.cosines);
  for (int64_t i = 0; i < half; ++i) {
    const double first = x[i * stride];
    const double second = x[(i + half) * stride];
    const double c = rotation.cosines[i];
    const double s = rotation.sines[i];
    x[i * stride] = c * first - s * second;
    x[(i + half) * stride] = c * second + s * first;
  }
}

}  // namespace

void AddQueriesTo(const ModelLayout& layout, const float* queries,
                  int32_t num_tokens, QueryStatistics* statistics) {
  BM_CHECK(num_tokens >= 0);
  const int64_t head_dim = layout.head_dim;
  const int64_t width = layout.num_q_heads * head_dim;
  const int64_t num_products = width * head_dim;
  if (statistics->sums.empty()) statistics->sums.resize(width);
  if (statistics->products.empty()) statistics->products.resize(num_products);
  BM_CHECK(std::ssize(statistics->sums) == width);
  BM_CHECK(std::ssize(statistics->products) == num_products);
  const bool mirror = num_tokens >= kMirrorTokens;
  std::vector<double> block(std::min(kBlockTokens, num_tokens) * head_dim);
  for (int64_t q_head = 0; q_head < layout.num_q_heads; ++q_head) {
    double* sums = statistics->sums.data() + q_head * head_dim;
    double* products =
        statistics->products.data() + q_head * head_dim * head_dim;
    for (int32_t first = 0; first < num_tokens; first += kBlockTokens) {
      const int32_t count = std::min(kBlockTokens, num_tokens - first);
      for (int64_t t = 0; t < count; ++t) {
        const float* query = queries + (first + t) * width + q_head * head_dim;
        for (int64_t i = 0; i < head_dim; ++i) {
          block[t * head_dim + i] = query[i];
          sums[i] += query[i];
        }
      }
      HWY_DYNAMIC_DISPATCH(AddProductsImpl)
      (block.data(), count, head_dim, mirror, products);
    }
    for (int64_t a = 0; a < head_dim && mirror; ++a) {
      for (int64_t b = 0; b < a; ++b) {
        products[a * head_dim + b] = products[b * head_dim + a];
      }
    }
  }
  statistics->count += num_tokens;
}

MeanRotation AverageRotation(std::span<const double> inverse_frequencies,
                             int64_t first, int64_t count) {
  BM_CHECK(count > 0);
  MeanRotation rotation;
  const double n = static_cast<double>(count);
  const double middle = static_cast<double>(first) + (n - 1.0) / 2.0;
  for (const double frequency : inverse_frequencies) {
    // The sum of e^(ipf) over n consecutive p is a geometric one: that of the
    // middle times sin(nf / 2) / sin(f / 2).
    const double divisor = std::sin(frequency / 2.0);
    const double shrink =
        divisor == 0.0 ? 1.0 : std::sin(n * frequency / 2.0) / (n * divisor);
    rotation.cosines.push_back(shrink * std::cos(middle * frequency));
    rotation.sines.push_back(shrink * std::sin(middle * frequency));
  }
  return rotation;
}

FutureQueries PredictQueries(const QueryStatistics& statistics,
                             const MeanRotation& rotation, int32_t q_head) {
  BM_CHECK(statistics.count > 0);
  const int64_t head_dim = 2 * std::ssize(rotation.cosines);
  const double count = static_cast<double>(statistics.count);
  const double* sums = statistics.sums.data() + q_head * head_dim;
  const double* products =
      statistics.products.data() + q_head * head_dim * head_dim;
  std::vector<double> mean(sums, sums + head_dim);
  for (double& x : mean) x /= count;
  std::vector<double> covariance(products, products + head_dim * head_dim);
  for (int64_t i = 0; i < head_dim; ++i) {
    for (int64_t j = 0; j < head_dim; ++j) {
      double& x = covariance[i * head_dim + j];
      x = x / count - mean[i] * mean[j];
    }
  }
  // R on the left turns columns, R^T on the right rows.
  for (int64_t i = 0; i < head_dim; ++i) {
    Rotate(rotation, &covariance[i], head_dim);
  }
  for (int64_t i = 0; i < head_dim; ++i) {
    Rotate(rotation, &covariance[i * head_dim], 1);
  }
  Rotate(rotation, mean.data(), 1);
  return {.mean = {mean.begin(), mean.end()},
          .covariance = {covariance.begin(), covariance.end()}};
}

}  // namespace blockmgr
#endif  // HWY_ONCE
