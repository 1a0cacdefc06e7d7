#include "bench/evict/model_file.h"

#include <filesystem>

#include <absl/status/status.h>
#include <absl/strings/string_view.h>

#include "bench/evict/prefixed.h"
#include "blockmgr/base/read_file.h"
#include "engine/reference/gguf_model.h"

namespace blockmgr {

absl::StatusOr<ModelFile> OpenModel(const std::string& path,
                                    int32_t num_threads) {
  ModelFile model;
  absl::StatusOr<std::shared_ptr<const GgufFile>> file = GgufFile::Open(path);
  if (!file.ok()) return Prefixed("--model", file.status());
  model.file = *std::move(file);
  absl::StatusOr<std::shared_ptr<const LanguageModel>> loaded =
      LoadGgufModel(*model.file);
  if (!loaded.ok()) return Prefixed("--model", loaded.status());
  model.model = *std::move(loaded);
  const absl::StatusOr<absl::string_view> name =
      model.file->String("general.name");
  model.name = name.ok() ? std::string(*name)
                         : std::filesystem::path(path).stem().string();
  model.threads = std::make_unique<ThreadPool>(num_threads);
  return model;
}

absl::StatusOr<Tokenizer> OpenTokenizer(const ModelFile& model) {
  absl::StatusOr<Tokenizer> tokenizer = Tokenizer::Create(*model.file);
  if (!tokenizer.ok()) return Prefixed("--model", tokenizer.status());
  return tokenizer;
}

absl::StatusOr<std::vector<int32_t>> ReadTexts(
    const Tokenizer& tokenizer, const std::vector<std::string>& paths) {
  std::vector<int32_t> tokens;
  for (const std::string& path : paths) {
    const absl::StatusOr<std::string> text = ReadFile(path);
    if (!text.ok()) return Prefixed("--text", text.status());
    const std::vector<int32_t> encoded =
        tokenizer.Encode(*text, /*parse_special=*/false);
    tokens.insert(tokens.end(), encoded.begin(), encoded.end());
  }
  return tokens;
}

}  // namespace blockmgr
