// The flags by which every subcommand takes its tensors.
#ifndef BENCH_EVICT_TENSOR_FLAGS_H_
#define BENCH_EVICT_TENSOR_FLAGS_H_

#include <cstdint>
#include <string>

#include <CLI/CLI.hpp>
#include <absl/status/statusor.h>

#include "bench/evict/tensors.h"

namespace blockmgr {

struct TensorFlags {
  TensorPaths paths;      // --queries --raw-queries --keys --values
                          // --output-projection --scores
  std::string synthetic;  // --synthetic LAYERSxQ_HEADSxKV_HEADSxLENGTHxDIM
  uint64_t seed = 1;      // --seed
  double rope_theta = 10000.0;  // --rope-theta
};

void AddTensorFlags(CLI::App& app, TensorFlags* flags);
// Loads the files, or makes the synthetic tensors; exactly one of the two must
// have been asked for.
absl::StatusOr<Tensors> ReadTensors(const TensorFlags& flags);

}  // namespace blockmgr

#endif  // BENCH_EVICT_TENSOR_FLAGS_H_
