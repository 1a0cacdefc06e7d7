// Functions that find UTF-8 in a text of any bytes. Surrogates, code points
// above U+10FFFF and code points spelled longer than need be are not UTF-8.
#ifndef ENGINE_TOKENIZER_UTF8_H_
#define ENGINE_TOKENIZER_UTF8_H_

#include <cstddef>
#include <string>

#include <absl/strings/string_view.h>

namespace blockmgr {

// Returns the length of the longest prefix that is UTF-8.
size_t ValidPrefix(absl::string_view text);

// Returns the number of bytes before the first one at which a character begins.
size_t InvalidPrefix(absl::string_view text);

// Returns the first bytes of the text in quotes, for error messages. Bytes that
// cannot be printed are escaped.
std::string Quoted(absl::string_view text);

}  // namespace blockmgr

#endif  // ENGINE_TOKENIZER_UTF8_H_
