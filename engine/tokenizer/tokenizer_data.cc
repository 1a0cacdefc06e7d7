#include "engine/tokenizer/tokenizer_data.h"

#include <cstddef>
#include <utility>

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <absl/strings/string_view.h>

#include "blockmgr/base/invalid.h"
#include "blockmgr/base/status_macros.h"
#include "engine/gguf/gguf_file.h"
#include "engine/tokenizer/utf8.h"

namespace blockmgr {

absl::StatusOr<TokenizerData> ReadTokenizerData(const GgufFile& file) {
  BM_ASSIGN_OR_RETURN(const absl::string_view model,
                      file.String("tokenizer.ggml.model"));
  if (model != "gpt2") {
    return Invalid(
        "tokenizer.ggml.model: expected \"gpt2\" (byte-level "
        "BPE), got ",
        Quoted(model));
  }
  TokenizerData data;
  BM_ASSIGN_OR_RETURN(data.pre, file.String("tokenizer.ggml.pre"));
  BM_ASSIGN_OR_RETURN(data.tokens, file.Strings("tokenizer.ggml.tokens"));
  constexpr char kTypes[] = "tokenizer.ggml.token_type";
  // Before the values, of which a file may have any number.
  const size_t num_types =
      file.ArrayLength(kTypes).value_or(data.tokens.size());
  if (num_types != data.tokens.size()) {
    return Invalid(kTypes, ": expected ", data.tokens.size(),
                   ", as many as tokenizer.ggml.tokens; got ", num_types);
  }
  BM_ASSIGN_OR_RETURN(data.token_type, file.Integers(kTypes));
  BM_ASSIGN_OR_RETURN(data.merges, file.Strings("tokenizer.ggml.merges"));
  for (const auto& [key, id] :
       {std::pair("tokenizer.ggml.bos_token_id", &data.bos_token_id),
        std::pair("tokenizer.ggml.eos_token_id", &data.eos_token_id),
        std::pair("tokenizer.ggml.eot_token_id", &data.eot_token_id)}) {
    if (!file.Has(key)) continue;
    BM_ASSIGN_OR_RETURN(*id, file.Integer(key));
  }
  constexpr char kAddBos[] = "tokenizer.ggml.add_bos_token";
  if (file.Has(kAddBos)) {
    BM_ASSIGN_OR_RETURN(data.add_bos_token, file.Boolean(kAddBos));
  }
  constexpr char kChatTemplate[] = "tokenizer.chat_template";
  if (file.Has(kChatTemplate)) {
    BM_ASSIGN_OR_RETURN(data.chat_template, file.String(kChatTemplate));
  }
  return data;
}

}  // namespace blockmgr
