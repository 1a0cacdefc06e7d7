// The requests that a load client sends, without their tokens, and their times.
//
// A prompt is a list of segments, each the beginning of an endless
// pseudo-random token stream. Requests whose prompts begin with the same
// segments begin with the same tokens, so that prefix sharing shows, and an
// hour of trace stays small: tokens are made when a request is sent.
//
// Plain values; thread-compatible.
#ifndef BENCH_WORKLOAD_H_
#define BENCH_WORKLOAD_H_

#include <cstdint>
#include <span>
#include <vector>

namespace blockmgr {

// The first `num_tokens` tokens of stream `stream`.
struct PromptSegment {
  uint64_t stream = 0;
  int32_t num_tokens = 0;
  friend bool operator==(const PromptSegment&, const PromptSegment&) = default;
};

struct WorkloadRequest {
  double arrival_s = 0;       // from the start of the run
  int32_t output_tokens = 0;  // at least one
  std::vector<PromptSegment> prompt;

  int32_t prompt_tokens() const {
    int32_t total = 0;
    for (const PromptSegment& segment : prompt) total += segment.num_tokens;
    return total;
  }
};

struct Workload {
  std::vector<WorkloadRequest> requests;  // arrivals never decrease
  // Grid of the trace's timestamps when requests were spread within it; else 0.
  double tick_s = 0;
};

// Kinds of streams, so that ids of different origins never meet.
enum class StreamKind : uint64_t {
  kHashId = 1,
  kUnique = 2,
  kSharedPrefix = 3
};

// The stream of the `id`-th thing of a kind under a seed. Streams are 64-bit
// hashes: two ids share one with probability 2^-64.
uint64_t StreamOf(StreamKind kind, uint64_t id, uint64_t seed);

// The prompt, each token in [0, vocabulary). Depends on its arguments alone,
// on every platform. O(tokens). REQUIRES: vocabulary > 0.
std::vector<int32_t> SynthesizeTokens(std::span<const PromptSegment> prompt,
                                      int32_t vocabulary);

}  // namespace blockmgr

#endif  // BENCH_WORKLOAD_H_
