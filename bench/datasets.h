// Data sets that requests come from: request traces and the random data set.
//
//   mooncake  JSON lines {"timestamp": ms, "input_length", "output_length",
//             "hash_ids": one per 512 prompt tokens, the last block may be
//             partial; equal ids mean equal tokens}
//   azure     CSV "TIMESTAMP,ContextTokens,GeneratedTokens", as published in
//             2023; prompts share nothing
//   random    lengths drawn as `vllm bench serve --dataset-name random` does
//
// A trace is checked line by line; the first malformed line is an
// InvalidArgument that names file, line, field and reason. One that lasts for
// more than kMaxArrivalSeconds has its timestamps in another unit.
#ifndef BENCH_DATASETS_H_
#define BENCH_DATASETS_H_

#include <cstdint>
#include <istream>
#include <optional>
#include <string>

#include <absl/status/statusor.h>

#include "bench/workload.h"

namespace blockmgr {

// Tokens of one hash id of a Mooncake trace.
inline constexpr int32_t kMooncakeBlockTokens = 512;
// Requests of the random data set: 100 bytes each, a GB in all.
inline constexpr int64_t kMaxPrompts = 10'000'000;
// Output tokens of all requests, whose times take 8 bytes each: 8 GiB.
inline constexpr int64_t kMaxOutputTokens = int64_t{1} << 30;
// The longest prompt, and the longest output, of a request: 64 MiB of token
// ids.
inline constexpr int32_t kMaxRequestTokens = 1 << 24;

struct RandomDatasetOptions {
  int32_t input_tokens = 1024;
  int32_t output_tokens = 128;
  // Lengths are uniform in [floor(n * (1 - r)), ceil(n * (1 + r))], 0 <= r < 1.
  double range_ratio = 0;
  int32_t prefix_tokens = 0;  // the same for every request, before the input
};

struct DatasetOptions {
  std::string name = "random";  // random, mooncake or azure
  std::string path = "";        // traces only
  // Unset: 1000 for random, the whole file for traces.
  std::optional<int64_t> num_prompts = std::nullopt;
  RandomDatasetOptions random = {};
  uint64_t seed = 0;
};

// Requests in the order of the data set; arrival_s is the trace's own
// timestamp (from its first row), or 0 for random. InvalidArgument names the
// flag whose value is out of range.
absl::StatusOr<Workload> LoadDataset(const DatasetOptions& options);

// The parsers behind it. `file` is for messages; at most `limit` rows are read.
absl::StatusOr<Workload> ParseMooncake(std::istream& input,
                                       const std::string& file, uint64_t seed,
                                       std::optional<int64_t> limit);
absl::StatusOr<Workload> ParseAzure(std::istream& input,
                                    const std::string& file, uint64_t seed,
                                    std::optional<int64_t> limit);
absl::StatusOr<Workload> MakeRandomDataset(const RandomDatasetOptions& options,
                                           int64_t num_prompts, uint64_t seed);

}  // namespace blockmgr

#endif  // BENCH_DATASETS_H_
