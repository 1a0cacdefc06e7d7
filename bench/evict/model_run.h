// ModelRun: one sequence in a language model, for measurements without a
// scheduler.
//
// The cache is a CPU backend's, in float32, whose blocks belong to this
// sequence. So keys, values and attention are those of the reference engine.
//
// Model and threads are borrowed. Thread-compatible. Memory: K and V of
// max_tokens in every layer group.
#ifndef BENCH_EVICT_MODEL_RUN_H_
#define BENCH_EVICT_MODEL_RUN_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include <absl/status/statusor.h>

#include "blockmgr/base/ids.h"
#include "engine/reference/tiny_model.h"
#include "kernels/backend.h"
#include "kernels/cpu/thread_pool.h"

namespace blockmgr {

class ModelRun {
 public:
  // Called for every layer of a pass, after the layer's Project. The rows of
  // `forward` belong to the positions from `first` on.
  using LayerVisitor = std::function<void(int32_t layer, int32_t first,
                                          const ModelForward& forward)>;

  // Matrix products run on `threads`, or on the caller's thread if null.
  // Errors are those of ModelLayout::Validate.
  static absl::StatusOr<std::unique_ptr<ModelRun>> Create(
      const LanguageModel* model, int32_t max_tokens,
      ThreadPool* threads = nullptr);

  // Appends tokens and returns the most likely next one. REQUIRES: there is at
  // least one token, and the sequence stays within max_tokens.
  int32_t Extend(std::span<const int32_t> tokens,
                 const LayerVisitor& visitor = {});
  // Forgets the tokens from this one on. REQUIRES: 0 <= num_tokens <= length().
  void Truncate(int32_t num_tokens);

  int32_t length() const { return length_; }
  const LanguageModel& model() const { return model_; }
  // Returns || v W_O ||_2 of all tokens for every query head of a layer,
  // [q_heads, length()].
  std::vector<float> ProjectedSizes(int32_t layer);

 private:
  ModelRun(const LanguageModel* model, int32_t max_tokens, ThreadPool* threads,
           std::unique_ptr<Backend> backend);

  // Computes one pass and returns the row of the last token.
  size_t Pass(std::span<const int32_t> tokens, const LayerVisitor& visitor);
  void Attend(int32_t layer, int32_t num_rows);

  const LanguageModel& model_;
  const int32_t max_tokens_;
  const std::unique_ptr<Backend> backend_;
  ModelForward forward_;
  std::vector<std::vector<BlockId>> blocks_;  // by layer group
  int32_t length_ = 0;
};

}  // namespace blockmgr

#endif  // BENCH_EVICT_MODEL_RUN_H_
