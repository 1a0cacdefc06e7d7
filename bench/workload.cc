#include "bench/workload.h"

#include <cstddef>

#include "blockmgr/base/bits.h"
#include "blockmgr/base/check.h"

namespace blockmgr {

uint64_t StreamOf(StreamKind kind, uint64_t id, uint64_t seed) {
  return SplitMix64(SplitMix64(seed ^ SplitMix64(static_cast<uint64_t>(kind))) +
                    id);
}

std::vector<int32_t> SynthesizeTokens(std::span<const PromptSegment> prompt,
                                      int32_t vocabulary) {
  BM_CHECK(vocabulary > 0);
  std::vector<int32_t> tokens;
  size_t total = 0;
  for (const PromptSegment& segment : prompt) {
    total += static_cast<size_t>(segment.num_tokens);
  }
  tokens.reserve(total);
  for (const PromptSegment& segment : prompt) {
    for (int32_t i = 0; i < segment.num_tokens; ++i) {
      // The high half times the vocabulary, without the bias and the cost of a
      // division.
      const uint64_t bits =
          SplitMix64(segment.stream + static_cast<uint64_t>(i)) >> 32;
      tokens.push_back(static_cast<int32_t>(
          (bits * static_cast<uint64_t>(vocabulary)) >> 32));
    }
  }
  return tokens;
}

}  // namespace blockmgr
