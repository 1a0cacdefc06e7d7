#include "bench/kernel_eviction_cases.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <memory>
#include <span>
#include <vector>

#include "bench/kernel_score_cases.h"
#include "blockmgr/base/bits.h"
#include "kernels/cuda/rows/row_mover.h"
#include "kernels/cuda/selection/entry_index.h"
#include "kernels/cuda/selection/select.h"

namespace blockmgr {
namespace {

// Bytes of rows that are staged together when rows are moved in place. They
// stay in the second-level cache of an H100 (50 MB).
constexpr int64_t kStagedBytes = int64_t{32} << 20;

// NextRegions are the regions after an eviction. The host lays them out from
// the budgets. The survivors of a list are moved in place, to the first pages
// of the list.
struct NextRegions {
  // Lays out regions of the `kept` entries on pages that the lists have.
  void LayOut(const KernelInputs& in) {
    kept_offsets.assign(1, 0);
    page_offsets.assign(1, 0);
    pages.clear();
    for (std::size_t list = 0; list < kept.size(); ++list) {
      const auto first = in.pages.begin() + in.page_offsets[list];
      pages.insert(pages.end(), first,
                   first + CeilDiv(kept[list], in.problem.page_size));
      page_offsets.push_back(static_cast<int32_t>(pages.size()));
      kept_offsets.push_back(kept_offsets.back() + kept[list]);
    }
  }

  std::vector<int32_t> kept;
  std::vector<int64_t> kept_offsets;
  std::vector<int32_t> page_offsets;
  std::vector<int32_t> pages;
};

// The index has the regions and tails that KernelInputs::entries have.
EntryIndexParams MakeIndex(CaseBuilder& builder) {
  const KernelInputs& in = builder.in;
  const KernelProblem& problem = in.problem;
  DeviceMemory& memory = builder.memory;
  EntryIndexParams index;
  index.lists = in.lists;
  index.num_blocks = in.num_blocks;
  index.page_shift = in.page_shift();
  std::vector<int32_t> region_positions;
  std::vector<int32_t> cuts;
  for (const int32_t length : problem.lengths) {
    const int32_t num_slots =
        CeilDiv(length, problem.page_size) * problem.page_size;
    for (int32_t i = 0; i < num_slots; ++i) region_positions.push_back(i);
  }
  std::ranges::transform(in.sequence_lengths, problem.tail_lengths,
                         std::back_inserter(cuts), std::minus());
  index.lists.region_positions = memory.Send<int32_t>(region_positions);
  index.lists.cuts = memory.Send<int32_t>(cuts);
  index.offsets = in.entries.offsets;
  if (LongestList(in.offsets.data(), in.num_lists()) > kIndexWholeEntries) {
    index.chunks = SendSplits(in.offsets, kIndexChunkEntries, 0, memory);
  }
  std::vector<int64_t> word_offsets = {0};
  for (const int32_t cut : cuts) {
    word_offsets.push_back(word_offsets.back() + CeilDiv(cut, 32));
  }
  const int64_t num_words = word_offsets.back() * problem.num_heads;
  index.word_offsets = memory.Send<int64_t>(word_offsets);
  index.marks = memory.Allocate<uint32_t>(num_words);
  index.words = memory.Allocate<IndexWord>(num_words);
  index.slots = memory.Allocate<int64_t>(in.num_entries());
  index.positions = memory.Allocate<int32_t>(in.num_entries());
  index.error = in.error;
  return index;
}

// Returns the lists of the inputs, with the entries that the index writes.
EntryLists IndexedEntries(const KernelInputs& in,
                          const EntryIndexParams& index) {
  EntryLists entries = in.entries;
  entries.slots = index.slots;
  entries.positions = index.positions;
  return entries;
}

// Makes the parameters of a plan of moves, all but the new regions.
SelectMoves MakeMovePlan(const EntryLists& entries, const uint32_t* survivors,
                         int64_t most_kept, CaseBuilder& builder) {
  const KernelInputs& in = builder.in;
  SelectMoves plan;
  plan.num_heads = static_cast<int32_t>(in.num_lists());
  plan.page_size = in.problem.page_size;
  plan.offsets = entries.offsets;
  plan.slots = entries.slots;
  plan.positions = entries.positions;
  if (LongestList(in.offsets.data(), in.num_lists()) > kMovesTurnEntries) {
    plan.chunks = SendSplits(in.offsets, plan.chunk_entries, 1, builder.memory);
  }
  plan.survivors = survivors;
  plan.moves = builder.memory.Allocate<RowMove>(most_kept);
  plan.num_moves = most_kept;
  plan.region_positions = builder.memory.Allocate<int32_t>(
      std::ssize(in.pages) * in.problem.page_size);
  plan.error = in.error;
  return plan;
}

// Allocates memory for kStagedBytes of rows, or for the rows of one list.
char* AllocateStaging(int64_t most_of_a_list, CaseBuilder& builder) {
  const int64_t row_bytes = builder.in.problem.row_bytes();
  return builder.memory.Allocate<char>(
      std::max(kStagedBytes / 2 / row_bytes, most_of_a_list) * 2 * row_bytes);
}

// Moves all rows by way of staging, whole lists at a time. The moves of list i
// end at ends[i].
void MoveStaged(DeviceRuntime& runtime, const MoveRows& all,
                std::span<const int64_t> ends, int64_t row_bytes) {
  const int64_t most_rows = kStagedBytes / 2 / row_bytes;
  int64_t begin = 0;
  for (std::size_t i = 0; i < ends.size(); ++i) {
    const bool is_last = i + 1 == ends.size();
    if (!is_last && ends[i + 1] - begin <= most_rows) continue;
    MoveRows move = all;
    move.moves += begin;
    move.rows.count = ends[i] - begin;
    runtime.Move(move);
    begin = ends[i];
  }
}

// Returns the part of an eviction that follows the scores, with the work of the
// host.
std::function<void(int32_t copy)> MakeSelectAndMove(const EntryLists& entries,
                                                    CaseBuilder& builder) {
  const KernelInputs& in = builder.in;
  DeviceMemory& memory = builder.memory;
  SelectProblem select;
  select.scores = in.scores;
  select.budget = SelectBudget::kBlend;
  select.alpha = kBenchAdaKvAlpha;
  select = MakeSelection(select, in.problem.num_heads, builder);
  select.positions = entries.positions;
  // No list keeps more than it has.
  SelectMoves plan =
      MakeMovePlan(entries, select.survivors, in.num_entries(), builder);
  builder.kept = select.budgets;
  auto* const kept = memory.Allocate<int32_t>(in.num_lists());
  auto* const kept_offsets = memory.Allocate<int64_t>(in.num_lists() + 1);
  auto* const page_offsets = memory.Allocate<int32_t>(in.num_lists() + 1);
  auto* const pages = memory.Allocate<int32_t>(std::ssize(in.pages));
  plan.kept = kept;
  plan.move_offsets = kept_offsets;
  plan.page_offsets = page_offsets;
  plan.pages = pages;
  plan.num_pages = std::ssize(in.pages);
  int64_t longest_list = 0;
  for (int64_t list = 0; list < in.num_lists(); ++list) {
    longest_list = std::max<int64_t>(longest_list, in.list_length(list));
  }
  MoveRows move;
  move.moves = plan.moves;
  move.staged = AllocateStaging(longest_list, builder);
  move.error = in.error;
  const auto next = std::make_shared<NextRegions>();
  next->kept.resize(static_cast<std::size_t>(in.num_lists()));
  const auto kernel = [=, &in, &memory](DeviceRuntime& runtime,
                                        const MoveRows& p) {
    runtime.Select(select);
    // The runtime keeps the error.
    if (!memory.Read<int32_t>(select.budgets, next->kept).ok()) return;
    next->LayOut(in);
    memory.Upload<int32_t>(kept, next->kept);
    memory.Upload<int64_t>(kept_offsets, next->kept_offsets);
    memory.Upload<int32_t>(page_offsets, next->page_offsets);
    memory.Upload<int32_t>(pages, next->pages);
    runtime.PlanMoves(plan);
    MoveStaged(runtime, p, std::span(next->kept_offsets).subspan(1),
               in.problem.row_bytes());
  };
  return builder.OnPool(move, kernel);
}

// `score` scores the entries of the index.
void AddEviction(const char* name, const EntryIndexParams& index,
                 const std::function<void(int32_t copy)>& score,
                 CaseBuilder& builder) {
  const auto index_entries = builder.OffPool(&DeviceRuntime::IndexEntries,
                                             index, builder.in.longest_tail);
  const auto select_and_move =
      MakeSelectAndMove(IndexedEntries(builder.in, index), builder);
  const auto evict = [=](int32_t copy) {
    index_entries(copy);
    score(copy);
    select_and_move(copy);
  };
  // Keys are read twice.
  builder.cases.push_back({.kernel = name,
                           .ceiling = KernelCeiling::kNone,
                           .useful_bytes = builder.in.kv_bytes(),
                           .flops = 0,
                           .launch = evict,
                           .waits = true});
}

}  // namespace

void AddIndex(CaseBuilder& builder) {
  const KernelInputs& in = builder.in;
  const EntryIndexParams index = MakeIndex(builder);
  // The kernel reads a position of each entry of a region. It writes a slot and
  // a position of each entry.
  builder.cases.push_back(
      {"index_entries", KernelCeiling::kNone,
       16.0 * static_cast<double>(in.num_entries()), 0,
       builder.OffPool(&DeviceRuntime::IndexEntries, index, in.longest_tail)});
}

void AddMovePlan(CaseBuilder& builder) {
  constexpr int32_t kEvery = 5;
  static_assert(kEvery * kBenchKeepRatio == 1.0);
  const KernelInputs& in = builder.in;
  DeviceMemory& memory = builder.memory;
  std::vector<uint32_t> survivors(
      SurvivorWords(in.num_entries(), in.num_lists()));
  NextRegions next;
  for (int64_t list = 0; list < in.num_lists(); ++list) {
    const int32_t length = in.list_length(list);
    const int64_t word = SurvivorWord(in.offsets[list], list);
    for (int32_t i = 0; i < length; i += kEvery) {
      survivors[word + i / 32] |= 1u << (i % 32);
    }
    next.kept.push_back(CeilDiv(length, kEvery));
  }
  next.LayOut(in);
  const int64_t num_kept = next.kept_offsets.back();
  SelectMoves plan = MakeMovePlan(in.entries, memory.Send<uint32_t>(survivors),
                                  num_kept, builder);
  plan.kept = memory.Send<int32_t>(next.kept);
  plan.move_offsets = memory.Send<int64_t>(next.kept_offsets);
  plan.page_offsets = memory.Send<int32_t>(next.page_offsets);
  plan.pages = memory.Send<int32_t>(next.pages);
  plan.num_pages = std::ssize(next.pages);
  // The kernel reads the slot and the position of each survivor. It writes the
  // move and the position. But latency is what counts.
  builder.cases.push_back(
      {"plan_moves", KernelCeiling::kNone,
       (16.0 + sizeof(RowMove)) * static_cast<double>(num_kept), 0,
       builder.OffPool(&DeviceRuntime::PlanMoves, plan)});
}

void AddMoves(CaseBuilder& builder) {
  const KernelInputs& in = builder.in;
  std::vector<RowMove> moves;
  std::vector<int64_t> ends;  // of lists
  int64_t most_of_a_list = 0;
  for (std::size_t list = 0; list + 1 < in.offsets.size(); ++list) {
    const int64_t* const slots = in.slots.data() + in.offsets[list];
    const int64_t size = in.offsets[list + 1] - in.offsets[list];
    const auto kept =
        static_cast<int64_t>(kBenchKeepRatio * static_cast<double>(size));
    for (int64_t i = 0; i < kept; ++i) {
      moves.push_back({slots[kept + i * (size - kept) / kept], slots[i]});
    }
    ends.push_back(std::ssize(moves));
    most_of_a_list = std::max(most_of_a_list, kept);
  }
  MoveRows move;
  move.rows.count = std::ssize(moves);
  move.moves = builder.memory.Send<RowMove>(moves);
  move.error = in.error;
  const double bytes = 2 * in.pair_bytes() * static_cast<double>(moves.size());
  builder.cases.push_back({"compact", KernelCeiling::kCopy, bytes, 0,
                           builder.OnPool(move, &DeviceRuntime::Move)});
  move.staged = AllocateStaging(most_of_a_list, builder);
  // Rows are read and written twice, unless staged rows stay in the cache.
  builder.cases.push_back(
      {"compact_in_place", KernelCeiling::kCopy, bytes, 0,
       builder.OnPool(move, MoveStaged, ends, in.problem.row_bytes())});
}

void AddSnapKvEviction(CaseBuilder& builder) {
  const EntryIndexParams index = MakeIndex(builder);
  AddEviction("evict_snapkv", index,
              MakeSnapKv(IndexedEntries(builder.in, index), builder), builder);
}

void AddKeyDiffEviction(CaseBuilder& builder) {
  const KernelInputs& in = builder.in;
  const EntryIndexParams index = MakeIndex(builder);
  const KeyScoreParams keys = MakeKeyScores(IndexedEntries(in, index), builder);
  AddEviction("evict_keydiff", index,
              builder.OnPool(keys, &DeviceRuntime::KeyScores, in.shape),
              builder);
}

}  // namespace blockmgr
