// MeasureOracle measures how much each entry of a context matters to a language
// model: when it answers questions about the context (LU-KV's oracle, arXiv
// 2602.08585, equation 4), and when it repeats the context (KVzip's scores,
// arXiv 2505.23416).
#ifndef BENCH_EVICT_MODEL_ORACLE_H_
#define BENCH_EVICT_MODEL_ORACLE_H_

#include <cstdint>
#include <string>
#include <vector>

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include "bench/evict/tensors.h"
#include "blockmgr/eviction/select.h"
#include "engine/reference/tiny_model.h"
#include "kernels/cpu/thread_pool.h"

namespace blockmgr {

// A context and what may follow it, as tokens.
struct ContextPrompt {
  std::string task;  // what kind of text this is, for people
  std::vector<int32_t> context = {};
  // Each follows the context on its own: a question and its answer, or how a
  // text goes on.
  std::vector<std::vector<int32_t>> queries = {};
  // Tokens that the model adds to each query, the most likely ones.
  int32_t answer_tokens = 0;
};

struct ModelOracle {
  // The queries with the model's answers.
  std::vector<std::vector<int32_t>> queries;
  Tensors tensors;  // of the context
  // [num_queries, layers, KV heads, context]: the maximum, over the query's
  // tokens and the head's group of query heads, of attention (over all entries
  // up to the token) times || v W_O ||_2; divided by its sum over the layer.
  std::vector<float> importances;
};

// Returns how much of what the first query needs is kept, as the mean over the
// layers, in [0, 1]. The ranks of `keep` are positions. REQUIRES: importances.
double KeptImportance(const KeepSets& keep, const ModelOracle& oracle);

// Checks that the model's layers attend to all tokens. Layers with a sliding
// window have no budgets, so there is nothing to measure for them yet. The
// error begins with `flag`.
absl::Status CheckNoWindows(const char* flag, const LanguageModel& model);

// Returns q, k, v of the tokens and W_O, of every layer. REQUIRES: the model
// has no windows; at least one token. Errors are those of ModelRun::Create.
absl::StatusOr<Tensors> MeasureTensors(const LanguageModel& model,
                                       const std::vector<int32_t>& tokens,
                                       ThreadPool* threads = nullptr);

// Equal for equal arguments, whatever the threads. Cost: a forward pass of the
// context and of every query; memory: q, k and v of the context twice.
// REQUIRES: the model has no windows; a context and queries of at least one
// token each. Errors are those of ModelRun::Create.
absl::StatusOr<ModelOracle> MeasureOracle(const LanguageModel& model,
                                          const ContextPrompt& prompt,
                                          ThreadPool* threads = nullptr);

// ReplayPrompts has the texts that ask a model to repeat its context.
struct ReplayPrompts {
  // Asks for the whole context. Comes before the first tokens of the context.
  std::vector<int32_t> whole;
  // Asks for the part that begins with the tokens behind the prompt: the last
  // tokens of one chunk, and then the next chunk.
  std::vector<int32_t> part;
  int32_t chunk_tokens = 2048;
};

// Returns KVzip's scores, [layers][KV heads, context]: the maximum, over all
// queries of a replay and the head's group of query heads, of the attention
// that they pay an entry. The replay is the context itself behind a prompt,
// chunk by chunk, each behind the whole context. KVzip's program attends to the
// chunk's own entries only; here a query attends to everything.
//
// A scorer for comparison only: it reads the prompt twice. REQUIRES: as
// MeasureOracle; chunk_tokens > 0. Errors are those of ModelRun::Create.
absl::StatusOr<std::vector<std::vector<float>>> MeasureReplayScores(
    const LanguageModel& model, const std::vector<int32_t>& context,
    const ReplayPrompts& prompts, ThreadPool* threads = nullptr);

}  // namespace blockmgr

#endif  // BENCH_EVICT_MODEL_ORACLE_H_
