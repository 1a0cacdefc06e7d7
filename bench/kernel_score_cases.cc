// The kernels of an eviction on a problem: scores and selection.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "bench/kernel_cases.h"
#include "blockmgr/base/bits.h"
#include "kernels/cuda/select.h"

namespace blockmgr {
namespace {

// snapkv's default.
constexpr int32_t kPoolKernel = 7;

}  // namespace

void DeviceProblem::AddSnapKv() {
  const int64_t num_entries = std::ssize(slots_);
  const int64_t num_rows = int64_t{problem_.num_sequences} * kWindow *
                           problem_.num_heads * problem_.group_size;
  WindowParams window;
  window.entries = entries_;
  window.queries =
      AllocateElements(num_rows * problem_.head_dim, problem_.seed + 3);
  window.window = kWindow;
  window.lengths = lengths_;
  window.group_size = problem_.group_size;
  window.scale = 1.0f / std::sqrt(static_cast<float>(problem_.head_dim));
  window.lse = Allocate<float>(num_rows);
  window.num_splits = EntrySplits(longest_);
  window.partial_stats =
      Allocate<float>(num_lists() * window.num_splits *
                      WindowRows(problem_.group_size, kWindow) * 2);
  window.attention = Allocate<float>(num_entries * problem_.group_size);
  PoolParams pooling;
  pooling.entries = entries_;
  pooling.lengths = lengths_;
  pooling.window = kWindow;
  pooling.group_size = problem_.group_size;
  pooling.attention = window.attention;
  pooling.kernel = kPoolKernel;
  pooling.scores = scores_;
  // Keys twice.
  cases_.push_back(
      {"snapkv", KernelCeiling::kRead, kv_bytes_, 0, [=, this](int32_t copy) {
         WindowParams p = window;
         p.pool = PoolOf(copy);
         runtime().WindowStats(p, shape_);
         runtime().WindowColumns(p, shape_);
         runtime().PoolWindow(pooling, longest_);
       }});
}

void DeviceProblem::AddKeyScores() {
  KeyScoreParams params;
  params.entries = entries_;
  params.num_splits = EntrySplits(longest_);
  params.partial_sums =
      Allocate<float>(num_lists() * params.num_splits * problem_.head_dim);
  params.anchors = Allocate<float>(num_lists() * (problem_.head_dim + 1));
  params.scores = scores_;
  const auto add = [&](const char* name, KeyMetric metric, double reads) {
    params.metric = metric;
    cases_.push_back({name, KernelCeiling::kRead, reads * kv_bytes_ / 2, 0,
                      [params, this](int32_t copy) {
                        KeyScoreParams p = params;
                        p.pool = PoolOf(copy);
                        runtime().KeyScores(p, shape_);
                      }});
  };
  add("keydiff", KeyMetric::kCosine, 2);
  add("knorm", KeyMetric::kNorm, 1);
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
                      runtime().ValueNorms(p, shape_, longest_);
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

// Of all lists, at the default keep ratio.
void DeviceProblem::AddSelection(const char* name, SelectProblem select,
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
    scopes.push_back(scope);
  }
  select.num_heads = num_heads;
  select.num_scopes = static_cast<int32_t>(scopes.size());
  select.scopes = Send<SelectScope>(scopes);
  select.offsets = entries_.offsets;
  select.positions = entries_.positions;
  select.page_size = problem_.page_size;
  select.num_chunks = std::max(1, CeilDiv(longest_, select.chunk_entries));
  const int64_t num_groups = int64_t{num_heads} + select.num_scopes;
  select.heads = Allocate<SelectHead>(num_heads);
  select.searches = Allocate<RadixSearch>(num_groups);
  select.histograms = Allocate<uint32_t>(num_groups * kRadixBins);
  select.counters = Allocate<uint32_t>(num_groups);
  select.chunk_equals =
      Allocate<int32_t>(int64_t{num_heads} * select.num_chunks);
  select.budgets = Allocate<int32_t>(num_heads);
  select.survivors =
      Allocate<uint32_t>(SurvivorWords(offsets_[num_heads], num_heads));
  select.num_nan = Allocate<int64_t>(1);
  // Scores once at least; latency is what counts.
  cases_.push_back({name, KernelCeiling::kNone,
                    4.0 * static_cast<double>(offsets_[num_heads]), 0,
                    [=, this](int32_t) { runtime().Select(select); }});
}

// In place: every fifth entry of a list stays, on the list's first pages.
void DeviceProblem::AddMovePlan() {
  constexpr int32_t kEvery = 5;
  static_assert(kEvery * kKeepRatio == 1.0);
  const int64_t num_entries = std::ssize(slots_);
  std::vector<uint32_t> survivors(SurvivorWords(num_entries, num_lists()));
  std::vector<int32_t> page_offsets = {0};
  std::vector<int32_t> pages;
  std::vector<int32_t> held;
  std::vector<int32_t> kept;
  std::vector<int64_t> kept_offsets = {0};
  for (int64_t list = 0; list < num_lists(); ++list) {
    const int32_t length = list_length(list);
    const int64_t word = SurvivorWord(offsets_[list], list);
    for (int32_t i = 0; i < length; i += kEvery) {
      survivors[word + i / 32] |= 1u << (i % 32);
    }
    kept.push_back(CeilDiv(length, kEvery));
    kept_offsets.push_back(kept_offsets.back() + kept.back());
    held.push_back(CeilDiv(kept.back(), problem_.page_size));
    const auto first_page = pages_.begin() + page_offsets_[list];
    pages.insert(pages.end(), first_page, first_page + held.back());
    page_offsets.push_back(static_cast<int32_t>(pages.size()));
  }
  const std::vector<int32_t> no_places(
      int64_t{num_blocks_} * problem_.num_heads, -1);
  const int64_t num_kept = kept_offsets.back();
  SelectMoves moves;
  moves.num_heads = static_cast<int32_t>(num_lists());
  moves.page_size = problem_.page_size;
  moves.offsets = entries_.offsets;
  moves.slots = entries_.slots;
  moves.survivors = Send<uint32_t>(survivors);
  moves.page_offsets = Send<int32_t>(page_offsets);
  moves.pages = Send<int32_t>(pages);
  moves.held_pages = Send<int32_t>(held);
  moves.kept = Send<int32_t>(kept);
  moves.kept_offsets = Send<int64_t>(kept_offsets);
  moves.num_pages = std::ssize(no_places);
  moves.error = error_;
  moves.page_places = Send<int32_t>(no_places);
  moves.strays = Allocate<int64_t>(num_kept);
  moves.filled = Allocate<uint32_t>(SurvivorWords(num_kept, num_lists()));
  moves.counts = Allocate<int32_t>(2 * num_lists());
  for (RowMove*& phase : moves.moves) phase = Allocate<RowMove>(num_kept);
  moves.num_moves = Allocate<int64_t>(2);
  // Survivors' slots are read, their moves written; latency is what counts.
  cases_.push_back({"plan_moves", KernelCeiling::kNone,
                    (8.0 + sizeof(RowMove)) * static_cast<double>(num_kept), 0,
                    [=, this](int32_t) { runtime().PlanMoves(moves); }});
}

}  // namespace blockmgr
