#include "bench/evict/perturbation.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>

#include "blockmgr/base/check.h"
#include "blockmgr/base/invalid.h"
#include "blockmgr/base/status_macros.h"
#include "blockmgr/eviction/diagnostics.h"
#include "kernels/cpu/packed_ops.h"

namespace blockmgr {
namespace {

// W_O^T of one query head: its columns as rows. [model_dim, head_dim]
std::vector<float> Transpose(std::span<const float> projection,
                             size_t head_dim) {
  const size_t model_dim = projection.size() / head_dim;
  std::vector<float> columns(projection.size());
  for (size_t d = 0; d < head_dim; ++d) {
    for (size_t m = 0; m < model_dim; ++m) {
      columns[m * head_dim + d] = projection[d * model_dim + m];
    }
  }
  return columns;
}

// |V_j W_O|_1 of every entry j of one query head. The products of a tile of
// entries with a few columns exist at a time.
std::vector<double> ProjectedSizes(std::span<const float> values,
                                   std::span<const float> projection,
                                   int32_t head_dim) {
  // Columns that are summed up in fp32, so that long sums stay accurate.
  constexpr size_t kColumns = 48;
  const auto width = static_cast<size_t>(head_dim);
  const size_t length = values.size() / width;
  const std::vector<float> columns = Transpose(projection, width);
  std::vector<const float*> vectors(columns.size() / width);
  for (size_t m = 0; m < vectors.size(); ++m) {
    vectors[m] = &columns[m * width];
  }
  const AlignedFloats packed = AllocatePacked(head_dim);
  std::vector<float> sums(kTileRows);
  std::vector<double> sizes(length);
  for (size_t first = 0; first < length; first += kTileRows) {
    const size_t num_rows = std::min(length - first, size_t{kTileRows});
    KvTile tile;
    tile.head_dim = head_dim;
    for (size_t r = 0; r < kTileRows; ++r) {
      const size_t row = first + std::min(r, num_rows - 1);
      tile.keys[r] = reinterpret_cast<const std::byte*>(&values[row * width]);
    }
    PackRows(tile, static_cast<int32_t>(num_rows), packed.get());
    for (size_t m = 0; m < vectors.size(); m += kColumns) {
      std::fill(sums.begin(), sums.end(), 0.0f);
      AddAbsDots(packed.get(), head_dim, static_cast<int32_t>(num_rows),
                 std::span<const float* const>(vectors).subspan(
                     m, std::min(kColumns, vectors.size() - m)),
                 sums.data());
      for (size_t r = 0; r < num_rows; ++r) {
        sizes[first + r] += double{sums[r]};
      }
    }
  }
  return sizes;
}

// |v_j|_1, where W_O is the identity.
std::vector<double> PlainSizes(std::span<const float> values, size_t width) {
  std::vector<double> sizes(values.size() / width);
  for (size_t i = 0; i < values.size(); ++i) {
    sizes[i / width] += std::abs(double{values[i]});
  }
  return sizes;
}

// Softmax of scaled products with the first attention.size() keys. REQUIRES:
// the query's size is a multiple of 4.
void Attend(std::span<const float> query, std::span<const float> keys,
            double scale, std::span<double> attention) {
  double max = -HUGE_VAL;
  const float* key = keys.data();
  for (double& weight : attention) {
    // Four chains: additions wait for each other otherwise.
    std::array<double, 4> dots = {};
    for (size_t i = 0; i < query.size(); i += dots.size()) {
      for (size_t k = 0; k < dots.size(); ++k) {
        dots[k] += double{query[i + k]} * double{key[i + k]};
      }
    }
    key += query.size();
    weight = scale * ((dots[0] + dots[1]) + (dots[2] + dots[3]));
    max = std::max(max, weight);
  }
  double sum = 0.0;
  for (double& weight : attention) {
    weight = std::exp(weight - max);
    sum += weight;
  }
  for (double& weight : attention) weight /= sum;
}

// The measurement of one layer for all keep sets.
class LayerMeter {
 public:
  LayerMeter(const Tensors& tensors, int32_t layer,
             std::span<const KeepSets> keep, int32_t num_queries)
      : tensors_(tensors),
        layer_(tensors.layers[static_cast<size_t>(layer)]),
        num_queries_(static_cast<size_t>(num_queries)),
        num_q_heads_(static_cast<size_t>(tensors.num_q_heads)),
        length_(static_cast<size_t>(tensors.length)),
        width_(static_cast<size_t>(tensors.head_dim)),
        has_projection_(!layer_.output_projection.empty()),
        output_width_(has_projection_ ? static_cast<size_t>(tensors.model_dim)
                                      : num_q_heads_ * width_),
        max_size_(num_queries_),
        change_(length_) {
    for (const KeepSets& set : keep) sets_.push_back(Prepare(set, layer));
    outputs_.resize(num_queries_ * output_width_);
  }

  // Appends the layer to each of `losses`, one per keep set.
  void Run(std::span<PolicyLoss> losses) {
    for (size_t q_head = 0; q_head < num_q_heads_; ++q_head) RunHead(q_head);
    for (size_t i = 0; i < sets_.size(); ++i) Finish(&sets_[i], &losses[i]);
  }

 private:
  // The sums that are collected about one keep set.
  struct Set {
    std::vector<uint8_t> kept;          // [num_heads, length]
    std::vector<LossMeans> q_heads;     // sums over the queries
    std::vector<AttentionLoss> losses;  // [num_q_heads, num_queries]
    std::vector<double> changes;        // y - y^, [num_queries, output_width]
  };

  Set Prepare(const KeepSets& keep, int32_t layer) const {
    Set set;
    const auto num_heads = static_cast<size_t>(tensors_.num_heads);
    set.kept.resize(num_heads * length_);
    for (size_t head = 0; head < num_heads; ++head) {
      const size_t index = static_cast<size_t>(layer) * num_heads + head;
      for (int64_t i = keep.offsets[index]; i < keep.offsets[index + 1]; ++i) {
        const auto position =
            static_cast<size_t>(keep.ranks[static_cast<size_t>(i)]);
        BM_CHECK(position < length_);
        set.kept[head * length_ + position] = 1;
      }
    }
    set.q_heads.resize(num_q_heads_);
    set.losses.resize(num_q_heads_ * num_queries_);
    set.changes.resize(num_queries_ * output_width_);
    return set;
  }

  std::span<const float> Part(const std::vector<float>& tensor, size_t index,
                              size_t size) const {
    return std::span(tensor).subspan(index * size, size);
  }

  // Adds the head's output for these weights to `sum`, which is of the whole
  // layer, and returns its norm.
  double AddOutput(size_t q_head, std::span<const double> weights,
                   std::span<const float> values, std::span<double> sum) {
    own_.assign(width_, 0.0);
    AddWeightedRows(weights, values.first(weights.size() * width_), own_);
    size_t first = q_head * width_;
    if (has_projection_) {
      first = 0;
      projected_.assign(output_width_, 0.0);
      AddWeightedRows(
          own_, Part(layer_.output_projection, q_head, width_ * output_width_),
          projected_);
      own_.swap(projected_);
    }
    for (size_t m = 0; m < own_.size(); ++m) sum[first + m] += own_[m];
    return L1Norm(own_);
  }

  void RunHead(size_t q_head) {
    const size_t head =
        q_head * static_cast<size_t>(tensors_.num_heads) / num_q_heads_;
    const auto keys = Part(layer_.keys, head, length_ * width_);
    const auto values = Part(layer_.values, head, length_ * width_);
    const auto queries = Part(layer_.queries, q_head, length_ * width_);
    const std::vector<double> sizes =
        has_projection_ ? ProjectedSizes(values,
                                         Part(layer_.output_projection, q_head,
                                              width_ * output_width_),
                                         tensors_.head_dim)
                        : PlainSizes(values, width_);
    const double scale = tensors_.score_scale != 0.0f
                             ? double{tensors_.score_scale}
                             : 1.0 / std::sqrt(static_cast<double>(width_));
    std::vector<double> attention(length_);
    for (size_t query = 0; query < num_queries_; ++query) {
      const size_t position = length_ - num_queries_ + query;
      const auto seen = std::span(attention).first(position + 1);
      const auto seen_sizes = std::span(sizes).first(position + 1);
      Attend(queries.subspan(position * width_, width_), keys, scale, seen);
      max_size_[query] =
          std::max(max_size_[query],
                   *std::max_element(seen_sizes.begin(), seen_sizes.end()));
      const double norm = AddOutput(
          q_head, seen, values,
          std::span(outputs_).subspan(query * output_width_, output_width_));
      for (Set& set : sets_) {
        set.q_heads[q_head].output_norm += norm;
        MeasureSet(q_head, query, seen, values, seen_sizes,
                   std::span(set.kept).subspan(head * length_, position + 1),
                   &set);
      }
    }
  }

  void MeasureSet(size_t q_head, size_t query,
                  std::span<const double> attention,
                  std::span<const float> values, std::span<const double> sizes,
                  std::span<const uint8_t> kept, Set* set) {
    const AttentionLoss loss = MeasureLoss(attention, kept, sizes);
    set->losses[q_head * num_queries_ + query] = loss;
    LossMeans& sums = set->q_heads[q_head];
    sums.kept_mass += loss.kept_mass;
    sums.critical_kv_bound += CriticalKvBound(loss);
    // Nothing to add, to the last bit.
    if (loss.lost_mass == 0.0) return;
    const auto change = std::span(change_).first(attention.size());
    AttentionChange(attention, kept, change);
    sums.perturbation += AddOutput(
        q_head, change, values,
        std::span(set->changes).subspan(query * output_width_, output_width_));
  }

  double MeanNorm(const std::vector<double>& outputs) const {
    return L1Norm(outputs) / static_cast<double>(num_queries_);
  }

  void Finish(Set* set, PolicyLoss* loss) const {
    LossMeans layer;
    const double num_queries = static_cast<double>(num_queries_);
    for (size_t q_head = 0; q_head < num_q_heads_; ++q_head) {
      LossMeans& means = set->q_heads[q_head];
      // The greatest size is known only when all heads are.
      for (size_t query = 0; query < num_queries_; ++query) {
        means.ada_kv_bound += AdaKvBound(
            set->losses[q_head * num_queries_ + query], max_size_[query]);
      }
      for (double* sum :
           {&means.kept_mass, &means.ada_kv_bound, &means.critical_kv_bound,
            &means.perturbation, &means.output_norm}) {
        *sum /= num_queries;
      }
      layer.kept_mass += means.kept_mass / static_cast<double>(num_q_heads_);
      layer.ada_kv_bound += means.ada_kv_bound;
      layer.critical_kv_bound += means.critical_kv_bound;
      loss->q_heads.push_back(means);
    }
    layer.perturbation = MeanNorm(set->changes);
    layer.output_norm = MeanNorm(outputs_);
    loss->layers.push_back(layer);
  }

  const Tensors& tensors_;
  const LayerTensors& layer_;
  const size_t num_queries_;
  const size_t num_q_heads_;
  const size_t length_;
  const size_t width_;
  const bool has_projection_;
  const size_t output_width_;
  std::vector<Set> sets_;
  std::vector<double> max_size_;  // per query, of the entries it sees
  std::vector<double> outputs_;   // y, [num_queries, output_width]
  std::vector<double> change_;
  std::vector<double> own_;
  std::vector<double> projected_;
};

}  // namespace

double MeanRelative(const PolicyLoss& loss) {
  double sum = 0.0;
  for (const LossMeans& layer : loss.layers) sum += layer.relative();
  return sum / static_cast<double>(loss.layers.size());
}

absl::Status CheckPerturbationInputs(const Tensors& tensors,
                                     const PerturbationOptions& options) {
  if (options.queries_window < 1 || options.queries_window > tensors.length) {
    return Invalid("--queries-window: expected 1 to the tensors' length, ",
                   tensors.length, ", got ", options.queries_window);
  }
  // Rows are read four elements at a time.
  if (tensors.head_dim % 4 != 0) {
    return Invalid("head_dim: expected a multiple of 4, got ",
                   tensors.head_dim);
  }
  for (const LayerTensors& layer : tensors.layers) {
    for (const auto& [flag, tensor] : {std::pair("--queries", &layer.queries),
                                       std::pair("--keys", &layer.keys),
                                       std::pair("--values", &layer.values)}) {
      if (tensor->empty()) {
        return Invalid(
            flag,
            ": expected a file, which losses are computed from, got none");
      }
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<PolicyLoss>> MeasurePerturbation(
    const Tensors& tensors, std::span<const KeepSets> keep,
    const PerturbationOptions& options) {
  BM_RETURN_IF_ERROR(CheckPerturbationInputs(tensors, options));
  std::vector<PolicyLoss> losses(keep.size());
  for (int32_t layer = 0; layer < tensors.num_layers(); ++layer) {
    LayerMeter(tensors, layer, keep, options.queries_window).Run(losses);
    if (options.on_layer) options.on_layer(layer + 1);
  }
  return losses;
}

}  // namespace blockmgr
