// Prompt lookup decoding: drafts without a draft model (Saxena 2023; the n-gram
// proposer of vLLM). What a sequence says again, it often goes on with alike.
#ifndef ENGINE_REFERENCE_PROMPT_LOOKUP_H_
#define ENGINE_REFERENCE_PROMPT_LOOKUP_H_

#include <cstdint>
#include <span>

namespace blockmgr {

// What followed the most recent earlier occurrence of the longest n-gram, of 3
// tokens down to one, that `tokens` end with: at most max_drafts tokens, a part
// of `tokens`. Empty: the last token is new. O(tokens), no state.
std::span<const int32_t> LookUpDrafts(std::span<const int32_t> tokens,
                                      int32_t max_drafts);

}  // namespace blockmgr

#endif  // ENGINE_REFERENCE_PROMPT_LOOKUP_H_
