#include "bench/kernel_families.h"

#include <cstdint>

#include "bench/kernel_eviction_cases.h"
#include "bench/kernel_score_cases.h"
#include "bench/kernel_step_cases.h"
#include "kernels/cuda/attention/decode_attention.h"
#include "kernels/cuda/selection/select.h"

namespace blockmgr {
namespace {

SelectProblem MakeSelect(SelectBudget budget, int64_t alpha) {
  SelectProblem select;
  select.budget = budget;
  select.alpha = alpha;
  return select;
}

// Adds a selection in which the heads of every sequence share a scope.
void AddShared(const char* name, const SelectProblem& select,
               CaseBuilder& builder) {
  AddSelection(name, select, builder.in.problem.num_heads, builder);
}

}  // namespace

const std::vector<KernelFamily>& KernelFamilies() {
  using enum SelectBudget;
  using B = CaseBuilder;
  static const auto& families = *new std::vector<KernelFamily>{
      {{"read_ceiling", "copy_ceiling"}, AddCeilings},
      {{"decode"}, [](B& b) { AddDecode("decode", 0, b); }},
      {{"decode_invariant"},
       [](B& b) { AddDecode("decode_invariant", kInvariantChunkTiles, b); }},
      {{"decode_sinks"}, AddDecodeSinks},
      {{"decode_logits", "h2o_add", "h2o_finish"}, AddDecodeSums},
      {{"chunk"}, AddChunk},
      {{"index_entries"}, AddIndex},
      {{"snapkv"}, AddSnapKv},
      {{"tova"}, AddTova},
      {{"expected_attention"}, AddExpectedAttention},
      {{"keydiff", "keydiff_median", "knorm"}, AddKeyScores},
      {{"value_norms"}, AddValueNorms},
      {{"select_uniform"}, [](B& b) { AddShared("select_uniform", {}, b); }},
      {{"select_global"},
       [](B& b) {
         AddSelection("select_global", MakeSelect(kBlend, 0),
                      static_cast<int32_t>(b.in.num_lists()), b);
       }},
      {{"select_adakv"},
       [](B& b) {
         AddShared("select_adakv", MakeSelect(kBlend, kBenchAdaKvAlpha), b);
       }},
      {{"select_critical"},
       [](B& b) {
         SelectProblem select = MakeSelect(kBlend, kBenchAdaKvAlpha);
         select.critical = true;
         select.first_share = 500'000'000;
         AddShared("select_critical", select, b);
       }},
      {{"select_floor"},
       [](B& b) {
         AddShared("select_floor", MakeSelect(kFloor, kBenchAdaKvAlpha), b);
       }},
      {{"plan_moves"}, AddMovePlan},
      {{"gather"}, AddGather},
      {{"compact", "compact_in_place"}, AddMoves},
      {{"copy_blocks"}, AddBlockCopies},
      {{"swap_pack", "swap_unpack"}, AddSwap},
      {{"append"}, AddAppend},
      {{"evict_snapkv"}, AddSnapKvEviction},
      {{"evict_keydiff"}, AddKeyDiffEviction},
  };
  return families;
}

}  // namespace blockmgr
