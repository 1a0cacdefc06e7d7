// Prompt lookup decoding: drafts without a draft model (Saxena 2023; the n-gram
// proposer of vLLM). When a sequence repeats some tokens, it often repeats the
// tokens after them as well.
#ifndef ENGINE_REFERENCE_PROMPT_LOOKUP_H_
#define ENGINE_REFERENCE_PROMPT_LOOKUP_H_

#include <cstdint>
#include <span>

namespace blockmgr {

// Finds the most recent earlier occurrence of the last 3 tokens, or else of the
// last 2 or the last one. Returns up to max_drafts tokens that followed it, as
// a part of `tokens`. Returns nothing if the last token is new. O(tokens).
std::span<const int32_t> LookUpDrafts(std::span<const int32_t> tokens,
                                      int32_t max_drafts);

}  // namespace blockmgr

#endif  // ENGINE_REFERENCE_PROMPT_LOOKUP_H_
