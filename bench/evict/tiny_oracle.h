// What questions about a context turn out to need of its entries, measured with
// the reference model: LU-KV's oracle (arXiv 2602.08585, equation 4), end to
// end and without files.
#ifndef BENCH_EVICT_TINY_ORACLE_H_
#define BENCH_EVICT_TINY_ORACLE_H_

#include <cstdint>
#include <vector>

#include "bench/evict/tensors.h"
#include "engine/reference/tiny_model.h"

namespace blockmgr {

struct TinyOracleOptions {
  uint64_t seed = 1;    // of the model, the contexts and the questions
  int32_t context = 0;  // which of the seed's contexts, >= 0
  int32_t context_tokens = 1024;
  int32_t num_queries = 8;
  // Half of them question, a passage of the context, the others the answer,
  // decoded greedily.
  int32_t query_tokens = 32;
};

struct TinyOracle {
  std::vector<int32_t> context;               // tokens
  std::vector<std::vector<int32_t>> queries;  // tokens, question and answer
  Tensors tensors;                            // of the context
  // [num_queries, layers, KV heads, context]: the maximum, over the query's
  // steps and the head's group of query heads, of attention (over all entries
  // up to the step) times || v W_O ||_2; divided by its sum over the layer.
  std::vector<float> importances;
};

// Equal for equal arguments. O(context^2) attention. REQUIRES: a valid shape;
// all options > 0.
TinyOracle MeasureTinyOracle(const ModelShape& shape,
                             const TinyOracleOptions& options);

}  // namespace blockmgr

#endif  // BENCH_EVICT_TINY_ORACLE_H_
