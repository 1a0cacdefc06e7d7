// Edits of logits and draws of tokens: the parameters of the kernels in
// token_draws.cuh. Plain data, C++17. Pointers are device memory.
#ifndef KERNELS_CUDA_LAYERS_TOKEN_DRAWS_H_
#define KERNELS_CUDA_LAYERS_TOKEN_DRAWS_H_

#include <cstdint>

namespace blockmgr {

// A change of one logit, in the order of the fields: `bias` is added, the logit
// is divided by `repetition` (multiplied if it is not above 0), and `penalty`
// is subtracted.
struct LogitEdit {
  int32_t row = 0;  // row of the logits
  int32_t token = 0;
  float bias = 0.0f;
  float repetition = 1.0f;
  float penalty = 0.0f;
};

// RowDraw says how a token is drawn from a row of logits. A token weighs
// exp((logit - max) * inverse_temperature), or nothing if the exponent is below
// min_exponent. The token is the one in which `uniform`, a part of all weights
// in the order of tokens, ends. Without a temperature, and if no logit is
// finite, the most likely token is drawn, the lower one of equals.
struct RowDraw {
  int32_t row = 0;                   // row of the logits
  float inverse_temperature = 0.0f;  // 0 draws the most likely token
  float min_exponent = 0.0f;
  double uniform = 0.0;  // a number in [0, 1)
};

// REQUIRES: no two edits are of the same logit.
struct EditParams {
  int64_t num_edits = 0;
  int32_t vocabulary = 0;
  const LogitEdit* edits = nullptr;  // [num_edits]
  float* logits = nullptr;           // [rows, vocabulary]
};

struct DrawParams {
  int32_t num_draws = 0;
  int32_t vocabulary = 0;
  const RowDraw* draws = nullptr;  // [num_draws]
  const float* logits = nullptr;   // [rows, vocabulary]
  int32_t* tokens = nullptr;       // [num_draws]
};

inline constexpr int32_t kEditThreads = 128;
// The most threads of a block, which draws one token.
inline constexpr int32_t kDrawThreads = 512;

}  // namespace blockmgr

#endif  // KERNELS_CUDA_LAYERS_TOKEN_DRAWS_H_
