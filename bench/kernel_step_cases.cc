#include "bench/kernel_step_cases.h"

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include "blockmgr/base/bits.h"
#include "kernels/cuda/attention/chunk_attention.h"
#include "kernels/cuda/attention/decode_attention.h"
#include "kernels/cuda/rows/row_mover.h"

namespace blockmgr {
namespace {

// Makes all parameters of a decode but the pool.
DecodeParams MakeDecode(int32_t chunk_tiles, CaseBuilder& builder) {
  const KernelInputs& in = builder.in;
  const KernelProblem& problem = in.problem;
  DeviceMemory& memory = builder.memory;
  std::vector<int32_t> tile_offsets = {0};
  for (int64_t list = 0; list < in.num_lists(); ++list) {
    tile_offsets.push_back(tile_offsets.back() +
                           CountDecodeTiles(problem.lengths[list],
                                            in.tail_length(list),
                                            problem.page_size));
  }
  const int32_t num_ctas =
      std::clamp(memory.runtime().CountDecodeCtas(in.shape, problem.group_size),
                 1, tile_offsets.back());
  const int64_t num_slots = CountDecodeWorkspaceSlots(
      tile_offsets.back(), in.num_lists(), num_ctas, chunk_tiles);
  const int32_t q_rows = problem.group_size > 8 ? 16 : 8;
  DecodeParams params;
  params.lists = in.lists;
  params.tile_offsets = memory.Send<int32_t>(tile_offsets);
  params.queries = in.queries;
  params.output = in.output;
  params.partial_output =
      memory.Allocate<float>(num_slots * q_rows * problem.head_dim);
  params.partial_stats = memory.Allocate<float>(num_slots * q_rows * 2);
  params.merge_counters =
      memory.Allocate<uint32_t>(in.num_lists() * problem.group_size);
  params.group_size = problem.group_size;
  params.num_ctas = num_ctas;
  params.chunk_tiles = chunk_tiles;
  params.scale = in.scale();
  params.max_tiles = tile_offsets.back();
  params.error = in.error;
  return params;
}

// The decode writes logits if there is room for them.
void AddDecodeOf(const char* name, const DecodeParams& params,
                 CaseBuilder& builder) {
  const KernelInputs& in = builder.in;
  const double logit_bytes =
      params.logits == nullptr
          ? 0.0
          : 4.0 * in.problem.group_size * static_cast<double>(in.num_entries());
  builder.cases.push_back(
      {name, KernelCeiling::kRead, in.kv_bytes() + logit_bytes, 0,
       builder.OnPool(params, &DeviceRuntime::Decode, in.shape)});
}

}  // namespace

void AddCeilings(CaseBuilder& builder) {
  const KernelInputs& in = builder.in;
  KernelDevice& device = builder.memory.device();
  const int64_t num_vectors = in.problem.kv_bytes() / 16;
  uint32_t* const sink = builder.memory.Allocate<uint32_t>(1);
  builder.cases.push_back({"read_ceiling", KernelCeiling::kRead, in.kv_bytes(),
                           0, [=, &in, &device](int32_t copy) {
                             device.ReadCeiling(in.pools[copy], num_vectors,
                                                sink);
                           }});
  // Half of a pool is copied to the memory beside it. The case reads and writes
  // as many bytes as K and V have.
  builder.cases.push_back(
      {"copy_ceiling", KernelCeiling::kCopy, in.kv_bytes(), 0,
       [=, &in, &device](int32_t copy) {
         device.CopyCeiling(in.pools[copy], in.besides[copy], num_vectors / 2);
       }});
}

void AddDecode(const char* name, int32_t chunk_tiles, CaseBuilder& builder) {
  AddDecodeOf(name, MakeDecode(chunk_tiles, builder), builder);
}

void AddDecodeSinks(CaseBuilder& builder) {
  const KernelProblem& problem = builder.in.problem;
  DecodeParams params = MakeDecode(0, builder);
  params.sinks = builder.memory.Allocate<float>(int64_t{problem.num_heads} *
                                                problem.group_size);
  AddDecodeOf("decode_sinks", params, builder);
}

void AddDecodeSums(CaseBuilder& builder) {
  const KernelInputs& in = builder.in;
  const int32_t group_size = in.problem.group_size;
  DecodeParams decode = MakeDecode(0, builder);
  decode.logits = builder.memory.Allocate<float>(int64_t{decode.max_tiles} *
                                                 kDecodeTileRanks * group_size);
  decode.lse = builder.memory.Allocate<float>(in.num_q_heads());
  AddDecodeOf("decode_logits", decode, builder);
  DecodeSumParams sums;
  sums.lists = in.lists;
  sums.page_shift = in.page_shift();
  sums.num_heads = MakeDivider(in.problem.num_heads);
  sums.tile_offsets = decode.tile_offsets;
  sums.max_tiles = decode.max_tiles;
  sums.logits = decode.logits;
  sums.lse = decode.lse;
  sums.group_size = group_size;
  sums.sum_offsets = in.entries.offsets;
  sums.sums = in.scores;
  sums.num_sums = in.num_entries();
  sums.error = in.error;
  const auto num_entries = static_cast<double>(in.num_entries());
  // Logits are read. Sums are read and written. In a step, both may stay in the
  // cache, so memory is no ceiling.
  builder.cases.push_back(
      {"h2o_add", KernelCeiling::kNone, 4.0 * (group_size + 2) * num_entries, 0,
       builder.OffPool(&DeviceRuntime::AddDecodeAttention, sums)});
  H2oScoreParams finish;
  finish.entries = in.entries;
  finish.lengths = in.lengths;
  finish.group_size = group_size;
  finish.scores = in.scores;
  builder.cases.push_back({"h2o_finish", KernelCeiling::kNone,
                           8.0 * num_entries, 0,
                           builder.OffPool(&DeviceRuntime::FinishH2o, finish)});
}

void AddChunk(CaseBuilder& builder) {
  const KernelInputs& in = builder.in;
  const KernelProblem& problem = in.problem;
  DeviceMemory& memory = builder.memory;
  const int32_t num_sequences = std::min(problem.num_sequences, 4);
  const int32_t num_queries = std::min(512, in.num_blocks * problem.page_size);
  const auto most_blocks =
      in.lists.tail_stride + CeilDiv(num_queries, problem.page_size);
  std::vector<int32_t> tail_blocks;
  std::vector<int32_t> tail_lengths;
  std::vector<int32_t> query_offsets = {0};
  std::vector<int32_t> block_offsets = {0};
  double num_pairs = 0;
  for (int32_t s = 0; s < num_sequences; ++s) {
    tail_blocks.insert(
        tail_blocks.end(),
        problem.tail_blocks.begin() + in.tail_block_offsets[s],
        problem.tail_blocks.begin() + in.tail_block_offsets[s + 1]);
    for (int32_t i = 0; std::ssize(tail_blocks) < (s + 1) * most_blocks; ++i) {
      tail_blocks.push_back(i % in.num_blocks);
    }
    tail_lengths.push_back(problem.tail_lengths[s] + num_queries);
    query_offsets.push_back(query_offsets.back() + num_queries);
    block_offsets.push_back(block_offsets.back() +
                            CountChunkBlocks(num_queries, problem.group_size));
    for (int32_t head = 0; head < problem.num_heads; ++head) {
      const double length = in.list_length(s * problem.num_heads + head);
      num_pairs += num_queries * (length + (num_queries + 1) / 2.0);
    }
  }
  const int64_t num_elements = int64_t{query_offsets.back()} *
                               problem.num_heads * problem.group_size *
                               problem.head_dim;
  ChunkParams params;
  params.lists = in.lists;
  params.lists.num_sequences = num_sequences;
  params.lists.tail_blocks = memory.Send<int32_t>(tail_blocks);
  params.lists.tail_stride = most_blocks;
  params.lists.tail_lengths = memory.Send<int32_t>(tail_lengths);
  params.query_offsets = memory.Send<int32_t>(query_offsets);
  params.block_offsets = memory.Send<int32_t>(block_offsets);
  params.queries = memory.AllocateElements(num_elements, problem.seed + 2,
                                           problem.element_type);
  params.output = memory.Allocate<uint16_t>(num_elements);
  params.group_size = problem.group_size;
  params.scale = in.scale();
  builder.cases.push_back(
      {"chunk", KernelCeiling::kNone, 0,
       4.0 * problem.head_dim * problem.group_size * num_pairs,
       builder.OnPool(params, &DeviceRuntime::Chunk, in.shape,
                      block_offsets.back())});
}

void AddAppend(CaseBuilder& builder) {
  const KernelInputs& in = builder.in;
  DeviceRuntime& runtime = builder.memory.runtime();
  const int64_t num_tokens =
      int64_t{(in.num_blocks + 1) / 2} * in.problem.page_size;
  std::vector<int64_t> mapping;
  for (int64_t i = 0; i < num_tokens; ++i) mapping.push_back(i);
  AppendRows append;
  append.num_tokens = num_tokens;
  append.slot_mapping = builder.memory.Send<int64_t>(mapping);
  append.token_stride = in.problem.num_heads * in.problem.row_bytes();
  append.head_stride = in.problem.row_bytes();
  append.error = in.error;
  builder.cases.push_back(
      {"append", KernelCeiling::kCopy,
       2 * in.pair_bytes() * static_cast<double>(num_tokens) *
           in.problem.num_heads,
       0, [=, &in, &runtime](int32_t copy) {
         AppendRows p = append;
         p.pool = in.PoolOf(copy);
         p.keys = in.besides[copy];
         p.values = in.besides[copy] + p.num_tokens * p.token_stride;
         runtime.Append(p, RowConversion::kNone);
       }});
}

void AddGather(CaseBuilder& builder) {
  const KernelInputs& in = builder.in;
  DeviceRuntime& runtime = builder.memory.runtime();
  std::vector<int64_t> slots;
  for (std::size_t i = 0; i + 1 < in.slots.size(); i += 2) {
    slots.push_back(in.slots[i]);
  }
  GatherRows gather;
  gather.rows.count = std::ssize(slots);
  gather.slots = builder.memory.Send<int64_t>(slots);
  gather.error = in.error;
  builder.cases.push_back(
      {"gather", KernelCeiling::kCopy,
       2 * in.pair_bytes() * static_cast<double>(slots.size()), 0,
       [=, &in, &runtime](int32_t copy) {
         GatherRows p = gather;
         p.pool = in.PoolOf(copy);
         p.out = in.besides[copy];
         runtime.Gather(p, RowConversion::kNone);
       }});
}

void AddBlockCopies(CaseBuilder& builder) {
  const KernelInputs& in = builder.in;
  const int32_t half = in.num_blocks / 2;
  std::vector<BlockPair> pairs;
  pairs.reserve(half);
  for (int32_t block = 0; block < half; ++block) {
    pairs.push_back({block, half + block});
  }
  CopyBlockRows copy_blocks;
  copy_blocks.num_pairs = half;
  copy_blocks.pairs = builder.memory.Send<BlockPair>(pairs);
  copy_blocks.error = in.error;
  builder.cases.push_back(
      {"copy_blocks", KernelCeiling::kCopy,
       2 * in.pair_bytes() * half * in.problem.page_size * in.problem.num_heads,
       0, builder.OnPool(copy_blocks, &DeviceRuntime::CopyBlocks)});
}

void AddSwap(CaseBuilder& builder) {
  const KernelInputs& in = builder.in;
  DeviceRuntime& runtime = builder.memory.runtime();
  const std::span pages = std::span(in.pages).first(in.pages.size() / 2);
  StagePages stage;
  stage.num_pages = std::ssize(pages);
  stage.pages = builder.memory.Send<int32_t>(pages);
  stage.error = in.error;
  const double bytes = 2 * in.pair_bytes() * static_cast<double>(pages.size()) *
                       in.problem.page_size;
  const auto add = [&](const char* name, auto launch) {
    builder.cases.push_back({name, KernelCeiling::kCopy, bytes, 0,
                             [=, &in, &runtime](int32_t copy) {
                               StagePages p = stage;
                               p.pool = in.PoolOf(copy);
                               p.staged = in.besides[copy];
                               (runtime.*launch)(p);
                             }});
  };
  add("swap_pack", &DeviceRuntime::PackPages);
  add("swap_unpack", &DeviceRuntime::UnpackPages);
}

}  // namespace blockmgr
