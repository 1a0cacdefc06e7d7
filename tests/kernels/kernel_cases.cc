#include "tests/kernels/kernel_cases.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include <absl/strings/str_cat.h>

#include "blockmgr/base/bits.h"
#include "blockmgr/base/check.h"
#include "blockmgr/base/dtype.h"

namespace blockmgr {

float RandomFloat(Rng& rng) {
  double sum = -6.0;
  for (int i = 0; i < 12; ++i) {
    sum += RandomFraction(rng);
  }
  return static_cast<float>(sum);
}

std::vector<float> RandomFloats(Rng& rng, int64_t count) {
  std::vector<float> values(count);
  for (float& value : values) value = RandomFloat(rng);
  return values;
}

ModelLayout RandomLayout(Rng& rng, DType dtype, int32_t num_blocks) {
  constexpr int32_t kPageSizes[] = {1, 2, 4, 16};
  ModelLayout layout;
  layout.num_layers = RandomInt(rng, 1, 3);
  layout.num_heads = RandomInt(rng, 1, 8);
  layout.num_q_heads = layout.num_heads * RandomInt(rng, 1, 8);
  layout.head_dim = 8 * RandomInt(rng, 1, 16);
  layout.page_size = kPageSizes[RandomInt(rng, 0, 3)];
  layout.dtype = dtype;
  layout.num_blocks = num_blocks;
  return layout;
}

std::string DTypeParamName(const testing::TestParamInfo<DType>& info) {
  return std::string(DTypeName(info.param));
}

float Stored(float value, DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return value;
    case DType::kBFloat16:
      return FromBFloat16(ToBFloat16(value));
    case DType::kFloat16:
      return FromFloat16(ToFloat16(value));
  }
  return value;
}

std::vector<SlotIndex> ShuffledSlots(const ModelLayout& layout, Rng& rng) {
  std::vector<SlotIndex> slots(layout.num_pages() * layout.page_size);
  std::iota(slots.begin(), slots.end(), SlotIndex{0});
  Shuffle(&slots, rng);
  return slots;
}

PoolModel::PoolModel(const ModelLayout& layout)
    : layout_(layout),
      rows_(2 * layout.num_pages() * layout.page_size * layout.head_dim,
            std::numeric_limits<float>::quiet_NaN()) {}

void PoolModel::FillRandom(SlotIndex slot, Rng& rng) {
  for (std::span<float> row : {key(slot), value(slot)}) {
    for (float& x : row) x = Stored(RandomFloat(rng), layout_.dtype);
  }
}

void PoolModel::FillAll(Rng& rng) {
  for (SlotIndex slot = 0; slot < layout_.num_pages() * layout_.page_size;
       ++slot) {
    FillRandom(slot, rng);
  }
}

void PoolModel::CopyRow(const PoolModel& from, SlotIndex source,
                        SlotIndex destination) {
  std::ranges::copy(from.key(source), key(destination).begin());
  std::ranges::copy(from.value(source), value(destination).begin());
}

std::unique_ptr<Backend> PoolModel::MakeBackend() const {
  auto backend = CreateCpuBackend(layout_);
  BM_CHECK(backend.ok());
  CopyTo(backend->get());
  return *std::move(backend);
}

void PoolModel::CopyTo(Backend* backend) const {
  backend->Poison();
  std::vector<int64_t> slot_mapping(int64_t{layout_.num_blocks} *
                                    layout_.page_size);
  for (std::size_t i = 0; i < slot_mapping.size(); ++i) {
    slot_mapping[i] = static_cast<int64_t>(i);
  }
  for (int32_t layer = 0; layer < layout_.num_layers; ++layer) {
    std::vector<float> keys;
    std::vector<float> values;
    for (const int64_t slot : slot_mapping) {
      const BlockId block{static_cast<int32_t>(slot / layout_.page_size)};
      for (int32_t head = 0; head < layout_.num_heads; ++head) {
        const SlotIndex place =
            layout_.slot(layout_.page_id(layer, block, head),
                         static_cast<int32_t>(slot % layout_.page_size));
        keys.insert(keys.end(), key(place).begin(), key(place).end());
        values.insert(values.end(), value(place).begin(), value(place).end());
      }
    }
    backend->Append({.layer = layer,
                     .slot_mapping = slot_mapping,
                     .keys = keys.data(),
                     .values = values.data()});
  }
}

bool PoolModel::Matches(const Backend& backend) const {
  std::vector<float> got(int64_t{2} * layout_.head_dim);
  for (SlotIndex slot = 0; slot < layout_.num_pages() * layout_.page_size;
       ++slot) {
    backend.ReadSlot(slot, got);
    if (!std::ranges::equal(std::span(got).first(layout_.head_dim),
                            key(slot)) ||
        !std::ranges::equal(std::span(got).subspan(layout_.head_dim),
                            value(slot))) {
      return false;
    }
  }
  return true;
}

SequenceKv TestSequence::View(int32_t length) const {
  SequenceKv view;
  if (!region_offsets.empty()) {
    view.region_pages = region_pages.data();
    view.region_offsets = region_offsets.data();
    view.region_lengths = region_lengths.data();
    if (!region_positions.empty()) {
      view.region_positions = region_positions.data();
      view.cut = cut;
    }
  }
  view.tail_blocks = tail_blocks.data();
  view.tail_length = length;
  return view;
}

std::vector<SlotIndex> TestSequence::Slots(const ModelLayout& layout,
                                           int32_t head) const {
  std::vector<SlotIndex> slots;
  const int32_t region_length =
      region_offsets.empty() ? 0 : region_lengths[head];
  for (int32_t i = 0; i < region_length; ++i) {
    const PageId page =
        region_pages[region_offsets[head] + i / layout.page_size];
    slots.push_back(layout.slot(page, i % layout.page_size));
  }
  for (int32_t i = 0; i < tail_length; ++i) {
    const PageId page =
        layout.page_id(layer, tail_blocks[i / layout.page_size], head);
    slots.push_back(layout.slot(page, i % layout.page_size));
  }
  return slots;
}

void TestSequence::TakePositions(const ModelLayout& layout, int32_t new_cut,
                                 Rng& rng) {
  cut = new_cut;
  // Nobody may look at the slots behind a list's last.
  region_positions.assign(region_pages.size() * layout.page_size, 1 << 30);
  std::vector<int32_t> all(cut);
  std::iota(all.begin(), all.end(), 0);
  for (std::size_t head = 0; head < region_lengths.size(); ++head) {
    BM_CHECK(region_lengths[head] <= cut);
    Shuffle(&all, rng);
    std::copy_n(
        all.begin(), region_lengths[head],
        region_positions.begin() + region_offsets[head] * layout.page_size);
  }
}

std::vector<int32_t> TestSequence::Positions(const ModelLayout& layout,
                                             int32_t head) const {
  std::vector<int32_t> positions;
  int32_t tail_begin = 0;
  if (!region_offsets.empty()) {
    tail_begin = region_positions.empty() ? region_lengths[head] : cut;
    for (int32_t i = 0; i < region_lengths[head]; ++i) {
      positions.push_back(
          region_positions.empty()
              ? i
              : region_positions[region_offsets[head] * layout.page_size + i]);
    }
  }
  for (int32_t i = 0; i < tail_length; ++i) {
    positions.push_back(tail_begin + i);
  }
  return positions;
}

PagePicker::PagePicker(const ModelLayout& layout, int32_t num_tail_blocks,
                       Rng& rng)
    : layout_(layout) {
  std::vector<BlockId> blocks;
  for (int32_t b = 1; b < layout.num_blocks; ++b) blocks.push_back(BlockId{b});
  Shuffle(&blocks, rng);
  BM_CHECK(num_tail_blocks <= static_cast<int32_t>(blocks.size()));
  blocks_.assign(blocks.begin(), blocks.begin() + num_tail_blocks);
  for (std::size_t i = num_tail_blocks; i < blocks.size(); ++i) {
    for (int32_t layer = 0; layer < layout.num_layers; ++layer) {
      for (int32_t head = 0; head < layout.num_heads; ++head) {
        pages_.push_back(layout.page_id(layer, blocks[i], head));
      }
    }
  }
  Shuffle(&pages_, rng);
}

TestSequence PagePicker::MakeSequence(int32_t layer, int32_t max_region,
                                      int32_t tail_length, PoolModel* model,
                                      Rng& rng) {
  TestSequence sequence;
  sequence.layer = layer;
  sequence.tail_length = tail_length;
  if (max_region > 0) {
    sequence.region_offsets.push_back(0);
    for (int32_t head = 0; head < layout_.num_heads; ++head) {
      const int32_t length =
          RandomInt(rng, 0, 3) == 0 ? 0 : RandomInt(rng, 0, max_region);
      sequence.region_lengths.push_back(length);
      for (int32_t i = CeilDiv(length, layout_.page_size); i > 0; --i) {
        BM_CHECK(!pages_.empty());
        sequence.region_pages.push_back(pages_.back());
        pages_.pop_back();
      }
      sequence.region_offsets.push_back(
          static_cast<int32_t>(sequence.region_pages.size()));
    }
  }
  for (int32_t i = CeilDiv(tail_length, layout_.page_size); i > 0; --i) {
    BM_CHECK(!blocks_.empty());
    sequence.tail_blocks.push_back(blocks_.back());
    blocks_.pop_back();
  }
  for (int32_t head = 0; head < layout_.num_heads; ++head) {
    for (const SlotIndex slot : sequence.Slots(layout_, head)) {
      model->FillRandom(slot, rng);
    }
  }
  return sequence;
}

namespace {

void CopyBlock(BlockId source, BlockId destination, PoolModel* model) {
  const ModelLayout& layout = model->layout();
  for (int32_t h = 0; h < layout.pages_per_block(); ++h) {
    for (int32_t i = 0; i < layout.page_size; ++i) {
      const auto slot_of = [&](BlockId block) {
        return layout.slot(
            layout.page_id(h / layout.num_heads, block, h % layout.num_heads),
            i);
      };
      const SlotIndex from = slot_of(source);
      const SlotIndex to = slot_of(destination);
      model->CopyRow(*model, from, to);
    }
  }
}

}  // namespace

std::string CheckHostCopies(Backend* backend, PoolModel* model, Rng& rng) {
  const ModelLayout& layout = model->layout();
  const int32_t num_blocks = layout.num_blocks - 1;
  std::vector<int32_t> blocks(num_blocks);
  std::vector<int32_t> places(num_blocks + 2);
  std::iota(blocks.begin(), blocks.end(), 1);
  std::iota(places.begin(), places.end(), 0);
  Shuffle(&blocks, rng);
  Shuffle(&places, rng);
  std::vector<BlockTransfer> out;
  std::vector<BlockTransfer> in;
  for (int32_t i = 0; i < num_blocks / 2; ++i) {
    out.push_back({BlockId{blocks[i]}, HostBlockId{places[i]}});
    in.push_back({BlockId{blocks[num_blocks - 1 - i]}, out.back().host});
  }
  std::vector<std::byte> host(places.size() * layout.block_bytes(),
                              std::byte{0x5A});
  backend->CopyToHost(out, host);

  const int64_t row_bytes = layout.row_bytes();
  const auto row_on_host = [&](const std::byte* bytes) {
    std::vector<float> row(layout.head_dim);
    for (int32_t i = 0; i < layout.head_dim; ++i) {
      row[i] = LoadElement(layout.dtype, bytes, i);
    }
    return row;
  };
  for (const BlockTransfer& transfer : out) {
    const std::byte* row =
        host.data() + Index(transfer.host) * layout.block_bytes();
    for (int32_t h = 0; h < layout.pages_per_block(); ++h) {
      const PageId page = layout.page_id(h / layout.num_heads, transfer.block,
                                         h % layout.num_heads);
      for (int32_t i = 0; i < 2 * layout.page_size; ++i) {
        const SlotIndex slot = layout.slot(page, i % layout.page_size);
        const auto want =
            i < layout.page_size ? model->key(slot) : model->value(slot);
        if (!std::ranges::equal(row_on_host(row), want)) {
          return absl::StrCat("row ", i, " of page ", Index(page));
        }
        row += row_bytes;
      }
    }
  }
  for (size_t i = out.size(); i < places.size(); ++i) {
    const auto rest = std::span(host).subspan(places[i] * layout.block_bytes(),
                                              layout.block_bytes());
    if (std::ranges::any_of(
            rest, [](std::byte byte) { return byte != std::byte{0x5A}; })) {
      return absl::StrCat("host block ", places[i], " was written");
    }
  }

  backend->CopyFromHost(in, host);
  for (size_t i = 0; i < in.size(); ++i) {
    CopyBlock(out[i].block, in[i].block, model);
  }
  return "";
}

}  // namespace blockmgr
