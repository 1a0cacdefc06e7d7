#include "bench/kernel_score_cases.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "blockmgr/base/bits.h"
#include "kernels/cuda/scores/expected_scores.h"
#include "kernels/cuda/scores/pooled_scores.h"
#include "kernels/cuda/scores/tova_scores.h"
#include "kernels/cuda/scores/value_norm_scores.h"
#include "kernels/cuda/scores/window_scores.h"

namespace blockmgr {
namespace {

// snapkv's default.
constexpr int32_t kPoolKernel = 7;

// Makes all parameters but the pool, for the attention of the last `window`
// queries.
WindowParams MakeWindow(const EntryLists& entries, int32_t window,
                        CaseBuilder& builder) {
  const KernelInputs& in = builder.in;
  const KernelProblem& problem = in.problem;
  DeviceMemory& memory = builder.memory;
  const int64_t num_rows = int64_t{problem.num_sequences} * window *
                           problem.num_heads * problem.group_size;
  WindowParams params;
  params.entries = entries;
  params.queries = memory.AllocateElements(
      num_rows * problem.head_dim, problem.seed + 3, problem.element_type);
  params.window = window;
  params.lengths = in.lengths;
  params.group_size = problem.group_size;
  params.scale = in.scale();
  params.lse = memory.Allocate<float>(num_rows);
  params.partial_stats =
      memory.Allocate<float>(int64_t{entries.window_splits.count} *
                             WindowRows(problem.group_size, window) * 2);
  params.attention =
      memory.Allocate<float>(in.num_entries() * problem.group_size);
  return params;
}

void Weigh(DeviceRuntime& runtime, const WindowParams& window,
           const RowShape& shape) {
  runtime.WindowStats(window, shape);
  runtime.WindowColumns(window, shape);
}

// Sends scores of all entries. They are distributed exponentially, so they are
// as skewed as those of attention are. The scores of another case would depend
// on which case ran last.
const float* SendScores(CaseBuilder& builder) {
  const uint64_t seed = builder.in.problem.seed + 6;
  std::vector<float> scores(builder.in.slots.size());
  for (std::size_t i = 0; i < scores.size(); ++i) {
    const uint64_t bits = SplitMix64((seed << 40) + i) >> 40;
    // The share is in (0, 1): 24 bits, and half of one.
    const double share = (static_cast<double>(bits) + 0.5) * 0x1p-24;
    scores[i] = static_cast<float>(-std::log(share));
  }
  return builder.memory.Send<float>(scores);
}

}  // namespace

std::function<void(int32_t copy)> MakeSnapKv(const EntryLists& entries,
                                             CaseBuilder& builder) {
  const KernelInputs& in = builder.in;
  const WindowParams window =
      MakeWindow(entries, KernelInputs::kWindow, builder);
  PoolParams pooling;
  pooling.entries = entries;
  pooling.lengths = in.lengths;
  pooling.window = window.window;
  pooling.group_size = in.problem.group_size;
  pooling.attention = window.attention;
  pooling.kernel = kPoolKernel;
  pooling.scores = in.scores;
  return builder.OnPool(
      window, [=, &in](DeviceRuntime& runtime, const WindowParams& p) {
        Weigh(runtime, p, in.shape);
        runtime.PoolWindow(pooling);
      });
}

void AddSnapKv(CaseBuilder& builder) {
  const auto snapkv = MakeSnapKv(builder.in.entries, builder);
  // Keys are read twice.
  builder.cases.push_back(
      {"snapkv", KernelCeiling::kRead, builder.in.kv_bytes(), 0, snapkv});
}

void AddTova(CaseBuilder& builder) {
  const KernelInputs& in = builder.in;
  const WindowParams window = MakeWindow(in.entries, 1, builder);
  std::vector<int64_t> token_offsets = {0};
  for (const int32_t length : in.sequence_lengths) {
    token_offsets.push_back(token_offsets.back() + length);
  }
  TovaParams tova;
  tova.entries = in.entries;
  tova.lengths = in.lengths;
  tova.tiles = SendSplits(token_offsets, kTovaThreads, 0, builder.memory);
  tova.group_size = in.problem.group_size;
  tova.attention = window.attention;
  tova.scores = in.scores;
  // Keys are read twice.
  builder.cases.push_back(
      {"tova", KernelCeiling::kRead, in.kv_bytes(), 0,
       builder.OnPool(window,
                      [=, &in](DeviceRuntime& runtime, const WindowParams& p) {
                        Weigh(runtime, p, in.shape);
                        runtime.Tova(tova);
                      })});
}

void AddExpectedAttention(CaseBuilder& builder) {
  const KernelInputs& in = builder.in;
  DeviceMemory& memory = builder.memory;
  const int64_t num_q_heads = in.num_q_heads();
  const int64_t dim = in.problem.head_dim;
  ExpectedParams params;
  params.entries = in.entries;
  params.group_size = in.problem.group_size;
  params.scale = in.scale();
  // All query heads have the same means. They are so small that logits stay
  // moderate.
  std::vector<float> means(num_q_heads * dim);
  for (std::size_t i = 0; i < means.size(); ++i) {
    means[i] = static_cast<float>(i % dim) / static_cast<float>(dim) - 0.5f;
  }
  params.means = memory.Send<float>(means);
  params.covariances =
      memory.AllocateElements(num_q_heads * dim * 2 * dim, in.problem.seed + 7,
                              in.problem.element_type);
  params.units = memory.Send<float>(std::vector<float>(num_q_heads, 0x1p-6f));
  params.logits =
      memory.Allocate<float>(in.num_entries() * in.problem.group_size);
  params.lse = memory.Allocate<float>(num_q_heads);
  params.scores = in.scores;
  // The product <k, S k>, where the covariances S are in two parts. K and V are
  // read, too.
  const double flops = 4.0 * static_cast<double>(in.num_entries()) *
                       in.problem.group_size * static_cast<double>(dim * dim);
  builder.cases.push_back(
      {"expected_attention", KernelCeiling::kNone, in.kv_bytes(), flops,
       builder.OnPool(params, &DeviceRuntime::ExpectedScores, in.shape)});
}

KeyScoreParams MakeKeyScores(const EntryLists& entries, CaseBuilder& builder) {
  const KernelInputs& in = builder.in;
  const int64_t dim = in.problem.head_dim;
  KeyScoreParams params;
  params.entries = entries;
  params.partial_sums =
      builder.memory.Allocate<float>(entries.row_splits.count * dim);
  params.anchors = builder.memory.Allocate<float>(in.num_lists() * (dim + 1));
  params.scores = in.scores;
  return params;
}

void AddKeyScores(CaseBuilder& builder) {
  const KernelInputs& in = builder.in;
  DeviceMemory& memory = builder.memory;
  KeyScoreParams params = MakeKeyScores(in.entries, builder);
  params.lengths = memory.Allocate<float>(in.num_entries());
  params.medians = memory.Allocate<float>(in.num_lists() * in.problem.head_dim);
  const auto add = [&](const char* name, KeyAnchor anchor, KeyMetric metric,
                       double reads) {
    params.anchor = anchor;
    params.metric = metric;
    builder.cases.push_back(
        {name, KernelCeiling::kRead, reads * in.kv_bytes() / 2, 0,
         builder.OnPool(params, &DeviceRuntime::KeyScores, in.shape)});
  };
  add("keydiff", KeyAnchor::kNormalized, KeyMetric::kCosine, 2);
  // Keys are read for lengths, for each of four digits, for the lower of the
  // middle two, and for the comparison.
  add("keydiff_median", KeyAnchor::kMedian, KeyMetric::kCosine, 7);
  add("knorm", KeyAnchor::kNormalized, KeyMetric::kNorm, 1);
}

void AddValueNorms(CaseBuilder& builder) {
  const KernelInputs& in = builder.in;
  const int32_t group_size = in.problem.group_size;
  const int64_t num_weights = int64_t{in.problem.num_heads} * group_size *
                              in.problem.head_dim * in.model_dim;
  ValueNormParams params;
  params.entries = in.entries;
  params.projection = builder.memory.AllocateElements(
      num_weights, in.problem.seed + 4, in.problem.element_type);
  params.model_dim = in.model_dim;
  params.group_size = group_size;
  params.norms = in.scores;
  builder.cases.push_back(
      {"value_norms", KernelCeiling::kNone, 0,
       2.0 * static_cast<double>(in.num_entries()) * group_size *
           in.problem.head_dim * in.model_dim,
       builder.OnPool(params, &DeviceRuntime::ValueNorms, in.shape)});
}

SelectProblem MakeSelection(SelectProblem select, int32_t scope_heads,
                            CaseBuilder& builder) {
  const KernelInputs& in = builder.in;
  DeviceMemory& memory = builder.memory;
  const auto num_heads = static_cast<int32_t>(in.num_lists());
  std::vector<SelectScope> scopes;
  for (int32_t head = 0; head < num_heads; head += scope_heads) {
    SelectScope scope{};
    scope.first_head = head;
    scope.num_heads = std::min(scope_heads, num_heads - head);
    const double held = static_cast<double>(in.offsets[head + scope.num_heads] -
                                            in.offsets[head]);
    scope.entries = static_cast<int64_t>(kBenchKeepRatio * held);
    // Every head may keep a page.
    scope.pages = std::max<int64_t>(scope.entries / in.problem.page_size,
                                    scope.num_heads);
    scope.min_pages = 1;
    scope.recent_begin = in.max_length;
    scope.cut = in.max_length;
    scopes.push_back(scope);
  }
  select.num_heads = num_heads;
  select.num_scopes = static_cast<int32_t>(scopes.size());
  select.scopes = memory.Send<SelectScope>(scopes);
  select.offsets = in.entries.offsets;
  select.positions = in.entries.positions;
  select.page_size = in.problem.page_size;
  select.divide_from = DivideFrom(in.offsets.data(), num_heads);
  select.chunks = SendSplits(in.offsets, select.chunk_entries, 1, memory);
  const int64_t num_groups = int64_t{num_heads} + select.num_scopes;
  select.heads = memory.Allocate<SelectHead>(num_heads);
  select.searches = memory.Allocate<RadixSearch>(num_groups);
  select.histograms = memory.Allocate<uint32_t>(num_groups * kRadixBins);
  select.counters = memory.Allocate<uint32_t>(num_groups);
  select.budgets = memory.Allocate<int32_t>(num_heads);
  const int64_t num_words = SurvivorWords(in.offsets[num_heads], num_heads);
  select.ties = memory.Allocate<uint32_t>(num_words);
  select.survivors = memory.Allocate<uint32_t>(num_words);
  select.num_nan = memory.Allocate<int64_t>(1);
  return select;
}

void AddSelection(const char* name, SelectProblem select, int32_t scope_heads,
                  CaseBuilder& builder) {
  select.scores = SendScores(builder);
  if (select.critical) select.value_norms = select.scores;
  select = MakeSelection(select, scope_heads, builder);
  // Scores are read once at least, but latency is what counts.
  builder.cases.push_back({name, KernelCeiling::kNone,
                           4.0 * static_cast<double>(builder.in.num_entries()),
                           0, builder.OffPool(&DeviceRuntime::Select, select)});
}

}  // namespace blockmgr
