// Sampler: chooses the next token of a sequence from the model's logits.
//
// The token depends on the logits, on the sequence's tokens and on its
// RequestInfo only: the random number is a function of the seed and of the
// position. So a sequence gets the same tokens alone and in any batch, after a
// preemption, as a fork, and when drafts are verified one after the other.
//
// The fields of SamplingParams are applied in the order that common.proto
// gives, which is vLLM's. Of equal logits, the lower token counts as more
// likely.
//
// Cost: one pass over the vocabulary if greedy; a few more otherwise, and one
// over the sequence's tokens with penalties. Nothing is sorted as a whole.
// Nothing is allocated after construction. Thread-compatible.
#ifndef ENGINE_REFERENCE_SAMPLER_H_
#define ENGINE_REFERENCE_SAMPLER_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "blockmgr/sampling_params.h"
#include "blockmgr/step_plan.h"
#include "kernels/cuda/layers/token_draws.h"

namespace blockmgr {

class Sampler {
 public:
  // REQUIRES: vocabulary > 0.
  explicit Sampler(int32_t vocabulary);

  // The fields that the sampler supports: all but `stop`, for which an engine
  // has to know the texts of tokens (TinyEngineOptions::token_texts).
  static constexpr uint32_t kFields =
      EngineSampling::kAllFields & ~EngineSampling::BitOf(SamplingField::kStop);

  // Returns the token behind `tokens`, which are the prompt and the outputs so
  // far. Without `info`, or without its SamplingParams, that is the most likely
  // token. Token ids beyond the vocabulary are left out of penalties and
  // biases. REQUIRES: logits.size() is the vocabulary.
  int32_t Sample(const RequestInfo* info, std::span<const int32_t> tokens,
                 std::span<const float> logits);

  // Fills `draw` with how a device draws what Sample would return, and adds the
  // edits of the logits that come before. Returns false, and adds nothing, if a
  // device cannot: with top_k and top_p. A device adds weights in another
  // order: a token may differ if the random number is within rounding of its
  // border.
  [[nodiscard]] bool PlanDraw(const RequestInfo* info,
                              std::span<const int32_t> tokens, int32_t row,
                              RowDraw* draw, std::vector<LogitEdit>* edits);

  // Appends a row to `rows`: the log-probability of a token, and those of the
  // rows->num_top most likely ones. A token beyond the vocabulary has
  // probability 0. REQUIRES: token >= 0, num_top <= kMaxLogprobs, num_top <=
  // the vocabulary.
  void AddLogProbs(std::span<const float> logits, int32_t token,
                   TokenLogProbs* rows);

  int32_t vocabulary() const { return static_cast<int32_t>(vocabulary_); }

 private:
  // The least likely token that is kept.
  struct Boundary {
    float logit = 0.0f;
    int32_t token = 0;
  };

  // Returns the logits with min_tokens, biases and penalties: `logits`
  // themselves, or adjusted_.
  std::span<const float> Adjust(const RequestInfo& info,
                                std::span<const int32_t> tokens,
                                std::span<const float> logits);
  void ApplyPenalties(const SamplingParams& params,
                      std::span<const int32_t> tokens,
                      std::span<const int32_t> outputs);
  // Adds what Adjust does, as edits of the logits of a row.
  void AddEdits(const RequestInfo& info, std::span<const int32_t> tokens,
                int32_t row, std::vector<LogitEdit>* edits);
  // Fills weights_ with exp((logit - max) / temperature), or 0 where min_p
  // leaves a token out.
  void Weigh(const SamplingParams& params, std::span<const float> logits,
             float max);
  // Returns the last token that top_k and top_p keep. REQUIRES: one of them
  // leaves out tokens.
  Boundary FindBoundary(const SamplingParams& params,
                        std::span<const float> logits, float max);
  // The weight of all tokens, and of those that are more likely than all
  // candidates.
  struct Masses {
    double total = 0.0;
    double before = 0.0;
  };
  // Fills candidates_ with the tokens among which the boundary is.
  Masses CollectCandidates(const SamplingParams& params,
                           std::span<const float> logits, float max);
  // Draws a token by weights_. `uniform` is in [0, 1).
  int32_t Draw(double uniform) const;

  const size_t vocabulary_;
  std::vector<float> adjusted_;      // [vocabulary]
  std::vector<float> weights_;       // [vocabulary]
  std::vector<int32_t> counts_;      // [vocabulary], 0 between calls
  std::vector<int32_t> candidates_;  // up to [vocabulary]
};

}  // namespace blockmgr

#endif  // ENGINE_REFERENCE_SAMPLER_H_
