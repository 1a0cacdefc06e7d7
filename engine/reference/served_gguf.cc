#include "engine/reference/served_gguf.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <limits>
#include <optional>
#include <utility>

#include <absl/strings/str_cat.h>
#include <absl/strings/string_view.h>

#include "blockmgr/base/invalid.h"
#include "blockmgr/base/status_macros.h"
#include "engine/tokenizer/tokenizer_files.h"
#include "engine/tokenizer/utf8.h"

namespace blockmgr {
namespace {

struct Family {
  absl::string_view gguf;
  const char* model_type;
  const char* architecture;
};

// Returns the name of the file without its ending. Messages carry UTF-8 only,
// so each run of other bytes becomes a replacement character.
std::string NameOf(const std::string& path) {
  const std::string stem = std::filesystem::path(path).stem().string();
  std::string name;
  for (absl::string_view rest = stem; !rest.empty();) {
    const size_t num_valid = ValidPrefix(rest);
    absl::StrAppend(&name, rest.substr(0, num_valid));
    rest.remove_prefix(num_valid);
    if (!rest.empty()) name += "\xEF\xBF\xBD";
    rest.remove_prefix(InvalidPrefix(rest));
  }
  return name;
}

std::optional<int32_t> TokenOf(const GgufFile& file, absl::string_view key) {
  const absl::StatusOr<int64_t> token = file.Integer(key);
  if (!token.ok() || *token < 0 ||
      *token > std::numeric_limits<int32_t>::max()) {
    return std::nullopt;
  }
  return static_cast<int32_t>(*token);
}

}  // namespace

absl::StatusOr<ServedModel> DescribeGguf(const GgufFile& file,
                                         const std::string& path,
                                         std::string* tokenizer_error) {
  BM_ASSIGN_OR_RETURN(const absl::string_view architecture,
                      file.String("general.architecture"));
  BM_ASSIGN_OR_RETURN(
      const int64_t context_tokens,
      file.Integer(absl::StrCat(architecture, ".context_length")));
  ServedModel model{
      .name = NameOf(path),
      .model_type = std::string(architecture),
      .context_tokens = static_cast<int32_t>(std::clamp<int64_t>(
          context_tokens, 0, std::numeric_limits<int32_t>::max())),
      .bos_token_id = TokenOf(file, "tokenizer.ggml.bos_token_id"),
      .pad_token_id = TokenOf(file, "tokenizer.ggml.padding_token_id")};
  for (const Family& family :
       {Family{"llama", "llama", "LlamaForCausalLM"},
        Family{"qwen2", "qwen2", "Qwen2ForCausalLM"},
        Family{"gemma3", "gemma3_text", "Gemma3ForCausalLM"}}) {
    if (family.gguf != architecture) continue;
    model.model_type = family.model_type;
    model.architectures = {family.architecture};
  }
  const absl::StatusOr<TokenizerFiles> files =
      MakeTokenizerFiles(file, {.model_type = model.model_type,
                                .architectures = model.architectures,
                                .context_tokens = model.context_tokens});
  absl::StatusOr<std::string> zip =
      files.ok() ? ZipTokenizerFiles(*files) : files.status();
  if (zip.ok() && std::ssize(*zip) > kMaxTokenizerZipBytes) {
    zip = Invalid("tokenizer_zip: expected at most ", kMaxTokenizerZipBytes,
                  " bytes, got ", zip->size());
  }
  *tokenizer_error = std::string(zip.status().message());
  if (zip.ok()) model.tokenizer_zip = *std::move(zip);
  return model;
}

}  // namespace blockmgr
