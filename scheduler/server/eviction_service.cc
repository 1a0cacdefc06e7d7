#include "scheduler/server/eviction_service.h"

#include <string>
#include <utility>
#include <vector>

#include <absl/strings/str_cat.h>

#include "blockmgr/base/status_macros.h"
#include "scheduler/server/wire.h"

namespace blockmgr {
namespace {

constexpr int64_t kMaxMessageBytes = int64_t{1} << 20;
constexpr int64_t kMaxMessageScores = kMaxMessageBytes / sizeof(float);

// Scores on their way in, and the part of the budget that they take: given back
// when the last holder (this call, a command, a plan) lets go.
class ScoreBuffer {
 public:
  ScoreBuffer(std::shared_ptr<ScoreBudget> budget, int64_t num_scores)
      : budget_(std::move(budget)),
        bytes_(num_scores * int64_t{sizeof(float)}) {
    values_.reserve(static_cast<size_t>(num_scores));
  }
  ~ScoreBuffer() { budget_->Release(bytes_); }
  ScoreBuffer(const ScoreBuffer&) = delete;
  ScoreBuffer& operator=(const ScoreBuffer&) = delete;

  std::vector<float>& values() { return values_; }

 private:
  const std::shared_ptr<ScoreBudget> budget_;
  const int64_t bytes_;
  std::vector<float> values_;
};

Reply<absl::StatusOr<EvictionEffect>> AnswerTo(
    v1::EvictResponse* response,
    absl::AnyInvocable<void(grpc::Status)> finish) {
  return [response, finish = std::move(finish)](
             absl::StatusOr<EvictionEffect> effect) mutable {
    if (effect.ok()) ToProto(*effect, response);
    finish(ToGrpc(effect.status()));
  };
}

// One call of EvictByScores: header, layout of the engine, scores, command.
// Each stage starts the next, so nothing here runs twice at a time. Owned by
// gRPC until OnDone.
class ScoreUpload final
    : public grpc::ServerReadReactor<v1::EvictByScoresRequest> {
 public:
  ScoreUpload(CoreThread* core, std::shared_ptr<ScoreBudget> budget,
              v1::EvictResponse* response)
      : core_(core), budget_(std::move(budget)), response_(response) {
    StartRead(&message_);
  }

 private:
  void OnReadDone(bool ok) override {
    absl::Status status;
    if (!ok) {
      status = Execute();
      if (status.ok()) return;
    } else if (buffer_ == nullptr) {
      status = TakeHeader();
      if (status.ok()) return;
    } else {
      status = TakeScores();
    }
    Continue(status);
  }

  void Continue(const absl::Status& status) {
    if (status.ok()) {
      StartRead(&message_);
      return;
    }
    // Before the caller can know, and try again.
    buffer_.reset();
    Finish(ToGrpc(status));
  }

  absl::Status TakeHeader() {
    if (!message_.has_header() || !message_.scores().empty()) {
      return absl::InvalidArgumentError(
          "header: expected a header and no scores in the first message");
    }
    request_id_ = message_.header().request_id();
    BM_ASSIGN_OR_RETURN(command_, FromProto(message_.header()));
    if (command_.policy.scorer.kind != ScorerKind::kExternal) {
      return absl::InvalidArgumentError(
          "header.policy.scorer: expected external_scores");
    }
    if (command_.cut < 1) {
      return absl::InvalidArgumentError(absl::StrCat(
          "header.cut: expected at least 1 with scores, got ", command_.cut));
    }
    core_->Post(GetStats{false, [this](absl::StatusOr<CoreStats> stats) {
                           Continue(stats.ok() ? Reserve(*stats)
                                               : stats.status());
                         }});
    return absl::OkStatus();
  }

  absl::Status Reserve(const CoreStats& stats) {
    if (!stats.engine_attached) {
      return absl::UnavailableError("no engine attached");
    }
    // At most 2^31 pages of 2^31 positions: fits.
    num_scores_ = int64_t{stats.layout->pages_per_block()} * command_.cut;
    if (num_scores_ > budget_->max_bytes() / int64_t{sizeof(float)} ||
        !budget_->Reserve(num_scores_ * int64_t{sizeof(float)})) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "scores: ", stats.layout->num_layers, " layers x ",
          stats.layout->num_heads, " heads x cut ", command_.cut, " need ",
          num_scores_, " x 4 bytes; all calls together may hold ",
          budget_->max_bytes()));
    }
    buffer_ = std::make_shared<ScoreBuffer>(budget_, num_scores_);
    return absl::OkStatus();
  }

  absl::Status TakeScores() {
    if (message_.has_header()) {
      return absl::InvalidArgumentError(
          "header: expected in the first message only");
    }
    if (message_.scores().size() > kMaxMessageScores) {
      return absl::InvalidArgumentError(
          absl::StrCat("scores: expected at most ", kMaxMessageScores,
                       " in a message, got ", message_.scores().size()));
    }
    std::vector<float>& values = buffer_->values();
    const int64_t total =
        static_cast<int64_t>(values.size()) + message_.scores().size();
    if (total > num_scores_) return WrongCount(total);
    values.insert(values.end(), message_.scores().begin(),
                  message_.scores().end());
    return absl::OkStatus();
  }

  absl::Status Execute() {
    if (buffer_ == nullptr) {
      return absl::InvalidArgumentError("header: expected one, got none");
    }
    const auto total = static_cast<int64_t>(buffer_->values().size());
    if (total != num_scores_) return WrongCount(total);
    // Shares the buffer's ownership, points at its values.
    command_.scores =
        std::shared_ptr<const std::vector<float>>(buffer_, &buffer_->values());
    buffer_.reset();
    core_->Post(EvictCommand{
        request_id_, std::move(command_),
        AnswerTo(response_,
                 [this](const grpc::Status& status) { Finish(status); })});
    return absl::OkStatus();
  }

  absl::Status WrongCount(int64_t got) const {
    return absl::InvalidArgumentError(
        absl::StrCat("scores: expected layers x heads x cut = ", num_scores_,
                     " values, got ", got));
  }

  void OnDone() override { delete this; }

  CoreThread* const core_;
  const std::shared_ptr<ScoreBudget> budget_;
  v1::EvictResponse* const response_;
  v1::EvictByScoresRequest message_;
  std::string request_id_;
  EvictionCommand command_;
  int64_t num_scores_ = 0;               // expected
  std::shared_ptr<ScoreBuffer> buffer_;  // null before the header is accepted
};

}  // namespace

bool ScoreBudget::Reserve(int64_t bytes) {
  int64_t used = used_bytes_.load();
  do {
    if (bytes > max_bytes_ - used) return false;
  } while (!used_bytes_.compare_exchange_weak(used, used + bytes));
  return true;
}

grpc::ServerUnaryReactor* EvictionService::Evict(
    grpc::CallbackServerContext* context, const v1::EvictRequest* request,
    v1::EvictResponse* response) {
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  absl::StatusOr<EvictionCommand> command = FromProto(*request);
  if (command.ok() && command->policy.scorer.kind == ScorerKind::kExternal) {
    command = absl::InvalidArgumentError(
        "policy.scorer: external_scores need EvictByScores");
  }
  if (!command.ok()) {
    reactor->Finish(ToGrpc(command.status()));
    return reactor;
  }
  core_->Post(
      EvictCommand{request->request_id(), *std::move(command),
                   AnswerTo(response, [reactor](const grpc::Status& status) {
                     reactor->Finish(status);
                   })});
  return reactor;
}

grpc::ServerReadReactor<v1::EvictByScoresRequest>*
EvictionService::EvictByScores(grpc::CallbackServerContext* /*context*/,
                               v1::EvictResponse* response) {
  return new ScoreUpload(core_, budget_, response);
}

}  // namespace blockmgr
