#include "bench/kernel_cases.h"

#include <algorithm>
#include <cmath>

#include "blockmgr/base/bits.h"
#include "blockmgr/base/invalid.h"
#include "blockmgr/base/status_macros.h"

namespace blockmgr {
namespace {

constexpr int32_t kMaxCopies = 16;
// A launch of scores takes at most so many lists (attention_launch.h).
constexpr std::size_t kMaxLists = 65535;

}  // namespace

DeviceProblem::DeviceProblem(const KernelProblem& problem,
                             const DeviceProblemOptions& options,
                             KernelDevice* device)
    : problem_(problem),
      options_(options),
      device_(*device),
      shape_{problem.element_type, problem.head_dim},
      kv_bytes_(static_cast<double>(problem.kv_bytes())),
      num_blocks_(CeilDiv(problem.num_pages, problem.num_heads)) {}

char* DeviceProblem::AllocateBytes(int64_t bytes) {
  if (!status_.ok()) return nullptr;
  const absl::StatusOr<char*> memory = runtime().Allocate(bytes);
  if (!memory.ok()) {
    status_ = memory.status();
    return nullptr;
  }
  memory_.push_back({*memory, bytes});
  num_bytes_ += bytes;
  most_bytes_ = std::max(most_bytes_, num_bytes_);
  runtime().Fill(*memory, 0, bytes);
  return *memory;
}

uint16_t* DeviceProblem::AllocateElements(int64_t count, uint64_t seed) {
  uint16_t* elements = Allocate<uint16_t>(count);
  if (elements != nullptr) {
    device_.FillElements(elements, count, seed, problem_.element_type);
  }
  return elements;
}

void DeviceProblem::FreeDownTo(std::size_t num_allocations) {
  while (memory_.size() > num_allocations) {
    runtime().Free(memory_.back().place);
    num_bytes_ -= memory_.back().bytes;
    memory_.pop_back();
  }
}

DeviceProblem::~DeviceProblem() { FreeDownTo(0); }

absl::StatusOr<std::unique_ptr<DeviceProblem>> DeviceProblem::Create(
    const KernelProblem& problem, const DeviceProblemOptions& options,
    KernelDevice* device) {
  BM_RETURN_IF_ERROR(problem.Validate());
  if (problem.lengths.size() > kMaxLists) {
    return Invalid("lists: expected at most ", kMaxLists,
                   " (sequences times heads), got ", problem.lengths.size());
  }
  std::unique_ptr<DeviceProblem> result(
      new DeviceProblem(problem, options, device));
  result->FillPools();
  BM_RETURN_IF_ERROR(result->status_);
  result->SendLists();
  result->SendEntries();
  BM_RETURN_IF_ERROR(result->status_);
  BM_RETURN_IF_ERROR(device->status());
  return result;
}

void DeviceProblem::FillPools() {
  const int64_t num_elements = int64_t{num_blocks_} * problem_.num_heads * 2 *
                               problem_.page_size * problem_.head_dim;
  const int64_t num_copies = std::clamp<int64_t>(
      CeilDiv(options_.rotated_bytes, problem_.kv_bytes()), 1, kMaxCopies);
  // Whole blocks.
  const int64_t num_beside =
      int64_t{(num_blocks_ + 1) / 2} * (num_elements / num_blocks_);
  for (int64_t copy = 0; copy < num_copies; ++copy) {
    pools_.push_back(
        reinterpret_cast<char*>(AllocateElements(num_elements, problem_.seed)));
    besides_.push_back(reinterpret_cast<char*>(
        AllocateElements(num_beside, problem_.seed + 5)));
  }
  const int64_t num_q_elements =
      num_lists() * problem_.group_size * problem_.head_dim;
  queries_ = AllocateElements(num_q_elements, problem_.seed + 1);
  output_ = Allocate<uint16_t>(num_q_elements);
  error_ = Allocate<uint32_t>(1);
}

PagedPool DeviceProblem::PoolOf(int32_t copy) const {
  PagedPool pool;
  pool.base = pools_[copy];
  pool.token_stride = problem_.row_bytes();
  pool.kv_stride = pool.token_stride * problem_.page_size;
  pool.head_stride = 2 * pool.kv_stride;
  pool.block_stride = pool.head_stride * problem_.num_heads;
  pool.layer_stride = pool.block_stride * num_blocks_;
  pool.num_layers = 1;
  pool.num_blocks = num_blocks_;
  pool.num_heads = problem_.num_heads;
  pool.page_size = problem_.page_size;
  pool.row_bytes = static_cast<int32_t>(problem_.row_bytes());
  return Prepared(pool);
}

void DeviceProblem::SendLists() {
  const int32_t page_size = problem_.page_size;
  tail_block_offsets_.push_back(0);
  for (const int32_t length : problem_.tail_lengths) {
    const int32_t num_blocks = CeilDiv(length, page_size);
    lists_.tail_stride = std::max<int64_t>(lists_.tail_stride, num_blocks);
    longest_tail_ = std::max(longest_tail_, length);
    tail_block_offsets_.push_back(tail_block_offsets_.back() + num_blocks);
  }
  lists_.tail_stride = std::max<int64_t>(lists_.tail_stride, 1);
  std::vector<int32_t> tail_blocks(problem_.num_sequences * lists_.tail_stride);
  for (int32_t s = 0; s < problem_.num_sequences; ++s) {
    std::copy(problem_.tail_blocks.begin() + tail_block_offsets_[s],
              problem_.tail_blocks.begin() + tail_block_offsets_[s + 1],
              tail_blocks.begin() + s * lists_.tail_stride);
  }
  std::vector<int64_t> region_offsets;
  int64_t page = 0;
  page_offsets_.push_back(0);
  for (int64_t list = 0; list < num_lists(); ++list) {
    region_offsets.push_back(page);
    const auto first = problem_.page_ids.begin() + page;
    const int32_t num_pages = CeilDiv(problem_.lengths[list], page_size);
    pages_.insert(pages_.end(), first, first + num_pages);
    page += num_pages;
    const int64_t s = list / problem_.num_heads;
    for (int64_t i = tail_block_offsets_[s]; i < tail_block_offsets_[s + 1];
         ++i) {
      pages_.push_back(problem_.tail_blocks[i] * problem_.num_heads +
                       static_cast<int32_t>(list % problem_.num_heads));
    }
    page_offsets_.push_back(std::ssize(pages_));
  }
  lists_.num_sequences = problem_.num_sequences;
  lists_.num_heads = problem_.num_heads;
  lists_.region_lengths = Send<int32_t>(problem_.lengths);
  lists_.region_offsets = Send<int64_t>(region_offsets);
  lists_.region_pages = Send<int32_t>(problem_.page_ids);
  lists_.tail_blocks = Send<int32_t>(tail_blocks);
  lists_.tail_lengths = Send<int32_t>(problem_.tail_lengths);
}

// A tail is the last tokens of its sequence, which is as long as its longest
// list, or as a window.
void DeviceProblem::SendEntries() {
  const int32_t page_size = problem_.page_size;
  std::vector<int32_t> positions;
  sequence_lengths_.assign(problem_.num_sequences, kWindow);
  for (int64_t list = 0; list < num_lists(); ++list) {
    int32_t& length = sequence_lengths_[list / problem_.num_heads];
    length = std::max(length, list_length(list));
  }
  offsets_.push_back(0);
  for (int64_t list = 0; list < num_lists(); ++list) {
    const int32_t region = problem_.lengths[list];
    const int32_t cut =
        sequence_lengths_[list / problem_.num_heads] - tail_length(list);
    // The tail begins on a page of its own.
    const int32_t tail_rank = CeilDiv(region, page_size) * page_size;
    for (int32_t i = 0; i < list_length(list); ++i) {
      const int32_t rank = i < region ? i : tail_rank + i - region;
      slots_.push_back(int64_t{pages_[page_offsets_[list] + rank / page_size]} *
                           page_size +
                       rank % page_size);
      positions.push_back(i < region ? i : cut + i - region);
    }
    offsets_.push_back(std::ssize(slots_));
  }
  max_length_ = *std::ranges::max_element(sequence_lengths_);
  entries_.num_sequences = problem_.num_sequences;
  entries_.num_heads = problem_.num_heads;
  entries_.offsets = Send<int64_t>(offsets_);
  entries_.slots = Send<int64_t>(slots_);
  entries_.positions = Send<int32_t>(positions);
  entries_.row_splits = SendSplits(offsets_, kRowSplitEntries);
  entries_.window_splits = SendSplits(offsets_, kSplitEntries);
  lengths_ = Send<int32_t>(sequence_lengths_);
  scores_ = Allocate<float>(std::ssize(slots_));
}

ListSplits DeviceProblem::SendSplits(std::span<const int64_t> offsets,
                                     int32_t split_entries,
                                     int32_t min_splits) {
  std::vector<int32_t> splits(offsets.size());
  const int32_t count =
      FillSplitOffsets(offsets.data(), std::ssize(offsets) - 1, split_entries,
                       splits.data(), min_splits);
  return {Send<int32_t>(splits), count};
}

void DeviceProblem::AddCeilings() {
  const int64_t num_vectors = problem_.kv_bytes() / 16;
  uint32_t* sink = Allocate<uint32_t>(1);
  cases_.push_back({"read_ceiling", KernelCeiling::kRead, kv_bytes_, 0,
                    [=, this](int32_t copy) {
                      device_.ReadCeiling(pools_[copy], num_vectors, sink);
                    }});
  // Half of a pool to memory beside it: the bytes of K and V are moved once.
  cases_.push_back({"copy_ceiling", KernelCeiling::kCopy, kv_bytes_, 0,
                    [=, this](int32_t copy) {
                      device_.CopyCeiling(pools_[copy], besides_[copy],
                                          num_vectors / 2);
                    }});
}

DecodeParams DeviceProblem::MakeDecode(int32_t chunk_tiles) {
  std::vector<int32_t> tile_offsets = {0};
  for (int64_t list = 0; list < num_lists(); ++list) {
    tile_offsets.push_back(tile_offsets.back() + num_tiles(list));
  }
  const int32_t num_ctas =
      std::clamp(runtime().CountDecodeCtas(shape_, problem_.group_size), 1,
                 tile_offsets.back());
  const int64_t num_slots = DecodeWorkspaceSlots(
      tile_offsets.back(), num_lists(), num_ctas, chunk_tiles);
  const int32_t q_rows = problem_.group_size > 8 ? 16 : 8;
  DecodeParams params;
  params.lists = lists_;
  params.tile_offsets = Send<int32_t>(tile_offsets);
  params.queries = queries_;
  params.output = output_;
  params.partial_output =
      Allocate<float>(num_slots * q_rows * problem_.head_dim);
  params.partial_stats = Allocate<float>(num_slots * q_rows * 2);
  params.group_size = problem_.group_size;
  params.num_ctas = num_ctas;
  params.chunk_tiles = chunk_tiles;
  params.scale = 1.0f / std::sqrt(static_cast<float>(problem_.head_dim));
  params.max_tiles = tile_offsets.back();
  params.error = error_;
  return params;
}

void DeviceProblem::AddDecode(const char* name, const DecodeParams& params) {
  const double logit_bytes =
      params.logits == nullptr
          ? 0.0
          : 4.0 * problem_.group_size * static_cast<double>(slots_.size());
  cases_.push_back({name, KernelCeiling::kRead, kv_bytes_ + logit_bytes, 0,
                    [=, this](int32_t copy) {
                      DecodeParams p = params;
                      p.pool = PoolOf(copy);
                      runtime().Decode(p, shape_);
                    }});
}

void DeviceProblem::AddDecodeSums() {
  const DecodeParams decode = MakeDecode(0);
  DecodeParams with_logits = decode;
  with_logits.logits = Allocate<float>(int64_t{decode.max_tiles} *
                                       kDecodeTileRanks * problem_.group_size);
  with_logits.lse = Allocate<float>(num_lists() * problem_.group_size);
  AddDecode("decode_logits", with_logits);
  DecodeSumParams sums;
  sums.lists = lists_;
  sums.page_shift = problem_.page_size == 32 ? 5 : 4;
  sums.num_heads = MakeDivider(problem_.num_heads);
  sums.tile_offsets = decode.tile_offsets;
  sums.max_tiles = decode.max_tiles;
  sums.logits = with_logits.logits;
  sums.lse = with_logits.lse;
  sums.group_size = problem_.group_size;
  sums.sum_offsets = entries_.offsets;
  sums.sums = scores_;
  sums.num_sums = std::ssize(slots_);
  sums.error = error_;
  const auto num_entries = static_cast<double>(slots_.size());
  // Logits are read, sums read and written. Both may well stay in the cache, as
  // they do in a step, so that memory is no ceiling.
  cases_.push_back(
      {"h2o_add", KernelCeiling::kNone,
       4.0 * (problem_.group_size + 2) * num_entries, 0,
       [=, this](int32_t) { runtime().AddDecodeAttention(sums); }});
  H2oScoreParams finish;
  finish.entries = entries_;
  finish.lengths = lengths_;
  finish.group_size = problem_.group_size;
  finish.scores = scores_;
  cases_.push_back({"h2o_finish", KernelCeiling::kNone, 8.0 * num_entries, 0,
                    [=, this](int32_t) { runtime().FinishH2o(finish); }});
}

// The last queries of every sequence over its lists, as a chunk of a prompt
// whose own tokens follow those of the tail, on the pool's first blocks.
void DeviceProblem::AddChunk() {
  const int32_t num_sequences = std::min(problem_.num_sequences, 4);
  const int32_t num_queries = std::min(512, num_blocks_ * problem_.page_size);
  const auto most_blocks =
      lists_.tail_stride + CeilDiv(num_queries, problem_.page_size);
  std::vector<int32_t> tail_blocks;
  std::vector<int32_t> tail_lengths;
  std::vector<int32_t> query_offsets = {0};
  std::vector<int32_t> block_offsets = {0};
  double num_pairs = 0;
  for (int32_t s = 0; s < num_sequences; ++s) {
    tail_blocks.insert(
        tail_blocks.end(),
        problem_.tail_blocks.begin() + tail_block_offsets_[s],
        problem_.tail_blocks.begin() + tail_block_offsets_[s + 1]);
    for (int32_t i = 0; std::ssize(tail_blocks) < (s + 1) * most_blocks; ++i) {
      tail_blocks.push_back(i % num_blocks_);
    }
    tail_lengths.push_back(problem_.tail_lengths[s] + num_queries);
    query_offsets.push_back(query_offsets.back() + num_queries);
    block_offsets.push_back(block_offsets.back() +
                            ChunkBlocks(num_queries, problem_.group_size));
    for (int32_t head = 0; head < problem_.num_heads; ++head) {
      const double length = list_length(s * problem_.num_heads + head);
      num_pairs += num_queries * (length + (num_queries + 1) / 2.0);
    }
  }
  const int64_t num_elements = int64_t{query_offsets.back()} *
                               problem_.num_heads * problem_.group_size *
                               problem_.head_dim;
  ChunkParams params;
  params.lists = lists_;
  params.lists.num_sequences = num_sequences;
  params.lists.tail_blocks = Send<int32_t>(tail_blocks);
  params.lists.tail_stride = most_blocks;
  params.lists.tail_lengths = Send<int32_t>(tail_lengths);
  params.query_offsets = Send<int32_t>(query_offsets);
  params.block_offsets = Send<int32_t>(block_offsets);
  params.queries = AllocateElements(num_elements, problem_.seed + 2);
  params.output = Allocate<uint16_t>(num_elements);
  params.group_size = problem_.group_size;
  params.scale = 1.0f / std::sqrt(static_cast<float>(problem_.head_dim));
  const int32_t num_ctas = block_offsets.back();
  cases_.push_back({"chunk", KernelCeiling::kNone, 0,
                    4.0 * problem_.head_dim * problem_.group_size * num_pairs,
                    [=, this](int32_t copy) {
                      ChunkParams p = params;
                      p.pool = PoolOf(copy);
                      runtime().Chunk(p, shape_, num_ctas);
                    }});
}

void DeviceProblem::AddAppend() {
  // A prompt's rows: every slot of half of the pool's blocks.
  const int64_t num_tokens =
      int64_t{(num_blocks_ + 1) / 2} * problem_.page_size;
  std::vector<int64_t> mapping;
  for (int64_t i = 0; i < num_tokens; ++i) mapping.push_back(i);
  const int64_t token_bytes = problem_.num_heads * problem_.row_bytes();
  AppendRows append;
  append.num_tokens = num_tokens;
  append.slot_mapping = Send<int64_t>(mapping);
  append.token_stride = token_bytes;
  append.head_stride = problem_.row_bytes();
  append.error = error_;
  cases_.push_back(
      {"append", KernelCeiling::kCopy,
       2 * pair_bytes() * static_cast<double>(num_tokens) * problem_.num_heads,
       0, [=, this](int32_t copy) {
         AppendRows p = append;
         p.pool = PoolOf(copy);
         p.keys = besides_[copy];
         p.values = besides_[copy] + num_tokens * token_bytes;
         runtime().Append(p, RowConversion::kNone);
       }});
}

// Every other entry is read back.
void DeviceProblem::AddGather() {
  std::vector<int64_t> slots;
  for (std::size_t i = 0; i + 1 < slots_.size(); i += 2) {
    slots.push_back(slots_[i]);
  }
  GatherRows gather;
  gather.rows.count = std::ssize(slots);
  gather.slots = Send<int64_t>(slots);
  gather.error = error_;
  cases_.push_back({"gather", KernelCeiling::kCopy,
                    2 * pair_bytes() * static_cast<double>(slots.size()), 0,
                    [=, this](int32_t copy) {
                      GatherRows p = gather;
                      p.pool = PoolOf(copy);
                      p.out = besides_[copy];
                      runtime().Gather(p, RowConversion::kNone);
                    }});
}

void DeviceProblem::AddBlockCopies() {
  std::vector<BlockPair> pairs;
  pairs.reserve(num_blocks_ / 2);
  for (int32_t block = 0; block < num_blocks_ / 2; ++block) {
    pairs.push_back({block, num_blocks_ / 2 + block});
  }
  CopyBlockRows copy_blocks;
  copy_blocks.num_pairs = std::ssize(pairs);
  copy_blocks.pairs = Send<BlockPair>(pairs);
  copy_blocks.error = error_;
  cases_.push_back({"copy_blocks", KernelCeiling::kCopy,
                    2 * pair_bytes() * static_cast<double>(pairs.size()) *
                        problem_.page_size * problem_.num_heads,
                    0, [=, this](int32_t copy) {
                      CopyBlockRows p = copy_blocks;
                      p.pool = PoolOf(copy);
                      runtime().CopyBlocks(p);
                    }});
}

// Half of the lists' pages to staging memory on the device, and back.
void DeviceProblem::AddSwap() {
  const std::vector<int32_t> pages(pages_.begin(),
                                   pages_.begin() + std::ssize(pages_) / 2);
  StagePages stage;
  stage.num_pages = std::ssize(pages);
  stage.pages = Send<int32_t>(pages);
  stage.error = error_;
  const double bytes =
      2 * pair_bytes() * static_cast<double>(pages.size()) * problem_.page_size;
  const auto add = [&](const char* name, auto launch) {
    cases_.push_back(
        {name, KernelCeiling::kCopy, bytes, 0, [=, this](int32_t copy) {
           StagePages p = stage;
           p.pool = PoolOf(copy);
           p.staged = besides_[copy];
           (runtime().*launch)(p);
         }});
  };
  add("swap_pack", &DeviceRuntime::PackPages);
  add("swap_unpack", &DeviceRuntime::UnpackPages);
}

absl::StatusOr<std::vector<uint16_t>> DeviceProblem::ReadDecodeOutput() const {
  std::vector<uint16_t> output(static_cast<std::size_t>(
      num_lists() * problem_.group_size * problem_.head_dim));
  BM_RETURN_IF_ERROR(Read<uint16_t>(output_, output));
  return output;
}

absl::StatusOr<uint32_t> DeviceProblem::ReadErrorWord() const {
  uint32_t error = 0;
  BM_RETURN_IF_ERROR(Read<uint32_t>(error_, {&error, 1}));
  return error;
}

}  // namespace blockmgr
