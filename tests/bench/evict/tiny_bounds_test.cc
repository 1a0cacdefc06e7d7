// The bounds of the papers on the tensors of a model that really computes.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include <absl/strings/str_cat.h>
#include <gtest/gtest.h>

#include "bench/evict/calibration_prompts.h"
#include "bench/evict/model_oracle.h"
#include "bench/evict/perturbation.h"
#include "bench/evict/policy_runner.h"
#include "blockmgr/eviction/diagnostics.h"
#include "engine/reference/tiny_model.h"
#include "tests/bench/evict/naive_attention.h"
#include "tests/testing/eviction_targets.h"
#include "tests/testing/status_matchers.h"

namespace blockmgr {
namespace {

constexpr double kSlack = 1e-5;  // fp32 sizes of values against double outputs

Tensors TinyTensors(const ModelShape& shape, uint64_t seed) {
  CalibrationPromptOptions options;
  options.seed = seed;
  options.context_tokens = 320;
  const std::vector<int32_t> context =
      MakeRandomPrompt(shape.vocabulary, 0, options).context;
  return *MeasureTensors(*RandomModel(shape, seed), context);
}

std::vector<KeepSets> Select(const Tensors& tensors,
                             const std::vector<const char*>& policies,
                             const char* ratio) {
  std::vector<KeepSets> keep;
  for (const char* text : policies) {
    const auto run =
        RunPolicy(*ParseParityPolicy(text), Keep(ratio), tensors, {});
    EXPECT_THAT(run, IsOk()) << text;
    if (run.ok()) keep.push_back(run->keep);
  }
  return keep;
}

// Scores that are the last query's attention itself, summed over a group.
void ScoreByAttention(Tensors* tensors) {
  const auto length = static_cast<size_t>(tensors->length);
  const int32_t group = tensors->num_q_heads / tensors->num_heads;
  for (size_t layer = 0; layer < tensors->layers.size(); ++layer) {
    std::vector<float>& scores = tensors->layers[layer].scores;
    scores.assign(static_cast<size_t>(tensors->num_heads) * length, 0.0f);
    for (int32_t q = 0; q < tensors->num_q_heads; ++q) {
      const std::vector<double> weights =
          NaiveAttention(*tensors, layer, q, tensors->length - 1);
      for (size_t j = 0; j < length; ++j) {
        scores[static_cast<size_t>(q / group) * length + j] +=
            static_cast<float>(weights[j]);
      }
    }
  }
}

// For any alpha: with a blend a head's budget is between uniform's and its
// share of the best scores, both whole, however it is rounded. So what heads
// above uniform's take is no worse than what heads below it give. It needs the
// entry that is protected here: budgets that are forced up to 1 scale the
// others down, which a blend with 0 < alpha < 1 / past budget may feel.
TEST(TinyBoundsTest, AdaKvsBoundIsNeverAboveUniforms) {
  std::vector<std::string> texts;
  for (const char* budget :
       {"uniform", "adakv(alpha=0)", "adakv(alpha=0.2)", "adakv(alpha=0.5)",
        "adakv(alpha=1)", "adakv(alpha=0,mode=floor)",
        "adakv(alpha=0.2,mode=floor)", "adakv(alpha=0.5,mode=floor)",
        "adakv(alpha=1,mode=floor)"}) {
    texts.push_back(absl::StrCat("external | ", budget,
                                 " | topk | protect(recent=1) | round(token)"));
  }
  std::vector<const char*> policies(texts.size());
  std::ranges::transform(texts, policies.begin(),
                         [](const std::string& text) { return text.c_str(); });
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    Tensors tensors = TinyTensors(ModelShape(), seed);
    ScoreByAttention(&tensors);
    for (const char* ratio : {"0.05", "0.1", "0.2", "0.4", "0.8"}) {
      SCOPED_TRACE(testing::Message() << "seed " << seed << ", " << ratio);
      PerturbationOptions options;
      options.queries_window = 1;
      ASSERT_OK_AND_ASSIGN(
          const std::vector<PolicyLoss> losses,
          MeasurePerturbation(tensors, Select(tensors, policies, ratio),
                              options));
      ASSERT_EQ(losses.size(), policies.size());
      for (int32_t layer = 0; layer < tensors.num_layers(); ++layer) {
        const auto at = static_cast<size_t>(layer);
        const double uniform = losses[0].layers[at].ada_kv_bound;
        for (size_t i = 1; i < losses.size(); ++i) {
          EXPECT_LE(losses[i].layers[at].ada_kv_bound, uniform * (1 + kSlack))
              << policies[i] << ", layer " << layer;
        }
      }
    }
  }
}

// ScoreByAttention's, of a head without a group.
std::vector<double> LastWeights(const Tensors& tensors, int32_t layer,
                                int32_t head) {
  const std::vector<float>& scores = tensors.layers[layer].scores;
  const auto begin = scores.begin() + int64_t{head} * tensors.length;
  return {begin, begin + tensors.length};
}

// |V_j W_O|_1 of all entries.
std::vector<double> ValueSizes(const Tensors& tensors, int32_t layer,
                               int32_t head) {
  const LayerTensors& of = tensors.layers[layer];
  const int32_t dim = tensors.head_dim;
  std::vector<double> sizes;
  for (int32_t j = 0; j < tensors.length; ++j) {
    double size = 0;
    for (int32_t m = 0; m < tensors.model_dim; ++m) {
      double sum = 0;
      for (int32_t d = 0; d < dim; ++d) {
        sum +=
            double{of.values[(int64_t{head} * tensors.length + j) * dim + d]} *
            double{of.output_projection[(int64_t{head} * dim + d) *
                                            tensors.model_dim +
                                        m]};
      }
      size += std::abs(sum);
    }
    sizes.push_back(size);
  }
  return sizes;
}

AttentionLoss LossOf(const KeepSets& keep, int64_t row,
                     const std::vector<double>& weights,
                     const std::vector<double>& sizes) {
  std::vector<uint8_t> kept(weights.size());
  for (int64_t i = keep.offsets[row]; i < keep.offsets[row + 1]; ++i) {
    kept[keep.ranks[i]] = 1;
  }
  return MeasureLoss(weights, kept, sizes);
}

// What the first of two stages keeps: the better half of the budget.
double StageOneMass(std::vector<double> weights, int64_t budget) {
  std::ranges::sort(weights, std::greater());
  return std::accumulate(weights.begin(), weights.begin() + budget / 2, 0.0);
}

// The paper's theorem: its assumption is a first stage with more than half of
// the mass, its theta the one with the factor of that stage (diagnostics.h).
// With the factor of all that is kept, four heads in ten are worse than top-k
// here: the sizes of values vary little, and the mass falls.
TEST(TinyBoundsTest, CriticalKvsThetaIsNeverAboveTopKs) {
  ModelShape shape;
  shape.num_heads = shape.num_q_heads;  // no group to compromise with
  int32_t num_asserted = 0;
  int32_t num_smaller = 0;
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    Tensors tensors = TinyTensors(shape, seed);
    ScoreByAttention(&tensors);
    std::vector<std::vector<double>> all_weights;  // [layers * heads]
    std::vector<std::vector<double>> all_sizes;    // the same
    for (int32_t layer = 0; layer < tensors.num_layers(); ++layer) {
      for (int32_t head = 0; head < tensors.num_heads; ++head) {
        all_weights.push_back(LastWeights(tensors, layer, head));
        all_sizes.push_back(ValueSizes(tensors, layer, head));
      }
    }
    for (const char* ratio : {"0.05", "0.2", "0.8"}) {
      SCOPED_TRACE(testing::Message() << "seed " << seed << ", " << ratio);
      const std::vector<KeepSets> keep = Select(
          tensors,
          {"external | uniform | topk | protect(recent=0) | round(token)",
           "external | uniform | critical(eps=0) | protect(recent=0) | "
           "round(token)"},
          ratio);
      ASSERT_EQ(keep.size(), 2u);
      for (int32_t layer = 0; layer < tensors.num_layers(); ++layer) {
        for (int32_t head = 0; head < tensors.num_heads; ++head) {
          const auto row = int64_t{layer} * tensors.num_heads + head;
          const std::vector<double>& weights = all_weights[row];
          const std::vector<double>& sizes = all_sizes[row];
          const double mass = StageOneMass(
              weights, keep[1].offsets[row + 1] - keep[1].offsets[row]);
          if (mass <= 0.5) continue;
          const double top_k = CriticalKvRelaxedBound(
              LossOf(keep[0], row, weights, sizes), mass);
          const double critical = CriticalKvRelaxedBound(
              LossOf(keep[1], row, weights, sizes), mass);
          EXPECT_LE(critical, top_k * (1 + kSlack)) << layer << ", " << head;
          ++num_asserted;
          num_smaller += critical < top_k * (1 - kSlack) ? 1 : 0;
        }
      }
    }
  }
  EXPECT_GT(num_asserted, 250);
  EXPECT_GT(num_smaller, 200);
}

}  // namespace
}  // namespace blockmgr
