#include "kernels/cuda/host/device_score_call.h"

#include <array>
#include <limits>

#include "blockmgr/base/check.h"

namespace blockmgr {

DeviceScoreCall::Entries DeviceScoreCall::AddEntries(const EntryList& list,
                                                     int32_t layer) {
  const ModelLayout& layout = pool_.layout;
  BM_CHECK(layer >= 0 && layer < layout.num_layers);
  BM_CHECK(std::ssize(list.offsets) == layout.num_heads + 1);
  BM_CHECK(list.offsets.back() == std::ssize(list.slots));
  BM_CHECK(list.slots.size() == list.positions.size());
  const SlotIndex num_slots = layout.num_pages() * layout.page_size;
  bool inside = true;
  for (const SlotIndex slot : list.slots) {
    inside &= slot >= 0 && slot < num_slots;
  }
  BM_CHECK(inside);
  CallMemory& memory = *pool_.memory;
  Entries entries;
  entries.offsets = memory.InputOf(list.offsets);
  entries.slots = memory.InputOf(list.slots);
  entries.positions = memory.InputOf(list.positions);
  for (int32_t head = 0; head < layout.num_heads; ++head) {
    const int64_t size = list.offsets[head + 1] - list.offsets[head];
    BM_CHECK(size >= 0 && size <= std::numeric_limits<int32_t>::max());
  }
  entries.row_splits = AddSplits(pool_.memory, list.offsets, kRowSplitEntries);
  entries.window_splits = AddSplits(pool_.memory, list.offsets, kSplitEntries);
  return entries;
}

EntryLists DeviceScoreCall::Lists(const Entries& entries) const {
  const CallMemory& memory = *pool_.memory;
  EntryLists lists;
  lists.num_sequences = 1;
  lists.num_heads = pool_.layout.num_heads;
  lists.offsets = memory.Device(entries.offsets);
  lists.slots = memory.Device(entries.slots);
  lists.positions = memory.Device(entries.positions);
  lists.row_splits = DeviceSplits(memory, entries.row_splits);
  lists.window_splits = DeviceSplits(memory, entries.window_splits);
  return lists;
}

DeviceScoreCall::Window DeviceScoreCall::AddWindow(const QueryWindow& queries,
                                                   const Entries& entries) {
  BM_CHECK(queries.count > 0 && queries.count <= queries.length);
  BM_CHECK(queries.queries != nullptr);
  const ModelLayout& layout = pool_.layout;
  CallMemory& memory = *pool_.memory;
  const int64_t num_rows = int64_t{queries.count} * layout.num_q_heads;
  Window window;
  window.queries = memory.Input<uint16_t>(num_rows * layout.head_dim);
  pool_.Round(queries.queries, memory.Host(window.queries));
  window.length =
      memory.InputOf<int32_t>(std::span<const int32_t>(&queries.length, 1));
  window.lse = memory.Work<float>(num_rows);
  window.partial_stats =
      memory.Work<float>(int64_t{2} * entries.window_splits.count *
                         WindowRows(layout.group_size(), queries.count));
  const std::array<int64_t, 2> tokens = {0, queries.length};
  window.tiles = AddSplits(pool_.memory, tokens, kTovaThreads);
  return window;
}

WindowParams DeviceScoreCall::MakeWindow(const QueryWindow& queries,
                                         float scale, const Entries& entries,
                                         const Window& window) const {
  BM_CHECK(scale > 0);
  const CallMemory& memory = *pool_.memory;
  WindowParams params;
  params.entries = Lists(entries);
  params.pool = pool_.pool;
  params.queries = memory.Device(window.queries);
  params.window = queries.count;
  params.lengths = memory.Device(window.length);
  params.group_size = pool_.layout.group_size();
  params.scale = scale;
  params.lse = memory.Device(window.lse);
  params.partial_stats = memory.Device(window.partial_stats);
  return params;
}

DeviceScoreCall::Scores DeviceScoreCall::AddScores(const ScoreBatch& batch) {
  CallMemory& memory = *pool_.memory;
  const int64_t num_entries = std::ssize(batch.scores);
  Scores scores;
  scores.scores = memory.Result<float>(num_entries);
  if (!HasProducts(batch)) return scores;
  BM_CHECK(batch.products.size() == batch.scores.size());
  BM_CHECK(std::ssize(batch.q_head_norms) ==
           num_entries * pool_.layout.group_size());
  scores.norms = memory.InputOf(batch.q_head_norms);
  scores.products = memory.Result<float>(num_entries);
  return scores;
}

void DeviceScoreCall::StoreScores(const Scores& scores,
                                  const ScoreBatch& batch) {
  pool_.Receive();
  Fetch(scores.scores, batch.scores);
  if (!HasProducts(batch)) return;
  Fetch(scores.products, batch.products);
}

WindowParams DeviceScoreCall::Weigh(const ScoreBatch& batch, Window* window,
                                    Scores* scores) {
  CallMemory& memory = *pool_.memory;
  memory.Begin();
  const Entries entries = AddEntries(batch.entries, batch.layer);
  *window = AddWindow(batch.window, entries);
  const auto attention =
      memory.Work<float>(std::ssize(batch.scores) * pool_.layout.group_size());
  *scores = AddScores(batch);
  pool_.Send();
  WindowParams params = MakeWindow(batch.window, batch.scale, entries, *window);
  params.attention = memory.Device(attention);
  pool_.runtime->WindowStats(params, pool_.shape);
  pool_.runtime->WindowColumns(params, pool_.shape);
  return params;
}

}  // namespace blockmgr
