// CudaKernels: selection and moves.
#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "blockmgr/eviction/policy.h"
#include "blockmgr/eviction/select.h"
#include "kernels/cuda/host/select_problem.h"
#include "kernels/cuda/selection/select.h"
#include "python/core/cuda_kernels.h"
#include "python/core/errors.h"

namespace blockmgr::python {
namespace {

// The workspace of a selection. The arrays of `zeros` follow one another.
struct SelectArrays {
  uint32_t* zeros = nullptr;
  int64_t num_zeros = 0;
  SelectHead* heads = nullptr;
  RadixSearch* searches = nullptr;
  uint32_t* ties = nullptr;
};

SelectArrays TakeSelectArrays(const PySelectionPlan& plan,
                              WorkspaceCursor* cursor) {
  const SelectProblem& problem = plan.problem;
  SelectArrays arrays;
  const int64_t num_groups = int64_t{problem.num_heads} + problem.num_scopes;
  arrays.num_zeros = num_groups * (int64_t{kRadixBins} + 1);
  arrays.zeros = cursor->Take<uint32_t>(arrays.num_zeros);
  arrays.heads = cursor->Take<SelectHead>(problem.num_heads);
  arrays.searches = cursor->Take<RadixSearch>(num_groups);
  arrays.ties = cursor->Take<uint32_t>(
      SurvivorWords(plan.entries->num_entries(), problem.num_heads));
  return arrays;
}

void CheckSelectable(const EvictionPolicy& policy) {
  if (policy.needs_table() || policy.score_source() == ScoreSource::kRandom) {
    ThrowInvalid("policy: expected one without a table and without random ",
                 "scores, got ", FormatPolicy(policy));
  }
}

}  // namespace

int64_t PySelectionPlan::workspace_bytes() const {
  WorkspaceCursor cursor;
  TakeSelectArrays(*this, &cursor);
  return cursor.bytes();
}

int64_t PySelectionPlan::num_survivor_words() const {
  return SurvivorWords(entries->num_entries(), problem.num_heads);
}

PySelectionPlan PyCudaKernels::PlanSelection(
    std::shared_ptr<PyEntryPlan> entries, const PolicyArgument& text,
    const TargetArgument& target_text, int32_t cut) const {
  CheckPlan(*entries);
  if (entries->num_groups != layout_.num_layers ||
      std::ranges::adjacent_find(entries->lengths, std::not_equal_to()) !=
          entries->lengths.end()) {
    ThrowInvalid("plan: expected the ", layout_.num_layers,
                 " layers of one sequence, got ", entries->num_groups,
                 " groups of entries, or several lengths");
  }
  const int32_t length = entries->lengths[0];
  if (cut < 1 || cut > length) {
    ThrowInvalid("cut: expected 1 to ", length, ", the length, got ", cut);
  }
  EvictionPolicy policy = PolicyOf(text);
  CheckSelectable(policy);
  const bool has_budgets = policy.budget.kind == BudgetKind::kExternal;
  EvictionTarget target;
  if (!target_text.value.is_none()) {
    target = TargetOf(target_text);
  } else if (!has_budgets) {
    ThrowInvalid("target: expected a Target with ", FormatPolicy(policy),
                 ", got None");
  }
  ResolveRecent(target, cut, &policy);
  PySelectionPlan plan;
  plan.needs_scores = policy.score_source() != ScoreSource::kPosition;
  plan.needs_products = policy.selector.gqa_product;
  std::vector<SelectScope> scopes;
  AppendSelectScopes(policy, target,
                     {layout_.num_layers, layout_.num_heads, layout_.page_size},
                     {.cut = cut, .length = length}, 0, &scopes);
  plan.problem = MakeSelectProblem(policy);
  plan.problem.page_size = layout_.page_size;
  plan.problem.num_heads = entries->num_lists();
  plan.problem.num_scopes = static_cast<int32_t>(scopes.size());
  plan.problem.divide_from =
      DivideFrom(entries->offsets.data(), plan.problem.num_heads);
  static_assert(sizeof(SelectScope) % sizeof(int32_t) == 0);
  plan.words.resize(scopes.size() * sizeof(SelectScope) / sizeof(int32_t));
  std::memcpy(plan.words.data(), scopes.data(),
              scopes.size() * sizeof(SelectScope));
  plan.entries = std::move(entries);
  return plan;
}

void PyCudaKernels::Select(const PySelectionPlan& plan, TensorArgument words,
                           const PyEntryLists& entries, TensorArgument scores,
                           TensorArgument workspace, TensorArgument counts,
                           TensorArgument survivors, TensorArgument num_nan,
                           TensorArgument value_norms, TensorArgument products,
                           TensorArgument budgets,
                           const StreamArgument& stream) {
  CheckEntries(entries);
  if (entries.plan->offsets != plan.entries->offsets) {
    ThrowInvalid("entries: expected those that the selection was planned for");
  }
  const int64_t num_entries = entries.plan->num_entries();
  SelectProblem problem = plan.problem;
  const AnyArray scopes = Import("words", words, {nb::dtype<int32_t>()},
                                 {std::ssize(plan.words)}, {.alignment = 8});
  AnyArray score_values;
  AnyArray sizes;  // of values, or products with scores
  AnyArray given;
  if (plan.needs_scores) {
    score_values = ImportOf<float>("scores", scores, {num_entries});
  }
  if (problem.critical) {
    sizes = ImportOf<float>(plan.needs_products ? "products" : "value_norms",
                            plan.needs_products ? products : value_norms,
                            {num_entries});
  }
  if (problem.budget == SelectBudget::kGiven) {
    given = ImportOf<int32_t>("budgets", budgets,
                              {layout_.num_layers, layout_.num_heads});
  }
  const AnyArray memory = ImportWorkspace(workspace, plan.workspace_bytes(),
                                          "SelectionPlan.workspace_bytes");
  const AnyArray kept = ImportOf<int32_t>(
      "counts", counts, {layout_.num_layers, layout_.num_heads}, true);
  const AnyArray bits = ImportOf<int32_t>("survivors", survivors,
                                          {plan.num_survivor_words()}, true);
  const AnyArray nans = ImportOf<int64_t>("num_nan", num_nan, {1}, true);
  WorkspaceCursor cursor(DataOf<char>(memory));
  const SelectArrays arrays = TakeSelectArrays(plan, &cursor);
  problem.scopes = DataOf<const SelectScope>(scopes);
  problem.offsets = DataOf<const int64_t>(entries.words);
  problem.chunks = entries.Chunks();
  problem.positions = DataOf<const int32_t>(entries.positions);
  problem.scores = DataOf<const float>(score_values);
  (plan.needs_products ? problem.products : problem.value_norms) =
      DataOf<const float>(sizes);
  problem.given = DataOf<const int32_t>(given);
  problem.histograms = arrays.zeros;
  problem.counters =
      problem.histograms +
      (int64_t{problem.num_scopes} + problem.num_heads) * kRadixBins;
  problem.heads = arrays.heads;
  problem.searches = arrays.searches;
  problem.ties = arrays.ties;
  problem.budgets = DataOf<int32_t>(kept);
  problem.survivors = DataOf<uint32_t>(bits);
  problem.num_nan = DataOf<int64_t>(nans);
  if (num_entries == 0) {
    ThrowInvalid("entries: expected at least one, got none");
  }
  Launch(stream, [&](DeviceRuntime& runtime) {
    runtime.Fill(reinterpret_cast<char*>(arrays.zeros), 0,
                 arrays.num_zeros * int64_t{sizeof(uint32_t)});
    runtime.Fill(DataOf<char>(nans), 0, sizeof(int64_t));
    runtime.Select(problem);
  });
}

void PyCudaKernels::PlanMoves(const PyEntryLists& entries,
                              TensorArgument survivors,
                              TensorArgument page_offsets, TensorArgument pages,
                              TensorArgument kept, TensorArgument move_offsets,
                              TensorArgument moves,
                              TensorArgument region_positions,
                              const StreamArgument& stream) {
  CheckEntries(entries);
  const int64_t num_heads = entries.plan->num_lists();
  const AnyArray bits = ImportOf<int32_t>(
      "survivors", survivors,
      {SurvivorWords(entries.plan->num_entries(), num_heads)});
  const AnyArray offsets =
      ImportOf<int32_t>("page_offsets", page_offsets, {num_heads + 1});
  const AnyArray page_ids = ImportOf<int32_t>("pages", pages, {-1});
  const auto num_pages = static_cast<int64_t>(page_ids.size());
  const AnyArray counts = ImportOf<int32_t>(
      "kept", kept, {entries.plan->num_groups, layout_.num_heads});
  const AnyArray begins =
      ImportOf<int64_t>("move_offsets", move_offsets, {num_heads});
  const AnyArray pairs = ImportOf<int64_t>("moves", moves, {-1, 2}, true);
  AnyArray positions;
  if (!region_positions.is_none()) {
    positions = ImportOf<int32_t>("region_positions", region_positions,
                                  {num_pages, layout_.page_size}, true);
  }
  SelectMoves params;
  params.num_heads = static_cast<int32_t>(num_heads);
  params.page_size = layout_.page_size;
  params.offsets = DataOf<const int64_t>(entries.words);
  params.slots = DataOf<const int64_t>(entries.slots);
  params.positions = DataOf<const int32_t>(entries.positions);
  params.survivors = DataOf<const uint32_t>(bits);
  if (LongestList(entries.plan->offsets.data(), num_heads) >
      kMovesTurnEntries) {
    params.chunk_entries = SelectProblem().chunk_entries;
    params.chunks = entries.Chunks();
  }
  params.page_offsets = DataOf<const int32_t>(offsets);
  params.pages = DataOf<const int32_t>(page_ids);
  params.num_pages = num_pages;
  params.kept = DataOf<const int32_t>(counts);
  params.move_offsets = DataOf<const int64_t>(begins);
  params.moves = DataOf<RowMove>(pairs);
  params.num_moves = static_cast<int64_t>(pairs.shape(0));
  params.region_positions = DataOf<int32_t>(positions);
  params.error = reinterpret_cast<uint32_t*>(memory_);
  Launch(stream, [&](DeviceRuntime& runtime) { runtime.PlanMoves(params); });
}

}  // namespace blockmgr::python
