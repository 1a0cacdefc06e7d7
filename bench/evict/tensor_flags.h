// The flags by which every subcommand takes its tensors.
#ifndef BENCH_EVICT_TENSOR_FLAGS_H_
#define BENCH_EVICT_TENSOR_FLAGS_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <CLI/CLI.hpp>

#include "bench/evict/model_oracle.h"
#include "bench/evict/tensors.h"

namespace blockmgr {

struct TensorFlags {
  TensorPaths paths;               // --queries --raw-queries --keys --values
                                   // --output-projection --scores
  std::string model;               // --model FILE.gguf
  std::vector<std::string> texts;  // --text
  int32_t context = 0;             // --context; 0: the default
  int32_t num_threads = 0;         // --threads; 0: all of the machine
  bool replay = false;             // --replay-scores
  std::string synthetic;  // --synthetic LAYERSxQ_HEADSxKV_HEADSxLENGTHxDIM
  uint64_t seed = 1;      // --seed
  double rope_theta = 10000.0;  // --rope-theta
};

void AddTensorFlags(CLI::App& app, TensorFlags* flags);
// Loads the files, computes a text with a model, or makes the synthetic
// tensors; exactly one of the three must have been asked for.
absl::StatusOr<Tensors> ReadTensors(const TensorFlags& flags);
// Computes the first --context tokens of the text with --model, and measures
// what the next query_tokens need of them. REQUIRES: query_tokens > 0.
absl::StatusOr<ModelOracle> ReadOracle(const TensorFlags& flags,
                                       int32_t query_tokens);

// The contexts that are cut out of the text of --model.
struct ContextCut {
  int32_t num_contexts = 1;
  // The tokens behind each context that tell which entries are needed. 0: the
  // importances stay empty.
  int32_t query_tokens = 0;
};
// Computes contexts of --context tokens, which lie evenly in the text and do
// not overlap, and hands over one after the other. Errs if the text is too
// short, and as `visit` does.
absl::Status VisitContexts(
    const TensorFlags& flags, const ContextCut& cut,
    const std::function<absl::Status(ModelOracle)>& visit);

}  // namespace blockmgr

#endif  // BENCH_EVICT_TENSOR_FLAGS_H_
