#include "blockmgr/ragged_region.h"

#include <utility>

#include "blockmgr/base/bits.h"

namespace blockmgr {

RaggedRegion::RaggedRegion(const ModelLayout& model, RegionLayout layout)
    : layout_(std::move(layout)) {
  const int32_t num_heads = model.pages_per_block();
  page_offsets_.reserve(num_heads + 1);
  page_offsets_.push_back(0);
  for (const int32_t count : kept()) {
    page_offsets_.push_back(page_offsets_.back() +
                            CeilDiv(count, model.page_size));
  }
  pages_.resize(page_offsets_.back());
  PageId* page = pages_.data();
  for (int32_t i = 0; i < num_heads; ++i) {
    for (const PageRun& run : layout_.runs(i)) {
      const int32_t first =
          Index(model.page_id(run.head_index / model.num_heads, BlockId{0},
                              run.head_index % model.num_heads));
      for (const BlockId block : blocks().subspan(run.first, run.count)) {
        *page++ = PageId{first + Index(block) * model.num_heads};
      }
    }
  }
}

RaggedRegion RaggedRegion::LayOut(const ModelLayout& model,
                                  const CacheView& now,
                                  std::span<const BlockId> destinations,
                                  std::span<const int32_t> kept, int32_t cut) {
  return {model,
          RegionLayout::LayOut(
              model, now.region == nullptr ? nullptr : &now.region->layout(),
              now.tail_blocks, destinations, kept, cut)};
}

RaggedRegion RaggedRegion::OnBlocks(const ModelLayout& model,
                                    std::span<const BlockId> from,
                                    std::span<const BlockId> to) const {
  return {model, layout_.OnBlocks(from, to)};
}

}  // namespace blockmgr
