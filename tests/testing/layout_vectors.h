// docs/region_layout_vectors.json, which tests/golden/region_layouts.py makes.
#ifndef TESTS_TESTING_LAYOUT_VECTORS_H_
#define TESTS_TESTING_LAYOUT_VECTORS_H_

#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "blockmgr/base/ids.h"
#include "blockmgr/base/model_layout.h"

namespace blockmgr {

struct LayoutVector {
  int32_t cut = 0;
  std::vector<BlockId> tail_blocks;
  std::vector<BlockId> destinations;
  std::vector<int32_t> kept;
  // Expected, by head index.
  std::vector<std::vector<PageId>> pages;
  std::vector<int32_t> held_pages;
  std::vector<BlockId> blocks;
  uint64_t layout_checksum = 0;
};

// Evictions of one sequence, one after the other.
struct LayoutCase {
  std::string name;
  ModelLayout layout;
  std::vector<LayoutVector> evictions;
};

template <typename Id>
std::vector<Id> IdsOf(const nlohmann::json& numbers) {
  std::vector<Id> ids;
  for (const int32_t number : numbers) ids.push_back(Id{number});
  return ids;
}

inline LayoutVector LayoutVectorOf(const nlohmann::json& json) {
  LayoutVector vector;
  vector.cut = json.at("cut");
  vector.tail_blocks = IdsOf<BlockId>(json.at("tail_blocks"));
  vector.destinations = IdsOf<BlockId>(json.at("destinations"));
  vector.kept = json.at("kept").get<std::vector<int32_t>>();
  for (const nlohmann::json& list : json.at("pages")) {
    vector.pages.push_back(IdsOf<PageId>(list));
  }
  vector.held_pages = json.at("held_pages").get<std::vector<int32_t>>();
  vector.blocks = IdsOf<BlockId>(json.at("blocks"));
  vector.layout_checksum =
      std::stoull(json.at("layout_checksum").get<std::string>(), nullptr, 16);
  return vector;
}

inline std::vector<LayoutCase> ReadLayoutVectors() {
  std::ifstream file(BLOCKMGR_LAYOUT_VECTORS);
  const nlohmann::json json = nlohmann::json::parse(file);
  std::vector<LayoutCase> cases;
  for (const nlohmann::json& model : json.at("models")) {
    const ModelLayout layout{.num_layers = model.at("num_layers"),
                             .num_heads = model.at("num_heads"),
                             .num_q_heads = model.at("num_heads"),
                             .head_dim = 8,
                             .page_size = model.at("page_size"),
                             .dtype = DType::kFloat32,
                             .num_blocks = model.at("num_blocks"),
                             .num_shards = model.at("num_shards")};
    for (const nlohmann::json& of_model : model.at("cases")) {
      LayoutCase& added = cases.emplace_back();
      added.name =
          layout.ToString() + ": " + of_model.at("name").get<std::string>();
      added.layout = layout;
      for (const nlohmann::json& eviction : of_model.at("evictions")) {
        added.evictions.push_back(LayoutVectorOf(eviction));
      }
    }
  }
  return cases;
}

}  // namespace blockmgr

#endif  // TESTS_TESTING_LAYOUT_VECTORS_H_
