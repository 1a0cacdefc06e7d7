// Addresses of rows, beyond what 32 bits hold, and the searches along lists.

#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "blockmgr/base/ids.h"
#include "blockmgr/base/model_layout.h"
#include "kernels/cuda/attention_list.cuh"
#include "kernels/cuda/attention_lists.h"
#include "kernels/cuda/host/device_pool.h"
#include "kernels/cuda/list_splits.cuh"
#include "kernels/cuda/simt.h"
#include "tests/kernels/kernel_cases.h"

namespace blockmgr {
namespace {

TEST(DividerTest, IsExactUpToTheLargestPageId) {
  constexpr int32_t kMax = 0x7FFFFFFF;
  Rng rng(1);
  for (int32_t i = 0; i < 2000; ++i) {
    const int32_t divisor = i < 300 ? i + 1 : RandomInt(rng, 1, kMax);
    const Divider by = MakeDivider(static_cast<uint32_t>(divisor));
    for (int32_t j = 0; j < 20; ++j) {
      // Around multiples, where a quotient that is a little off shows.
      const int64_t multiple =
          int64_t{divisor} * RandomInt(rng, 0, kMax / divisor);
      for (const int64_t n : {multiple - 1, multiple, multiple + 1}) {
        if (n < 0 || n > kMax) continue;
        ASSERT_EQ(Divide(static_cast<int32_t>(n), by), n / divisor)
            << n << " / " << divisor;
      }
    }
    ASSERT_EQ(Divide(kMax, by), kMax / divisor) << divisor;
  }
}

// A pool of terabytes, of which only addresses are formed.
TEST(AttentionListTest, AddressesAreThoseOfTheLayoutInLargePools) {
  const ModelLayout layout{.num_layers = 80,
                           .num_heads = 8,
                           .num_q_heads = 64,
                           .head_dim = 256,
                           .page_size = 32,
                           .dtype = DType::kBFloat16,
                           .num_blocks = 3'000'000};
  ASSERT_TRUE(layout.Validate().ok());
  const KvPoolLayout strides = KvPoolLayout::PageContiguous(layout);
  // Never followed: NOLINTNEXTLINE(performance-no-int-to-ptr)
  auto* const base = reinterpret_cast<char*>(uintptr_t{1} << 20);
  const PagedPool whole = MakePagedPool(layout, strides, base);
  PagedPool apart = whole;
  std::vector<char*> layer_bases;
  for (int64_t layer = 0; layer < layout.num_layers; ++layer) {
    layer_bases.push_back(base + layer * whole.layer_stride);
  }
  apart.base = nullptr;
  apart.layer_bases = layer_bases.data();
  apart.layer_stride = 0;
  Rng rng(2);
  for (int32_t i = 0; i < 2000; ++i) {
    // Layers in one allocation and with an address each, in turn.
    const PagedPool& pool = i % 2 == 0 ? whole : apart;
    const int32_t layer = i < 2 ? 79 : RandomInt(rng, 0, 79);
    const int32_t block = i < 2 ? 2'999'999 : RandomInt(rng, 0, 2'999'999);
    const int32_t head = i < 2 ? 7 : RandomInt(rng, 0, 7);
    const int32_t offset = RandomInt(rng, 0, 31);
    const int64_t expected =
        strides.row_offset(layer, BlockId{block}, head, offset);
    const PageId page = layout.page_id(layer, BlockId{block}, head);
    ASSERT_EQ(SlotAddress(pool, layout.slot(page, offset)) - base, expected);
    // The same row as one of a region, and as one of a tail.
    const int32_t region_page = Index(page);
    AttentionList list;
    list.region_pages = &region_page;
    list.tail_blocks = &block;
    list.head = head;
    list.region_length = list.region_slots = list.num_ranks = 32;
    ASSERT_EQ(RankAddress(pool, list, layer, offset) - base, expected);
    list.region_length = list.region_slots = 0;
    ASSERT_EQ(RankAddress(pool, list, layer, offset) - base, expected);
  }
}

struct CountParams {
  int32_t count;
  int32_t leading;
  int32_t* result;  // [32]
};

void CountOnce(CountParams params) {
  const int32_t result =
      CountLeading(params.count, [&](int32_t i) { return i < params.leading; });
  params.result[simt::Lane()] = result;
}

TEST(CountLeadingTest, FindsEveryPlace) {
  std::vector<int32_t> result(32);
  for (const int32_t count : {0, 1, 2, 31, 32, 33, 64, 100, 1025}) {
    for (int32_t leading = 0; leading <= count;
         leading += count > 200 ? 37 : 1) {
      const CountParams params = {count, leading, result.data()};
      ASSERT_EQ(simt::Launch({}, {}, CountOnce, params).error, "");
      for (const int32_t got : result) ASSERT_EQ(got, leading) << count;
    }
  }
}

}  // namespace
}  // namespace blockmgr
