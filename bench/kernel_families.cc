// Which cases there are, and one family of them after the other on the device.
#include <algorithm>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "bench/kernel_cases.h"
#include "kernels/cuda/attention/decode_attention.h"
#include "kernels/cuda/selection/select.h"

namespace blockmgr {

// Families that write to pools come after those that only read them, which
// find the problem's own contents there.
const std::vector<DeviceProblem::Family>& DeviceProblem::Families() {
  using P = DeviceProblem;
  static const auto& families = *new std::vector<Family>{
      {{"read_ceiling", "copy_ceiling"}, [](P& p) { p.AddCeilings(); }},
      {{"decode"}, [](P& p) { p.AddDecode("decode", p.MakeDecode(0)); }},
      {{"decode_invariant"},
       [](P& p) {
         p.AddDecode("decode_invariant", p.MakeDecode(kInvariantChunkTiles));
       }},
      {{"decode_logits", "h2o_add", "h2o_finish"},
       [](P& p) { p.AddDecodeSums(); }},
      {{"chunk"}, [](P& p) { p.AddChunk(); }},
      {{"index_entries"}, [](P& p) { p.AddIndex(); }},
      {{"snapkv"}, [](P& p) { p.AddSnapKv(); }},
      {{"tova"}, [](P& p) { p.AddTova(); }},
      {{"expected_attention"}, [](P& p) { p.AddExpected(); }},
      {{"keydiff", "keydiff_median", "knorm"}, [](P& p) { p.AddKeyScores(); }},
      {{"value_norms"}, [](P& p) { p.AddValueNorms(); }},
      {{"select_uniform"},
       [](P& p) {
         p.AddSelection("select_uniform", {}, p.problem_.num_heads);
       }},
      {{"select_global"},
       [](P& p) {
         SelectProblem select;
         select.budget = SelectBudget::kBlend;
         p.AddSelection("select_global", select,
                        static_cast<int32_t>(p.num_lists()));
       }},
      {{"select_adakv"},
       [](P& p) {
         SelectProblem select;
         select.budget = SelectBudget::kBlend;
         select.alpha = kAdaKvAlpha;
         p.AddSelection("select_adakv", select, p.problem_.num_heads);
       }},
      {{"select_critical"},
       [](P& p) {
         SelectProblem select;
         select.budget = SelectBudget::kBlend;
         select.alpha = kAdaKvAlpha;
         select.critical = true;
         select.first_share = 500'000'000;
         p.AddSelection("select_critical", select, p.problem_.num_heads);
       }},
      {{"select_floor"},
       [](P& p) {
         SelectProblem select;
         select.budget = SelectBudget::kFloor;
         select.alpha = kAdaKvAlpha;
         p.AddSelection("select_floor", select, p.problem_.num_heads);
       }},
      {{"plan_moves"}, [](P& p) { p.AddMovePlan(); }},
      {{"gather"}, [](P& p) { p.AddGather(); }},
      {{"compact", "compact_in_place"}, [](P& p) { p.AddMoves(); }},
      {{"copy_blocks"}, [](P& p) { p.AddBlockCopies(); }},
      {{"swap_pack", "swap_unpack"}, [](P& p) { p.AddSwap(); }},
      {{"append"}, [](P& p) { p.AddAppend(); }},
      {{"evict_snapkv"}, [](P& p) { p.AddSnapKvEviction(); }},
      {{"evict_keydiff"}, [](P& p) { p.AddKeyDiffEviction(); }},
  };
  return families;
}

std::vector<std::string> DeviceProblem::KernelNames() {
  std::vector<std::string> names;
  for (const Family& family : Families()) {
    names.insert(names.end(), family.kernels.begin(), family.kernels.end());
  }
  return names;
}

absl::Status DeviceProblem::ForEachCase(std::span<const std::string> kernels,
                                        const Visit& visit) {
  const auto is_wanted = [&](const std::string& kernel) {
    return kernels.empty() ||
           std::ranges::find(kernels, kernel) != kernels.end();
  };
  for (const Family& family : Families()) {
    if (std::ranges::none_of(family.kernels, is_wanted)) continue;
    const std::size_t num_shared = memory_.size();
    family.add(*this);
    absl::Status status = std::exchange(status_, absl::OkStatus());
    if (absl::IsResourceExhausted(status)) {
      // For this one alone: what it has got is there for the next.
      for (KernelCase& c : cases_) c = {.kernel = c.kernel, .status = status};
      status = absl::OkStatus();
    }
    if (status.ok()) status = device_.status();
    for (const KernelCase& c : cases_) {
      if (status.ok() && is_wanted(c.kernel)) status = visit(c);
    }
    cases_.clear();
    FreeDownTo(num_shared);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace blockmgr
