#include "tests/fuzz/daemon.h"

#include <limits>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_split.h>

#include "blockmgr/base/status_macros.h"
#include "proto/blockmgr/v1/eviction.pb.h"
#include "proto/blockmgr/v1/request.pb.h"
#include "tests/fuzz/fuzz_target.h"
#include "wire/engine_wire.h"
#include "wire/plan_wire.h"
#include "wire/policy_wire.h"
#include "wire/request_wire.h"

namespace blockmgr::fuzz {
namespace {

// What audits, O(pool) after every call, allow.
constexpr int32_t kMaxBlocks = 256;
constexpr int32_t kMaxPagesPerBlock = 256;
constexpr int64_t kMaxScores = 1 << 16;
// Of an input: a fuzzer that makes them longer only makes them slower.
constexpr int kMaxParts = 400;

SchedulerOptions DrawOptions(uint8_t choices) {
  SchedulerOptions options;
  options.max_num_batched_tokens = 96;
  options.max_num_seqs = 6;
  options.max_model_len = 400;
  options.max_waiting = 12;
  options.max_waiting_tokens = 2000;
  options.max_num_blocks = kMaxBlocks;
  options.query_window = 8;
  options.max_tenants = 3;
  options.min_prefix_wait_tokens = 16;
  options.policy = static_cast<SchedulingPolicy>(choices % 3);
  options.admission = static_cast<AdmissionPolicy>(choices / 3 % 3);
  options.chunk_policy = static_cast<ChunkPolicy>(choices / 9 % 2);
  options.num_speculative_tokens = choices / 18 % 2 * 3;
  options.fair_share = choices / 36 % 2 == 1;
  options.reuse_partial_blocks = choices / 72 % 2 == 1;
  options.max_steps_in_flight = 1 + choices % 4;
  options.tenant_limits.max_requests = 8;
  return options;
}

template <typename Message>
std::optional<Message> Parse(absl::string_view text) {
  Message message;
  if (!message.ParseFromArray(text.data(), static_cast<int>(text.size()))) {
    return std::nullopt;
  }
  return message;
}

}  // namespace

void StepStream::SendPlan(const StepPlan& plan) {
  plans.push_back(plan);
  if (record != nullptr) record->push_back(plan);
}

bool TokenStream::Deliver(std::span<const TokenItem> items) {
  for (const TokenItem& item : items) {
    int32_t& count = num_tokens[item.stream];
    if (item.finish == nullptr) {
      Require(item.index == count, "a token is missing, or was told twice");
      ++count;
    } else {
      Require(item.finish->num_output_tokens == count,
              "a request ends with other tokens than were told");
      num_tokens.erase(item.stream);
    }
  }
  return true;
}

class Daemon::Tracked final : public sim::AuditedScheduler {
 public:
  Tracked(const ModelLayout& layout, const SchedulerOptions& options,
          Daemon* daemon)
      : AuditedScheduler(layout, options, false, &daemon->report_),
        daemon_(daemon) {
    daemon->schedulers_.insert(this);
  }
  ~Tracked() override { daemon_->schedulers_.erase(this); }

 private:
  Daemon* const daemon_;
};

Daemon::Daemon(uint8_t choices, std::vector<StepPlan>* record)
    : record_(record) {
  CoreOptions options;
  options.scheduler = DrawOptions(choices);
  options.epoch = 77;
  core_.emplace(
      std::move(options),
      [this](const ModelLayout& layout, const SchedulerOptions& scheduler)
          -> absl::StatusOr<std::unique_ptr<Scheduler>> {
        // Refuses what the scheduler itself takes for granted.
        BM_RETURN_IF_ERROR(Scheduler::Create(layout, scheduler).status());
        return std::make_unique<Tracked>(layout, scheduler, this);
      });
}

Daemon::~Daemon() {
  while (!clients_.empty()) Break(std::string(clients_.begin()->first));
  while (engine_ != nullptr && !engine_->closed && !engine_->plans.empty()) {
    Answer('G', "");
  }
  for (Tracked* scheduler : schedulers_) scheduler->CheckQuiescent();
  core_.reset();
  Require(num_replies_ == num_asked_, "a reply has not come once");
  Require(report_.ok(), report_.message());
}

template <typename T>
Reply<T> Daemon::MakeReply() {
  ++num_asked_;
  return [this, came = false](const T& /*answer*/) mutable {
    Require(!came, "a reply came twice");
    came = true;
    ++num_replies_;
  };
}

void Daemon::Run(Command command) {
  now_seconds_ += 1e-3;
  core_->BeginPass(now_seconds_);
  core_->Handle(&command);
  core_->EndPass();
  Require(report_.ok(), report_.message());
}

void Daemon::Do(absl::string_view part) {
  if (part.empty()) return;
  const absl::string_view rest = part.substr(1);
  switch (part.front()) {
    case 'O':
      return Open(std::string(rest));
    case 'Q':
      return Break(std::string(rest));
    case 'S':
      return Submit(rest);
    case 'C':
      return Run(CancelCommand{std::string(rest), MakeReply<absl::Status>()});
    case 'E':
    case 'F':
      return Evict(rest, part.front() == 'F');
    case 'A':
    case 'B':
      return Attach(rest, part.front() == 'B');
    case 'X':
      return BreakEngine();
    case 'G':
    case 'M':
    case 'R':
      return Answer(part.front(), rest);
    case 'K':
      return Run(ResetPrefixCache{MakeReply<absl::StatusOr<CacheReset>>()});
    case 'P': {
      auto counted = MakeReply<absl::StatusOr<PrefixCacheReading>>();
      return Run(ReadPrefixCache{
          .cursor = cursor_,
          .max_blocks = 3,
          .max_tokens = 1000,
          .done = [this, counted = std::move(counted)](
                      absl::StatusOr<PrefixCacheReading> reading) mutable {
            if (reading.ok()) cursor_ = reading->cursor;
            counted(std::move(reading));
          }});
    }
    case 'W':
      return Run(GetStats{true, MakeReply<absl::StatusOr<CoreStats>>()});
    case 'D':
      return Run(Drain{MakeReply<absl::Status>()});
    case 'T':
      if (!rest.empty()) {
        now_seconds_ += 1e-3 * static_cast<uint8_t>(rest.front());
      }
      return;
    default:
      return;
  }
}

void Daemon::Open(const std::string& session) {
  if (!CheckId("client_session", session).ok()) return;
  auto stream = std::make_shared<TokenStream>();
  auto counted = MakeReply<absl::Status>();
  bool opened = false;
  Run(OpenClient{session, stream,
                 [&opened, &counted](const absl::Status& status) {
                   opened = status.ok();
                   counted(status);
                 }});
  if (opened) clients_[session] = std::move(stream);
}

void Daemon::Break(const std::string& session) {
  const auto client = clients_.find(session);
  if (client == clients_.end()) return;
  Run(ClientGone{session, client->second});
  clients_.erase(client);
}

void Daemon::Submit(absl::string_view message) {
  const auto proto = Parse<v1::SubmitRequest>(message);
  if (!proto.has_value()) return;
  absl::StatusOr<Request> request = FromProto(*proto);
  if (!request.ok()) return;
  Run(SubmitCommand{proto->client_session(), *std::move(request),
                    MakeReply<absl::Status>(),
                    !proto->has_eviction() && proto->fork_of().empty()});
}

void Daemon::Evict(absl::string_view message, bool by_scores) {
  const auto proto = Parse<v1::EvictRequest>(message);
  if (!proto.has_value()) return;
  absl::StatusOr<EvictionCommand> command = FromProto(*proto);
  if (!command.ok()) return;
  const bool external = command->policy.scorer.kind == ScorerKind::kExternal;
  if (external != by_scores) return;
  if (by_scores) {
    if (command->cut < 1) return;
    int64_t count = -1;
    auto counted = MakeReply<absl::StatusOr<int64_t>>();
    Run(CountScores{proto->request_id(), command->cut,
                    [&](const absl::StatusOr<int64_t>& answer) {
                      if (answer.ok()) count = *answer;
                      counted(answer);
                    }});
    if (count < 0 || count > kMaxScores) return;
    std::vector<float> scores(static_cast<size_t>(count));
    for (size_t i = 0; i < scores.size(); ++i) {
      scores[i] = i % 13 == 5 ? std::numeric_limits<float>::quiet_NaN()
                              : static_cast<float>(i % 7);
    }
    command->scores =
        std::make_shared<const std::vector<float>>(std::move(scores));
  }
  Run(EvictCommand{proto->request_id(), *std::move(command),
                   MakeReply<absl::StatusOr<EvictionEffect>>()});
}

void Daemon::Attach(absl::string_view message, bool other_session) {
  const auto proto = Parse<v1::AttachRequest>(message);
  if (!proto.has_value()) return;
  const absl::StatusOr<ModelLayout> layout = FromProto(proto->layout());
  if (!layout.ok() || !layout->Validate().ok() ||
      layout->pages_per_block() > kMaxPagesPerBlock) {
    return;
  }
  absl::StatusOr<EngineAbilities> abilities = FromProto(*proto);
  if (!abilities.ok()) return;
  std::optional<Attachment> attached;
  auto counted = MakeReply<absl::StatusOr<Attachment>>();
  Run(AttachEngine{.layout = *layout,
                   .name = proto->engine_name(),
                   .done =
                       [&](absl::StatusOr<Attachment> answer) {
                         if (answer.ok()) attached = *answer;
                         counted(std::move(answer));
                       },
                   .abilities = *std::move(abilities),
                   .replace = proto->replace(),
                   .may_replace = true});
  if (!attached.has_value()) return;
  auto stream = std::make_shared<StepStream>();
  stream->record = record_;
  bool opened = false;
  auto answered = MakeReply<absl::Status>();
  // Plans may come before the next line.
  model_.emplace(*layout, SimModel{.num_drafts = 2}, 1,
                 proto->num_host_blocks());
  model_knows_all_ = true;
  const std::shared_ptr<StepStream> before = std::exchange(engine_, stream);
  Run(OpenSteps{attached->epoch, attached->session + (other_session ? 1 : 0),
                stream,
                [&](const absl::Status& status) {
                  opened = status.ok();
                  answered(status);
                },
                true});
  if (opened) return;
  engine_ = before;
  model_knows_all_ = false;  // the one before has lost its model
}

void Daemon::BreakEngine() {
  if (engine_ == nullptr) return;
  Run(EngineLost{engine_});
  engine_.reset();
}

StepResult Daemon::Execute(const StepPlan& plan) {
  StepResult result;
  if (model_knows_all_) {
    const absl::Status status = model_->TryRun(plan, &result).status();
    Require(status.ok(), absl::StrCat("a wrong plan: ", status.message()));
    return result;
  }
  result.id = plan.id;
  for (const uint8_t samples : plan.samples) {
    result.sampled.push_back(samples != 0 ? 7 : -1);
  }
  result.evictions.resize(plan.evictions.size());
  for (EvictionOutcome& outcome : result.evictions) outcome.ok = false;
  return result;
}

void Daemon::Answer(char kind, absl::string_view message) {
  if (engine_ == nullptr || engine_->closed) return;
  v1::StepResult proto;
  bool altered = kind == 'R';
  if (kind != 'R') {
    if (engine_->plans.empty()) return;
    ToProto(Execute(engine_->plans.front()), &proto);
  }
  if (kind != 'G') {
    const auto other = Parse<v1::StepResult>(message);
    if (other.has_value()) {
      altered = true;
      proto.MergeFrom(*other);
    }
  }
  const std::shared_ptr<StepStream> engine = engine_;
  FromProto(proto, &engine->result);
  if (!engine->plans.empty()) engine->plans.pop_front();
  Run(EngineResult{engine, &engine->result});
  if (altered) model_knows_all_ = false;
  Require(altered || !engine->closed, "a right answer was refused");
}

void Play(absl::string_view input, std::vector<StepPlan>* record) {
  if (input.empty()) return;
  Daemon daemon(static_cast<uint8_t>(input.front()), record);
  int count = 0;
  for (const absl::string_view part :
       absl::StrSplit(input.substr(1), kPartEnd)) {
    if (++count > kMaxParts) return;
    daemon.Do(part);
  }
}

}  // namespace blockmgr::fuzz
