#include "tests/engine/reference/model_line.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <utility>

#include <absl/status/statusor.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "blockmgr/base/dtype.h"
#include "blockmgr/base/status_macros.h"
#include "engine/reference/gguf_model.h"
#include "engine/reference/sampler.h"
#include "kernels/backend.h"
#include "tests/testing/status_matchers.h"

namespace blockmgr {
namespace {

constexpr int32_t kPageSize = 16;

std::string FromEnvironment(const char* name) {
  const char* value = std::getenv(name);  // NOLINT(concurrency-mt-unsafe)
  return value == nullptr ? "" : value;
}

}  // namespace

const ModelFixture& ModelFixture::Get() {
  static const auto& fixture = *new ModelFixture;
  return fixture;
}

ModelFixture::ModelFixture() {
  auto file = GgufFile::Open(FromEnvironment("BLOCKMGR_MODEL"));
  BM_CHECK_OK(file.status());
  file_ = *std::move(file);
  auto model = LoadGgufModel(*file_);
  BM_CHECK_OK(model.status());
  model_ = *std::move(model);
  auto tokenizer = Tokenizer::Create(*file_);
  BM_CHECK_OK(tokenizer.status());
  tokenizer_ = std::make_unique<Tokenizer>(*std::move(tokenizer));
  std::ifstream answers(FromEnvironment("BLOCKMGR_MODEL_ANSWERS"));
  const nlohmann::json reference = nlohmann::json::parse(answers);
  for (const auto& entry : reference["answers"]) {
    questions_.push_back(
        {.text = entry["question"],
         .prompt = entry["prompt"].get<std::vector<int32_t>>(),
         .answer = entry["answer"].get<std::vector<int32_t>>(),
         .margins = entry["margins"].get<std::vector<double>>()});
  }
}

ModelLine::ModelLine(const ModelLineOptions& options)
    : layout_(MakeLayout(ModelFixture::Get().model()->shape(), kPageSize,
                         DType::kFloat32, options.num_blocks)) {
  SchedulerOptions scheduler = options.scheduler;
  scheduler.engine.num_host_blocks = options.num_host_blocks;
  scheduler.max_num_seqs = 64;
  scheduler.engine.sampling = {.fields = Sampler::kFields};
  for (const auto& [name, table] : options.query_stats) {
    scheduler.engine.query_stats[name] = QueryStatsFingerprint(*table);
  }
  auto made = Scheduler::Create(layout_, scheduler);
  BM_CHECK_OK(made.status());
  scheduler_ = *std::move(made);
  auto backends = CreateCpuShards(layout_);
  BM_CHECK_OK(backends.status());
  engine_ = std::make_unique<TinyEngine>(
      ModelFixture::Get().model(), layout_, *std::move(backends),
      TinyEngineOptions{.max_sequences = scheduler.max_num_seqs,
                        .num_host_blocks = options.num_host_blocks,
                        .max_drafts = options.max_drafts,
                        .num_threads = 2,
                        .query_stats = options.query_stats});
}

void ModelLine::Submit(Request request) {
  const std::string id = request.id;
  const absl::StatusOr<RequestId> number =
      scheduler_->Submit(std::move(request));
  ASSERT_OK(number);
  names_[*number] = id;
}

void ModelLine::Evict(const std::string& id, EvictionCommand command) {
  const auto named = std::ranges::find(
      names_, id, [](const auto& entry) { return entry.second; });
  ASSERT_NE(named, names_.end());
  ASSERT_OK(scheduler_->Evict(named->first, std::move(command)));
}

void ModelLine::Ask(const std::string& id, const ModelQuestion& question,
                    int32_t more, const std::string& fork_of) {
  Request request;
  request.id = id;
  request.prompt = question.prompt;
  request.max_tokens = static_cast<int32_t>(question.answer.size()) + more;
  request.fork_of = fork_of;
  Submit(std::move(request));
}

void ModelLine::SubmitText(const std::vector<int32_t>& tokens) {
  Request request;
  request.id = "text";
  request.prompt = tokens;
  request.max_tokens = 1;
  request.sampling = SamplingParams{.temperature = 0, .prompt_logprobs = 0};
  Submit(std::move(request));
}

bool ModelLine::Step() {
  StepPlan plan;
  if (scheduler_->Schedule(&plan)) {
    StepResult result;
    EXPECT_OK(engine_->Run(plan, &result));
    unread_.push_back(std::move(result));
    most_in_flight_ = std::max(most_in_flight_, unread_.size());
    num_chunks_ += std::ranges::count(plan.samples, uint8_t{0});
    return true;
  }
  if (unread_.empty()) return false;
  Effects effects;
  EXPECT_OK(scheduler_->Update(unread_.front(), &effects));
  unread_.pop_front();
  for (const LogProbsEffect& effect : effects.logprobs) {
    for (const float value : effect.logprobs.logprobs) {
      sum_of_logprobs_ += value;
      ++num_logprobs_;
    }
  }
  for (const TokenEffect& effect : effects.tokens) {
    tokens_[names_.at(effect.request)].push_back(effect.token);
  }
  for (EvictionEffect& effect : effects.evictions) {
    const std::string& id = names_.at(effect.request);
    evictions_[id].push_back({tokens_[id].size(), std::move(effect)});
  }
  return true;
}

void ModelLine::RunToTheEnd() {
  while (Step()) {
  }
}

}  // namespace blockmgr
