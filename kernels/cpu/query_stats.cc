#include "kernels/cpu/query_stats.h"

#include <algorithm>
#include <cstddef>

#include <absl/status/status.h>

#include "blockmgr/base/check.h"
#include "blockmgr/base/invalid.h"
#include "blockmgr/base/status_macros.h"
#include "kernels/cpu/query_statistics.h"

namespace blockmgr {
namespace {

// Appends mean and upper triangle of the covariance of one query head.
void AppendHead(const QueryStatistics& statistics, int64_t q_head,
                int64_t head_dim, QueryStatsTable* table) {
  const auto count = static_cast<double>(statistics.count);
  const double* sums = statistics.sums.data() + q_head * head_dim;
  const double* products =
      statistics.products.data() + q_head * head_dim * head_dim;
  for (int64_t i = 0; i < head_dim; ++i) {
    table->means.push_back(static_cast<float>(sums[i] / count));
    for (int64_t j = i; j < head_dim; ++j) {
      double covariance = products[i * head_dim + j] / count -
                          (sums[i] / count) * (sums[j] / count);
      // The difference of two numbers that are equal but for their rounding.
      if (i == j) covariance = std::max(covariance, 0.0);
      table->covariances.push_back(static_cast<float>(covariance));
    }
  }
}

}  // namespace

QueryStatistics StatisticsOf(const QueryStatsTable& table, int32_t layer,
                             int32_t first_q_head, int32_t num_q_heads) {
  BM_CHECK(layer >= 0 && layer < table.num_layers);
  BM_CHECK(first_q_head >= 0 && num_q_heads >= 0);
  BM_CHECK(first_q_head + num_q_heads <= table.num_q_heads);
  const auto dim = static_cast<size_t>(table.head_dim);
  const auto num_heads = static_cast<size_t>(num_q_heads);
  const auto first =
      static_cast<size_t>(layer) * static_cast<size_t>(table.num_q_heads) +
      static_cast<size_t>(first_q_head);
  const float* means = table.means.data() + first * dim;
  const float* covariances =
      table.covariances.data() +
      first * static_cast<size_t>(table.covariance_size());
  QueryStatistics statistics;
  statistics.count = 1;
  statistics.sums.assign(means, means + num_heads * dim);
  statistics.products.resize(num_heads * dim * dim);
  for (size_t head = 0; head < num_heads; ++head) {
    const double* mean = statistics.sums.data() + head * dim;
    double* products = statistics.products.data() + head * dim * dim;
    for (size_t i = 0; i < dim; ++i) {
      for (size_t j = i; j < dim; ++j) {
        const double product = double{*covariances++} + mean[i] * mean[j];
        products[i * dim + j] = product;
        products[j * dim + i] = product;
      }
    }
  }
  return statistics;
}

QueryStatsBuilder::QueryStatsBuilder(int32_t num_layers, int32_t num_q_heads,
                                     int32_t head_dim)
    : layers_(static_cast<size_t>(num_layers)) {
  BM_CHECK(num_layers >= 1 && num_q_heads >= 1);
  BM_CHECK(head_dim >= 4 && head_dim % 4 == 0);
  layout_.num_layers = 1;
  layout_.num_heads = num_q_heads;
  layout_.num_q_heads = num_q_heads;
  layout_.head_dim = head_dim;
}

void QueryStatsBuilder::AddQueries(int32_t layer,
                                   std::span<const float> queries) {
  const int64_t width = int64_t{layout_.num_q_heads} * layout_.head_dim;
  BM_CHECK(std::ssize(queries) % width == 0);
  AddQueriesTo(layout_, queries.data(),
               static_cast<int32_t>(std::ssize(queries) / width),
               &layers_.at(static_cast<size_t>(layer)));
}

absl::StatusOr<QueryStatsTable> QueryStatsBuilder::Finish(
    const std::string& model) const {
  QueryStatsTable table;
  table.num_layers = static_cast<int32_t>(layers_.size());
  table.num_q_heads = layout_.num_q_heads;
  table.head_dim = layout_.head_dim;
  table.num_queries = layers_.front().count;
  table.model = model;
  for (size_t layer = 0; layer < layers_.size(); ++layer) {
    if (layers_[layer].count != table.num_queries || table.num_queries == 0) {
      return Invalid(
          "query statistics: layer ", layer, ": expected as many queries as ",
          "the other layers, at least 1, got ", layers_[layer].count);
    }
    for (int32_t q_head = 0; q_head < table.num_q_heads; ++q_head) {
      AppendHead(layers_[layer], q_head, table.head_dim, &table);
    }
  }
  BM_RETURN_IF_ERROR(table.Validate());
  return table;
}

}  // namespace blockmgr
