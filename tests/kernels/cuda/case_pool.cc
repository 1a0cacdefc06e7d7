#include "tests/kernels/cuda/case_pool.h"

#include <cstddef>
#include <cstring>

#include "kernels/cuda/host/device_pool.h"

namespace blockmgr {
namespace {

// Not a power of two: offsets that wrap are other rows' nowhere.
constexpr int64_t kFarBlockBytes = (int64_t{1} << 30) + 4096;
constexpr int64_t kLayerGapBytes = 64;

}  // namespace

struct CasePool::Places {
  KvPoolLayout strides;
  int64_t first_key = 0;  // offset
  int64_t num_bytes = 0;
};

CasePool::Places CasePool::PlacesOf(const ModelLayout& layout,
                                    KvTensorOrder order, bool far) {
  const bool apart =
      order == KvTensorOrder::kHndApart || order == KvTensorOrder::kNhdApart;
  Places places;
  KvPoolLayout& strides = places.strides;
  strides = KvPoolLayout::Of(layout, order);
  if (far) strides.block_stride = kFarBlockBytes;
  const int64_t all_blocks = layout.num_blocks * strides.block_stride;
  if (apart) strides.kv_stride = all_blocks;
  strides.layer_stride = (apart ? 2 : 1) * all_blocks + kLayerGapBytes;
  places.num_bytes = layout.num_layers * strides.layer_stride;
  if (order == KvTensorOrder::kNhdApart) {
    places.first_key = all_blocks;
    strides.kv_stride = -all_blocks;
  }
  return places;
}

CasePool::CasePool(const ModelLayout& layout, KvTensorOrder order, bool far)
    : layout_(layout) {
  const Places places = PlacesOf(layout, order, far);
  strides_ = places.strides;
  num_bytes_ = places.num_bytes;
  memory_ =
      static_cast<char*>(AllocateShared(static_cast<std::size_t>(num_bytes_)));
  first_key_ = memory_ + places.first_key;
  if (order != KvTensorOrder::kPages && order != KvTensorOrder::kNhdApart) {
    // Part of a larger table, and so aligned to no more than an address is.
    layer_bases_.push_back(nullptr);
    for (int32_t layer = 0; layer < layout.num_layers; ++layer) {
      layer_bases_.push_back(first_key_ + layer * strides_.layer_stride);
    }
  }
  if (!far) {
    std::memset(memory_, 0xFF, static_cast<std::size_t>(num_bytes_));
    return;
  }
  const SlotIndex num_slots = layout.num_pages() * layout.page_size;
  for (SlotIndex slot = 0; slot < num_slots; ++slot) {
    for (const bool is_value : {false, true}) {
      std::memset(Row(slot, is_value), 0xFF,
                  static_cast<std::size_t>(layout.row_bytes()));
    }
  }
}

CasePool::~CasePool() {
  FreeShared(memory_, static_cast<std::size_t>(num_bytes_));
}

int64_t CasePool::CountBytes(const ModelLayout& layout, KvTensorOrder order,
                             bool far) {
  return PlacesOf(layout, order, far).num_bytes;
}

uint16_t* CasePool::Row(SlotIndex slot, bool is_value) const {
  const PageId page{static_cast<int32_t>(slot / layout_.page_size)};
  return reinterpret_cast<uint16_t*>(
      first_key_ + (is_value ? strides_.kv_stride : 0) +
      strides_.row_offset(layout_.page_layer(page), layout_.page_block(page),
                          layout_.page_head(page),
                          static_cast<int32_t>(slot % layout_.page_size)));
}

PagedPool CasePool::View() const {
  PagedPool pool = MakePagedPool(layout_, strides_, first_key_);
  if (!layer_bases_.empty()) {
    pool.base = nullptr;
    pool.layer_bases = layer_bases_.data() + 1;
  }
  return pool;
}

}  // namespace blockmgr
