// Loads a LanguageModel from a GGUF file.
//
// The architectures are llama (with the rotary divisors that Llama 3.1 has),
// qwen2 and gemma3. Any other is refused by name, and so is a file that has a
// key or a tensor which this model would ignore to a wrong effect: experts,
// soft caps, scalings of the rotary embedding, tensors without a use.
//
// Thread-safe: no state.
#ifndef ENGINE_REFERENCE_GGUF_MODEL_H_
#define ENGINE_REFERENCE_GGUF_MODEL_H_

#include <memory>

#include <absl/status/statusor.h>

#include "engine/gguf/gguf_file.h"
#include "engine/reference/tiny_model.h"

namespace blockmgr {

// Returns the model of the file. The model keeps packed copies of the matrices,
// so it does not need the file. An error names the key or the tensor that is
// missing or wrong, what was expected and what the file has.
absl::StatusOr<std::shared_ptr<const LanguageModel>> LoadGgufModel(
    const GgufFile& file);

}  // namespace blockmgr

#endif  // ENGINE_REFERENCE_GGUF_MODEL_H_
