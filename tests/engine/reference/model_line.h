// A real language model behind scheduler and engine, without a daemon, for the
// tests with the label `model`. BLOCKMGR_MODEL names the model's file
// (scripts/fetch_model.sh), BLOCKMGR_MODEL_ANSWERS the reference's answers.
#ifndef TESTS_ENGINE_REFERENCE_MODEL_LINE_H_
#define TESTS_ENGINE_REFERENCE_MODEL_LINE_H_

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "blockmgr/base/model_layout.h"
#include "blockmgr/eviction/query_stats_table.h"
#include "blockmgr/step_plan.h"
#include "engine/gguf/gguf_file.h"
#include "engine/reference/tiny_engine.h"
#include "engine/reference/tiny_model.h"
#include "engine/tokenizer/tokenizer.h"
#include "scheduler/scheduler.h"

namespace blockmgr {

struct ModelQuestion {
  std::string text;
  std::vector<int32_t> prompt;
  std::vector<int32_t> answer;
  std::vector<double> margins;  // of the answer's tokens
};

// The model and the questions, loaded once.
class ModelFixture {
 public:
  static const ModelFixture& Get();

  const std::vector<ModelQuestion>& questions() const { return questions_; }
  const Tokenizer& tokenizer() const { return *tokenizer_; }
  const std::shared_ptr<const LanguageModel>& model() const { return model_; }
  const GgufFile& file() const { return *file_; }

 private:
  ModelFixture();

  std::shared_ptr<const GgufFile> file_;
  std::shared_ptr<const LanguageModel> model_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::vector<ModelQuestion> questions_;
};

struct ModelLineOptions {
  int32_t num_blocks = 512;  // plenty for all questions at a time
  int32_t num_host_blocks = 0;
  int32_t max_drafts = 0;
  QueryStatsTables query_stats = {};
  SchedulerOptions scheduler = {};
};

// An eviction that a request has told of, together with its token number
// `num_tokens`.
struct LineEviction {
  size_t num_tokens = 0;
  EvictionEffect effect;
};

// Scheduler and engine without a daemon.
class ModelLine {
 public:
  explicit ModelLine(const ModelLineOptions& options);

  // Submits a request, whose id names its tokens.
  void Submit(Request request);
  // Orders an eviction of a request, for the next step.
  void Evict(const std::string& id, EvictionCommand command);
  // Asks for an answer that is as long as the reference's, and `more` tokens.
  void Ask(const std::string& id, const ModelQuestion& question, int32_t more,
           const std::string& fork_of = "");
  // Has the model tell the probabilities of a text.
  void SubmitText(const std::vector<int32_t>& tokens);

  // Runs one step if there is one, and reads the oldest answer if there is
  // none, or if no further step may be issued. Returns false at the end.
  bool Step();
  void RunToTheEnd();

  TinyEngine& engine() { return *engine_; }
  const ModelLayout& layout() const { return layout_; }
  const std::vector<int32_t>& TokensOf(const std::string& id) {
    return tokens_[id];
  }
  const std::vector<LineEviction>& EvictionsOf(const std::string& id) {
    return evictions_[id];
  }
  SchedulerStats stats() const { return scheduler_->stats(); }
  size_t most_in_flight() const { return most_in_flight_; }
  // Returns how many runs computed a part of a prompt and sampled nothing.
  int64_t num_chunks() const { return num_chunks_; }
  int64_t num_logprobs() const { return num_logprobs_; }
  // Returns the perplexity of the text that was submitted.
  double Perplexity() const {
    return std::exp(-sum_of_logprobs_ / static_cast<double>(num_logprobs_));
  }

 private:
  const ModelLayout layout_;
  std::unique_ptr<Scheduler> scheduler_;
  std::unique_ptr<TinyEngine> engine_;
  std::deque<StepResult> unread_;
  size_t most_in_flight_ = 0;
  int64_t num_chunks_ = 0;
  double sum_of_logprobs_ = 0;
  int64_t num_logprobs_ = 0;
  std::map<RequestId, std::string> names_;
  std::map<std::string, std::vector<int32_t>> tokens_;
  std::map<std::string, std::vector<LineEviction>> evictions_;
};

}  // namespace blockmgr

#endif  // TESTS_ENGINE_REFERENCE_MODEL_LINE_H_
