// CudaKernels: attention over page lists.
#include <algorithm>
#include <limits>

#include <absl/strings/str_cat.h>

#include "blockmgr/base/bits.h"
#include "kernels/cuda/attention/chunk_attention.h"
#include "kernels/cuda/attention/decode_attention.h"
#include "kernels/cuda/scores/pooled_scores.h"
#include "python/core/cuda_kernels.h"
#include "python/core/errors.h"
#include "python/core/kernel_checks.h"

namespace blockmgr::python {
namespace {

constexpr int64_t kMaxTiles = std::numeric_limits<int32_t>::max();

// The arrays of decode attention.
struct DecodeArrays {
  int32_t* tile_offsets;
  float* partial_stats;
  float* partial_output;
  uint32_t* merge_counters;
};

DecodeArrays TakeDecodeArrays(const ModelLayout& layout, int64_t num_lists,
                              int64_t num_slots, WorkspaceCursor* cursor) {
  const int64_t q_rows = layout.group_size() > 8 ? 16 : 8;
  return {.tile_offsets = cursor->Take<int32_t>(num_lists + 1),
          .partial_stats = cursor->Take<float>(num_slots * q_rows * 2),
          .partial_output =
              cursor->Take<float>(num_slots * q_rows * layout.head_dim),
          .merge_counters =
              cursor->Take<uint32_t>(num_lists * layout.group_size())};
}

int64_t DecodeBytes(const ModelLayout& layout, int64_t num_lists,
                    int64_t num_slots) {
  WorkspaceCursor cursor;
  TakeDecodeArrays(layout, num_lists, num_slots, &cursor);
  return cursor.bytes();
}

// Returns the tiles that a workspace of `bytes` has room for, for lists that
// are cut in chunks: the inverse of CountDecodeWorkspaceSlots.
int64_t CountTiles(const ModelLayout& layout, int64_t num_lists,
                   int64_t bytes) {
  const int64_t free_bytes = bytes - DecodeBytes(layout, num_lists, 0);
  const int64_t slot_bytes =
      DecodeBytes(layout, 0, 1) - DecodeBytes(layout, 0, 0);
  const int64_t num_slots = free_bytes / slot_bytes - num_lists - 1;
  return (num_slots + 1) * kInvariantChunkTiles - 1;
}

// Returns the most tiles that all lists of a layer have together. Each list may
// begin a tile of its own.
int64_t MostTiles(const ModelLayout& layout, int32_t num_sequences,
                  int64_t num_slots) {
  constexpr int64_t kMaxSlots = int64_t{1} << 36;
  if (num_sequences < 0 || num_slots < 0 || num_slots > kMaxSlots) {
    ThrowInvalid("num_sequences, num_slots: expected at least 0, and at most ",
                 kMaxSlots, " slots, got ", num_sequences, " and ", num_slots);
  }
  return CeilDiv(num_slots, int64_t{kDecodeTileRanks}) +
         int64_t{num_sequences} * layout.num_heads;
}

// Returns the tiles that logits have room for, or kMaxTiles without logits.
int64_t CountLogitTiles(const AnyArray& logits) {
  if (!logits.is_valid()) return kMaxTiles;
  return std::min(static_cast<int64_t>(logits.shape(0)) / kDecodeTileRanks,
                  kMaxTiles);
}

}  // namespace

AttentionLists PyAttentionLists::OfLayer(int32_t layer) const {
  AttentionLists lists;
  lists.num_sequences = num_sequences;
  lists.num_heads = layout.num_heads;
  lists.layer = layer;
  if (has_regions) {
    const int64_t first = int64_t{layer} * num_sequences * layout.num_heads;
    lists.region_lengths = DataOf<const int32_t>(region_lengths) + first;
    lists.region_offsets = DataOf<const int64_t>(region_offsets) + first;
    lists.region_pages = DataOf<const int32_t>(region_pages);
  }
  lists.tail_blocks = DataOf<const int32_t>(block_tables);
  lists.tail_stride = num_sequences > 1
                          ? block_tables.stride(0)
                          : static_cast<int64_t>(block_tables.shape(1));
  lists.tail_lengths = DataOf<const int32_t>(tail_lengths);
  return lists;
}

PyAttentionLists PyCudaKernels::Lists(TensorArgument block_tables,
                                      TensorArgument tail_lengths,
                                      TensorArgument region_lengths,
                                      TensorArgument region_offsets,
                                      TensorArgument region_pages) const {
  PyAttentionLists lists;
  lists.layout = layout_;
  lists.device = device_;
  lists.tail_lengths = ImportOf<int32_t>("tail_lengths", tail_lengths, {-1});
  const auto num_sequences = static_cast<int64_t>(lists.tail_lengths.shape(0));
  constexpr int64_t kMaxLists = std::numeric_limits<int32_t>::max();
  if (num_sequences * layout_.num_heads > kMaxLists) {
    ThrowInvalid("tail_lengths: expected at most ",
                 kMaxLists / layout_.num_heads, " sequences, got ",
                 num_sequences);
  }
  lists.num_sequences = static_cast<int32_t>(num_sequences);
  lists.block_tables =
      Import("block_tables", block_tables, {nb::dtype<int32_t>()},
             {num_sequences, -1}, {.contiguous_from = 1});
  const int num_given = (region_lengths.is_none() ? 0 : 1) +
                        (region_offsets.is_none() ? 0 : 1) +
                        (region_pages.is_none() ? 0 : 1);
  if (num_given == 0) return lists;
  if (num_given != 3) {
    ThrowInvalid("region_lengths, region_offsets, region_pages: expected all ",
                 "three or none, got ", num_given);
  }
  lists.has_regions = true;
  lists.region_lengths =
      ImportOf<int32_t>("region_lengths", region_lengths,
                        {layout_.num_layers, num_sequences, layout_.num_heads});
  lists.region_offsets =
      ImportOf<int64_t>("region_offsets", region_offsets,
                        {layout_.num_layers, num_sequences, layout_.num_heads});
  lists.region_pages = ImportOf<int32_t>("region_pages", region_pages, {-1});
  return lists;
}

void PyCudaKernels::CheckLists(const PyAttentionLists& lists) const {
  if (lists.layout != layout_ || lists.device != device_) {
    ThrowInvalid("lists: expected those of a pool of ", layout_.ToString(),
                 " on CUDA device ", device_, ", got those of ",
                 lists.layout.ToString(), " on CUDA device ", lists.device);
  }
}

int64_t PyCudaKernels::DecodeWorkspaceBytes(int32_t num_sequences,
                                            int64_t num_slots,
                                            bool balanced) const {
  const int64_t num_tiles = MostTiles(layout_, num_sequences, num_slots);
  const int64_t num_lists = int64_t{num_sequences} * layout_.num_heads;
  return DecodeBytes(
      layout_, num_lists,
      CountDecodeWorkspaceSlots(num_tiles, num_lists, num_decode_ctas_,
                                balanced ? 0 : kInvariantChunkTiles));
}

void PyCudaKernels::Decode(int32_t layer, const PyAttentionLists& lists,
                           TensorArgument queries, TensorArgument output,
                           TensorArgument workspace, TensorArgument lse,
                           TensorArgument logits, TensorArgument sinks,
                           std::optional<float> scale, bool balanced,
                           bool is_planned, const StreamArgument& stream) {
  CheckLayer(layout_, layer);
  CheckLists(lists);
  const int64_t num_sequences = lists.num_sequences;
  const int64_t num_lists = num_sequences * layout_.num_heads;
  const AnyArray query_rows =
      ImportRows("queries", queries,
                 {num_sequences, layout_.num_q_heads, layout_.head_dim});
  const AnyArray output_rows =
      ImportRows("output", output,
                 {num_sequences, layout_.num_q_heads, layout_.head_dim}, true);
  const AnyArray memory = ImportWorkspace(
      workspace, DecodeWorkspaceBytes(lists.num_sequences, 0, balanced),
      "decode_workspace_bytes");
  const AnyArray sums = ImportLse(lse, num_sequences);
  const AnyArray sink_logits = ImportSinks(sinks);
  DecodeParams params;
  params.scale = CheckedScale(layout_, scale);
  const AnyArray logit_rows =
      logits.is_none() ? AnyArray() : ImportLogits(logits);
  const int64_t num_tiles =
      balanced
          ? kMaxTiles
          : CountTiles(layout_, num_lists, static_cast<int64_t>(memory.size()));
  params.chunk_tiles = balanced ? 0 : kInvariantChunkTiles;
  params.max_tiles =
      static_cast<int32_t>(std::min(num_tiles, CountLogitTiles(logit_rows)));
  WorkspaceCursor cursor(DataOf<char>(memory));
  const DecodeArrays arrays = TakeDecodeArrays(
      layout_, num_lists,
      balanced ? 2 * int64_t{num_decode_ctas_}
               : CountDecodeWorkspaceSlots(params.max_tiles, num_lists, 0,
                                           kInvariantChunkTiles),
      &cursor);
  params.lists = lists.OfLayer(layer);
  params.pool = pool_;
  params.tile_offsets = arrays.tile_offsets;
  params.queries = query_rows.data();
  params.output = DataOf<void>(output_rows);
  params.sinks = DataOf<const float>(sink_logits);
  params.lse = DataOf<float>(sums);
  params.logits = DataOf<float>(logit_rows);
  params.partial_output = arrays.partial_output;
  params.partial_stats = arrays.partial_stats;
  params.merge_counters = arrays.merge_counters;
  params.group_size = layout_.group_size();
  params.num_ctas = num_decode_ctas_;
  params.error = reinterpret_cast<uint32_t*>(memory_);
  Launch(stream, [&](DeviceRuntime& runtime) {
    if (num_sequences == 0) return;
    if (!is_planned) {
      DecodePlanParams plan;
      plan.lists = params.lists;
      plan.num_heads = pool_.by_heads;
      plan.page_shift = pool_.page_shift;
      plan.tile_offsets = arrays.tile_offsets;
      runtime.PlanDecode(plan);
    }
    runtime.Decode(params, shape_);
  });
}

int64_t PyCudaKernels::CountDecodeLogitRows(int32_t num_sequences,
                                            int64_t num_slots) const {
  return kDecodeTileRanks * MostTiles(layout_, num_sequences, num_slots);
}

AnyArray PyCudaKernels::ImportLse(TensorArgument lse,
                                  int64_t num_tokens) const {
  if (lse.is_none()) return AnyArray();
  return ImportOf<float>("lse", lse, {num_tokens, layout_.num_q_heads}, true);
}

AnyArray PyCudaKernels::ImportSinks(TensorArgument sinks) const {
  if (sinks.is_none()) return AnyArray();
  return ImportOf<float>("sinks", sinks, {layout_.num_q_heads});
}

AnyArray PyCudaKernels::ImportLogits(TensorArgument logits) const {
  return ImportOf<float>("logits", logits, {-1, layout_.group_size()}, true);
}

void PyCudaKernels::AddDecodeAttention(
    int32_t layer, const PyAttentionLists& lists, TensorArgument workspace,
    TensorArgument logits, TensorArgument lse, TensorArgument sum_offsets,
    TensorArgument sums, const StreamArgument& stream) {
  CheckLayer(layout_, layer);
  CheckLists(lists);
  const int64_t num_lists = int64_t{lists.num_sequences} * layout_.num_heads;
  const AnyArray memory = ImportWorkspace(
      workspace, DecodeBytes(layout_, num_lists, 0), "decode_workspace_bytes");
  const AnyArray logit_rows = ImportLogits(logits);
  const AnyArray denominators =
      ImportOf<float>("lse", lse, {lists.num_sequences, layout_.num_q_heads});
  const AnyArray offsets =
      ImportOf<int64_t>("sum_offsets", sum_offsets, {num_lists + 1});
  const AnyArray totals = ImportOf<float>("sums", sums, {-1}, true);
  WorkspaceCursor cursor(DataOf<char>(memory));
  DecodeSumParams params;
  params.lists = lists.OfLayer(layer);
  params.page_shift = pool_.page_shift;
  params.num_heads = pool_.by_heads;
  // Where decode left them.
  params.tile_offsets =
      TakeDecodeArrays(layout_, num_lists, 0, &cursor).tile_offsets;
  params.logits = DataOf<const float>(logit_rows);
  params.lse = DataOf<const float>(denominators);
  params.max_tiles = static_cast<int32_t>(CountLogitTiles(logit_rows));
  params.group_size = layout_.group_size();
  params.sum_offsets = DataOf<const int64_t>(offsets);
  params.sums = DataOf<float>(totals);
  params.num_sums = static_cast<int64_t>(totals.size());
  params.error = reinterpret_cast<uint32_t*>(memory_);
  Launch(stream,
         [&](DeviceRuntime& runtime) { runtime.AddDecodeAttention(params); });
}

PyPrefillPlan PyCudaKernels::PlanPrefill(IntsArgument query_offsets) const {
  const auto offsets = CopyInts<int32_t>(
      "query_offsets", query_offsets, 0,
      std::numeric_limits<int32_t>::max() / layout_.group_size() - kChunkRows);
  if (offsets.empty() || offsets[0] != 0) {
    ThrowInvalid("query_offsets: expected 0 first, got ",
                 offsets.empty() ? "none" : absl::StrCat(offsets[0]));
  }
  PyPrefillPlan plan;
  plan.layout = layout_;
  plan.num_sequences = static_cast<int32_t>(offsets.size()) - 1;
  plan.num_tokens = offsets.back();
  plan.words = offsets;
  plan.words.push_back(0);
  for (size_t i = 0; i + 1 < offsets.size(); ++i) {
    if (offsets[i] > offsets[i + 1]) {
      ThrowInvalid("query_offsets: expected ascending values, got ", offsets[i],
                   ", ", offsets[i + 1], " at ", i);
    }
    plan.num_blocks +=
        CountChunkBlocks(offsets[i + 1] - offsets[i], layout_.group_size());
    plan.words.push_back(plan.num_blocks);
  }
  return plan;
}

void PyCudaKernels::Prefill(int32_t layer, const PyAttentionLists& lists,
                            const PyPrefillPlan& plan, TensorArgument words,
                            TensorArgument queries, TensorArgument output,
                            TensorArgument lse, TensorArgument sinks,
                            std::optional<float> scale,
                            const StreamArgument& stream) {
  CheckLayer(layout_, layer);
  CheckLists(lists);
  if (plan.layout != layout_ || plan.num_sequences != lists.num_sequences) {
    ThrowInvalid("plan: expected one for ", lists.num_sequences,
                 " sequences of ", layout_.ToString(), ", got one for ",
                 plan.num_sequences, " of ", plan.layout.ToString());
  }
  const AnyArray offsets =
      ImportOf<int32_t>("words", words, {std::ssize(plan.words)});
  const AnyArray query_rows =
      ImportRows("queries", queries,
                 {plan.num_tokens, layout_.num_q_heads, layout_.head_dim});
  const AnyArray output_rows = ImportRows(
      "output", output,
      {plan.num_tokens, layout_.num_q_heads, layout_.head_dim}, true);
  const AnyArray sums = ImportLse(lse, plan.num_tokens);
  const AnyArray sink_logits = ImportSinks(sinks);
  ChunkParams params;
  params.lists = lists.OfLayer(layer);
  params.pool = pool_;
  params.query_offsets = DataOf<const int32_t>(offsets);
  params.block_offsets = params.query_offsets + plan.num_sequences + 1;
  params.queries = query_rows.data();
  params.output = DataOf<void>(output_rows);
  params.sinks = DataOf<const float>(sink_logits);
  params.lse = DataOf<float>(sums);
  params.group_size = layout_.group_size();
  params.scale = CheckedScale(layout_, scale);
  Launch(stream, [&](DeviceRuntime& runtime) {
    runtime.Chunk(params, shape_, plan.num_blocks);
  });
}

}  // namespace blockmgr::python
