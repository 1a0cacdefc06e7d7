#include "blockmgr/eviction/entries.h"

#include <algorithm>
#include <cstddef>
#include <functional>

#include "blockmgr/base/check.h"
#include "blockmgr/eviction/score_order.h"

namespace blockmgr {
namespace {

[[maybe_unused]] bool AreCandidates(std::span<const int32_t> positions,
                                    int32_t cut) {
  return std::is_sorted(positions.begin(), positions.end(),
                        std::less_equal<>()) &&
         (positions.empty() ||
          (positions.front() >= 0 && positions.back() < cut));
}

}  // namespace

void CheckEntries(const HeadShape& shape, const EvictionRange& range,
                  const EntriesView& entries) {
  const int64_t num_heads = int64_t{shape.num_layers} * shape.num_heads;
  BM_CHECK(static_cast<int64_t>(entries.offsets.size()) == num_heads + 1);
  BM_CHECK(entries.offsets.front() == 0);
  BM_CHECK(entries.offsets.back() ==
           static_cast<int64_t>(entries.positions.size()));
  BM_CHECK(entries.scores.empty() ||
           entries.scores.size() == entries.positions.size());
  for (int64_t head = 0; head < num_heads; ++head) {
    BM_CHECK(entries.offsets[head] <= entries.offsets[head + 1]);
    BM_CHECK(entries.offsets[head + 1] - entries.offsets[head] <= range.cut);
    BM_DCHECK(AreCandidates(HeadPositions(entries, head), range.cut));
  }
}

std::span<const int32_t> HeadPositions(const EntriesView& entries,
                                       int64_t head_index) {
  const int64_t begin = entries.offsets[head_index];
  const int64_t end = entries.offsets[head_index + 1];
  return entries.positions.subspan(begin, end - begin);
}

void AppendKeys(const EntriesView& entries, int64_t begin, int64_t count,
                std::vector<uint32_t>* keys) {
  const size_t first = keys->size();
  keys->resize(first + static_cast<size_t>(count));
  uint32_t* out = keys->data() + first;
  if (entries.scores.empty()) {
    for (const int32_t position : entries.positions.subspan(begin, count)) {
      *out++ = static_cast<uint32_t>(position);
    }
    return;
  }
  for (const float score : entries.scores.subspan(begin, count)) {
    *out++ = ScoreKey(score);
  }
}

}  // namespace blockmgr
