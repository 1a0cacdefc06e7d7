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

EvictionTarget KeepTarget(const char* ratio) {
  EvictionTarget target;
  target.ratio = *KeepRatio::Parse(ratio);
  return target;
}

LuKvProfile UnequalProfile(int32_t num_layers, int32_t num_heads) {
  LuKvProfile profile;
  profile.num_layers = num_layers;
  profile.num_heads = num_heads;
  profile.calibration_length = 1000;
  profile.rho = {0.0f, 0.5f, 1.0f};
  for (const float rho : profile.rho) {
    for (int32_t head = 0; head < num_layers * num_heads; ++head) {
      const float shift = rho == 0.5f ? 0.4f : 0.0f;
      profile.r.push_back(rho + (head % 2 == 0 ? shift : -shift));
    }
  }
  return profile;
}

HeadScores UnequalScores(int32_t num_layers, int32_t num_heads) {
  HeadScores scores;
  scores.num_layers = num_layers;
  scores.num_heads = num_heads;
  for (int32_t head = 0; head < num_layers * num_heads; ++head) {
    scores.scores.push_back(static_cast<float>(1 + head * head));
  }
  return scores;
}

std::vector<KeepSets> Select(const Tensors& tensors,
                             const std::vector<const char*>& policies,
                             const char* ratio) {
  std::vector<KeepSets> keep;
  for (const char* text : policies) {
    const ParityPolicy policy = *ParseParityPolicy(text);
    const int32_t num_layers = tensors.num_layers();
    PolicyRunOptions options;
    // Heads as different as tables and callers can make them.
    const BudgetTable profile = UnequalProfile(num_layers, tensors.num_heads);
    const BudgetTable scores = UnequalScores(num_layers, tensors.num_heads);
    const bool lukv = policy.budget.kind == BudgetKind::kLuKv;
    options.table = lukv ? &profile : &scores;
    if (policy.budget.kind == BudgetKind::kExternal) {
      for (int32_t head = 0; head < num_layers * tensors.num_heads; ++head) {
        options.budgets.push_back(head % 3 * 40);
      }
    }
    const auto run = RunPolicy(policy, KeepTarget(ratio), tensors, options);
    EXPECT_THAT(run, IsOk()) << text;
    if (run.ok()) keep.push_back(run->keep);
  }
  return keep;
}

std::vector<PolicyLoss> Measure(const Tensors& tensors,
                                const std::vector<const char*>& policies,
                                const char* ratio, int32_t queries_window) {
  const std::vector<KeepSets> keep = Select(tensors, policies, ratio);
  PerturbationOptions options;
  options.queries_window = queries_window;
  const auto losses = MeasurePerturbation(tensors, keep, options);
  EXPECT_THAT(losses, IsOk());
  return losses.ok() ? *losses : std::vector<PolicyLoss>();
}

void ExpectWithinBounds(const PolicyLoss& of) {
  for (const std::vector<LossMeans>& parts : {of.layers, of.q_heads}) {
    for (const LossMeans& loss : parts) {
      EXPECT_LE(loss.perturbation,
                loss.critical_kv_bound * (1 + kSlack) + kSlack);
      EXPECT_LE(loss.perturbation, loss.ada_kv_bound * (1 + kSlack) + kSlack);
    }
  }
}

TEST(TinyBoundsTest, EveryMethodStaysWithinItsBounds) {
  const std::vector<const char*> policies = {
      "snapkv | uniform",
      "snapkv(pool=avg,kernel=5,order=kvpress,group=max) | adakv",
      "h2o | adakv(mode=floor)",
      "h2o(obs_window=64,norm=count) | pyramid",
      "tova",
      "keydiff | uniform | topk | protect(sinks=4,recent=1)",
      "keydiff(anchor=median,metric=dot) | ada_pyramid",
      "keydiff(anchor=raw,metric=euclidean)",
      "keydiff(anchor=pairwise) | adakv",
      "expected_attention | adakv",
      "streaming",
      "knorm | global",
      "random",
      "snapkv | global | critical",
      "snapkv | adakv | critical(gqa_product=true)",
      "snapkv | uniform | critical(norm=l2)",
      "snapkv | pyramid(formula=kvpress) | critical",
      "tova | uniform | critical(gqa_product=true)",
      "keydiff | lukv(profile=p) | topk | protect(sinks=4,recent=1)",
      "snapkv | lukv(profile=p) | critical",
      "snapkv | headkv(profile=p)",
      "keydiff | external | topk | round(token)",
      "h2o | adakv | critical",
      "expected_attention(vnorm=false) | adakv | critical",
      "keydiff | external | critical | round(token)"};
  for (uint64_t seed = 1; seed <= 2; ++seed) {
    const Tensors tensors = TinyTensors(ModelShape(), seed);
    for (const char* ratio : {"0.1", "0.4"}) {
      SCOPED_TRACE(testing::Message() << "seed " << seed << ", " << ratio);
      const std::vector<PolicyLoss> losses =
          Measure(tensors, policies, ratio, 16);
      ASSERT_EQ(losses.size(), policies.size());
      for (size_t i = 0; i < losses.size(); ++i) {
        SCOPED_TRACE(policies[i]);
        ExpectWithinBounds(losses[i]);
      }
    }
  }
}

// Scores that are the last query's attention itself, summed over a group.
void ScoreByAttention(Tensors* tensors) {
  const int32_t length = tensors->length;
  const int32_t dim = tensors->head_dim;
  const int32_t group = tensors->num_q_heads / tensors->num_heads;
  for (LayerTensors& layer : tensors->layers) {
    layer.scores.assign(
        static_cast<size_t>(tensors->num_heads) * static_cast<size_t>(length),
        0.0f);
    for (int32_t q = 0; q < tensors->num_q_heads; ++q) {
      std::vector<double> weights;
      double sum = 0;
      for (int32_t j = 0; j < length; ++j) {
        double logit = 0;
        for (int32_t d = 0; d < dim; ++d) {
          const int64_t query = (int64_t{q} * length + length - 1) * dim + d;
          const int64_t key = (int64_t{q / group} * length + j) * dim + d;
          logit += double{layer.queries[static_cast<size_t>(query)]} *
                   double{layer.keys[static_cast<size_t>(key)]};
        }
        weights.push_back(std::exp(logit / std::sqrt(dim)));
        sum += weights.back();
      }
      for (int32_t j = 0; j < length; ++j) {
        const int64_t entry = int64_t{q / group} * length + j;
        layer.scores[static_cast<size_t>(entry)] +=
            static_cast<float>(weights[static_cast<size_t>(j)] / sum);
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
      const std::vector<PolicyLoss> losses =
          Measure(tensors, policies, ratio, 1);
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
