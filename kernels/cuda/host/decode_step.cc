#include "kernels/cuda/host/decode_step.h"

#include <algorithm>
#include <cstring>

#include <absl/status/statusor.h>

#include "blockmgr/base/bits.h"
#include "blockmgr/base/check.h"
#include "blockmgr/base/status_macros.h"

namespace blockmgr {
namespace {

constexpr int64_t kAlignment = 256;

// Returns room for `needed` that grows by half, so that lists that grow with
// every step seldom change the arguments of kernels.
int64_t WithRoom(int64_t room, int64_t needed) {
  constexpr int64_t kLeast = 16;
  return needed <= room ? room : std::max(kLeast, needed + needed / 2);
}

}  // namespace

DecodeStep::DecodeStep(const DevicePool* pool, const DecodeChoice& choice)
    : pool_(*pool),
      choice_(choice),
      groups_(static_cast<size_t>(pool->layout.num_groups())) {}

DecodeStep::~DecodeStep() {
  if (base_ != nullptr) pool_.runtime->Free(base_);
}

int64_t DecodeStep::num_lists() const {
  return int64_t{num_rows_} * pool_.layout.num_heads;
}

void DecodeStep::Begin(int32_t num_rows) {
  num_rows_ = num_rows;
  num_layers_ = 0;
  region_pages_.clear();
  for (Group& group : groups_) {
    group.is_filled = false;
    group.has_regions = false;
  }
  row_offsets_.resize(static_cast<size_t>(num_rows) + 1);
  for (size_t i = 0; i < row_offsets_.size(); ++i) {
    row_offsets_[i] = static_cast<int32_t>(i);
  }
}

bool DecodeStep::HasTables(int32_t group) const {
  const Group& tables = groups_[static_cast<size_t>(group)];
  return tables.is_filled && !tables.has_regions;
}

void DecodeStep::Add(const DecodeLayer& layer) {
  BM_CHECK(layer.layer >= 0 && layer.layer < pool_.layout.num_layers);
  if (num_layers_ == layers_.size()) layers_.emplace_back();
  Layer& added = layers_[num_layers_++];
  added.layer = layer;
  added.layer.slot_mapping = {};
  added.layer.sequences = {};
  Group& group = groups_[static_cast<size_t>(layer.group)];
  if (!group.is_filled) FillTails(layer, &group);
  if (!group.has_regions) return;
  FillRegions(layer.sequences, &added);
  FillTiles(layer, group, added.region_lengths, &added.tile_offsets);
}

void DecodeStep::FillTails(const DecodeLayer& layer, Group* group) {
  const std::span<const SequenceKv> sequences = layer.sequences;
  BM_CHECK(std::ssize(sequences) <= num_rows_);
  BM_CHECK(layer.slot_mapping.size() == sequences.size());
  const int32_t page_size = pool_.layout.page_size;
  int64_t most_pages = 0;
  for (const SequenceKv& sequence : sequences) {
    BM_CHECK(sequence.tail_length > 0);
    const TailPart tail = TailPart::Of(sequence, 1, layer.window, page_size);
    most_pages = std::max<int64_t>(most_pages, tail.num_pages());
    group->has_regions |= sequence.region_pages != nullptr;
  }
  BM_CHECK(layer.window == 0 || !group->has_regions);
  group->is_filled = true;
  group->tail_stride = WithRoom(group->tail_stride, most_pages);
  const auto num_rows = static_cast<size_t>(num_rows_);
  group->mapping.assign(layer.slot_mapping.begin(), layer.slot_mapping.end());
  group->mapping.resize(num_rows, -1);
  group->tail_lengths.assign(num_rows, 0);
  group->tail_blocks.assign(num_rows * static_cast<size_t>(group->tail_stride),
                            0);
  bool inside = true;
  for (size_t row = 0; row < sequences.size(); ++row) {
    const SequenceKv& sequence = sequences[row];
    const TailPart tail = TailPart::Of(sequence, 1, layer.window, page_size);
    group->tail_lengths[row] = tail.length;
    int32_t* const blocks = group->tail_blocks.data() +
                            row * static_cast<size_t>(group->tail_stride);
    for (int32_t i = tail.first_page; i < tail.end; ++i) {
      const int32_t block = Index(sequence.tail_blocks[i]);
      blocks[i - tail.begin] = block;
      inside &= block >= 0 && block < pool_.layout.num_blocks;
    }
  }
  const bool blocks_are_in_the_pool = inside;
  BM_CHECK(blocks_are_in_the_pool);
  if (!group->has_regions) FillTiles(layer, *group, {}, &group->tile_offsets);
}

void DecodeStep::FillRegions(std::span<const SequenceKv> sequences,
                             Layer* layer) {
  const ModelLayout& shape = pool_.layout;
  layer->region_lengths.assign(static_cast<size_t>(num_lists()), 0);
  layer->region_offsets.assign(static_cast<size_t>(num_lists()), 0);
  bool inside = true;
  size_t list = 0;
  for (const SequenceKv& sequence : sequences) {
    for (int32_t head = 0; head < shape.num_heads; ++head, ++list) {
      layer->region_offsets[list] = std::ssize(region_pages_);
      if (sequence.region_pages == nullptr) continue;
      const int32_t length = sequence.region_lengths[head];
      BM_CHECK(length >= 0);
      layer->region_lengths[list] = length;
      const int32_t begin = sequence.region_offsets[head];
      const int32_t count = CeilDiv(length, shape.page_size);
      BM_CHECK(count <= sequence.region_offsets[head + 1] - begin);
      for (int32_t i = 0; i < count; ++i) {
        const int32_t page = Index(sequence.region_pages[begin + i]);
        inside &= page >= 0 && page < shape.num_pages();
        region_pages_.push_back(page);
      }
    }
  }
  const bool pages_are_in_the_pool = inside;
  BM_CHECK(pages_are_in_the_pool);
}

void DecodeStep::FillTiles(const DecodeLayer& layer, const Group& group,
                           std::span<const int32_t> region_lengths,
                           std::vector<int32_t>* offsets) {
  if (choice_.is_chunked) return;
  const ModelLayout& shape = pool_.layout;
  offsets->resize(static_cast<size_t>(num_lists()) + 1);
  (*offsets)[0] = 0;
  for (size_t list = 0; list + 1 < offsets->size(); ++list) {
    const size_t row = list / static_cast<size_t>(shape.num_heads);
    (*offsets)[list + 1] =
        (*offsets)[list] +
        CountDecodeTiles(region_lengths.empty() ? 0 : region_lengths[list],
                         group.tail_lengths[row], shape.page_size,
                         layer.window);
  }
  max_tiles_ = WithRoom(max_tiles_, offsets->back());
}

int64_t DecodeStep::Take(int64_t bytes, int64_t* size) {
  const int64_t place = *size;
  *size += (bytes + kAlignment - 1) / kAlignment * kAlignment;
  return place;
}

int64_t DecodeStep::Place() {
  constexpr int64_t kInt = sizeof(int32_t);
  constexpr int64_t kLong = sizeof(int64_t);
  const ModelLayout& shape = pool_.layout;
  const int64_t tile_bytes = choice_.is_chunked ? 0 : (num_lists() + 1) * kInt;
  int64_t size = 0;
  row_offsets_place_ = Take((num_rows_ + 1) * kInt, &size);
  for (Group& group : groups_) {
    if (!group.is_filled) continue;
    group.mapping_place = Take(num_rows_ * kLong, &size);
    group.lengths_place = Take(num_rows_ * kInt, &size);
    group.blocks_place = Take(num_rows_ * group.tail_stride * kInt, &size);
    group.tiles_place = Take(group.has_regions ? 0 : tile_bytes, &size);
  }
  for (size_t i = 0; i < num_layers_; ++i) {
    Layer& layer = layers_[i];
    const Group& group = groups_[static_cast<size_t>(layer.layer.group)];
    if (!group.has_regions) continue;
    layer.lengths_place = Take(num_lists() * kInt, &size);
    layer.offsets_place = Take(num_lists() * kLong, &size);
    layer.tiles_place = Take(tile_bytes, &size);
  }
  pages_place_ = size;
  max_pages_ = WithRoom(max_pages_, std::ssize(region_pages_));
  Take(max_pages_ * kInt, &size);
  if (choice_.is_chunked) return size;
  const int64_t stat_rows =
      CountDecodeWorkspaceSlots(max_tiles_, num_lists(), choice_.num_ctas,
                                choice_.chunk_tiles) *
      (shape.group_size() > 8 ? 16 : 8);
  partial_output_place_ = Take(
      stat_rows * shape.head_dim * static_cast<int64_t>(sizeof(float)), &size);
  partial_stats_place_ =
      Take(stat_rows * 2 * static_cast<int64_t>(sizeof(float)), &size);
  merge_counters_place_ = Take(num_lists() * shape.group_size() * kInt, &size);
  return size;
}

absl::Status DecodeStep::Reserve(int64_t bytes) {
  if (bytes <= capacity_bytes_) return absl::OkStatus();
  const int64_t capacity = std::max(bytes, capacity_bytes_ * 3 / 2);
  // The old memory goes first: both need not fit.
  if (base_ != nullptr) pool_.runtime->Free(base_);
  base_ = nullptr;
  capacity_bytes_ = 0;
  BM_ASSIGN_OR_RETURN(base_, pool_.runtime->Allocate(capacity));
  capacity_bytes_ = capacity;
  return absl::OkStatus();
}

absl::Status DecodeStep::Send() {
  // The error word of the backend's calls is the step's too.
  if (pool_.memory->device_error() == nullptr) {
    pool_.memory->Begin();
    BM_RETURN_IF_ERROR(pool_.memory->Send());
  }
  BM_RETURN_IF_ERROR(Reserve(Place()));
  host_.resize(static_cast<size_t>(pages_place_));
  const auto put = [this](int64_t place, const auto& values) {
    std::memcpy(host_.data() + place, values.data(),
                values.size() * sizeof(values[0]));
  };
  put(row_offsets_place_, row_offsets_);
  for (const Group& group : groups_) {
    if (!group.is_filled) continue;
    put(group.mapping_place, group.mapping);
    put(group.lengths_place, group.tail_lengths);
    put(group.blocks_place, group.tail_blocks);
    if (!group.has_regions && !choice_.is_chunked) {
      put(group.tiles_place, group.tile_offsets);
    }
  }
  for (size_t i = 0; i < num_layers_; ++i) {
    const Layer& layer = layers_[i];
    if (!groups_[static_cast<size_t>(layer.layer.group)].has_regions) continue;
    put(layer.lengths_place, layer.region_lengths);
    put(layer.offsets_place, layer.region_offsets);
    if (!choice_.is_chunked) put(layer.tiles_place, layer.tile_offsets);
  }
  pool_.runtime->Upload(base_, host_);
  pool_.runtime->Upload(base_ + pages_place_,
                        std::as_bytes(std::span<const int32_t>(region_pages_)));
  NoteArguments();
  return pool_.runtime->status();
}

void DecodeStep::NoteArguments() {
  const auto add = [this](auto value) {
    arguments_.push_back(static_cast<uint64_t>(value));
  };
  arguments_.clear();
  add(reinterpret_cast<uintptr_t>(base_));
  add(reinterpret_cast<uintptr_t>(pool_.memory->device_error()));
  add(num_rows_);
  add(max_pages_);
  add(max_tiles_);
  for (const Group& group : groups_) {
    add(group.is_filled);
    add(group.has_regions);
    add(group.tail_stride);
  }
  for (size_t i = 0; i < num_layers_; ++i) add(layers_[i].layer.layer);
}

void DecodeStep::Run(size_t index, const DecodeRows& rows) const {
  const Layer& layer = layers_[index];
  const Group& group = groups_[static_cast<size_t>(layer.layer.group)];
  const ModelLayout& shape = pool_.layout;
  const auto at = [this]<typename T>(int64_t place, T) {
    return reinterpret_cast<T*>(base_ + place);
  };
  AppendRows append;
  append.pool = pool_.pool;
  append.layer = layer.layer.layer;
  append.num_tokens = num_rows_;
  append.slot_mapping = at(group.mapping_place, int64_t{});
  append.keys = static_cast<const char*>(rows.keys);
  append.values = static_cast<const char*>(rows.values);
  append.token_stride = rows.kv_stride;
  append.head_stride = shape.row_bytes();
  append.error = pool_.memory->device_error();
  pool_.runtime->Append(append, RowConversion::kNone);

  AttentionLists lists;
  lists.num_sequences = num_rows_;
  lists.num_heads = shape.num_heads;
  lists.layer = layer.layer.layer;
  lists.window = layer.layer.window;
  if (group.has_regions) {
    lists.region_lengths = at(layer.lengths_place, int32_t{});
    lists.region_offsets = at(layer.offsets_place, int64_t{});
    lists.region_pages = at(pages_place_, int32_t{});
  }
  lists.tail_blocks = at(group.blocks_place, int32_t{});
  lists.tail_stride = group.tail_stride;
  lists.tail_lengths = at(group.lengths_place, int32_t{});
  if (choice_.is_chunked) {
    ChunkParams params;
    params.lists = lists;
    params.pool = pool_.pool;
    // One query, and one block of its rows, for each sequence.
    params.query_offsets = at(row_offsets_place_, int32_t{});
    params.block_offsets = params.query_offsets;
    params.queries = rows.queries;
    params.output = rows.output;
    params.group_size = shape.group_size();
    params.scale = layer.layer.scale;
    pool_.runtime->Chunk(params, pool_.shape, num_rows_);
    return;
  }
  DecodeParams params;
  params.lists = lists;
  params.pool = pool_.pool;
  params.tile_offsets =
      at(group.has_regions ? layer.tiles_place : group.tiles_place, int32_t{});
  params.queries = rows.queries;
  params.output = rows.output;
  params.partial_output = at(partial_output_place_, float{});
  params.partial_stats = at(partial_stats_place_, float{});
  params.merge_counters = at(merge_counters_place_, uint32_t{});
  params.group_size = shape.group_size();
  params.num_ctas = choice_.num_ctas;
  params.chunk_tiles = choice_.chunk_tiles;
  params.scale = layer.layer.scale;
  params.max_tiles = static_cast<int32_t>(max_tiles_);
  params.error = pool_.memory->device_error();
  pool_.runtime->Decode(params, pool_.shape);
}

}  // namespace blockmgr
