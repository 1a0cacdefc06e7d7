// The bounds of the papers on the tensors of a model that really computes.

#include <cmath>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "bench/evict/perturbation.h"
#include "bench/evict/policy_runner.h"
#include "bench/evict/tiny_oracle.h"
#include "tests/testing/status_matchers.h"

namespace blockmgr {
namespace {

constexpr double kSlack = 1e-5;  // fp32 sizes of values against double outputs

Tensors TinyTensors() {
  TinyOracleOptions options;
  options.context_tokens = 320;
  options.num_queries = 1;
  options.query_tokens = 2;
  return MeasureTinyOracle(TinyShape(), options).tensors;
}

EvictionTarget KeepTarget(const char* ratio) {
  EvictionTarget target;
  target.ratio = *KeepRatio::Parse(ratio);
  return target;
}

std::vector<PolicyLoss> Measure(const Tensors& tensors,
                                const std::vector<const char*>& policies,
                                const char* ratio, int32_t queries_window) {
  std::vector<KeepSets> keep;
  for (const char* text : policies) {
    const auto run = RunPolicy(*ParsePolicy(text), KeepTarget(ratio), tensors,
                               PolicyRunOptions());
    EXPECT_THAT(run, IsOk()) << text;
    if (run.ok()) keep.push_back(run->keep);
  }
  PerturbationOptions options;
  options.queries_window = queries_window;
  const auto losses = MeasurePerturbation(tensors, keep, options);
  EXPECT_THAT(losses, IsOk());
  return losses.ok() ? *losses : std::vector<PolicyLoss>();
}

TEST(TinyBoundsTest, EveryMethodStaysWithinItsBounds) {
  const Tensors tensors = TinyTensors();
  const std::vector<const char*> policies = {
      "snapkv | uniform",
      "snapkv(pool=avg,kernel=5,order=kvpress,group=max) | adakv",
      "h2o | adakv(mode=floor)",
      "h2o(obs_window=64,norm=count) | pyramid",
      "tova",
      "keydiff | uniform | topk | protect(sinks=4,recent=1)",
      "keydiff(anchor=median,metric=dot) | ada_pyramid",
      "expected_attention | adakv",
      "streaming",
      "knorm | global",
      "random",
      "snapkv | global | critical",
      "snapkv | adakv | critical(gqa_product=true)",
      "snapkv | uniform | critical(norm=l2)"};
  for (const char* ratio : {"0.1", "0.4"}) {
    const std::vector<PolicyLoss> losses =
        Measure(tensors, policies, ratio, 16);
    ASSERT_EQ(losses.size(), policies.size());
    for (size_t i = 0; i < losses.size(); ++i) {
      SCOPED_TRACE(policies[i]);
      for (const std::vector<LossMeans>& parts :
           {losses[i].layers, losses[i].q_heads}) {
        for (const LossMeans& loss : parts) {
          EXPECT_LE(loss.perturbation,
                    loss.critical_kv_bound * (1 + kSlack) + kSlack);
          EXPECT_LE(loss.perturbation,
                    loss.ada_kv_bound * (1 + kSlack) + kSlack);
        }
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

TEST(TinyBoundsTest, AdaKvsBoundIsNeverAboveUniforms) {
  Tensors tensors = TinyTensors();
  ScoreByAttention(&tensors);
  const std::vector<const char*> policies = {
      "external | uniform | topk | protect(recent=1) | round(token)",
      "external | adakv(alpha=0.2) | topk | protect(recent=1) | round(token)",
      "external | adakv(alpha=0.2,mode=floor) | topk | protect(recent=1) | "
      "round(token)"};
  for (const char* ratio : {"0.05", "0.1", "0.2", "0.4", "0.8"}) {
    SCOPED_TRACE(ratio);
    const std::vector<PolicyLoss> losses = Measure(tensors, policies, ratio, 1);
    ASSERT_EQ(losses.size(), policies.size());
    for (int32_t layer = 0; layer < tensors.num_layers(); ++layer) {
      const auto at = static_cast<size_t>(layer);
      const double uniform = losses[0].layers[at].ada_kv_bound;
      EXPECT_LE(losses[1].layers[at].ada_kv_bound, uniform * (1 + kSlack));
      EXPECT_LE(losses[2].layers[at].ada_kv_bound, uniform * (1 + kSlack));
    }
  }
}

}  // namespace
}  // namespace blockmgr
