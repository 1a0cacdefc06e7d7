// `blockmgr-bench quality`: what eviction costs in answers, on a real model.
#ifndef BENCH_QUALITY_QUALITY_H_
#define BENCH_QUALITY_QUALITY_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "bench/quality/cells.h"
#include "bench/quality/prompts.h"
#include "engine/reference/tiny_model.h"

namespace blockmgr {

// As typed.
struct QualityOptions {
  std::string model;  // a GGUF file
  std::vector<std::string> tasks = {"needle", "fact", "continuation"};
  std::vector<int32_t> lengths = {512};
  CellFlags cells = {
      .modes = {"agnostic", "aware"},
      .policies = {"keydiff | adakv", "keydiff", "snapkv | adakv", "streaming"},
      .keep_ratios = {"0.5", "0.2", "0.1"},
      .keep_tokens = {}};
  std::string only;  // --cells
  std::string prompts;
  // Unset: 20 of each task and length, or all of `prompts`.
  std::optional<int64_t> num_prompts;
  int32_t turns = 5;
  int32_t continuation_tokens = 64;
  uint64_t seed = 0;
  std::string system = "You are a helpful AI assistant.";
  std::vector<std::string> filler;
  std::vector<std::string> query_stats;
  std::vector<std::string> budget_tables;
  std::string dtype = "bfloat16";
  int32_t num_threads = 2;
  std::string output = "quality";
  bool disable_tqdm = false;
  bool json = false;
};

// Adds a flag per field. `options` is borrowed and must outlive the parsing.
void AddQualityFlags(CLI::App* app, QualityOptions* options);

// The model that answers, and the source of its prompts.
struct QualitySubject {
  std::string model_name;
  std::string model_fingerprint = {};  // of the weights
  std::shared_ptr<const LanguageModel> model;
  PromptSource source;
};

// Measures, writes samples.jsonl, report.json and report.html to the folder
// options.output, and returns the report. Goes on from the samples that are
// there. Errors name the flag or file, what was expected and what came.
absl::StatusOr<nlohmann::ordered_json> MeasureQuality(
    const QualityOptions& options, const QualitySubject& subject);

// Reads the model, measures, and prints a table, or the report as JSON.
absl::Status RunQuality(const QualityOptions& options);

}  // namespace blockmgr

#endif  // BENCH_QUALITY_QUALITY_H_
