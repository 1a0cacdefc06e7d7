// blockmgr-evict profile: measures LU-KV's profile of a model and scorer.
#ifndef BENCH_EVICT_PROFILE_H_
#define BENCH_EVICT_PROFILE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include "bench/evict/model_oracle.h"
#include "blockmgr/eviction/lukv_profile.h"
#include "engine/reference/tiny_model.h"
#include "kernels/cpu/thread_pool.h"

namespace blockmgr {

struct ProfileFlags {
  // One source: --oracle and --scores, or one of the others.
  // One of each per context.
  std::vector<std::string> oracles;  // --oracle
  std::vector<std::string> scores;   // --scores
  std::string import_kvpress;        // --import-kvpress
  std::string show;                  // --show
  std::string model_file;            // --model
  bool tiny = false;                 // --tiny
  // Options of the calibration. -1: as many entries as the scorer protects.
  int32_t sinks = -1;               // --sinks
  int32_t window = -1;              // --window
  int32_t unit = 1;                 // --unit
  double min_keep = 0.01;           // --min-keep
  int32_t num_steps = 100;          // --steps
  bool oracle_order = false;        // --oracle-order
  bool compare_exact = false;       // --compare-exact
  std::string model;                // --model-name
  std::string scorer;               // --scorer
  std::vector<std::string> tables;  // --table, for a scorer that names one
  // The next fields say what is measured. Only --model and --tiny read them.
  std::vector<std::string> texts;  // --text
  std::vector<std::string> tasks;  // --tasks; empty means all
  int32_t num_threads = 0;         // --threads; 0 means all of the machine
  int32_t num_contexts = 4;        // --num-contexts
  int32_t context = 1024;          // --context
  int32_t num_queries = 4;         // --num-queries
  int32_t query_tokens = 32;       // --query-tokens
  uint64_t seed = 1;               // --seed
  // The queries that --query-stats reads, one file per text.
  std::vector<std::string> raw_queries;  // --raw-queries
  // The files to write: a profile, or a table of query statistics.
  std::string output;              // --output
  std::string query_stats;         // --query-stats
  bool json = false;               // --json
  std::string keep_ratio = "0.2";  // --keep-ratio
};

// A model to measure and the texts to measure it on, of --model or --tiny.
struct ProfileSource {
  std::shared_ptr<const LanguageModel> model;
  std::unique_ptr<ThreadPool> threads;
  std::vector<ContextPrompt> prompts;
  // The result is named so: --model-name or the model's own name, and what it
  // was measured on.
  std::string name;
};

// Opens the source that the flags name. REQUIRES: --model or --tiny. Errors
// name the flag or file, expected and got.
absl::StatusOr<ProfileSource> OpenProfileSource(const ProfileFlags& flags);

// The profile of the source that the flags name. With --compare-exact, `shares`
// are SolverShares; null: nobody asks. Errors name the flag or file, expected
// and got.
absl::StatusOr<LuKvProfile> MakeProfile(const ProfileFlags& flags,
                                        std::vector<double>* shares = nullptr);

// As a table for people, what a head keeps when `keep` of all is kept, or all
// of it as JSON. REQUIRES: valid; 0 <= keep <= 1.
std::string ProfileTable(const LuKvProfile& profile, double keep);
std::string ProfileJson(const LuKvProfile& profile);

// All that the command does; the text is for standard output.
absl::StatusOr<std::string> RunProfile(const ProfileFlags& flags);

}  // namespace blockmgr

#endif  // BENCH_EVICT_PROFILE_H_
