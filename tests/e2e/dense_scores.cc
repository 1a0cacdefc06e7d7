#include "tests/e2e/dense_scores.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <span>
#include <utility>

#include <gtest/gtest.h>

#include "blockmgr/eviction/random_scores.h"

namespace blockmgr {
namespace {

using Row = std::vector<double>;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

double Dot(std::span<const double> a, std::span<const double> b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}
double Norm(std::span<const double> a) { return std::sqrt(Dot(a, a)); }

Row Softmax(Row logits) {
  const double top = *std::ranges::max_element(logits);
  double sum = 0;
  for (double& x : logits) sum += (x = std::exp(x - top));
  for (double& x : logits) x /= sum;
  return logits;
}

// Scores of the layer that has a slot of the order's group; heads in turn.
class LayerScorer {
 public:
  LayerScorer(const EvictionOrder& order, int32_t first,
              const DenseReference& reference, const LanguageModel& model,
              int32_t num_shards, const QueryStatsTable* query_stats,
              int32_t slot)
      : order_(order),
        first_(first),
        spec_(order.policy.scorer),
        reference_(reference),
        model_(model),
        shape_(model.shape()),
        num_shards_(num_shards),
        query_stats_(query_stats),
        slot_(slot),
        layer_(model.groups().LayerAt(slot, order.group)),
        group_(shape_.num_q_heads / shape_.num_heads) {
    for (int32_t i = 0; i < shape_.head_dim / 2; ++i) {
      const double frequency =
          std::pow(shape_.rotary.theta, -2.0 * i / shape_.head_dim);
      double c = 0;
      double s = 0;
      for (int32_t p = 0; p < spec_.n_future; ++p) {
        c += std::cos((order_.length + p) * frequency) / spec_.n_future;
        s += std::sin((order_.length + p) * frequency) / spec_.n_future;
      }
      rotations_.emplace_back(c, s);
    }
  }

  // Of all entries the head attends, those above the cut too.
  Row Score(int32_t head) const {
    switch (spec_.kind) {
      case ScorerKind::kSnapKv:
        return SnapKv(head);
      case ScorerKind::kH2o:
        return H2o(head);
      case ScorerKind::kTova:
        return Tova(head);
      case ScorerKind::kKeyDiff:
        return KeyDiff(head);
      case ScorerKind::kExpectedAttention:
        return ExpectedAttention(head);
      case ScorerKind::kKnorm:
        return Each(head, [&](int32_t p) { return -Norm(Key(head, p)); });
      case ScorerKind::kRandom:
        return Random(head);
      case ScorerKind::kExternal:
        return External(head);
      case ScorerKind::kDropKv:
        return DropKv(head);
      case ScorerKind::kStreaming:
        break;
    }
    return {};
  }

  // || v W_O ||, by query head and entry.
  std::vector<Row> ValueNorms(int32_t head) const {
    const std::vector<float> output = DenseMatrix(
        model_.weights().layers[static_cast<size_t>(layer_)].output);
    std::vector<Row> norms;
    for (int32_t q = head * group_; q < (head + 1) * group_; ++q) {
      norms.push_back(Each(head, [&](int32_t p) {
        const std::span<const double> value = reference_.Value(layer_, head, p);
        double sum = 0;
        for (int32_t m = 0; m < shape_.hidden; ++m) {
          double y = 0;
          for (int32_t d = 0; d < shape_.head_dim; ++d) {
            const int64_t row = int64_t{q} * shape_.head_dim + d;
            y += value[static_cast<size_t>(d)] *
                 double{output[static_cast<size_t>(row * shape_.hidden + m)]};
          }
          sum += order_.policy.selector.norm == ValueNorm::kL1 ? std::abs(y)
                                                               : y * y;
        }
        return order_.policy.selector.norm == ValueNorm::kL1 ? sum
                                                             : std::sqrt(sum);
      }));
    }
    return norms;
  }

  // SnapKV and TOVA by query head: its own window attention, pooled by SnapKV.
  std::vector<Row> ByQueryHead(int32_t head) const {
    const int32_t window = order_.policy.query_window();
    std::vector<Row> rows;
    for (int32_t q = head * group_; q < (head + 1) * group_; ++q) {
      const Row past = Past(head, Window(q, window));
      rows.push_back(Pad(head, spec_.kind == ScorerKind::kSnapKv
                                   ? Pool(past, spec_.pool)
                                   : past));
    }
    return rows;
  }

 private:
  std::vector<int32_t> Entries(int32_t head) const {
    return reference_.Attended(layer_, head, order_.length, first_);
  }
  std::span<const double> Key(int32_t head, int32_t position) const {
    return reference_.Key(layer_, head, position);
  }
  template <typename Function>
  Row Each(int32_t head, Function score) const {
    const std::vector<int32_t> entries = Entries(head);
    Row scores;
    scores.reserve(entries.size());
    for (const int32_t position : entries) scores.push_back(score(position));
    return scores;
  }

  // Attention of one query over the entries it sees; 0 for later ones.
  Row Attention(int32_t q, int32_t position) const {
    const int32_t head = q / group_;
    const std::vector<int32_t> entries = Entries(head);
    Row logits;
    logits.reserve(entries.size());
    for (const int32_t p : entries) {
      if (p > position) break;
      logits.push_back(
          Dot(reference_.Query(layer_, q, position), Key(head, p)) /
          std::sqrt(shape_.head_dim));
    }
    Row weights = Softmax(std::move(logits));
    weights.resize(entries.size());
    return weights;
  }
  // Mean over the last `count` queries.
  Row Window(int32_t q, int32_t count) const {
    count = std::min(count, order_.length);
    Row mean(Entries(q / group_).size());
    for (int32_t i = order_.length - count; i < order_.length; ++i) {
      const Row weights = Attention(q, i);
      for (size_t j = 0; j < mean.size(); ++j) mean[j] += weights[j] / count;
    }
    return mean;
  }
  size_t CountPast(int32_t head) const {
    const std::vector<int32_t> entries = Entries(head);
    return static_cast<size_t>(
        std::ranges::lower_bound(entries,
                                 order_.length - order_.policy.query_window()) -
        entries.begin());
  }
  Row Past(int32_t head, Row row) const {
    row.resize(CountPast(head));
    return row;
  }
  Row Pad(int32_t head, Row row) const {
    row.resize(Entries(head).size(), kInfinity);
    return row;
  }
  Row Pool(const Row& row, PoolKind kind) const {
    const int64_t half = spec_.kernel / 2;
    Row pooled;
    for (int64_t i = 0; i < std::ssize(row); ++i) {
      const int64_t begin = std::max<int64_t>(0, i - half);
      const int64_t end = std::min<int64_t>(std::ssize(row), i + half + 1);
      const auto first = row.begin() + begin;
      const auto last = row.begin() + end;
      pooled.push_back(kind == PoolKind::kMax
                           ? *std::max_element(first, last)
                           : std::accumulate(first, last, 0.0) / spec_.kernel);
    }
    return pooled;
  }
  Row Reduce(const std::vector<Row>& rows) const {
    Row reduced = rows[0];
    for (size_t i = 0; i < reduced.size(); ++i) {
      for (size_t g = 1; g < rows.size(); ++g) {
        reduced[i] = spec_.group == GroupReduce::kMax
                         ? std::max(reduced[i], rows[g][i])
                         : reduced[i] + rows[g][i];
      }
      if (spec_.group == GroupReduce::kMean) reduced[i] /= group_;
    }
    return reduced;
  }

  Row SnapKv(int32_t head) const {
    std::vector<Row> rows;
    for (int32_t q = head * group_; q < (head + 1) * group_; ++q) {
      const Row past = Past(head, Window(q, spec_.window));
      rows.push_back(spec_.order == PoolOrder::kAdaKv ? past
                                                      : Pool(past, spec_.pool));
    }
    Row scores = Reduce(rows);
    if (spec_.order == PoolOrder::kAdaKv) scores = Pool(scores, spec_.pool);
    return Pad(head, std::move(scores));
  }

  // The squared change of the window's outputs without the entry.
  Row DropKv(int32_t head) const {
    const std::vector<int32_t> entries = Entries(head);
    const int32_t count = std::min(spec_.window, order_.length);
    Row changes(entries.size());
    for (int32_t q = head * group_; q < (head + 1) * group_; ++q) {
      for (int32_t i = order_.length - count; i < order_.length; ++i) {
        const Row weights = Attention(q, i);
        Row output(static_cast<size_t>(shape_.head_dim));
        for (size_t j = 0; j < entries.size(); ++j) {
          for (size_t d = 0; d < output.size(); ++d) {
            output[d] +=
                weights[j] * reference_.Value(layer_, head, entries[j])[d];
          }
        }
        for (size_t j = 0; j < entries.size(); ++j) {
          Row apart = output;
          for (size_t d = 0; d < apart.size(); ++d) {
            apart[d] -= reference_.Value(layer_, head, entries[j])[d];
          }
          const double ratio = weights[j] / std::max(1.0 - weights[j], 1e-6);
          changes[j] += ratio * ratio * Dot(apart, apart) / group_;
        }
      }
    }
    return Pad(head, Pool(Past(head, std::move(changes)), PoolKind::kAvg));
  }

  Row H2o(int32_t head) const {
    Row scores = Each(head, [&](int32_t p) {
      return reference_.AttentionSum(layer_, head, p) / group_;
    });
    int32_t seen = order_.length;
    if (spec_.obs_window > 0) {
      seen = std::min(spec_.obs_window, order_.length);
      std::ranges::fill(scores, 0.0);
      for (int32_t q = head * group_; q < (head + 1) * group_; ++q) {
        const Row mean = Window(q, seen);
        for (size_t i = 0; i < scores.size(); ++i) {
          scores[i] += mean[i] * seen / group_;
        }
      }
    }
    if (spec_.norm == H2oNorm::kCount) {
      const std::vector<int32_t> entries = Entries(head);
      for (size_t i = 0; i < scores.size(); ++i) {
        scores[i] /= std::min(seen, order_.length - entries[i]);
      }
    }
    return scores;
  }

  // The last query's attention, over all query heads of the head's shard that
  // see the position.
  Row Tova(int32_t head) const {
    Row by_position(static_cast<size_t>(order_.length));
    const int32_t num_q_heads = shape_.num_q_heads / num_shards_;
    const int32_t first = head * group_ / num_q_heads * num_q_heads;
    for (int32_t q = first; q < first + num_q_heads; ++q) {
      const std::vector<int32_t> entries = Entries(q / group_);
      const Row weights = Attention(q, order_.length - 1);
      for (size_t i = 0; i < entries.size(); ++i) {
        by_position[static_cast<size_t>(entries[i])] +=
            weights[i] / num_q_heads;
      }
    }
    by_position.back() = kInfinity;
    return Each(head,
                [&](int32_t p) { return by_position[static_cast<size_t>(p)]; });
  }

  // The key that all others are compared with.
  Row KeyDiffAnchorOf(int32_t head) const {
    const std::vector<int32_t> entries = Entries(head);
    Row anchor;
    for (size_t d = 0; d < static_cast<size_t>(shape_.head_dim); ++d) {
      Row channel;
      for (const int32_t p : entries) {
        const std::span<const double> key = Key(head, p);
        const bool raw = spec_.anchor == KeyDiffAnchor::kRaw;
        channel.push_back(key[d] / (raw ? 1.0 : Norm(key)));
      }
      std::ranges::sort(channel);
      const size_t half = channel.size() / 2;
      anchor.push_back(
          spec_.anchor == KeyDiffAnchor::kMedian
              ? (channel[half] + channel[channel.size() - 1 - half]) / 2
              : std::accumulate(channel.begin(), channel.end(), 0.0) /
                    static_cast<double>(channel.size()));
    }
    return anchor;
  }

  Row KeyDiff(int32_t head) const {
    const auto cosine = [](std::span<const double> a,
                           std::span<const double> b) {
      return Dot(a, b) / Norm(a) / Norm(b);
    };
    if (spec_.anchor == KeyDiffAnchor::kPairwise) {
      const std::vector<int32_t> entries = Entries(head);
      return Each(head, [&](int32_t p) {
        double sum = 0;
        for (const int32_t other : entries) {
          sum += cosine(Key(head, p), Key(head, other));
        }
        return -sum / static_cast<double>(entries.size());
      });
    }
    const Row anchor = KeyDiffAnchorOf(head);
    return Each(head, [&](int32_t p) {
      const std::span<const double> key = Key(head, p);
      if (spec_.metric == KeyDiffMetric::kCosine) return -cosine(key, anchor);
      if (spec_.metric == KeyDiffMetric::kDot) return -Dot(key, anchor);
      Row difference(key.begin(), key.end());
      for (size_t d = 0; d < difference.size(); ++d) difference[d] -= anchor[d];
      return Norm(difference);
    });
  }

  // The logits of queries to come, for the entries behind the sinks: a Gaussian
  // of the queries seen, rotated by the mean rotation of the positions ahead.
  Row LogitsOfSeenQueries(int32_t head, int32_t q) const {
    const auto dim = static_cast<size_t>(shape_.head_dim);
    const auto num_queries = static_cast<double>(order_.length - spec_.n_sink);
    Row mu(dim);
    for (int32_t i = spec_.n_sink; i < order_.length; ++i) {
      const std::span<const double> query = reference_.RawQuery(layer_, q, i);
      for (size_t d = 0; d < dim; ++d) mu[d] += query[d] / num_queries;
    }
    const Row rotated_mu = Rotate(mu);
    std::vector<Row> centred;
    for (int32_t i = spec_.n_sink; i < order_.length; ++i) {
      const std::span<const double> query = reference_.RawQuery(layer_, q, i);
      Row row(dim);
      for (size_t d = 0; d < dim; ++d) row[d] = query[d] - mu[d];
      centred.push_back(Rotate(row));
    }
    Row logits;
    for (const int32_t p : Entries(head)) {
      if (p < spec_.n_sink) continue;
      const std::span<const double> key = Key(head, p);
      double z = Dot(rotated_mu, key) / std::sqrt(dim);
      double variance = 0;  // k^T R Cov R^T k
      for (const Row& query : centred) {
        variance += Dot(query, key) * Dot(query, key) / num_queries;
      }
      if (spec_.cov) z += variance / static_cast<double>(2 * dim);
      logits.push_back(z);
    }
    return logits;
  }

  // Returns the logits by the mean and covariance of a table.
  Row LogitsOfTable(int32_t head, int32_t q) const {
    const auto dim = static_cast<size_t>(shape_.head_dim);
    const auto index =
        static_cast<size_t>(layer_) * static_cast<size_t>(shape_.num_q_heads) +
        static_cast<size_t>(q);
    const float* mean = query_stats_->means.data() + index * dim;
    const Row rotated_mu = Rotate(Row(mean, mean + dim));
    Row logits;
    for (const int32_t p : Entries(head)) {
      if (p < spec_.n_sink) continue;
      const Row turned = RotateBack(Key(head, p));
      double variance = 0;  // (R^T k)^T Cov (R^T k)
      const float* covariance =
          query_stats_->covariances.data() + index * dim * (dim + 1) / 2;
      for (size_t i = 0; i < dim; ++i) {
        for (size_t j = i; j < dim; ++j) {
          const double product = *covariance++ * turned[i] * turned[j];
          variance += i == j ? product : 2 * product;
        }
      }
      double z = Dot(rotated_mu, Key(head, p)) / std::sqrt(dim);
      if (spec_.cov) z += variance / static_cast<double>(2 * dim);
      logits.push_back(z);
    }
    return logits;
  }

  Row ExpectedAttention(int32_t head) const {
    const std::vector<int32_t> entries = Entries(head);
    Row mean(entries.size());
    for (int32_t q = head * group_; q < (head + 1) * group_; ++q) {
      const Row weights =
          Softmax(query_stats_ != nullptr ? LogitsOfTable(head, q)
                                          : LogitsOfSeenQueries(head, q));
      const size_t num_sinks = entries.size() - weights.size();
      for (size_t i = 0; i < weights.size(); ++i) {
        mean[num_sinks + i] += weights[i] / group_;
      }
    }
    for (size_t i = 0; i < entries.size(); ++i) {
      if (entries[i] < spec_.n_sink) {
        mean[i] = kInfinity;
      } else if (spec_.vnorm) {
        mean[i] = (mean[i] + spec_.eps) *
                  Norm(reference_.Value(layer_, head, entries[i]));
      }
    }
    return mean;
  }
  Row Rotate(const Row& row) const {
    const size_t half = row.size() / 2;
    Row rotated(row.size());
    for (size_t i = 0; i < half; ++i) {
      const auto [c, s] = rotations_[i];
      rotated[i] = row[i] * c - row[i + half] * s;
      rotated[i + half] = row[i] * s + row[i + half] * c;
    }
    return rotated;
  }
  // By the transpose of Rotate's matrix.
  Row RotateBack(std::span<const double> row) const {
    const size_t half = row.size() / 2;
    Row rotated(row.size());
    for (size_t i = 0; i < half; ++i) {
      const auto [c, s] = rotations_[i];
      rotated[i] = row[i] * c + row[i + half] * s;
      rotated[i + half] = row[i + half] * c - row[i] * s;
    }
    return rotated;
  }

  // Its definition is its code: a function of these four alone.
  Row Random(int32_t head) const {
    const std::vector<int32_t> entries = Entries(head);
    std::vector<float> scores(entries.size());
    RandomScores(spec_.seed, order_.group * model_.groups().num_layers + slot_,
                 head, entries, scores);
    return {scores.begin(), scores.end()};
  }

  Row External(int32_t head) const {
    const int64_t index = int64_t{slot_} * shape_.num_heads + head;
    return Each(head, [&](int32_t p) {
      return p < order_.cut ? double{(*order_.scores)[static_cast<size_t>(
                                  index * order_.cut + p)]}
                            : 0.0;
    });
  }

  const EvictionOrder& order_;
  const int32_t first_;
  const ScorerSpec& spec_;
  const DenseReference& reference_;
  const LanguageModel& model_;
  const ModelShape& shape_;
  const int32_t num_shards_;
  const QueryStatsTable* const query_stats_;  // null: of the queries seen
  const int32_t slot_;
  const int32_t layer_;
  const int32_t group_;
  // Cosine and sine, averaged over the positions ahead, by plane.
  std::vector<std::pair<double, double>> rotations_;
};

void AppendBelow(size_t count, const Row& from, std::vector<float>* to) {
  if (from.empty()) return;
  for (size_t i = 0; i < count; ++i) to->push_back(static_cast<float>(from[i]));
}

}  // namespace

DenseScores ScoreDensely(const EvictionOrder& order, int32_t first,
                         std::span<const int64_t> offsets,
                         const DenseReference& reference,
                         const LanguageModel& model, int32_t num_shards,
                         const QueryStatsTables& query_stats) {
  DenseScores dense;
  const QueryStatsTable* const table =
      order.policy.needs_query_stats()
          ? query_stats.at(order.policy.scorer.stats).get()
          : nullptr;
  const SelectorSpec& selector = order.policy.selector;
  for (int32_t slot = 0; slot < model.groups().num_layers; ++slot) {
    const int32_t num_heads = model.shape().num_heads;
    const int32_t layer = model.groups().LayerAt(slot, order.group);
    if (layer < 0) {
      const auto index =
          static_cast<size_t>(slot) * static_cast<size_t>(num_heads);
      const auto count = static_cast<size_t>(
          offsets[index + static_cast<size_t>(num_heads)] - offsets[index]);
      if (order.policy.scorer.kind != ScorerKind::kStreaming) {
        dense.scores.resize(dense.scores.size() + count,
                            static_cast<float>(-kInfinity));
      }
      if (selector.kind != SelectorKind::kCritical) continue;
      dense.value_norms.resize(dense.value_norms.size() + count);
      if (selector.gqa_product) {
        dense.products.resize(dense.products.size() + count);
      }
      continue;
    }
    const LayerScorer scorer(order, first, reference, model, num_shards, table,
                             slot);
    for (int32_t head = 0; head < num_heads; ++head) {
      const size_t count =
          reference.Attended(layer, head, order.cut, first).size();
      const Row scores = scorer.Score(head);
      AppendBelow(count, scores, &dense.scores);
      if (selector.kind != SelectorKind::kCritical) continue;
      const std::vector<Row> norms = scorer.ValueNorms(head);
      Row mean(count);
      Row product(count);
      const std::vector<Row> by_head =
          selector.gqa_product ? scorer.ByQueryHead(head) : norms;
      for (size_t i = 0; i < count; ++i) {
        for (size_t g = 0; g < norms.size(); ++g) {
          mean[i] += norms[g][i] / static_cast<double>(norms.size());
          product[i] += (by_head[g][i] + selector.eps) * norms[g][i] /
                        static_cast<double>(norms.size());
        }
      }
      AppendBelow(count, mean, &dense.value_norms);
      if (selector.gqa_product) AppendBelow(count, product, &dense.products);
    }
  }
  return dense;
}

}  // namespace blockmgr
