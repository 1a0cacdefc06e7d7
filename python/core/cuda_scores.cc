// CudaKernels: lists of entries, scores, and sizes of values.
#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "blockmgr/base/bits.h"
#include "blockmgr/eviction/policy.h"
#include "kernels/cuda/host/device_scorers.h"
#include "kernels/cuda/list_splits.h"
#include "kernels/cuda/scores/key_scores.h"
#include "kernels/cuda/scores/pooled_scores.h"
#include "kernels/cuda/scores/tova_scores.h"
#include "kernels/cuda/scores/value_norm_scores.h"
#include "kernels/cuda/scores/window_scores.h"
#include "python/core/cuda_kernels.h"
#include "python/core/errors.h"
#include "python/core/kernel_checks.h"

namespace blockmgr::python {
namespace {

constexpr int64_t kMaxLists = int64_t{1} << 20;
constexpr int64_t kMaxListEntries = (int64_t{1} << 30) - 1;  // select.h
constexpr int64_t kMaxEntries = int64_t{1} << 38;

// Adds the splits of the lists that begin at `offsets`, and returns where.
int64_t AddSplitWords(std::span<const int64_t> offsets, int32_t split_entries,
                      int32_t min_splits, std::vector<int32_t>* words) {
  const size_t begin = words->size();
  words->resize(begin + offsets.size());
  FillSplitOffsets(offsets.data(), std::ssize(offsets) - 1, split_entries,
                   words->data() + begin, min_splits);
  return static_cast<int64_t>(begin);
}

void CheckPlanned(const PyEntryPlan& plan) {
  const std::vector<int64_t>& offsets = plan.offsets;
  if (offsets.front() != 0 || offsets.back() > kMaxEntries) {
    ThrowInvalid("offsets: expected 0 first and at most ", kMaxEntries,
                 " last, got ", offsets.front(), " and ", offsets.back());
  }
  for (size_t i = 0; i + 1 < offsets.size(); ++i) {
    if (offsets[i] > offsets[i + 1] ||
        offsets[i + 1] - offsets[i] > kMaxListEntries) {
      ThrowInvalid("offsets: expected ascending values and at most ",
                   kMaxListEntries, " entries of a head, got ", offsets[i],
                   ", ", offsets[i + 1], " at ", i);
    }
  }
}

}  // namespace

EntryLists PyEntryLists::Lists() const {
  const int32_t num_lists = plan->num_lists();
  EntryLists lists;
  lists.num_sequences = plan->num_groups;
  lists.num_heads = plan->layout.num_heads;
  lists.offsets = DataOf<const int64_t>(words);
  lists.slots = DataOf<const int64_t>(slots);
  lists.positions = DataOf<const int32_t>(positions);
  lists.row_splits = {WordsAt(plan->row_splits_at),
                      plan->NumSplits(plan->row_splits_at, num_lists)};
  lists.window_splits = {WordsAt(plan->window_splits_at),
                         plan->NumSplits(plan->window_splits_at, num_lists)};
  return lists;
}

std::shared_ptr<PyEntryPlan> PyCudaKernels::PlanEntries(
    IntsArgument offsets, IntsArgument lengths) const {
  auto plan = std::make_shared<PyEntryPlan>();
  plan->layout = layout_;
  plan->offsets = CopyInts<int64_t>("offsets", offsets, 0, kMaxEntries);
  plan->lengths = CopyInts<int32_t>("lengths", lengths, 1);
  const int64_t num_lists =
      std::ssize(plan->lengths) * int64_t{layout_.num_heads};
  if (plan->lengths.empty() || num_lists > kMaxLists ||
      std::ssize(plan->offsets) != num_lists + 1) {
    ThrowInvalid("offsets, lengths: expected ", layout_.num_heads,
                 " lists for each length, 1 to ", kMaxLists,
                 " in all, and one offset more, got ", plan->offsets.size(),
                 " offsets and ", plan->lengths.size(), " lengths");
  }
  CheckPlanned(*plan);
  plan->num_groups = static_cast<int32_t>(plan->lengths.size());
  std::vector<int32_t>& words = plan->words;
  words.resize(2 * plan->offsets.size());
  std::memcpy(words.data(), plan->offsets.data(),
              plan->offsets.size() * sizeof(int64_t));
  plan->row_splits_at =
      AddSplitWords(plan->offsets, kRowSplitEntries, 0, &words);
  plan->window_splits_at =
      AddSplitWords(plan->offsets, kSplitEntries, 0, &words);
  plan->chunks_at =
      AddSplitWords(plan->offsets, SelectProblem().chunk_entries, 1, &words);
  plan->lengths_at = std::ssize(words);
  words.insert(words.end(), plan->lengths.begin(), plan->lengths.end());
  std::vector<int64_t> tokens = {0};
  for (const int32_t length : plan->lengths) {
    tokens.push_back(tokens.back() + length);
  }
  if (tokens.back() > kMaxEntries) {
    ThrowInvalid("lengths: expected at most ", kMaxEntries,
                 " tokens in all, got ", tokens.back());
  }
  plan->tiles_at = AddSplitWords(tokens, kTovaThreads, 0, &words);
  return plan;
}

void PyCudaKernels::CheckPlan(const PyEntryPlan& plan) const {
  if (plan.layout != layout_) {
    ThrowInvalid("plan: expected one of the layout ", layout_.ToString(),
                 ", got one of ", plan.layout.ToString());
  }
}

PyEntryLists PyCudaKernels::Entries(std::shared_ptr<PyEntryPlan> plan,
                                    TensorArgument words, TensorArgument slots,
                                    TensorArgument positions) const {
  CheckPlan(*plan);
  PyEntryLists entries;
  entries.device = device_;
  // It begins with integers of 64 bits.
  entries.words = Import("words", words, {nb::dtype<int32_t>()},
                         {std::ssize(plan->words)}, {.alignment = 8});
  entries.slots = ImportOf<int64_t>("slots", slots, {plan->num_entries()});
  entries.positions =
      ImportOf<int32_t>("positions", positions, {plan->num_entries()});
  entries.plan = std::move(plan);
  return entries;
}

void PyCudaKernels::CheckEntries(const PyEntryLists& entries) const {
  CheckPlan(*entries.plan);
  if (entries.device != device_) {
    ThrowInvalid("entries: expected those on CUDA device ", device_,
                 ", got those on ", entries.device);
  }
}

// The workspace of a scorer: keys, or windows.
struct PyCudaKernels::ScoreArrays {
  float* partial_sums = nullptr;
  float* lengths = nullptr;
  float* medians = nullptr;
  float* anchors = nullptr;
  float* lse = nullptr;
  float* partial_stats = nullptr;
  float* attention = nullptr;
};

EvictionPolicy PyCudaKernels::CheckedDeviceScorer(
    const PolicyArgument& text, const PyEntryPlan& plan) const {
  CheckPlan(plan);
  EvictionPolicy policy = CheckedScorer(text);
  switch (policy.scorer.kind) {
    case ScorerKind::kKnorm:
    case ScorerKind::kKeyDiff:
    case ScorerKind::kSnapKv:
    case ScorerKind::kTova:
      break;
    default:
      ThrowInvalid("policy: expected knorm, keydiff, snapkv or tova, got ",
                   FormatPolicy(policy));
  }
  const int32_t window = policy.query_window();
  const int32_t shortest = *std::ranges::min_element(plan.lengths);
  if (shortest < window) {
    ThrowInvalid("lengths: expected at least ", window,
                 " tokens, the window of ", FormatPolicy(policy), ", got ",
                 shortest);
  }
  return policy;
}

PyCudaKernels::ScoreArrays PyCudaKernels::TakeScoreArrays(
    const ModelLayout& layout, const EvictionPolicy& policy,
    const PyEntryPlan& plan, WorkspaceCursor* cursor) {
  const int64_t num_lists = plan.num_lists();
  const int32_t num_queries = policy.query_window();
  ScoreArrays arrays;
  if (num_queries > 0) {
    const int64_t num_splits = plan.NumSplits(plan.window_splits_at, num_lists);
    arrays.lse = cursor->Take<float>(int64_t{plan.num_groups} * num_queries *
                                     layout.num_q_heads);
    arrays.partial_stats = cursor->Take<float>(
        2 * num_splits * WindowRows(layout.group_size(), num_queries));
    arrays.attention =
        cursor->Take<float>(plan.num_entries() * layout.group_size());
    return arrays;
  }
  if (policy.scorer.kind == ScorerKind::kKnorm) return arrays;
  if (policy.scorer.anchor == KeyDiffAnchor::kMedian) {
    arrays.lengths = cursor->Take<float>(plan.num_entries());
    arrays.medians = cursor->Take<float>(num_lists * layout.head_dim);
  } else {
    const int64_t num_splits = plan.NumSplits(plan.row_splits_at, num_lists);
    arrays.partial_sums = cursor->Take<float>(num_splits * layout.head_dim);
  }
  arrays.anchors =
      cursor->Take<float>(num_lists * (int64_t{layout.head_dim} + 1));
  return arrays;
}

int64_t PyCudaKernels::ScoreWorkspaceBytes(const PolicyArgument& policy,
                                           const PyEntryPlan& plan) const {
  WorkspaceCursor cursor;
  TakeScoreArrays(layout_, CheckedDeviceScorer(policy, plan), plan, &cursor);
  return cursor.bytes();
}

void PyCudaKernels::Score(const PolicyArgument& text,
                          const PyEntryLists& entries, TensorArgument scores,
                          TensorArgument workspace, TensorArgument queries,
                          std::optional<float> scale,
                          const StreamArgument& stream) {
  CheckEntries(entries);
  const PyEntryPlan& plan = *entries.plan;
  const EvictionPolicy policy = CheckedDeviceScorer(text, plan);
  const float factor = CheckedScale(layout_, scale);
  const AnyArray results =
      ImportOf<float>("scores", scores, {plan.num_entries()}, true);
  WorkspaceCursor counter;
  TakeScoreArrays(layout_, policy, plan, &counter);
  AnyArray memory;
  if (counter.bytes() > 0) {
    memory =
        ImportWorkspace(workspace, counter.bytes(), "score_workspace_bytes");
  }
  const int32_t num_queries = policy.query_window();
  AnyArray query_rows;
  if (num_queries > 0) {
    query_rows = ImportRows(
        "queries", queries,
        {plan.num_groups, num_queries, layout_.num_q_heads, layout_.head_dim});
  }
  WorkspaceCursor cursor(DataOf<char>(memory));
  const ScoreArrays arrays = TakeScoreArrays(layout_, policy, plan, &cursor);
  On(stream);
  if (plan.num_entries() == 0) return;
  if (num_queries > 0) {
    LaunchWindowScores(policy, entries, arrays, query_rows.data(), factor,
                       DataOf<float>(results));
  } else {
    LaunchKeyScores(policy, entries, arrays, DataOf<float>(results));
  }
  ThrowIfFailed();
}

void PyCudaKernels::LaunchKeyScores(const EvictionPolicy& policy,
                                    const PyEntryLists& entries,
                                    const ScoreArrays& arrays, float* scores) {
  KeyScoreParams params = KeyParamsOf(policy.scorer);
  params.entries = entries.Lists();
  params.pool = pool_;
  params.partial_sums = arrays.partial_sums;
  params.lengths = arrays.lengths;
  params.medians = arrays.medians;
  params.anchors = arrays.anchors;
  params.scores = scores;
  runtime_->KeyScores(params, shape_);
}

void PyCudaKernels::LaunchWindowScores(const EvictionPolicy& policy,
                                       const PyEntryLists& entries,
                                       const ScoreArrays& arrays,
                                       const void* queries, float scale,
                                       float* scores) {
  const PyEntryPlan& plan = *entries.plan;
  WindowParams window;
  window.entries = entries.Lists();
  window.pool = pool_;
  window.queries = queries;
  window.window = policy.query_window();
  window.lengths = entries.WordsAt(plan.lengths_at);
  window.group_size = layout_.group_size();
  window.scale = scale;
  window.lse = arrays.lse;
  window.partial_stats = arrays.partial_stats;
  window.attention = arrays.attention;
  runtime_->WindowStats(window, shape_);
  runtime_->WindowColumns(window, shape_);
  if (policy.scorer.kind == ScorerKind::kTova) {
    TovaParams tova;
    tova.entries = window.entries;
    tova.lengths = window.lengths;
    tova.tiles = {entries.WordsAt(plan.tiles_at),
                  plan.NumSplits(plan.tiles_at, plan.num_groups)};
    tova.group_size = window.group_size;
    tova.attention = arrays.attention;
    tova.scores = scores;
    runtime_->Tova(tova);
    return;
  }
  PoolParams pool;
  SetPooling(policy.scorer, &pool);
  pool.entries = window.entries;
  pool.lengths = window.lengths;
  pool.window = window.window;
  pool.group_size = window.group_size;
  pool.attention = arrays.attention;
  pool.scores = scores;
  runtime_->PoolWindow(pool);
}

void PyCudaKernels::ValueNorms(const PolicyArgument& text,
                               const PyEntryLists& entries,
                               TensorArgument projection, TensorArgument norms,
                               const StreamArgument& stream) {
  CheckEntries(entries);
  const EvictionPolicy policy = PolicyOf(text);
  const AnyArray weights = ImportRows(
      "projection", projection, {layout_.num_q_heads, layout_.head_dim, -1});
  const auto model_dim = static_cast<int64_t>(weights.shape(2));
  if (model_dim < 8 || model_dim % 8 != 0) {
    ThrowInvalid("projection: expected a multiple of 8 columns, got ",
                 model_dim);
  }
  const AnyArray results =
      ImportOf<float>("norms", norms, {entries.plan->num_entries()}, true);
  ValueNormParams params;
  params.entries = entries.Lists();
  params.pool = pool_;
  params.projection = weights.data();
  params.model_dim = model_dim;
  params.group_size = layout_.group_size();
  params.l2 = policy.selector.norm == ValueNorm::kL2;
  params.norms = DataOf<float>(results);
  On(stream).ValueNorms(params, shape_);
  ThrowIfFailed();
}

}  // namespace blockmgr::python
