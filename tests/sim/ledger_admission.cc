#include "tests/sim/ledger_admission.h"

#include <algorithm>
#include <map>
#include <string>

namespace blockmgr::sim {
namespace {

bool IsWellFormed(const Request& request, const SchedulerOptions& options) {
  const int32_t vocabulary = options.engine.sampling.vocabulary_size;
  const auto is_unknown = [vocabulary](int32_t token) {
    return token < 0 || (vocabulary > 0 && token >= vocabulary);
  };
  int32_t media_end = 0;
  for (const MediaItem& item : request.scope.media) {
    if (item.begin < media_end || item.length < 1) return false;
    media_end = item.begin + item.length;
  }
  return !request.id.empty() && request.id.size() <= 128 &&
         !request.prompt.empty() && request.max_tokens >= 1 &&
         media_end <= std::ssize(request.prompt) &&
         std::ranges::none_of(request.prompt, is_unknown) &&
         std::ranges::none_of(request.stop_token_ids, is_unknown) &&
         std::ssize(request.prompt) + request.max_tokens <=
             options.max_model_len;
}

// Returns whether the queue has room for the prompt. An empty queue has.
bool CanQueue(const Request& request, const LedgerBooks& books) {
  const int64_t queued = books.CountQueuedTokens();
  return queued == 0 || queued + std::ssize(request.prompt) <=
                            books.options.max_waiting_tokens;
}

// Returns whether the tenant's quota allows one more request, with `peak`
// blocks at most.
bool IsWithinQuota(const Request& request, int32_t peak,
                   const LedgerBooks& books) {
  const TenantLimits& limits = books.options.tenant_limits;
  int64_t num_requests = 1;
  int64_t num_tokens = std::ssize(request.prompt);
  for (const auto& [name, id] : books.names) {
    const LedgerRequest& served = books.requests.at(id);
    if (served.request.scope.tenant != request.scope.tenant) continue;
    ++num_requests;
    if (served.num_cached < 0) num_tokens += served.num_prompt();
  }
  return (limits.max_requests == 0 || num_requests <= limits.max_requests) &&
         (limits.max_queued_tokens == 0 ||
          num_tokens <= limits.max_queued_tokens) &&
         (limits.max_blocks == 0 || peak <= limits.max_blocks);
}

// Returns the least that the request takes of its tenant's quota: the peak, or,
// once the request has been compressed, the blocks that it has.
int64_t CountReserved(const LedgerRequest& served, const LedgerBooks& books) {
  if (served.slot == kNoSequenceSlot) return 0;
  const LedgerTable& table = books.tables.at(served.slot);
  // The peak is reserved until the first compression, and always with windows.
  // A request that is computed again will be compressed as before.
  if (books.layout.has_windows() ||
      (served.peak > 0 && table.cut() == 0 && served.recorded.empty())) {
    return served.peak;
  }
  // The ledger does not know what an order in flight gives back and what a loss
  // has cost.
  if (table.has_order() || table.takes_more) return 0;
  return std::ssize(table.Blocks());
}

// Returns the request that this one may be a fork of, or null.
const LedgerRequest* ParentOf(const Request& request,
                              const LedgerBooks& books) {
  const LedgerRequest* const parent = books.FindLive(request.fork_of);
  const bool is_parent =
      parent != nullptr &&
      ScopeOf(parent->request.scope, 0) == ScopeOf(request.scope, 0) &&
      request.eviction.mode == EvictionMode::kNone;
  return is_parent ? parent : nullptr;
}

// Returns the record that the request gets if it is accepted. `parent` is what
// it is a fork of, or null.
LedgerRequest RecordOf(const Request& request, const LedgerRequest* parent,
                       const LedgerBooks& books) {
  LedgerRequest served;
  served.request = request;
  served.tokens = request.prompt;
  served.num_own = served.num_prompt();
  if (parent != nullptr) {
    served.request.eviction = parent->request.eviction;
    served.num_own = parent->num_own;
    served.kept_less = parent->kept_less;
  }
  const RequestEviction& eviction = served.request.eviction;
  // A command may evict a plain request, too, but that only makes room.
  served.is_plain =
      eviction.mode == EvictionMode::kNone &&
      (parent == nullptr || (parent->is_plain && parent->recorded.empty()));
  if (served.is_plain) {
    served.peak = books.PeaksOf(request, eviction.target).least;
  }
  return served;
}

void CheckRefusal(const LedgerRequest& served, bool is_orphan,
                  const absl::Status& status, const LedgerBooks& books) {
  const Request& request = served.request;
  const bool in_use = books.names.contains(request.id);
  // The scheduler looks for malformed fields before it looks for the name.
  const bool is_sound = served.is_plain && !request.sampling.has_value() &&
                        IsWellFormed(request, books.options);
  const bool is_malformed = !is_sound && (absl::IsInvalidArgument(status) ||
                                          absl::IsFailedPrecondition(status));
  if (in_use != absl::IsAlreadyExists(status) && !(in_use && is_malformed)) {
    books.Fail("Submit of '", request.id, "', in use: ", in_use, ": ",
               status.ToString());
  }
  const bool is_full = std::ssize(books.names) - std::ssize(books.tables) >=
                       books.options.max_waiting;
  const int32_t most = books.PeaksOf(request, request.eviction.target).most;
  const bool is_fit = most <= books.layout.num_blocks - 1 && !is_full &&
                      !in_use && !is_orphan && CanQueue(request, books) &&
                      !request.sampling.has_value() &&
                      IsWithinQuota(request, most, books);
  if (is_fit && (absl::IsResourceExhausted(status) ||
                 (served.is_plain && IsWellFormed(request, books.options)))) {
    books.Fail("a request of ", most,
               " blocks at most was refused: ", status.ToString());
  }
}

void CheckAccepted(const LedgerRequest& served, const LedgerBooks& books) {
  const Request& request = served.request;
  if (books.names.contains(request.id)) {
    books.Fail("Submit took the name '", request.id, "' twice");
  }
  if (!CanQueue(request, books)) {
    books.Fail(request.prompt.size(), " tokens were queued, too");
  }
  if (served.peak > books.layout.num_blocks - 1) {
    books.Fail("a request of ", served.peak, " blocks was admitted to ",
               books.layout.num_blocks - 1);
  }
}

}  // namespace

void TakeSubmit(const Request& request, const absl::StatusOr<RequestId>& id,
                LedgerBooks* books) {
  books->report->Mix(static_cast<uint64_t>(id.status().code()));
  const LedgerRequest* const parent = ParentOf(request, *books);
  const bool is_orphan = parent == nullptr && !request.fork_of.empty();
  const LedgerRequest served = RecordOf(request, parent, *books);
  if (!id.ok()) {
    ++books->counts().refused;
    CheckRefusal(served, is_orphan, id.status(), *books);
    return;
  }
  if (!IsWellFormed(request, books->options)) {
    books->Fail("malformed request '", request.id, "' was admitted");
  }
  if (is_orphan) {
    books->Fail("'", request.id, "' was taken for a fork of '", request.fork_of,
                "'");
    return;
  }
  CheckAccepted(served, *books);
  ++books->counts().requests;
  if (parent != nullptr) {
    const int32_t num_tokens = served.num_prompt();
    const bool has_other = ScopeOf(parent->request.scope, num_tokens) !=
                           ScopeOf(request.scope, num_tokens);
    books->counts().other_media += has_other ? 1 : 0;
  }
  if (!books->requests.insert_or_assign(*id, served).second) {
    books->Fail("request number ", Index(*id), " was given twice");
  }
  books->names[request.id] = *id;
  CheckQuotas(*books);
}

void CheckQuotas(const LedgerBooks& books) {
  const TenantLimits& limits = books.options.tenant_limits;
  struct Use {
    int64_t num_requests = 0;
    int64_t queued_tokens = 0;
    int64_t blocks = 0;
  };
  std::map<std::string, Use> uses;
  for (const auto& [name, id] : books.names) {
    const LedgerRequest& served = books.requests.at(id);
    Use& use = uses[served.request.scope.tenant];
    ++use.num_requests;
    if (served.num_cached < 0) use.queued_tokens += served.num_prompt();
    use.blocks += CountReserved(served, books);
  }
  for (const auto& [tenant, use] : uses) {
    if ((limits.max_requests > 0 && use.num_requests > limits.max_requests) ||
        (limits.max_queued_tokens > 0 &&
         use.queued_tokens > limits.max_queued_tokens) ||
        (limits.max_blocks > 0 && use.blocks > limits.max_blocks)) {
      books.Fail("tenant '", tenant, "' has ", use.num_requests, " requests, ",
                 use.queued_tokens, " tokens queued and ", use.blocks,
                 " blocks reserved, beyond its quotas");
    }
  }
}

}  // namespace blockmgr::sim
