#include "tests/blockmgr/naive_layout.h"

#include <algorithm>
#include <set>
#include <tuple>

#include "blockmgr/base/check.h"

namespace blockmgr {
namespace {

// Destination pages nobody has taken, in the order in which `key` takes them.
std::vector<NaivePage> VacantFor(const NaiveHead& key, const NaiveShape& shape,
                                 const std::vector<int32_t>& destinations,
                                 const std::set<NaivePage>& taken) {
  // Other layer, layer, head, index of the destination.
  std::set<std::tuple<bool, int32_t, int32_t, size_t>> order;
  for (int32_t layer = 0; layer < shape.num_layers; ++layer) {
    for (int32_t head = 0; head < shape.num_heads; ++head) {
      if (NaiveShardOf(shape, head) != NaiveShardOf(shape, key.second)) {
        continue;
      }
      for (size_t i = 0; i < destinations.size(); ++i) {
        if (taken.contains({layer, destinations[i], head})) continue;
        order.emplace(layer != key.first, layer, head, i);
      }
    }
  }
  std::vector<NaivePage> vacant;
  for (const auto& [other, layer, head, i] : order) {
    vacant.push_back({layer, destinations[i], head});
  }
  return vacant;
}

}  // namespace

int32_t NaiveShardOf(const NaiveShape& shape, int32_t head) {
  int32_t shard = 0;
  for (int32_t last = shape.num_heads / shape.num_shards; head >= last;
       last += shape.num_heads / shape.num_shards) {
    ++shard;
  }
  return shard;
}

std::vector<NaivePage> PagesOf(const std::vector<NaiveSlot>& slots) {
  std::vector<NaivePage> pages;
  for (const auto& [page, offset] : slots) {
    if (std::ranges::find(pages, page) == pages.end()) pages.push_back(page);
  }
  return pages;
}

NaivePages NaiveLayout(const NaiveShape& shape,
                       const std::vector<int32_t>& destinations,
                       const NaivePages& lists,
                       const std::map<NaiveHead, int32_t>& counts) {
  const std::set<int32_t> in_destination(destinations.begin(),
                                         destinations.end());
  // By shard: each has its own memory.
  std::map<int32_t, std::set<int32_t>> blocks_now;
  for (const auto& [key, pages] : lists) {
    for (const NaivePage& page : pages) {
      blocks_now[NaiveShardOf(shape, page[2])].insert(page[1]);
    }
  }
  NaivePages layout;
  std::set<NaivePage> taken;
  for (const auto& [key, count] : counts) {
    std::vector<NaivePage>& chosen = layout[key];
    for (const NaivePage& page : lists.at(key)) {
      if (in_destination.contains(page[1])) chosen.push_back(page);
    }
    for (const int32_t block : destinations) {
      if (blocks_now[NaiveShardOf(shape, key.second)].contains(block)) {
        continue;
      }
      chosen.push_back({key.first, block, key.second});
    }
    if (std::ssize(chosen) > count) chosen.resize(count);
    taken.insert(chosen.begin(), chosen.end());
  }
  for (const auto& [key, count] : counts) {
    std::vector<NaivePage>& chosen = layout[key];
    const auto missing = static_cast<size_t>(count) - chosen.size();
    if (missing == 0) continue;
    std::vector<NaivePage> vacant = VacantFor(key, shape, destinations, taken);
    BM_CHECK(missing <= vacant.size());
    vacant.resize(missing);
    chosen.insert(chosen.end(), vacant.begin(), vacant.end());
    taken.insert(vacant.begin(), vacant.end());
  }
  return layout;
}

NaivePages PagesOf(const ModelLayout& layout, const RaggedRegion& region) {
  NaivePages pages;
  for (int32_t layer = 0; layer < layout.num_layers; ++layer) {
    for (int32_t head = 0; head < layout.num_heads; ++head) {
      std::vector<NaivePage>& list = pages[{layer, head}];
      for (const PageId page : region.pages(layout.head_index(layer, head))) {
        list.push_back({layout.page_layer(page), Index(layout.page_block(page)),
                        layout.page_head(page)});
      }
    }
  }
  return pages;
}

}  // namespace blockmgr
