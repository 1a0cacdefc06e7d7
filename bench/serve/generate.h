// `blockmgr-bench generate`: asks a daemon's language model in text.
//
// The program turns the questions to tokens with the tokenizer of the model's
// file, submits them together, and turns the answers back to text. The daemon
// and its engine see tokens only.
#ifndef BENCH_SERVE_GENERATE_H_
#define BENCH_SERVE_GENERATE_H_

#include <cstdint>
#include <string>
#include <vector>

#include <absl/status/statusor.h>
#include <CLI/CLI.hpp>

#include "bench/serve/serve.h"
#include "scheduler/server/eviction_flags.h"

namespace blockmgr {

struct GenerateOptions {
  ServeOptions daemon;
  std::string model;                 // a GGUF file, for its tokenizer
  std::vector<std::string> prompts;  // questions
  std::vector<std::string> prompt_files;
  std::string system;
  bool raw = false;  // prompts are complete: no chat format around them
  int32_t max_tokens = 128;
  EvictionFlags eviction;
  bool json = false;
};

// Adds the flags. `options` is borrowed and must outlive the parsing.
void AddGenerateFlags(CLI::App* app, GenerateOptions* options);

// Asks, and prints the answers to standard output: as text, a single one as it
// comes, or as JSON. What the cache did goes to standard error, or into the
// JSON, or a note if it is not known. Returns how many requests failed. Errors
// before the questions are asked name the flag, or what is
// wrong with the file or the daemon.
absl::StatusOr<int64_t> RunGenerate(const GenerateOptions& options);

}  // namespace blockmgr

#endif  // BENCH_SERVE_GENERATE_H_
