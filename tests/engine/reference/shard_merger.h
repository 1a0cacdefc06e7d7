// What the shards of a tiny engine show of one eviction, put together in the
// order of the whole model's heads.
#ifndef TESTS_ENGINE_REFERENCE_SHARD_MERGER_H_
#define TESTS_ENGINE_REFERENCE_SHARD_MERGER_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "engine/reference/tiny_scoring.h"
#include "blockmgr/base/model_layout.h"
#include "blockmgr/eviction/select.h"

namespace blockmgr {

class ShardMerger {
 public:
  explicit ShardMerger(const ModelLayout& layout) : layout_(layout) {}

  // One shard's view. True with that of the last shard.
  bool Add(int32_t shard, const ScoredEntries& scored, const KeepSets& keep) {
    const int32_t heads = layout_.num_heads / layout_.num_shards;
    for (int32_t i = 0; i < layout_.num_layers * heads; ++i) {
      parts_[{i / heads, shard * heads + i % heads}] = {&scored, &keep, i};
    }
    if (shard + 1 < layout_.num_shards) {
      // The engine holds the views of all shards until the last was shown.
      return false;
    }
    scored_ = ScoredEntries();
    keep_ = KeepSets();
    scored_.candidates.offsets.push_back(0);
    keep_.offsets.push_back(0);
    // Ascending (layer, head).
    for (const auto& [head, part] : parts_) Append(part);
    parts_.clear();
    return true;
  }

  // Without slots, which are of each shard's own memory.
  const ScoredEntries& scored() const { return scored_; }
  const KeepSets& keep() const { return keep_; }

 private:
  struct Part {
    const ScoredEntries* scored = nullptr;
    const KeepSets* keep = nullptr;
    int32_t index = 0;  // of the head in the shard
  };

  template <typename T>
  static void Copy(const std::vector<T>& from, int64_t begin, int64_t end,
                   std::vector<T>* to) {
    if (from.empty()) return;
    to->insert(to->end(), from.begin() + begin, from.begin() + end);
  }

  void Append(const Part& part) {
    const EntryIndex& from = part.scored->candidates;
    const auto i = static_cast<size_t>(part.index);
    const int64_t begin = from.offsets[i];
    const int64_t end = from.offsets[i + 1];
    Copy(from.positions, begin, end, &scored_.candidates.positions);
    Copy(part.scored->scores, begin, end, &scored_.scores);
    Copy(part.scored->value_norms, begin, end, &scored_.value_norms);
    Copy(part.scored->products, begin, end, &scored_.products);
    Copy(part.keep->ranks, part.keep->offsets[i], part.keep->offsets[i + 1],
         &keep_.ranks);
    scored_.candidates.offsets.push_back(
        static_cast<int64_t>(scored_.candidates.positions.size()));
    keep_.offsets.push_back(static_cast<int64_t>(keep_.ranks.size()));
  }

  const ModelLayout layout_;
  std::map<std::pair<int32_t, int32_t>, Part> parts_;  // by (layer, head)
  ScoredEntries scored_;
  KeepSets keep_;
};

}  // namespace blockmgr

#endif  // TESTS_ENGINE_REFERENCE_SHARD_MERGER_H_
