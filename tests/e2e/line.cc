#include "tests/e2e/line.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "blockmgr/base/status_macros.h"
#include "engine/reference/sampler.h"
#include "engine/reference/tiny_backends.h"
#include "kernels/backend.h"
#include "scheduler/scheduler.h"
#include "tests/testing/test_tables.h"

namespace blockmgr {
namespace {

constexpr char kSession[] = "line";
// Only a hung test meets this; sanitizers are slow.
constexpr std::chrono::minutes kDeadline{4};

EngineSampling SamplingOf(const LineOptions& options) {
  return {.fields = Sampler::kFields,
          .vocabulary_size = options.model->shape().vocabulary};
}

}  // namespace

std::unique_ptr<TinyEngine> MakeEngine(const LineOptions& options,
                                       int32_t num_blocks,
                                       int32_t max_sequences) {
  ModelLayout layout = MakeLayout(options.model->shape(), options.page_size,
                                  options.dtype, num_blocks);
  layout.num_shards = options.num_shards;
  auto backends = options.backends(layout);
  BM_CHECK_OK(backends.status());
  // What is read before it is written must show.
  for (const auto& backend : *backends) backend->Poison();
  auto forward = CreateTinyForward(options.model.get(), layout, *backends);
  BM_CHECK_OK(forward.status());
  return std::make_unique<TinyEngine>(
      options.model, layout, *std::move(backends),
      TinyEngineOptions{.max_sequences = max_sequences,
                        .num_host_blocks = options.num_host_blocks,
                        .max_drafts = options.max_drafts,
                        .query_stats = options.query_stats},
      *std::move(forward));
}

Line::Line(LineOptions options) : options_(std::move(options)) {
  ServerOptions server_options;
  server_options.listen = absl::StrCat("unix:", folder_.File("blockmgr.sock"));
  server_options.scheduler = options_.scheduler;
  server_options.budget_tables = options_.budget_tables;
  auto server = Server::Start(server_options, &Scheduler::Create);
  EXPECT_TRUE(server.ok()) << server.status();
  server_ = *std::move(server);
  engine_ = MakeEngine(options_, options_.num_blocks,
                       options_.scheduler.max_num_seqs);
  engine_->set_fault(options_.fault);
  engine_->set_host_fault(options_.host_fault);
  checker_ = std::make_unique<ReferenceChecker>(engine_.get(), options_.model,
                                                options_.margins);
  client_ = std::make_unique<EngineClient>(EngineClientOptions{
      .address = server_->address(),
      .abilities = {.num_scorer_states = options_.num_scorer_states,
                    .num_host_blocks = options_.num_host_blocks,
                    .supports_window_evictions = true,
                    .query_stats = Fingerprints(options_.query_stats),
                    .sampling = SamplingOf(options_)}});
  engine_thread_ = std::thread([this] {
    EngineHandlers handlers;
    handlers.reset = [this] { engine_->Reset(); };
    handlers.run = [this](const StepPlan& plan, StepResult* result) {
      if (++num_steps_ == options_.hold_at_step) {
        held_ = true;
        held_.notify_all();
      }
      held_.wait(true);
      absl::Status status =
          engine_->Run(options_.refuses ? Spoiled(plan) : plan, result);
      if (options_.spoils) options_.spoils(plan, result);
      return status;
    };
    engine_status_ = client_->Serve(engine_->tables().layout(), handlers);
  });
  channel_ = grpc::CreateChannel(server_->address(),
                                 grpc::InsecureChannelCredentials());
  requests_ = v1::RequestService::NewStub(channel_);
  evictions_ = v1::EvictionService::NewStub(channel_);
  admin_ = v1::AdminService::NewStub(channel_);
}

Line::~Line() { Close(); }

StepPlan Line::Spoiled(const StepPlan& plan) const {
  StepPlan spoiled = plan;
  for (EvictionOrder& order : spoiled.evictions) {
    // Of a length that the sequence does not have: no engine takes that.
    if (options_.refuses(order)) ++order.length;
  }
  return spoiled;
}

void Line::Close() {
  if (server_ == nullptr) return;
  if (stream_ != nullptr) {
    stream_context_->TryCancel();
    stream_->Finish();
  }
  // With an error the engine ends by itself.
  if (options_.engine_error.empty()) client_->Stop();
  engine_thread_.join();
  if (options_.engine_error.empty()) {
    EXPECT_TRUE(engine_status_.ok()) << engine_status_;
  } else {
    EXPECT_THAT(engine_status_.ToString(),
                ::testing::ContainsRegex(options_.engine_error));
  }
  server_->Shutdown(std::chrono::seconds(5));
  server_.reset();
}

void Line::SetDeadline(grpc::ClientContext* context) {
  context->set_deadline(std::chrono::system_clock::now() + kDeadline);
}

void Line::Open() {
  while (!GetStats().engine_attached()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  stream_context_ = std::make_unique<grpc::ClientContext>();
  SetDeadline(stream_context_.get());
  v1::StreamTokensRequest request;
  request.set_client_session(kSession);
  stream_ = requests_->StreamTokens(stream_context_.get(), request);
  v1::TokenBatch first;
  ASSERT_TRUE(stream_->Read(&first));
}

v1::SubmitRequest Line::MakeRequest(const std::string& id,
                                    const std::vector<int32_t>& prompt,
                                    int32_t max_tokens) {
  v1::SubmitRequest request;
  request.set_client_session(kSession);
  request.set_request_id(id);
  request.mutable_prompt_token_ids()->Add(prompt.begin(), prompt.end());
  request.set_max_tokens(max_tokens);
  return request;
}

grpc::Status Line::Submit(const v1::SubmitRequest& request) {
  grpc::ClientContext context;
  SetDeadline(&context);
  v1::SubmitResponse response;
  checker_->ExpectPrompt(
      {request.prompt_token_ids().begin(), request.prompt_token_ids().end()});
  return requests_->Submit(&context, request, &response);
}

void Line::SubmitTogether(const std::vector<v1::SubmitRequest>& requests) {
  held_ = true;
  for (const v1::SubmitRequest& request : requests) {
    const grpc::Status status = Submit(request);
    EXPECT_TRUE(status.ok())
        << request.request_id() << ": " << status.error_message();
  }
  held_ = false;
  held_.notify_all();
}

grpc::Status Line::Evict(const v1::EvictRequest& request,
                         v1::EvictResponse* response) {
  grpc::ClientContext context;
  SetDeadline(&context);
  return evictions_->Evict(&context, request, response);
}

grpc::Status Line::EvictByScores(const v1::EvictRequest& header,
                                 const std::vector<float>& scores,
                                 v1::EvictResponse* response) {
  grpc::ClientContext context;
  SetDeadline(&context);
  auto writer = evictions_->EvictByScores(&context, response);
  v1::EvictByScoresRequest message;
  *message.mutable_header() = header;
  writer->Write(message);
  constexpr size_t kPiece = 1000;
  for (size_t i = 0; i < scores.size(); i += kPiece) {
    message.Clear();
    const size_t end = std::min(scores.size(), i + kPiece);
    message.mutable_scores()->Add(scores.begin() + static_cast<ptrdiff_t>(i),
                                  scores.begin() + static_cast<ptrdiff_t>(end));
    if (!writer->Write(message)) break;  // refused early; Finish says why
  }
  writer->WritesDone();
  return writer->Finish();
}

bool Line::ReadBatch() {
  v1::TokenBatch batch;
  if (!stream_->Read(&batch)) {
    ADD_FAILURE() << "the token stream ended: "
                  << stream_->Finish().error_message();
    return false;
  }
  for (const v1::TokenChunk& chunk : batch.chunks()) {
    Answer& answer = answers_[chunk.request_id()];
    EXPECT_EQ(chunk.first_index(), std::ssize(answer.tokens));
    answer.tokens.insert(answer.tokens.end(), chunk.tokens().begin(),
                         chunk.tokens().end());
    answer.logprobs.insert(answer.logprobs.end(), chunk.logprobs().begin(),
                           chunk.logprobs().end());
    answer.prompt_logprobs.insert(answer.prompt_logprobs.end(),
                                  chunk.prompt_logprobs().begin(),
                                  chunk.prompt_logprobs().end());
    if (chunk.finish_reason() == v1::FINISH_REASON_UNSPECIFIED) continue;
    EXPECT_EQ(answer.reason, v1::FINISH_REASON_UNSPECIFIED);
    answer.reason = chunk.finish_reason();
    answer.error = chunk.error();
    answer.num_preemptions = chunk.num_preemptions();
    answer.num_cached_tokens = chunk.num_cached_tokens();
    ++num_ended_;
  }
  return true;
}

void Line::WaitForTokens(const std::string& id, size_t num_tokens) {
  while (answers_[id].tokens.size() < num_tokens &&
         answers_[id].reason == v1::FINISH_REASON_UNSPECIFIED && ReadBatch()) {
  }
}

const std::map<std::string, Answer>& Line::WaitForAnswers(size_t count) {
  while (num_ended_ < count && ReadBatch()) {
  }
  return answers_;
}

v1::GetStatsResponse Line::GetStats() {
  grpc::ClientContext context;
  SetDeadline(&context);
  v1::GetStatsResponse response;
  const grpc::Status status = admin_->GetStats(&context, {}, &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return response;
}

void Line::ExpectNothingLeaked() {
  v1::GetStatsResponse stats = GetStats();
  while (stats.num_steps_in_flight() > 0 || stats.num_running() > 0) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    stats = GetStats();
  }
  EXPECT_EQ(stats.free_blocks() + stats.cached_blocks(),
            options_.num_blocks - 1);
  EXPECT_EQ(stats.used_blocks(), 0);
  grpc::ClientContext context;
  SetDeadline(&context);
  v1::ResetPrefixCacheResponse response;
  const grpc::Status status = admin_->ResetPrefixCache(&context, {}, &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(response.in_use_blocks(), 0);
  EXPECT_EQ(GetStats().free_blocks(), options_.num_blocks - 1);
}

Served Serve(const LineOptions& options,
             const std::vector<v1::SubmitRequest>& requests) {
  Line line(options);
  line.Open();
  line.SubmitTogether(requests);
  return Finish(&line, requests.size());
}

Served Finish(Line* line, size_t num_requests) {
  Served served;
  served.answers = line->WaitForAnswers(num_requests);
  EXPECT_EQ(served.answers.size(), num_requests);
  for (const auto& [id, answer] : served.answers) {
    EXPECT_EQ(answer.reason, v1::FINISH_REASON_LENGTH) << id << answer.error;
  }
  line->ExpectNothingLeaked();
  served.stats = line->GetStats();
  line->Close();
  served.checked = line->checker().counts();
  served.logits = line->checker().logits();
  EXPECT_GE(served.checked.logits,
            static_cast<int64_t>(served.stats.num_output_tokens()));
  EXPECT_GE(served.checked.evictions,
            static_cast<int64_t>(served.stats.num_evictions()));
  return served;
}

ReferenceChecker::LogitsByPosition RunAlone(
    const LineOptions& options, const std::vector<int32_t>& prompt,
    int32_t max_tokens, std::vector<int32_t>* tokens,
    const std::optional<SamplingParams>& sampling) {
  constexpr int32_t kPlenty = 512;
  const auto engine = MakeEngine(options, kPlenty, 1);
  ReferenceChecker::LogitsByPosition logits;
  TinyObserver observer;
  observer.on_logits = [&](SequenceSlot, int32_t position,
                           std::span<const float> row) {
    logits.emplace(position, std::vector<float>(row.begin(), row.end()));
  };
  engine->set_observer(observer);
  SchedulerOptions scheduler_options;
  scheduler_options.max_num_seqs = 1;
  scheduler_options.enable_prefix_caching = false;
  scheduler_options.engine.sampling = SamplingOf(options);
  auto scheduler =
      Scheduler::Create(engine->tables().layout(), scheduler_options);
  EXPECT_TRUE(scheduler.ok()) << scheduler.status();
  Request request;
  request.id = "alone";
  request.prompt = prompt;
  request.max_tokens = max_tokens;
  request.sampling = sampling;
  const auto id = (*scheduler)->Submit(std::move(request));
  EXPECT_TRUE(id.ok()) << id.status();
  StepPlan plan;
  StepResult result;
  Effects effects;
  while ((*scheduler)->Schedule(&plan)) {
    EXPECT_TRUE(engine->Run(plan, &result).ok());
    EXPECT_TRUE((*scheduler)->Update(result, &effects).ok());
  }
  for (const TokenEffect& effect : effects.tokens) {
    tokens->push_back(effect.token);
  }
  return logits;
}

}  // namespace blockmgr
