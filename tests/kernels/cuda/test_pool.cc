#include "tests/kernels/cuda/test_pool.h"

#include <bit>
#include <cstring>

#include <absl/strings/str_cat.h>

#include "blockmgr/base/dtype.h"
#include "kernels/cuda/host/device_pool.h"

namespace blockmgr {
namespace {

constexpr int64_t kPaddingBytes = 48;

}  // namespace

std::vector<simt::Schedule> SomeSchedules(Rng& rng) {
  std::vector<simt::Schedule> schedules = {{simt::Schedule::Order::kForward},
                                           {simt::Schedule::Order::kReverse}};
  for (int i = 0; i < 2; ++i) {
    schedules.push_back({simt::Schedule::Order::kRandom, rng()});
  }
  return schedules;
}

TestPool::TestPool(const ModelLayout& layout, KvTensorOrder order)
    : layout_(layout), positions_(layout.num_pages() * layout.page_size, -1) {
  const bool own = order == KvTensorOrder::kPages;
  const int64_t pitch = LayerBytes() + (own ? 0 : kPaddingBytes);
  num_bytes_ = pitch * layout.num_layers;
  bytes_.resize(num_bytes_ / 16);
  char* base = reinterpret_cast<char*>(bytes_.data());
  std::memset(base, 0xFF, num_bytes_);
  pool_ = MakePagedPool(layout, KvPoolLayout::Of(layout, order), base);
  pool_.positions = positions_.data();
  if (own) return;
  // In reverse order: nothing may depend on where layers are.
  for (int32_t layer = 0; layer < layout.num_layers; ++layer) {
    layer_bases_.push_back(base + (layout.num_layers - 1 - layer) * pitch);
  }
  pool_.base = nullptr;
  pool_.layer_bases = layer_bases_.data();
}

int64_t TestPool::LayerBytes() const {
  return layout_.page_bytes() * layout_.num_blocks * layout_.num_heads;
}

char* TestPool::KeyRow(SlotIndex slot) const {
  const PageId page{static_cast<int32_t>(slot / layout_.page_size)};
  const int32_t layer = layout_.page_layer(page);
  char* base = layer_bases_.empty() ? pool_.base + layer * pool_.layer_stride
                                    : layer_bases_[static_cast<size_t>(layer)];
  return base + Index(layout_.page_block(page)) * pool_.block_stride +
         layout_.page_head(page) * pool_.head_stride +
         slot % layout_.page_size * pool_.token_stride;
}

void TestPool::CopyFrom(const Backend& backend) {
  std::vector<float> values(2 * layout_.head_dim);
  for (SlotIndex slot = 0; slot < num_slots(); ++slot) {
    backend.ReadSlot(slot, values);
    for (int32_t i = 0; i < 2 * layout_.head_dim; ++i) {
      char* row = KeyRow(slot) + i / layout_.head_dim * pool_.kv_stride;
      const int64_t element = i % layout_.head_dim;
      const auto bits = std::bit_cast<uint32_t>(values[i]);
      if (layout_.dtype == DType::kFloat32) {
        std::memcpy(row + element * 4, &bits, 4);
      } else {
        // Exact: the backend widened these 16 bits.
        const auto upper = static_cast<uint16_t>(bits >> 16);
        std::memcpy(row + element * 2, &upper, 2);
      }
    }
  }
}

std::vector<char> TestPool::SlotBytes(SlotIndex slot) const {
  const char* key = KeyRow(slot);
  std::vector<char> bytes(key, key + pool_.row_bytes);
  const char* value = key + pool_.kv_stride;
  bytes.insert(bytes.end(), value, value + pool_.row_bytes);
  return bytes;
}

std::vector<float> TestPool::ReadSlot(SlotIndex slot) const {
  const std::vector<char> bytes = SlotBytes(slot);
  std::vector<float> values(2 * layout_.head_dim);
  for (size_t i = 0; i < values.size(); ++i) {
    if (layout_.dtype == DType::kFloat32) {
      std::memcpy(&values[i], bytes.data() + i * 4, 4);
    } else {
      uint16_t element;
      std::memcpy(&element, bytes.data() + i * 2, 2);
      values[i] = FromBFloat16(element);
    }
  }
  return values;
}

std::string TestPool::Difference(const Backend& backend) const {
  std::vector<float> want(2 * layout_.head_dim);
  for (SlotIndex slot = 0; slot < num_slots(); ++slot) {
    backend.ReadSlot(slot, want);
    const std::vector<float> got = ReadSlot(slot);
    for (size_t i = 0; i < want.size(); ++i) {
      if (std::bit_cast<uint32_t>(got[i]) == std::bit_cast<uint32_t>(want[i])) {
        continue;
      }
      return absl::StrCat("slot ", slot, " element ", i, ": ", got[i],
                          ", expected ", want[i]);
    }
  }
  if (layer_bases_.empty()) return "";
  for (const char* base : layer_bases_) {
    for (int64_t i = 0; i < kPaddingBytes; ++i) {
      if (base[LayerBytes() + i] == '\xFF') continue;
      return "a byte behind a layer was written";
    }
  }
  return "";
}

}  // namespace blockmgr
