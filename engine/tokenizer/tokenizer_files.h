// Functions that make the files by which other programs, gateways above all,
// get the tokenizer of a GGUF file.
//
// Thread-safe: pure functions.
#ifndef ENGINE_TOKENIZER_TOKENIZER_FILES_H_
#define ENGINE_TOKENIZER_TOKENIZER_FILES_H_

#include <cstdint>
#include <string>
#include <vector>

#include <absl/status/statusor.h>

#include "engine/gguf/gguf_file.h"
#include "engine/tokenizer/tokenizer_data.h"

namespace blockmgr {

// Texts in JSON, as Hugging Face's libraries read them.
struct TokenizerFiles {
  std::string tokenizer;         // tokenizer.json
  std::string tokenizer_config;  // tokenizer_config.json: the chat template
  std::string config;            // config.json: what kind of model it is
};

// ModelKind is what config.json says of the model besides its tokenizer.
struct ModelKind {
  std::string model_type;
  std::vector<std::string> architectures;
  int64_t context_tokens = 0;
};

// Returns the files of the model's tokenizer, which encodes as Tokenizer does.
// Errs as ReadTokenizerData does, and with InvalidArgument if a text is not
// UTF-8 or words are split by rules that WordSplitter does not have.
absl::StatusOr<TokenizerFiles> MakeTokenizerFiles(const GgufFile& file,
                                                  const ModelKind& kind);
absl::StatusOr<TokenizerFiles> MakeTokenizerFiles(const TokenizerData& data,
                                                  const ModelKind& kind);

// Returns a zip archive with the three files. The same files give the same
// bytes.
absl::StatusOr<std::string> ZipTokenizerFiles(const TokenizerFiles& files);

}  // namespace blockmgr

#endif  // ENGINE_TOKENIZER_TOKENIZER_FILES_H_
