// The kernels of an eviction on a problem: scores and selection.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "bench/kernel_cases.h"
#include "blockmgr/base/bits.h"
#include "kernels/cuda/scores/expected_scores.h"
#include "kernels/cuda/scores/tova_scores.h"
#include "kernels/cuda/selection/select.h"

namespace blockmgr {
namespace {

// snapkv's default.
constexpr int32_t kPoolKernel = 7;

}  // namespace

WindowParams DeviceProblem::MakeWindow(int32_t window) {
  const int64_t num_rows = int64_t{problem_.num_sequences} * window *
                           problem_.num_heads * problem_.group_size;
  WindowParams params;
  params.entries = entries_;
  params.queries =
      AllocateElements(num_rows * problem_.head_dim, problem_.seed + 3);
  params.window = window;
  params.lengths = lengths_;
  params.group_size = problem_.group_size;
  params.scale = 1.0f / std::sqrt(static_cast<float>(problem_.head_dim));
  params.lse = Allocate<float>(num_rows);
  params.partial_stats =
      Allocate<float>(int64_t{entries_.window_splits.count} *
                      WindowRows(problem_.group_size, window) * 2);
  params.attention = Allocate<float>(std::ssize(slots_) * problem_.group_size);
  return params;
}

void DeviceProblem::Weigh(WindowParams window, int32_t copy) const {
  window.pool = PoolOf(copy);
  runtime().WindowStats(window, shape_);
  runtime().WindowColumns(window, shape_);
}

PoolParams DeviceProblem::MakePooling(const WindowParams& window) const {
  PoolParams params;
  params.entries = window.entries;
  params.lengths = lengths_;
  params.window = window.window;
  params.group_size = problem_.group_size;
  params.attention = window.attention;
  params.kernel = kPoolKernel;
  params.scores = scores_;
  return params;
}

void DeviceProblem::AddSnapKv() {
  const WindowParams window = MakeWindow(kWindow);
  const PoolParams pooling = MakePooling(window);
  // Keys twice.
  cases_.push_back(
      {"snapkv", KernelCeiling::kRead, kv_bytes_, 0, [=, this](int32_t copy) {
         Weigh(window, copy);
         runtime().PoolWindow(pooling);
       }});
}

void DeviceProblem::AddTova() {
  const WindowParams window = MakeWindow(1);
  std::vector<int64_t> token_offsets = {0};
  for (const int32_t length : sequence_lengths_) {
    token_offsets.push_back(token_offsets.back() + length);
  }
  TovaParams tova;
  tova.entries = entries_;
  tova.lengths = lengths_;
  tova.tiles = SendSplits(token_offsets, kTovaThreads);
  tova.group_size = problem_.group_size;
  tova.attention = window.attention;
  tova.scores = scores_;
  // Keys twice.
  cases_.push_back(
      {"tova", KernelCeiling::kRead, kv_bytes_, 0, [=, this](int32_t copy) {
         Weigh(window, copy);
         runtime().Tova(tova);
       }});
}

void DeviceProblem::AddExpected() {
  const int64_t num_q_heads = num_lists() * problem_.group_size;
  const int64_t dim = problem_.head_dim;
  ExpectedParams params;
  params.entries = entries_;
  params.group_size = problem_.group_size;
  params.scale = 1.0f / std::sqrt(static_cast<float>(dim));
  // One query head's for all, small enough for logits to stay moderate.
  std::vector<float> means(num_q_heads * dim);
  for (std::size_t i = 0; i < means.size(); ++i) {
    means[i] = static_cast<float>(i % dim) / static_cast<float>(dim) - 0.5f;
  }
  params.means = Send<float>(means);
  params.covariances =
      AllocateElements(num_q_heads * dim * 2 * dim, problem_.seed + 7);
  params.units = Send<float>(std::vector<float>(num_q_heads, 0x1p-6f));
  params.logits = Allocate<float>(std::ssize(slots_) * problem_.group_size);
  params.lse = Allocate<float>(num_q_heads);
  params.scores = scores_;
  // <k, S k> of covariances in two parts. K and V are read, too.
  const double flops = 4.0 * static_cast<double>(slots_.size()) *
                       problem_.group_size * static_cast<double>(dim * dim);
  cases_.push_back({"expected_attention", KernelCeiling::kNone, kv_bytes_,
                    flops, [=, this](int32_t copy) {
                      ExpectedParams p = params;
                      p.pool = PoolOf(copy);
                      runtime().ExpectedScores(p, shape_);
                    }});
}

KeyScoreParams DeviceProblem::MakeKeyScores() {
  KeyScoreParams params;
  params.entries = entries_;
  params.partial_sums =
      Allocate<float>(int64_t{entries_.row_splits.count} * problem_.head_dim);
  params.anchors = Allocate<float>(num_lists() * (problem_.head_dim + 1));
  params.scores = scores_;
  return params;
}

void DeviceProblem::AddKeyScores() {
  KeyScoreParams params = MakeKeyScores();
  params.lengths = Allocate<float>(std::ssize(slots_));
  params.medians = Allocate<float>(num_lists() * problem_.head_dim);
  const auto add = [&](const char* name, KeyAnchor anchor, KeyMetric metric,
                       double reads) {
    params.anchor = anchor;
    params.metric = metric;
    cases_.push_back({name, KernelCeiling::kRead, reads * kv_bytes_ / 2, 0,
                      [params, this](int32_t copy) {
                        KeyScoreParams p = params;
                        p.pool = PoolOf(copy);
                        runtime().KeyScores(p, shape_);
                      }});
  };
  add("keydiff", KeyAnchor::kNormalized, KeyMetric::kCosine, 2);
  // Lengths, four digits, the lower of the middle two, the comparison.
  add("keydiff_median", KeyAnchor::kMedian, KeyMetric::kCosine, 7);
  add("knorm", KeyAnchor::kNormalized, KeyMetric::kNorm, 1);
}

void DeviceProblem::AddValueNorms() {
  const int64_t num_weights = int64_t{problem_.num_heads} *
                              problem_.group_size * problem_.head_dim *
                              options_.model_dim;
  ValueNormParams params;
  params.entries = entries_;
  params.projection = AllocateElements(num_weights, problem_.seed + 4);
  params.model_dim = options_.model_dim;
  params.group_size = problem_.group_size;
  params.norms = scores_;
  cases_.push_back({"value_norms", KernelCeiling::kNone, 0,
                    2.0 * static_cast<double>(slots_.size()) *
                        problem_.group_size * problem_.head_dim *
                        options_.model_dim,
                    [=, this](int32_t copy) {
                      ValueNormParams p = params;
                      p.pool = PoolOf(copy);
                      runtime().ValueNorms(p, shape_);
                    }});
}

const float* DeviceProblem::SendScores() {
  std::vector<float> scores;
  scores.reserve(slots_.size());
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    const uint64_t bits = SplitMix64(((problem_.seed + 6) << 40) + i) >> 40;
    // (0, 1]: 24 bits, and half of one.
    const double share = (static_cast<double>(bits) + 0.5) * 0x1p-24;
    scores.push_back(static_cast<float>(-std::log(share)));
  }
  return Send<float>(scores);
}

// The selection covers all lists, at the default keep ratio.
SelectProblem DeviceProblem::MakeSelection(SelectProblem select,
                                           int32_t scope_heads) {
  const auto num_heads = static_cast<int32_t>(num_lists());
  std::vector<SelectScope> scopes;
  for (int32_t head = 0; head < num_heads; head += scope_heads) {
    SelectScope scope{};
    scope.first_head = head;
    scope.num_heads = std::min(scope_heads, num_heads - head);
    const double held =
        static_cast<double>(offsets_[head + scope.num_heads] - offsets_[head]);
    scope.entries = static_cast<int64_t>(kKeepRatio * held);
    // Every head may keep a page.
    scope.pages =
        std::max<int64_t>(scope.entries / problem_.page_size, scope.num_heads);
    scope.min_pages = 1;
    scope.recent_begin = max_length_;
    scope.cut = max_length_;
    scopes.push_back(scope);
  }
  select.num_heads = num_heads;
  select.num_scopes = static_cast<int32_t>(scopes.size());
  select.scopes = Send<SelectScope>(scopes);
  select.offsets = entries_.offsets;
  select.positions = entries_.positions;
  select.page_size = problem_.page_size;
  select.chunks = SendSplits(offsets_, select.chunk_entries, 1);
  const int64_t num_groups = int64_t{num_heads} + select.num_scopes;
  select.heads = Allocate<SelectHead>(num_heads);
  select.searches = Allocate<RadixSearch>(num_groups);
  select.histograms =
      Allocate<uint32_t>(int64_t{select.num_scopes} * kRadixBins);
  select.last_bins = Allocate<uint32_t>(int64_t{num_heads} * kLastRadixBins);
  select.counters = Allocate<uint32_t>(select.num_scopes);
  select.budgets = Allocate<int32_t>(num_heads);
  const int64_t num_words = SurvivorWords(offsets_[num_heads], num_heads);
  select.ties = Allocate<uint32_t>(num_words);
  select.survivors = Allocate<uint32_t>(num_words);
  select.num_nan = Allocate<int64_t>(1);
  return select;
}

void DeviceProblem::AddSelection(const char* name, SelectProblem problem,
                                 int32_t scope_heads) {
  problem.scores = SendScores();
  if (problem.critical) problem.value_norms = problem.scores;
  const SelectProblem select = MakeSelection(problem, scope_heads);
  // Scores once at least; latency is what counts.
  cases_.push_back({name, KernelCeiling::kNone,
                    4.0 * static_cast<double>(slots_.size()), 0,
                    [=, this](int32_t) { runtime().Select(select); }});
}

}  // namespace blockmgr
