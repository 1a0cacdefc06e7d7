// CudaKernels: lists of entries, scores, and sizes of values.
#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "blockmgr/base/bits.h"
#include "blockmgr/eviction/policy.h"
#include "kernels/cuda/host/device_scorers.h"
#include "kernels/cuda/scores/expected_scores.h"
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
// With 16 query heads of a group, WindowRows stays below 2^31.
constexpr int64_t kMaxQueries = int64_t{1} << 26;

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

// Checks that all sequences have the last queries that `reader` reads.
void CheckQueries(const PyEntryPlan& plan, int64_t num_queries,
                  absl::string_view reader) {
  const int32_t shortest = *std::ranges::min_element(plan.lengths);
  if (num_queries > kMaxQueries) {
    ThrowInvalid("queries: expected at most ", kMaxQueries, " for ", reader,
                 ", got ", num_queries);
  }
  if (num_queries > shortest) {
    ThrowInvalid("lengths: expected at least ", num_queries,
                 " tokens, the queries of ", reader, ", got ", shortest);
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
                      plan->CountSplits(plan->row_splits_at, num_lists)};
  lists.window_splits = {WordsAt(plan->window_splits_at),
                         plan->CountSplits(plan->window_splits_at, num_lists)};
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

// The workspace of a scorer: keys, windows or expected queries.
struct PyCudaKernels::ScoreArrays {
  float* partial_sums = nullptr;
  float* lengths = nullptr;
  float* medians = nullptr;
  float* anchors = nullptr;
  float* lse = nullptr;
  float* partial_stats = nullptr;
  float* attention = nullptr;
  float* logits = nullptr;
};

// The checked arguments of a call of Score. Tensors that the policy does not
// read are empty.
struct PyCudaKernels::ScoreCall {
  const EvictionPolicy& policy;
  const PyEntryLists& entries;
  float scale = 1.0f;
  ScoreArrays arrays = {};
  AnyArray scores = {};
  AnyArray queries = {};
  AnyArray num_queries = {};
  AnyArray norms = {};
  AnyArray products = {};
  AnyArray means = {};
  AnyArray covariances = {};
  AnyArray units = {};
};

EvictionPolicy PyCudaKernels::CheckedDeviceScorer(
    const PolicyArgument& text, const PyEntryPlan& plan) const {
  CheckPlan(plan);
  EvictionPolicy policy = PolicyOf(text);
  if (LaunchOf(policy.scorer.kind) == nullptr) {
    ThrowInvalid("policy: expected knorm, keydiff, snapkv, tova, h2o or ",
                 "expected_attention, got ", FormatPolicy(policy));
  }
  CheckQueries(plan, policy.query_window(), FormatPolicy(policy));
  return policy;
}

void PyCudaKernels::TakeWindowArrays(const ModelLayout& layout,
                                     const PyEntryPlan& plan,
                                     int32_t num_queries, ScoreArrays* arrays,
                                     WorkspaceCursor* cursor) {
  const int64_t num_splits =
      plan.CountSplits(plan.window_splits_at, plan.num_lists());
  arrays->lse = cursor->Take<float>(int64_t{plan.num_groups} * num_queries *
                                    layout.num_q_heads);
  arrays->partial_stats = cursor->Take<float>(
      2 * num_splits * WindowRows(layout.group_size(), num_queries));
}

PyCudaKernels::ScoreArrays PyCudaKernels::TakeScoreArrays(
    const ModelLayout& layout, const EvictionPolicy& policy,
    const PyEntryPlan& plan, WorkspaceCursor* cursor) {
  const int64_t num_lists = plan.num_lists();
  const int32_t num_queries = policy.query_window();
  const int64_t num_weights = plan.num_entries() * layout.group_size();
  ScoreArrays arrays;
  switch (policy.scorer.kind) {
    case ScorerKind::kH2o:
      if (num_queries > 0) {
        TakeWindowArrays(layout, plan, num_queries, &arrays, cursor);
      }
      break;
    case ScorerKind::kSnapKv:
    case ScorerKind::kTova:
      TakeWindowArrays(layout, plan, num_queries, &arrays, cursor);
      arrays.attention = cursor->Take<float>(num_weights);
      break;
    case ScorerKind::kExpectedAttention:
      arrays.logits = cursor->Take<float>(num_weights);
      arrays.lse = cursor->Take<float>(num_lists * layout.group_size());
      break;
    case ScorerKind::kKeyDiff:
      if (policy.scorer.anchor == KeyDiffAnchor::kMedian) {
        arrays.lengths = cursor->Take<float>(plan.num_entries());
        arrays.medians = cursor->Take<float>(num_lists * layout.head_dim);
      } else {
        arrays.partial_sums = cursor->Take<float>(
            int64_t{plan.CountSplits(plan.row_splits_at, num_lists)} *
            layout.head_dim);
      }
      arrays.anchors =
          cursor->Take<float>(num_lists * (int64_t{layout.head_dim} + 1));
      break;
    default:  // knorm
      break;
  }
  return arrays;
}

int64_t PyCudaKernels::ScoreWorkspaceBytes(const PolicyArgument& policy,
                                           const PyEntryPlan& plan) const {
  WorkspaceCursor cursor;
  TakeScoreArrays(layout_, CheckedDeviceScorer(policy, plan), plan, &cursor);
  return cursor.bytes();
}

PyCudaKernels::ScoreCall PyCudaKernels::ImportScoreCall(
    const EvictionPolicy& policy, const PyEntryLists& entries,
    const ScoreTensors& tensors) const {
  const PyEntryPlan& plan = *entries.plan;
  const int64_t num_entries = plan.num_entries();
  const int64_t num_q_heads = layout_.num_q_heads;
  const ScorerSpec& scorer = policy.scorer;
  ScoreCall call = {.policy = policy, .entries = entries};
  call.scores = ImportOf<float>("scores", tensors.scores, {num_entries}, true);
  if (policy.query_window() > 0) {
    call.queries = ImportRows("queries", tensors.queries,
                              {plan.num_groups, policy.query_window(),
                               num_q_heads, layout_.head_dim});
  }
  if (scorer.kind == ScorerKind::kH2o && scorer.norm == H2oNorm::kCount) {
    call.num_queries = ImportOf<int32_t>("num_queries", tensors.num_queries,
                                         {plan.num_groups});
  }
  if (policy.selector.gqa_product) {
    call.norms = ImportOf<float>("value_norms", tensors.value_norms,
                                 {num_entries * layout_.group_size()});
    call.products =
        ImportOf<float>("products", tensors.products, {num_entries}, true);
  }
  if (scorer.kind == ScorerKind::kExpectedAttention) {
    call.means =
        ImportOf<float>("means", tensors.means,
                        {plan.num_groups, num_q_heads, layout_.head_dim});
    if (scorer.cov) {
      call.covariances = ImportRows("covariances", tensors.covariances,
                                    {plan.num_groups, num_q_heads,
                                     layout_.head_dim, 2, layout_.head_dim});
      call.units = ImportOf<float>("units", tensors.units,
                                   {plan.num_groups, num_q_heads});
    }
  }
  return call;
}

void PyCudaKernels::Score(const PolicyArgument& text,
                          const PyEntryLists& entries,
                          const ScoreTensors& tensors,
                          std::optional<float> scale,
                          const StreamArgument& stream) {
  CheckEntries(entries);
  const PyEntryPlan& plan = *entries.plan;
  const EvictionPolicy policy = CheckedDeviceScorer(text, plan);
  ScoreCall call = ImportScoreCall(policy, entries, tensors);
  call.scale = CheckedScale(layout_, scale);
  WorkspaceCursor counter;
  TakeScoreArrays(layout_, policy, plan, &counter);
  AnyArray memory;
  if (counter.bytes() > 0) {
    memory = ImportWorkspace(tensors.workspace, counter.bytes(),
                             "score_workspace_bytes");
  }
  WorkspaceCursor cursor(DataOf<char>(memory));
  call.arrays = TakeScoreArrays(layout_, policy, plan, &cursor);
  Launch(stream, [&](DeviceRuntime&) {
    if (plan.num_entries() == 0) return;
    (this->*LaunchOf(policy.scorer.kind))(call);
  });
}

PyCudaKernels::ScoreLaunch PyCudaKernels::LaunchOf(ScorerKind kind) {
  switch (kind) {
    case ScorerKind::kKnorm:
    case ScorerKind::kKeyDiff:
      return &PyCudaKernels::LaunchKeyScores;
    case ScorerKind::kSnapKv:
      return &PyCudaKernels::LaunchSnapKv;
    case ScorerKind::kTova:
      return &PyCudaKernels::LaunchTova;
    case ScorerKind::kH2o:
      return &PyCudaKernels::LaunchH2o;
    case ScorerKind::kExpectedAttention:
      return &PyCudaKernels::LaunchExpected;
    default:
      return nullptr;
  }
}

void PyCudaKernels::LaunchKeyScores(const ScoreCall& call) {
  KeyScoreParams params = KeyParamsOf(call.policy.scorer);
  params.entries = call.entries.Lists();
  params.pool = pool_;
  params.partial_sums = call.arrays.partial_sums;
  params.lengths = call.arrays.lengths;
  params.medians = call.arrays.medians;
  params.anchors = call.arrays.anchors;
  params.scores = DataOf<float>(call.scores);
  runtime_->KeyScores(params, shape_);
}

WindowParams PyCudaKernels::WindowOf(const PyEntryLists& entries,
                                     const ScoreArrays& arrays,
                                     const AnyArray& queries,
                                     float scale) const {
  WindowParams window;
  window.entries = entries.Lists();
  window.pool = pool_;
  window.queries = queries.data();
  window.window = static_cast<int32_t>(queries.shape(1));
  window.lengths = entries.WordsAt(entries.plan->lengths_at);
  window.group_size = layout_.group_size();
  window.scale = scale;
  window.lse = arrays.lse;
  window.partial_stats = arrays.partial_stats;
  return window;
}

void PyCudaKernels::LaunchWindow(const WindowParams& window) {
  runtime_->WindowStats(window, shape_);
  runtime_->WindowColumns(window, shape_);
}

template <typename Params>
Params PyCudaKernels::LaunchWeights(const ScoreCall& call) {
  WindowParams window =
      WindowOf(call.entries, call.arrays, call.queries, call.scale);
  window.attention = call.arrays.attention;
  LaunchWindow(window);
  Params params;
  params.entries = window.entries;
  params.lengths = window.lengths;
  params.group_size = window.group_size;
  params.attention = window.attention;
  params.scores = DataOf<float>(call.scores);
  if (call.policy.selector.gqa_product) {
    params.q_head_norms = DataOf<const float>(call.norms);
    params.product_eps = static_cast<float>(call.policy.selector.eps);
    params.products = DataOf<float>(call.products);
  }
  return params;
}

void PyCudaKernels::LaunchTova(const ScoreCall& call) {
  const PyEntryPlan& plan = *call.entries.plan;
  auto tova = LaunchWeights<TovaParams>(call);
  tova.tiles = {call.entries.WordsAt(plan.tiles_at),
                plan.CountSplits(plan.tiles_at, plan.num_groups)};
  runtime_->Tova(tova);
}

void PyCudaKernels::LaunchSnapKv(const ScoreCall& call) {
  auto pool = LaunchWeights<PoolParams>(call);
  SetPooling(call.policy.scorer, &pool);
  pool.window = call.policy.query_window();
  runtime_->PoolWindow(pool);
}

void PyCudaKernels::LaunchH2o(const ScoreCall& call) {
  auto* const scores = DataOf<float>(call.scores);
  if (call.policy.query_window() > 0) {
    runtime_->Fill(reinterpret_cast<char*>(scores), 0,
                   static_cast<int64_t>(call.scores.nbytes()));
    WindowParams window =
        WindowOf(call.entries, call.arrays, call.queries, call.scale);
    window.sums = scores;
    LaunchWindow(window);
  }
  H2oScoreParams finish;
  finish.entries = call.entries.Lists();
  finish.lengths = call.entries.WordsAt(call.entries.plan->lengths_at);
  finish.num_queries = DataOf<const int32_t>(call.num_queries);
  finish.group_size = layout_.group_size();
  finish.scores = scores;
  runtime_->FinishH2o(finish);
}

void PyCudaKernels::LaunchExpected(const ScoreCall& call) {
  const ScorerSpec& scorer = call.policy.scorer;
  ExpectedParams params;
  params.entries = call.entries.Lists();
  params.pool = pool_;
  params.group_size = layout_.group_size();
  params.scale = call.scale;
  params.n_sink = scorer.n_sink;
  params.means = DataOf<const float>(call.means);
  params.covariances = DataOf<const void>(call.covariances);
  params.units = DataOf<const float>(call.units);
  params.vnorm = scorer.vnorm;
  params.eps = static_cast<float>(scorer.eps);
  params.logits = call.arrays.logits;
  params.lse = call.arrays.lse;
  params.scores = DataOf<float>(call.scores);
  runtime_->ExpectedScores(params, shape_);
}

int64_t PyCudaKernels::AttentionWorkspaceBytes(const PyEntryPlan& plan,
                                               int32_t num_queries) const {
  CheckPlan(plan);
  if (num_queries < 1) {
    ThrowInvalid("num_queries: expected at least 1, got ", num_queries);
  }
  CheckQueries(plan, num_queries, "add_attention");
  ScoreArrays arrays;
  WorkspaceCursor cursor;
  TakeWindowArrays(layout_, plan, num_queries, &arrays, &cursor);
  return cursor.bytes();
}

void PyCudaKernels::AddAttention(const PyEntryLists& entries,
                                 TensorArgument queries, TensorArgument sums,
                                 TensorArgument workspace,
                                 std::optional<float> scale,
                                 const StreamArgument& stream) {
  CheckEntries(entries);
  const PyEntryPlan& plan = *entries.plan;
  const AnyArray rows =
      ImportRows("queries", queries,
                 {plan.num_groups, -1, layout_.num_q_heads, layout_.head_dim});
  const auto num_queries = static_cast<int64_t>(rows.shape(1));
  CheckQueries(plan, num_queries, "add_attention");
  const AnyArray totals =
      ImportOf<float>("sums", sums, {plan.num_entries()}, true);
  const float factor = CheckedScale(layout_, scale);
  AnyArray memory;
  ScoreArrays arrays;
  if (num_queries > 0) {
    const auto count = static_cast<int32_t>(num_queries);
    memory = ImportWorkspace(workspace, AttentionWorkspaceBytes(plan, count),
                             "attention_workspace_bytes");
    WorkspaceCursor cursor(DataOf<char>(memory));
    TakeWindowArrays(layout_, plan, count, &arrays, &cursor);
  }
  Launch(stream, [&](DeviceRuntime&) {
    if (plan.num_entries() == 0 || num_queries == 0) return;
    WindowParams window = WindowOf(entries, arrays, rows, factor);
    window.sums = DataOf<float>(totals);
    LaunchWindow(window);
  });
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
  const bool per_query_head = policy.selector.gqa_product;
  const int64_t num_norms =
      entries.plan->num_entries() * (per_query_head ? layout_.group_size() : 1);
  const AnyArray results = ImportOf<float>("norms", norms, {num_norms}, true);
  ValueNormParams params;
  params.entries = entries.Lists();
  params.pool = pool_;
  params.projection = weights.data();
  params.model_dim = model_dim;
  params.group_size = layout_.group_size();
  params.l2 = policy.selector.norm == ValueNorm::kL2;
  params.per_query_head = per_query_head;
  params.norms = DataOf<float>(results);
  Launch(stream,
         [&](DeviceRuntime& runtime) { runtime.ValueNorms(params, shape_); });
}

}  // namespace blockmgr::python
