#include "kernels/cpu/cpu_scorer.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include "blockmgr/base/dtype.h"
#include "blockmgr/eviction/policy.h"
#include "blockmgr/eviction/policy_fields.h"
#include "examples/value_size_scorer.h"
#include "kernels/cpu/kv_arena.h"
#include "tests/kernels/kernel_cases.h"
#include "tests/kernels/score_cases.h"

namespace blockmgr {
namespace {

TEST(CpuScorerTest, EveryScorerThatABackendComputesIsRegistered) {
  Rng rng(1);
  const ModelLayout layout = LayoutFor(rng, DType::kFloat32, 1);
  for (size_t kind = 0; kind < EnumNames<ScorerKind>().size(); ++kind) {
    EvictionPolicy policy;
    policy.scorer.kind = static_cast<ScorerKind>(kind);
    const bool reads_pool = policy.score_source() == ScoreSource::kBackend;
    EXPECT_EQ(HasCpuScorer(policy.scorer.kind), reads_pool)
        << EnumName(policy.scorer.kind);
    if (!reads_pool) continue;
    EXPECT_NE(MakeCpuScorer(policy.scorer.kind, layout), nullptr);
  }
}

// The scorer of docs/eviction.md.
TEST(CpuScorerTest, ValueSizesAreTheLengthsOfValues) {
  Rng rng(7);
  const ModelLayout layout = LayoutFor(rng, DType::kFloat32, 150);
  const ScoreCase test(layout, {.length = 150}, 7);
  KvArena arena = *KvArena::Create(layout);
  for (int64_t i = 0; i < test.size(); ++i) {
    const auto value = std::as_bytes(test.value(i));
    std::ranges::copy(value, arena.key_row(test.slots[i]) + arena.kv_stride());
  }
  ScoreBatch batch = test.Batch({});
  std::vector<float> scores(static_cast<size_t>(test.size()));
  batch.scores = scores;
  ValueSizeScorer(layout).Score(arena, batch);
  for (int64_t i = 0; i < test.size(); ++i) {
    double square = 0.0;
    for (const float x : test.value(i)) square += double{x} * double{x};
    EXPECT_NEAR(scores[i], std::sqrt(square), 1e-4);
  }
}

}  // namespace
}  // namespace blockmgr
