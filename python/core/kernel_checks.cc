#include "python/core/kernel_checks.h"

#include <cmath>

#include "python/core/errors.h"

namespace blockmgr::python {

nb::dlpack::dtype ElementTypeOf(DType dtype) {
  using Code = nb::dlpack::dtype_code;
  const Code code = dtype == DType::kBFloat16 ? Code::Bfloat : Code::Float;
  return {static_cast<uint8_t>(code),
          static_cast<uint8_t>(8 * DTypeBytes(dtype)), 1};
}

const ModelLayout& CheckedLayout(const ModelLayout& layout) {
  if (layout.num_groups() != 1 || layout.window != 0) {
    ThrowInvalid("layout: expected one without sliding windows, got ",
                 layout.ToString());
  }
  return layout;
}

void CheckLayer(const ModelLayout& layout, int32_t layer) {
  if (layer < 0 || layer >= layout.num_layers) {
    ThrowInvalid("layer: expected 0 to ", layout.num_layers - 1, ", got ",
                 layer);
  }
}

float CheckedScale(const ModelLayout& layout, std::optional<float> scale) {
  const float value =
      scale.value_or(1.0f / std::sqrt(static_cast<float>(layout.head_dim)));
  if (!(value > 0.0f) || std::isinf(value)) {
    ThrowInvalid("scale: expected a number above 0, got ", value);
  }
  return value;
}

EvictionPolicy CheckedScorer(const PolicyArgument& text) {
  EvictionPolicy policy = PolicyOf(text);
  if (policy.score_source() != ScoreSource::kBackend) {
    ThrowInvalid("policy: expected a scorer that reads the pool, got ",
                 FormatPolicy(policy));
  }
  if (policy.scorer_state() != ScorerState::kNone ||
      policy.needs_query_stats()) {
    ThrowInvalid("policy: expected a scorer that reads the last queries or ",
                 "none, got ", FormatPolicy(policy),
                 ", which sums over all queries");
  }
  return policy;
}

}  // namespace blockmgr::python
