#include "kernels/cpu/cpu_scorer.h"

#include <algorithm>
#include <memory>

#include "blockmgr/base/check.h"
#include "kernels/cpu/attention_scores.h"
#include "kernels/cpu/drop_scores.h"
#include "kernels/cpu/expected_attention.h"
#include "kernels/cpu/key_scores.h"

namespace blockmgr {
namespace {

template <typename T>
std::unique_ptr<CpuScorer> Make(const ModelLayout& layout) {
  return std::make_unique<T>(layout);
}

struct Registration {
  ScorerKind kind;
  std::unique_ptr<CpuScorer> (*make)(const ModelLayout& layout);
};

constexpr Registration kRegistrations[] = {
    {ScorerKind::kSnapKv, Make<SnapKvScorer>},
    {ScorerKind::kH2o, Make<H2oScorer>},
    {ScorerKind::kTova, Make<TovaScorer>},
    {ScorerKind::kKeyDiff, Make<KeyDiffScorer>},
    {ScorerKind::kExpectedAttention, Make<ExpectedAttentionScorer>},
    {ScorerKind::kKnorm, Make<KnormScorer>},
    {ScorerKind::kDropKv, Make<DropKvScorer>},
};

}  // namespace

bool HasCpuScorer(ScorerKind kind) {
  return std::ranges::find(kRegistrations, kind, &Registration::kind) !=
         std::ranges::end(kRegistrations);
}

std::unique_ptr<CpuScorer> MakeCpuScorer(ScorerKind kind,
                                         const ModelLayout& layout) {
  BM_CHECK(HasCpuScorer(kind));
  return std::ranges::find(kRegistrations, kind, &Registration::kind)
      ->make(layout);
}

}  // namespace blockmgr
