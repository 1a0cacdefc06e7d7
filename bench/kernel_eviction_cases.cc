// All that an eviction does on a device whose tables are there already: lists
// of entries, scores, a selection and moves; and its parts alone.
#include <algorithm>
#include <cstdint>
#include <functional>
#include <iterator>
#include <memory>
#include <span>
#include <vector>

#include "bench/kernel_cases.h"
#include "blockmgr/base/bits.h"
#include "blockmgr/base/status_macros.h"
#include "kernels/cuda/selection/entry_index.h"
#include "kernels/cuda/selection/select.h"

namespace blockmgr {
namespace {

// The new regions, which the host lays out from the budgets. The survivors of a
// list are moved in place, to the first pages of the list.
struct NextRegions {
  // Pages that lists have: CSR.
  void LayOut(std::span<const int64_t> page_offsets_now,
              std::span<const int32_t> pages_now, int32_t page_size) {
    kept_offsets.assign(1, 0);
    page_offsets.assign(1, 0);
    pages.clear();
    for (std::size_t list = 0; list < kept.size(); ++list) {
      const auto first = pages_now.begin() + page_offsets_now[list];
      pages.insert(pages.end(), first, first + CeilDiv(kept[list], page_size));
      page_offsets.push_back(static_cast<int32_t>(pages.size()));
      kept_offsets.push_back(kept_offsets.back() + kept[list]);
    }
  }

  std::vector<int32_t> kept;
  std::vector<int64_t> kept_offsets;
  std::vector<int32_t> page_offsets;
  std::vector<int32_t> pages;
};

}  // namespace

EntryIndexParams DeviceProblem::MakeIndex() {
  const int32_t page_size = problem_.page_size;
  EntryIndexParams index;
  index.lists = lists_;
  index.num_blocks = num_blocks_;
  index.page_shift = page_size == 32 ? 5 : 4;
  // Regions and tails as SendEntries has them.
  std::vector<int32_t> region_positions;
  std::vector<int32_t> cuts;
  for (int64_t list = 0; list < num_lists(); ++list) {
    const int32_t num_slots =
        CeilDiv(problem_.lengths[list], page_size) * page_size;
    for (int32_t i = 0; i < num_slots; ++i) region_positions.push_back(i);
  }
  std::ranges::transform(sequence_lengths_, problem_.tail_lengths,
                         std::back_inserter(cuts), std::minus());
  const int64_t num_entries = std::ssize(slots_);
  index.lists.region_positions = Send<int32_t>(region_positions);
  index.lists.cuts = Send<int32_t>(cuts);
  index.offsets = entries_.offsets;
  std::vector<int64_t> word_offsets = {0};
  for (const int32_t cut : cuts) {
    word_offsets.push_back(word_offsets.back() + CeilDiv(cut, 32));
  }
  const int64_t num_words = word_offsets.back() * problem_.num_heads;
  index.word_offsets = Send<int64_t>(word_offsets);
  index.marks = Allocate<uint32_t>(num_words);
  index.words = Allocate<IndexWord>(num_words);
  index.slots = Allocate<int64_t>(num_entries);
  index.positions = Allocate<int32_t>(num_entries);
  index.error = error_;
  return index;
}

void DeviceProblem::AddIndex() {
  const EntryIndexParams index = MakeIndex();
  // A region's positions are read, a slot and a position written of each entry.
  cases_.push_back(
      {"index_entries", KernelCeiling::kNone,
       16.0 * static_cast<double>(slots_.size()), 0,
       [=, this](int32_t) { runtime().IndexEntries(index, longest_tail_); }});
}

SelectMoves DeviceProblem::MakeMovePlan(const EntryLists& entries,
                                        const uint32_t* survivors,
                                        int64_t most_kept) {
  SelectMoves plan;
  plan.num_heads = static_cast<int32_t>(num_lists());
  plan.page_size = problem_.page_size;
  plan.offsets = entries.offsets;
  plan.slots = entries.slots;
  plan.positions = entries.positions;
  plan.survivors = survivors;
  plan.moves = Allocate<RowMove>(most_kept);
  plan.num_moves = most_kept;
  plan.region_positions =
      Allocate<int32_t>(std::ssize(pages_) * problem_.page_size);
  plan.error = error_;
  return plan;
}

// In place: every fifth entry of a list stays.
void DeviceProblem::AddMovePlan() {
  constexpr int32_t kEvery = 5;
  static_assert(kEvery * kKeepRatio == 1.0);
  std::vector<uint32_t> survivors(
      SurvivorWords(std::ssize(slots_), num_lists()));
  NextRegions next;
  for (int64_t list = 0; list < num_lists(); ++list) {
    const int32_t length = list_length(list);
    const int64_t word = SurvivorWord(offsets_[list], list);
    for (int32_t i = 0; i < length; i += kEvery) {
      survivors[word + i / 32] |= 1u << (i % 32);
    }
    next.kept.push_back(CeilDiv(length, kEvery));
  }
  next.LayOut(page_offsets_, pages_, problem_.page_size);
  const int64_t num_kept = next.kept_offsets.back();
  SelectMoves plan =
      MakeMovePlan(entries_, Send<uint32_t>(survivors), num_kept);
  plan.kept = Send<int32_t>(next.kept);
  plan.move_offsets = Send<int64_t>(next.kept_offsets);
  plan.page_offsets = Send<int32_t>(next.page_offsets);
  plan.pages = Send<int32_t>(next.pages);
  plan.num_pages = std::ssize(next.pages);
  // A survivor's slot and position are read, its move and position written;
  // latency is what counts.
  cases_.push_back({"plan_moves", KernelCeiling::kNone,
                    (16.0 + sizeof(RowMove)) * static_cast<double>(num_kept), 0,
                    [=, this](int32_t) { runtime().PlanMoves(plan); }});
}

// Moves as many rows as a compaction of each list does: once straight to their
// destinations, and once by way of staging, as moves in place need it.
void DeviceProblem::AddMoves() {
  std::vector<RowMove> moves;
  std::vector<int64_t> ends;  // of lists
  int64_t most_of_a_list = 0;
  for (std::size_t list = 0; list + 1 < offsets_.size(); ++list) {
    const int64_t size = offsets_[list + 1] - offsets_[list];
    const auto kept =
        static_cast<int64_t>(kKeepRatio * static_cast<double>(size));
    for (int64_t i = 0; i < kept; ++i) {
      const int64_t from =
          kept + i * (size - kept) / std::max<int64_t>(kept, 1);
      moves.push_back(
          {slots_[offsets_[list] + from], slots_[offsets_[list] + i]});
    }
    ends.push_back(std::ssize(moves));
    most_of_a_list = std::max(most_of_a_list, kept);
  }
  MoveRows move;
  move.rows.count = std::ssize(moves);
  move.moves = Send<RowMove>(moves);
  move.error = error_;
  cases_.push_back({"compact", KernelCeiling::kCopy,
                    2 * pair_bytes() * static_cast<double>(moves.size()), 0,
                    [=, this](int32_t copy) {
                      MoveRows p = move;
                      p.pool = PoolOf(copy);
                      runtime().Move(p);
                    }});
  move.staged = AllocateStaging(most_of_a_list);
  // Rows are read and written twice, if staged rows do not stay in the cache.
  cases_.push_back({"compact_in_place", KernelCeiling::kCopy,
                    2 * pair_bytes() * static_cast<double>(moves.size()), 0,
                    [=, this](int32_t copy) {
                      MoveRows p = move;
                      p.pool = PoolOf(copy);
                      MoveStaged(p, ends);
                    }});
}

char* DeviceProblem::AllocateStaging(int64_t most_of_a_list) {
  return Allocate<char>(
      std::max(kStagedBytes / 2 / problem_.row_bytes(), most_of_a_list) * 2 *
      problem_.row_bytes());
}

void DeviceProblem::MoveStaged(const MoveRows& all,
                               std::span<const int64_t> ends) const {
  const int64_t most_rows = kStagedBytes / 2 / problem_.row_bytes();
  int64_t begin = 0;
  for (std::size_t i = 0; i < ends.size(); ++i) {
    const bool is_last = i + 1 == ends.size();
    if (!is_last && ends[i + 1] - begin <= most_rows) continue;
    MoveRows move = all;
    move.moves += begin;
    move.rows.count = ends[i] - begin;
    runtime().Move(move);
    begin = ends[i];
  }
}

std::function<void(int32_t copy)> DeviceProblem::MakeSelectAndMove(
    const EntryLists& entries) {
  SelectProblem select;
  select.scores = scores_;
  select.budget = SelectBudget::kBlend;
  select.alpha = kAdaKvAlpha;
  select = MakeSelection(select, problem_.num_heads);
  select.positions = entries.positions;
  // No list keeps more than it has.
  SelectMoves plan =
      MakeMovePlan(entries, select.survivors, std::ssize(slots_));
  budgets_ = select.budgets;
  auto* const kept = Allocate<int32_t>(num_lists());
  auto* const kept_offsets = Allocate<int64_t>(num_lists() + 1);
  auto* const page_offsets = Allocate<int32_t>(num_lists() + 1);
  auto* const pages = Allocate<int32_t>(std::ssize(pages_));
  plan.kept = kept;
  plan.move_offsets = kept_offsets;
  plan.page_offsets = page_offsets;
  plan.pages = pages;
  plan.num_pages = std::ssize(pages_);
  int64_t longest_list = 0;
  for (int64_t list = 0; list < num_lists(); ++list) {
    longest_list = std::max<int64_t>(longest_list, list_length(list));
  }
  char* const staged = AllocateStaging(longest_list);
  const auto next = std::make_shared<NextRegions>();
  next->kept.resize(static_cast<std::size_t>(num_lists()));
  return [=, this](int32_t copy) {
    runtime().Select(select);
    // A failure is the runtime's to keep.
    if (!Read<int32_t>(select.budgets, next->kept).ok()) return;
    next->LayOut(page_offsets_, pages_, problem_.page_size);
    Upload<int32_t>(kept, next->kept);
    Upload<int64_t>(kept_offsets, next->kept_offsets);
    Upload<int32_t>(page_offsets, next->page_offsets);
    Upload<int32_t>(pages, next->pages);
    runtime().PlanMoves(plan);
    MoveRows move;
    move.pool = PoolOf(copy);
    move.moves = plan.moves;
    move.staged = staged;
    move.error = error_;
    MoveStaged(move, std::span(next->kept_offsets).subspan(1));
  };
}

absl::StatusOr<std::vector<int32_t>> DeviceProblem::ReadKept() const {
  std::vector<int32_t> kept(static_cast<std::size_t>(num_lists()));
  BM_RETURN_IF_ERROR(Read<int32_t>(budgets_, kept));
  return kept;
}

EntryLists DeviceProblem::IndexedEntries(const EntryIndexParams& index) const {
  EntryLists entries = entries_;
  entries.slots = index.slots;
  entries.positions = index.positions;
  return entries;
}

void DeviceProblem::AddEviction(
    const char* name, const EntryIndexParams& index,
    const std::function<void(int32_t copy)>& score) {
  const auto select_and_move = MakeSelectAndMove(IndexedEntries(index));
  // Keys twice.
  cases_.push_back({.kernel = name,
                    .ceiling = KernelCeiling::kNone,
                    .useful_bytes = kv_bytes_,
                    .flops = 0,
                    .launch =
                        [=, this](int32_t copy) {
                          runtime().IndexEntries(index, longest_tail_);
                          score(copy);
                          select_and_move(copy);
                        },
                    .waits = true});
}

void DeviceProblem::AddSnapKvEviction() {
  const EntryIndexParams index = MakeIndex();
  WindowParams window = MakeWindow(kWindow);
  window.entries = IndexedEntries(index);
  const PoolParams pooling = MakePooling(window);
  AddEviction("evict_snapkv", index, [=, this](int32_t copy) {
    Weigh(window, copy);
    runtime().PoolWindow(pooling);
  });
}

void DeviceProblem::AddKeyDiffEviction() {
  const EntryIndexParams index = MakeIndex();
  KeyScoreParams keys = MakeKeyScores();
  keys.entries = IndexedEntries(index);
  AddEviction("evict_keydiff", index, [=, this](int32_t copy) {
    KeyScoreParams p = keys;
    p.pool = PoolOf(copy);
    runtime().KeyScores(p, shape_);
  });
}

}  // namespace blockmgr
