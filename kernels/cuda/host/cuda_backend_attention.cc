// Attention of CudaBackend.

#include <algorithm>
#include <cstdint>
#include <span>

#include "blockmgr/base/bits.h"
#include "blockmgr/base/check.h"
#include "kernels/cuda/host/cuda_backend.h"

namespace blockmgr {

void CudaBackend::SplitBatch(const AttentionBatch& batch) {
  const ModelLayout& shape = layout();
  for (QuerySet* set : {&decode_, &chunk_}) {
    set->sequences.clear();
    set->query_offsets.assign(1, 0);
    set->work_offsets.assign(1, 0);
  }
  const bool decodes = options_.decode != CudaBackendOptions::Decode::kChunked;
  for (int32_t s = 0; s < std::ssize(batch.sequences); ++s) {
    const SequenceKv& sequence = batch.sequences[s];
    const int32_t num_queries =
        batch.query_offsets[s + 1] - batch.query_offsets[s];
    BM_CHECK(num_queries >= 0);
    // A query's own row is in the tail, so no list is empty.
    BM_CHECK(num_queries <= sequence.tail_length);
    const bool region_has_positions = sequence.region_positions != nullptr;
    BM_CHECK(batch.window == 0 || sequence.region_pages == nullptr ||
             region_has_positions);
    if (num_queries == 0) continue;
    QuerySet& set = decodes && num_queries == 1 ? decode_ : chunk_;
    set.sequences.push_back(s);
    set.query_offsets.push_back(set.query_offsets.back() + num_queries);
    if (&set == &chunk_) {
      set.work_offsets.push_back(
          set.work_offsets.back() +
          CountChunkBlocks(num_queries, shape.group_size()));
      continue;
    }
    for (int32_t head = 0; head < shape.num_heads; ++head) {
      const int32_t region_length =
          sequence.region_pages == nullptr ? 0 : sequence.region_lengths[head];
      set.work_offsets.push_back(
          set.work_offsets.back() +
          CountDecodeTiles(region_length, sequence.tail_length, shape.page_size,
                           batch.window));
    }
  }
}

TailPart CudaBackend::TailOf(const AttentionBatch& batch,
                             int32_t sequence) const {
  return TailPart::Of(
      batch.sequences[sequence],
      batch.query_offsets[sequence + 1] - batch.query_offsets[sequence],
      batch.window, layout().page_size);
}

CudaBackend::Tables CudaBackend::AddTables(const AttentionBatch& batch) {
  const ModelLayout& shape = layout();
  int64_t num_pages = 0;
  Tables tables;
  for (const QuerySet* set : {&decode_, &chunk_}) {
    for (const int32_t s : set->sequences) {
      const SequenceKv& sequence = batch.sequences[s];
      const TailPart tail = TailOf(batch, s);
      tables.tail_stride =
          std::max<int64_t>(tables.tail_stride, tail.end - tail.begin);
      if (sequence.region_pages == nullptr) continue;
      tables.has_regions = true;
      for (int32_t head = 0; head < shape.num_heads; ++head) {
        num_pages += CeilDiv(sequence.region_lengths[head], shape.page_size);
      }
    }
  }
  const int64_t num_rows =
      std::ssize(decode_.sequences) + std::ssize(chunk_.sequences);
  tables.tail_lengths = memory_.Input<int32_t>(num_rows);
  tables.tail_blocks = memory_.Input<int32_t>(num_rows * tables.tail_stride);
  if (tables.has_regions) {
    tables.region_lengths = memory_.Input<int32_t>(num_rows * shape.num_heads);
    tables.region_offsets = memory_.Input<int64_t>(num_rows * shape.num_heads);
    tables.region_pages = memory_.Input<int32_t>(num_pages);
    tables.has_positions = batch.window > 0;
  }
  if (tables.has_positions) {
    tables.cuts = memory_.Input<int32_t>(num_rows);
    tables.region_positions =
        memory_.Input<int32_t>(num_pages * shape.page_size);
  }
  tables.has_sinks = batch.sinks != nullptr;
  if (tables.has_sinks) {
    const std::span sinks(batch.sinks, static_cast<size_t>(shape.num_q_heads));
    tables.sinks = memory_.InputOf(sinks);
  }
  int32_t row = 0;
  int32_t pages_filled = 0;
  for (const QuerySet* set : {&decode_, &chunk_}) {
    for (const int32_t s : set->sequences) {
      FillRow(batch.sequences[s], TailOf(batch, s), tables, row++,
              &pages_filled);
    }
  }
  return tables;
}

void CudaBackend::FillRow(const SequenceKv& sequence, const TailPart& tail,
                          const Tables& tables, int32_t row,
                          int32_t* num_pages) {
  const ModelLayout& shape = layout();
  bool inside = true;
  memory_.Host(tables.tail_lengths)[row] = tail.length;
  const std::span<int32_t> blocks =
      memory_.Host(tables.tail_blocks)
          .subspan(row * tables.tail_stride, tables.tail_stride);
  std::ranges::fill(blocks, 0);
  for (int32_t i = tail.first_page; i < tail.end; ++i) {
    int32_t& block = blocks[i - tail.begin];
    block = Index(sequence.tail_blocks[i]);
    inside &= block >= 0 && block < shape.num_blocks;
  }
  if (tables.has_regions) {
    const int64_t first = int64_t{row} * shape.num_heads;
    int32_t* lengths = memory_.Host(tables.region_lengths).data() + first;
    int64_t* offsets = memory_.Host(tables.region_offsets).data() + first;
    int32_t* pages = memory_.Host(tables.region_pages).data();
    if (tables.has_positions) {
      memory_.Host(tables.cuts)[row] = sequence.cut;
    }
    for (int32_t head = 0; head < shape.num_heads; ++head) {
      offsets[head] = *num_pages;
      lengths[head] = 0;
      if (sequence.region_pages == nullptr) continue;
      lengths[head] = sequence.region_lengths[head];
      BM_CHECK(lengths[head] >= 0);
      const int32_t begin = sequence.region_offsets[head];
      const int32_t count = CeilDiv(lengths[head], shape.page_size);
      BM_CHECK(count <= sequence.region_offsets[head + 1] - begin);
      if (tables.has_positions) {
        std::copy_n(
            sequence.region_positions + int64_t{begin} * shape.page_size,
            int64_t{count} * shape.page_size,
            memory_.Host(tables.region_positions).data() +
                int64_t{*num_pages} * shape.page_size);
      }
      for (int32_t i = 0; i < count; ++i) {
        const int32_t page = Index(sequence.region_pages[begin + i]);
        inside &= page >= 0 && page < shape.num_pages();
        pages[(*num_pages)++] = page;
      }
    }
  }
  const bool ids_are_in_the_pool = inside;
  BM_CHECK(ids_are_in_the_pool);
}

CallMemory::Array<uint16_t> CudaBackend::AddQueriesOf(
    const AttentionBatch& batch, const QuerySet& set) {
  const int64_t token_size = int64_t{layout().num_q_heads} * layout().head_dim;
  const auto queries =
      memory_.Input<uint16_t>(set.query_offsets.back() * token_size);
  const std::span<uint16_t> out = memory_.Host(queries);
  for (std::size_t i = 0; i < set.sequences.size(); ++i) {
    const int64_t begin = set.query_offsets[i] * token_size;
    const int64_t end = set.query_offsets[i + 1] * token_size;
    pool_.Round(
        batch.queries + batch.query_offsets[set.sequences[i]] * token_size,
        out.subspan(begin, end - begin));
  }
  return queries;
}

void CudaBackend::StoreOutput(const AttentionBatch& batch, const QuerySet& set,
                              const CallMemory::Array<uint16_t>& output) {
  const int64_t token_size = int64_t{layout().num_q_heads} * layout().head_dim;
  const std::span<const uint16_t> got = memory_.Host(output);
  for (std::size_t i = 0; i < set.sequences.size(); ++i) {
    const int64_t begin = set.query_offsets[i] * token_size;
    const int64_t end = set.query_offsets[i + 1] * token_size;
    pool_.Widen(
        got.subspan(begin, end - begin),
        batch.output + batch.query_offsets[set.sequences[i]] * token_size);
  }
}

AttentionLists CudaBackend::Lists(const AttentionBatch& batch,
                                  const Tables& tables, int32_t first_row,
                                  const QuerySet& set) const {
  AttentionLists lists;
  lists.num_sequences = static_cast<int32_t>(set.sequences.size());
  lists.num_heads = layout().num_heads;
  lists.layer = batch.layer;
  lists.window = batch.window;
  if (tables.has_regions) {
    const int64_t first = int64_t{first_row} * layout().num_heads;
    lists.region_lengths = memory_.Device(tables.region_lengths) + first;
    lists.region_offsets = memory_.Device(tables.region_offsets) + first;
    lists.region_pages = memory_.Device(tables.region_pages);
  }
  if (tables.has_positions) {
    lists.region_positions = memory_.Device(tables.region_positions);
    lists.cuts = memory_.Device(tables.cuts) + first_row;
  }
  lists.tail_blocks =
      memory_.Device(tables.tail_blocks) + first_row * tables.tail_stride;
  lists.tail_stride = tables.tail_stride;
  lists.tail_lengths = memory_.Device(tables.tail_lengths) + first_row;
  return lists;
}

void CudaBackend::Attention(const AttentionBatch& batch) {
  BM_CHECK(batch.layer >= 0 && batch.layer < layout().num_layers);
  BM_CHECK(batch.query_offsets.size() == batch.sequences.size() + 1);
  BM_CHECK(batch.window >= 0);
  if (batch.device_queries != nullptr) {
    AttendOnDevice(batch);
    return;
  }
  SplitBatch(batch);
  if (decode_.sequences.empty() && chunk_.sequences.empty()) return;
  memory_.Begin();
  const Tables tables = AddTables(batch);
  const DecodeCall decode = AddDecode();
  const auto decode_queries = AddQueriesOf(batch, decode_);
  const auto decode_output = memory_.Result<uint16_t>(decode_queries.count);
  const ChunkCall chunk = AddChunk();
  const auto chunk_queries = AddQueriesOf(batch, chunk_);
  const auto chunk_output = memory_.Result<uint16_t>(chunk_queries.count);
  pool_.Send();
  RunDecode(batch, tables, decode,
            {memory_.Device(decode_queries), memory_.Device(decode_output)});
  RunChunk(batch, tables, chunk,
           {memory_.Device(chunk_queries), memory_.Device(chunk_output)});
  pool_.Receive();
  StoreOutput(batch, decode_, decode_output);
  StoreOutput(batch, chunk_, chunk_output);
}

void CudaBackend::AttendOnDevice(const AttentionBatch& batch) {
  const auto num_queries = [&](std::size_t i) {
    return batch.query_offsets[i + 1] - batch.query_offsets[i];
  };
  const bool decodes = options_.decode != CudaBackendOptions::Decode::kChunked;
  std::size_t end = 0;
  for (std::size_t begin = 0; begin < batch.sequences.size(); begin = end) {
    end = begin + 1;
    const bool is_decode = decodes && num_queries(begin) == 1;
    while (end < batch.sequences.size() &&
           (decodes && num_queries(end) == 1) == is_decode) {
      ++end;
    }
    AttentionBatch run = batch;
    run.sequences = batch.sequences.subspan(begin, end - begin);
    run.query_offsets = batch.query_offsets.subspan(begin, end - begin + 1);
    AttendRun(run);
  }
}

void CudaBackend::AttendRun(const AttentionBatch& batch) {
  SplitBatch(batch);
  if (decode_.sequences.empty() && chunk_.sequences.empty()) return;
  memory_.Begin();
  const Tables tables = AddTables(batch);
  const DecodeCall decode = AddDecode();
  const ChunkCall chunk = AddChunk();
  pool_.Send();
  const int64_t begin = int64_t{batch.query_offsets.front()} *
                        layout().num_q_heads * layout().row_bytes();
  const QueryRows rows = {
      static_cast<const char*>(batch.device_queries) + begin,
      static_cast<char*>(batch.device_output) + begin};
  RunDecode(batch, tables, decode, rows);
  RunChunk(batch, tables, chunk, rows);
}

CudaBackend::DecodeCall CudaBackend::AddDecode() {
  DecodeCall call;
  if (decode_.sequences.empty()) return call;
  const int32_t num_tiles = decode_.work_offsets.back();
  call.num_ctas = std::min(num_decode_ctas_, num_tiles);
  call.chunk_tiles = options_.decode == CudaBackendOptions::Decode::kInvariant
                         ? kInvariantChunkTiles
                         : 0;
  call.tile_offsets =
      memory_.InputOf(std::span<const int32_t>(decode_.work_offsets));
  const int64_t num_lists = std::ssize(decode_.work_offsets) - 1;
  const int64_t num_slots = CountDecodeWorkspaceSlots(
      num_tiles, num_lists, call.num_ctas, call.chunk_tiles);
  const int32_t q_rows = layout().group_size() > 8 ? 16 : 8;
  call.partial_output =
      memory_.Work<float>(num_slots * q_rows * layout().head_dim);
  call.partial_stats = memory_.Work<float>(num_slots * q_rows * 2);
  call.merge_counters =
      memory_.Work<uint32_t>(num_lists * layout().group_size());
  return call;
}

void CudaBackend::RunDecode(const AttentionBatch& batch, const Tables& tables,
                            const DecodeCall& call, const QueryRows& rows) {
  if (decode_.sequences.empty()) return;
  DecodeParams params;
  params.lists = Lists(batch, tables, 0, decode_);
  params.pool = pool_.pool;
  params.tile_offsets = memory_.Device(call.tile_offsets);
  params.queries = rows.queries;
  params.sinks = SinksOf(tables);
  params.output = rows.output;
  params.partial_output = memory_.Device(call.partial_output);
  params.partial_stats = memory_.Device(call.partial_stats);
  params.merge_counters = memory_.Device(call.merge_counters);
  params.group_size = layout().group_size();
  params.num_ctas = call.num_ctas;
  params.chunk_tiles = call.chunk_tiles;
  params.scale = batch.scale;
  params.max_tiles = decode_.work_offsets.back();
  params.error = memory_.device_error();
  runtime_->Decode(params, pool_.shape);
}

CudaBackend::ChunkCall CudaBackend::AddChunk() {
  return {memory_.InputOf(std::span<const int32_t>(chunk_.query_offsets)),
          memory_.InputOf(std::span<const int32_t>(chunk_.work_offsets))};
}

void CudaBackend::RunChunk(const AttentionBatch& batch, const Tables& tables,
                           const ChunkCall& call, const QueryRows& rows) {
  if (chunk_.sequences.empty()) return;
  ChunkParams params;
  params.lists = Lists(batch, tables,
                       static_cast<int32_t>(decode_.sequences.size()), chunk_);
  params.pool = pool_.pool;
  params.query_offsets = memory_.Device(call.query_offsets);
  params.block_offsets = memory_.Device(call.block_offsets);
  params.queries = rows.queries;
  params.output = rows.output;
  params.sinks = SinksOf(tables);
  params.group_size = layout().group_size();
  params.scale = batch.scale;
  runtime_->Chunk(params, pool_.shape, chunk_.work_offsets.back());
}

}  // namespace blockmgr
