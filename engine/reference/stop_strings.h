// FindStop: whether the text of a request's outputs contains one of its stop
// strings (SamplingParams::stop).
#ifndef ENGINE_REFERENCE_STOP_STRINGS_H_
#define ENGINE_REFERENCE_STOP_STRINGS_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace blockmgr {

// The bytes that each token of a vocabulary adds to a text. Control tokens add
// none. A token may be a part of a character. A token beyond the list adds
// nothing.
using TokenTexts = std::vector<std::string>;

// Returns the index of the first of `stop` that ends in the text of `token`,
// which follows `outputs`; or nothing. Strings may begin in earlier outputs, or
// in the middle of a token.
//
// Nothing is kept from token to token: the last outputs are decoded again, as
// many as the longest string may begin in. So forks, resumed sequences and
// drafts need no state. Cost: O(bytes of the longest string and of `token`) for
// each string, and one look at every output without text before `token`.
// REQUIRES: no string is empty.
std::optional<int32_t> FindStop(const TokenTexts& texts,
                                std::span<const int32_t> outputs, int32_t token,
                                std::span<const std::string> stop);

}  // namespace blockmgr

#endif  // ENGINE_REFERENCE_STOP_STRINGS_H_
