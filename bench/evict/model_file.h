// A language model from --model FILE.gguf, and texts from --text FILE.
#ifndef BENCH_EVICT_MODEL_FILE_H_
#define BENCH_EVICT_MODEL_FILE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <absl/status/statusor.h>

#include "engine/gguf/gguf_file.h"
#include "engine/reference/tiny_model.h"
#include "engine/tokenizer/tokenizer.h"
#include "kernels/cpu/thread_pool.h"

namespace blockmgr {

struct ModelFile {
  std::string name;  // general.name of the file, or else the file's own name
  std::shared_ptr<const GgufFile> file;
  std::shared_ptr<const LanguageModel> model;
  std::unique_ptr<ThreadPool> threads;
};

// Opens the file and loads its model. Errors name --model.
absl::StatusOr<ModelFile> OpenModel(const std::string& path,
                                    int32_t num_threads);

// Returns the file's tokenizer. Errors name --model.
absl::StatusOr<Tokenizer> OpenTokenizer(const ModelFile& model);

// Returns the tokens of the files, one file after the other. Errors name
// --text and the file.
absl::StatusOr<std::vector<int32_t>> ReadTexts(
    const Tokenizer& tokenizer, const std::vector<std::string>& paths);

}  // namespace blockmgr

#endif  // BENCH_EVICT_MODEL_FILE_H_
