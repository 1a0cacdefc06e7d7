// Small layouts, options and requests for tests of the scheduler.
#ifndef TESTS_TESTING_TEST_REQUESTS_H_
#define TESTS_TESTING_TEST_REQUESTS_H_

#include <cstdint>
#include <string>
#include <utility>

#include "blockmgr/base/model_layout.h"
#include "scheduler/compression_points.h"
#include "scheduler/request.h"
#include "scheduler/scheduler.h"

namespace blockmgr {

// `num_usable` blocks besides the null block.
inline ModelLayout SmallLayout(int32_t page_size, int32_t num_usable,
                               int32_t num_layers = 1, int32_t num_heads = 1) {
  return {.num_layers = num_layers,
          .num_heads = num_heads,
          .num_q_heads = num_heads,
          .head_dim = 8,
          .page_size = page_size,
          .dtype = DType::kFloat32,
          .num_blocks = num_usable + 1};
}

// No watermark, no prefix cache, nobody is passed.
inline SchedulerOptions PlainOptions(int32_t max_steps_in_flight = 1) {
  SchedulerOptions options;
  options.max_num_batched_tokens = 64;
  options.max_num_seqs = 8;
  options.max_model_len = 512;
  options.watermark = 0.0;
  options.max_steps_in_flight = max_steps_in_flight;
  options.query_window = 4;
  options.enable_prefix_caching = false;
  options.max_bypasses = 0;
  return options;
}

inline SchedulerOptions CachingOptions(int32_t max_steps_in_flight = 1) {
  SchedulerOptions options = PlainOptions(max_steps_in_flight);
  options.enable_prefix_caching = true;
  return options;
}

// Prompts of one `topic` are prefixes of each other; those of different ones
// share no token, up to 10,000.
inline Request MakeRequest(std::string id, int32_t num_prompt,
                           int32_t max_tokens, int32_t topic = 0) {
  Request request;
  request.id = std::move(id);
  request.max_tokens = max_tokens;
  for (int32_t i = 0; i < num_prompt; ++i) {
    request.prompt.push_back(10000 * topic + i);
  }
  return request;
}

// The answer to a plan: every run that samples has `token`.
inline StepResult AnswerTo(const StepPlan& plan, int32_t token = 7) {
  StepResult result;
  result.id = plan.id;
  for (const uint8_t samples : plan.samples) {
    result.sampled.push_back(samples != 0 ? token : -1);
  }
  return result;
}

// Recency alone, `tokens` per head in whole pages.
inline RequestEviction Recency(int32_t tokens) {
  RequestEviction eviction;
  eviction.mode = EvictionMode::kAfterPrefill;
  eviction.policy.scorer.kind = ScorerKind::kStreaming;
  eviction.policy.scorer.sinks = 0;
  eviction.target.kind = EvictionTarget::Kind::kTokens;
  eviction.target.tokens = tokens;
  return eviction;
}

// The same in another mode, every so many tokens.
inline RequestEviction Recency(int32_t tokens, EvictionMode mode,
                               int32_t every) {
  RequestEviction eviction = Recency(tokens);
  eviction.mode = mode;
  eviction.compress_every = every;
  return eviction;
}

// Its point at `length`.
inline CompressionPoint RecencyPoint(int32_t length, int32_t cut,
                                     int32_t tokens,
                                     const ModelLayout& layout) {
  CompressionPoint point;
  point.length = length;
  point.cut = cut;
  point.policy = Recency(tokens).policy;
  point.target = Recency(tokens).target;
  ResolvePoint(nullptr, layout, &point);
  return point;
}

inline RequestEviction SnapKv(int32_t window, int32_t tokens) {
  RequestEviction eviction = Recency(tokens);
  eviction.policy.scorer = ScorerSpec{};
  eviction.policy.scorer.window = window;
  return eviction;
}

inline EvictionCommand RecencyCommand(int32_t tokens, int32_t cut = 0) {
  EvictionCommand command;
  command.policy = Recency(tokens).policy;
  command.target = Recency(tokens).target;
  command.cut = cut;
  return command;
}

}  // namespace blockmgr

#endif  // TESTS_TESTING_TEST_REQUESTS_H_
