#include "engine/reference/prompt_lookup.h"

#include <algorithm>

namespace blockmgr {
namespace {

// The n of Saxena's reference implementation.
constexpr size_t kMaxNgram = 3;

}  // namespace

std::span<const int32_t> LookUpDrafts(std::span<const int32_t> tokens,
                                      int32_t max_drafts) {
  for (size_t n = std::min(kMaxNgram, tokens.size()); n > 0; --n) {
    const std::span<const int32_t> ngram = tokens.last(n);
    // Not the n-gram itself.
    const std::span<const int32_t> before = tokens.first(tokens.size() - 1);
    const auto found =
        std::find_end(before.begin(), before.end(), ngram.begin(), ngram.end());
    if (found == before.end()) continue;
    const size_t begin = static_cast<size_t>(found - before.begin()) + n;
    return tokens.subspan(
        begin, std::min(tokens.size() - begin,
                        static_cast<size_t>(std::max(max_drafts, 0))));
  }
  return {};
}

}  // namespace blockmgr
