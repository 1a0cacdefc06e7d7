// Prints, for every kernel that some launch has, its symbol and the bytes of
// shared memory it is launched with: what a compiler cannot say of memory that
// is given at run time. For scripts/cuda_kernels.py.
#include <dlfcn.h>

#include <algorithm>
#include <cstdint>
#include <iostream>
#include <map>
#include <string>

#include "blockmgr/base/check.h"
#include "tests/kernels/cuda/emulated_runtime.h"

namespace blockmgr {
namespace {

constexpr RowConversion kConversions[] = {RowConversion::kNone,
                                          RowConversion::kFloatToBFloat16,
                                          RowConversion::kFloatToHalf};
constexpr RowConversion kWidenings[] = {RowConversion::kNone,
                                        RowConversion::kBFloat16ToFloat,
                                        RowConversion::kHalfToFloat};

constexpr EntryLists kOneList = {.num_sequences = 1,
                                 .num_heads = 1,
                                 .row_splits = {.count = 1},
                                 .window_splits = {.count = 1}};

// All kernels that one shape of rows has, on one list.
void LaunchShaped(DeviceRuntime& device, const RowShape& shape) {
  DecodeParams decode;
  decode.lists = {.num_sequences = 1, .num_heads = 1};
  decode.num_ctas = 1;
  for (const int32_t group_size : {8, 16}) {
    decode.group_size = group_size;
    device.Decode(decode, shape);
  }
  ChunkParams chunk;
  chunk.lists = decode.lists;
  for (const int32_t window : {0, 1}) {
    chunk.lists.window = window;
    device.Chunk(chunk, shape, 1);
  }
  WindowParams window;
  window.entries = kOneList;
  window.window = 1;
  window.group_size = 1;
  device.WindowStats(window, shape);
  device.WindowColumns(window, shape);
  KeyScoreParams keys;
  keys.entries = kOneList;
  for (const KeyAnchor anchor : {KeyAnchor::kNormalized, KeyAnchor::kMedian}) {
    keys.anchor = anchor;
    for (const KeyMetric metric : {KeyMetric::kCosine, KeyMetric::kDot,
                                   KeyMetric::kEuclidean, KeyMetric::kNorm}) {
      keys.metric = metric;
      device.KeyScores(keys, shape);
    }
  }
  ExpectedParams expected;
  expected.entries = kOneList;
  device.ExpectedScores(expected, shape);
  ValueNormParams norms;
  norms.entries = kOneList;
  device.ValueNorms(norms, shape);
  device.PrepareHeads({.num_rows = 1, .num_q_heads = 1, .num_heads = 1}, shape);
}

// The kernels of layers that one type of weights has.
void LaunchLayers(DeviceRuntime& device, ElementType type) {
  device.Embed({.num_rows = 1, .width = 16}, type);
  device.Normalize({.num_rows = 1, .width = 16}, type);
  for (const ElementType pool : {ElementType::kBFloat16, ElementType::kHalf}) {
    device.MergeAttention({.num_rows = 1, .width = 16}, type, pool);
  }
  device.Gate({.num_rows = 1, .width = 16}, type);
  device.Multiply({.num_rows = 1, .in = 16, .out = 16}, type);
}

void LaunchOthers(DeviceRuntime& device) {
  const AttentionLists lists = {.num_sequences = 1, .num_heads = 1};
  const PagedPool pool = {
      .num_layers = 1, .num_blocks = 1, .num_heads = 1, .page_size = 16};
  for (const RowConversion conversion : kConversions) {
    device.Append({.pool = pool, .num_tokens = 1}, conversion);
  }
  for (const RowConversion conversion : kWidenings) {
    device.Gather({.pool = pool, .rows = {.count = 1}}, conversion);
  }
  device.Move({.pool = pool, .rows = {.count = 1}});
  char staged = 0;
  device.Move({.pool = pool, .rows = {.count = 1}, .staged = &staged});
  device.CopyBlocks({.pool = pool, .num_pairs = 1});
  device.PackPages({.pool = pool, .num_pages = 1});
  device.UnpackPages({.pool = pool, .num_pages = 1});
  DecodePlanParams plan;
  plan.lists = lists;
  device.PlanDecode(plan);
  PoolParams pooling;
  pooling.entries = kOneList;
  device.PoolWindow(pooling);
  device.Tova({.entries = kOneList, .tiles = {.count = 1}});
  DecodeSumParams sums;
  sums.lists = lists;
  sums.max_tiles = 1;
  device.AddDecodeAttention(sums);
  device.FinishH2o({.entries = kOneList});
  SelectProblem select;
  select.num_heads = 1;
  select.num_scopes = 1;
  select.chunks.count = 1;
  select.divide_from = 1;
  for (const ElementType type : {ElementType::kBFloat16, ElementType::kHalf}) {
    LaunchLayers(device, type);
  }
  device.EditLogits({.num_edits = 1});
  device.DrawTokens({.num_draws = 1, .vocabulary = 1});
  for (const bool critical : {false, true}) {
    select.critical = critical;
    device.Select(select);
  }
  for (const auto budget : {SelectBudget::kFloor, SelectBudget::kBlend}) {
    select.budget = budget;
    select.alpha = 1;
    device.Select(select);
  }
  device.PlanMoves({.num_heads = 1, .page_size = 16});
  // Only looked at for being there.
  const int32_t region_length = 1;
  EntryIndexParams index;
  index.lists = lists;
  index.lists.region_lengths = &region_length;
  device.IndexEntries(index, 1);
  const int32_t chunks[] = {0, 1};
  index.chunks = {chunks, 1};
  device.IndexEntries(index, 1);
}

int Main() {
  std::map<std::string, uint32_t> shared_bytes;
  EmulatedRuntime device([&](const void* kernel, const LaunchSize& size) {
    Dl_info symbol;
    BM_CHECK(dladdr(kernel, &symbol) != 0 && symbol.dli_sname != nullptr);
    uint32_t& most = shared_bytes[symbol.dli_sname];
    most = std::max(most, size.shared_bytes);
  });
  for (const ElementType type : {ElementType::kBFloat16, ElementType::kHalf}) {
    for (const int32_t head_dim : {64, 128, 256}) {
      LaunchShaped(device, {.type = type, .head_dim = head_dim});
    }
  }
  LaunchOthers(device);
  BM_CHECK(device.status().ok());
  for (const auto& [kernel, bytes] : shared_bytes) {
    std::cout << kernel << ' ' << bytes << '\n';
  }
  return 0;
}

}  // namespace
}  // namespace blockmgr

int main() { return blockmgr::Main(); }
