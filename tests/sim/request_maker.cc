#include "tests/sim/request_maker.h"

#include <algorithm>
#include <utility>
#include <variant>

#include <absl/strings/str_cat.h>

#include "tests/testing/test_tables.h"

namespace blockmgr::sim {
namespace {

void MaybeUseQueryStats(const SimOptions& options, Random* random,
                        EvictionPolicy* policy) {
  // Stored runs of worlds without draw what they drew.
  if (options.stats_percent == 0 ||
      random->Between(1, 100) > options.stats_percent) {
    return;
  }
  policy->scorer.kind = ScorerKind::kExpectedAttention;
  policy->scorer.stats = "measured";
}

}  // namespace

RequestMaker::RequestMaker(const SimOptions& options, Random* random,
                           const std::deque<ServedRequest>* served)
    : options_(options), random_(*random), served_(*served) {
  for (uint32_t i = 0; i < tables_.size(); ++i) {
    tables_[i] = std::make_shared<const BudgetTable>(SkewedTable(
        options.Layout(), 2 * static_cast<uint32_t>(options.seed) + i));
  }
}

int32_t RequestMaker::Pick(int32_t back) {
  if (served_.empty()) return -1;
  const auto last = static_cast<int32_t>(served_.size()) - 1;
  return random_.Between(std::max(0, last - back), last);
}

std::vector<int32_t> RequestMaker::RandomPrompt() {
  // Sentences of a small grammar: each prompt goes along with one of a few
  // others for a while, and then its own way.
  std::vector<int32_t> prompt;
  const int32_t num_tokens = random_.Between(1, options_.max_prompt);
  const int32_t num_shared = random_.Between(0, num_tokens);
  Random topic(random_.Between(1, options_.grammar_tokens));
  for (int32_t i = 0; i < num_tokens; ++i) {
    Random& source = i < num_shared ? topic : random_;
    prompt.push_back(source.Between(0, options_.grammar_tokens));
  }
  return prompt;
}

EvictionPolicy RequestMaker::RandomPolicy() {
  EvictionPolicy policy;
  policy.scorer.kind = random_.Pick<ScorerKind>(
      {ScorerKind::kSnapKv, ScorerKind::kStreaming, ScorerKind::kKnorm,
       ScorerKind::kKeyDiff, ScorerKind::kH2o, ScorerKind::kTova});
  // A few ask for more queries than the engine has.
  policy.scorer.window = random_.Between(
      1, random_.OneIn(8) ? 8 : std::max(1, options_.query_window));
  policy.scorer.sinks = random_.Between(0, 4);
  policy.scorer.recent = random_.Between(0, 3);
  policy.budget.kind =
      random_.Pick<BudgetKind>({BudgetKind::kUniform, BudgetKind::kAdaKv,
                                BudgetKind::kPyramid, BudgetKind::kGlobal});
  policy.protect.sinks = random_.Between(0, 2);
  if (random_.OneIn(2)) policy.protect.recent = random_.Between(0, 6);
  policy.rounding = random_.OneIn(3) ? Rounding::kToken : Rounding::kPage;
  return policy;
}

void RequestMaker::MaybeUseTable(
    Random* random, EvictionPolicy* policy,
    std::shared_ptr<const BudgetTable>* table) const {
  // Stored runs of worlds without tables draw what they drew.
  if (options_.table_percent == 0 ||
      random->Between(1, 100) > options_.table_percent) {
    return;
  }
  const int32_t which = random->Between(0, 1);
  *table = tables_[which];
  policy->budget = BudgetSpec();
  policy->budget.kind = std::holds_alternative<LuKvProfile>(**table)
                            ? BudgetKind::kLuKv
                            : BudgetKind::kHeadKv;
  policy->budget.profile = absl::StrCat("table", which);
}

EvictionTarget RequestMaker::RandomTarget() {
  EvictionTarget target;
  if (random_.OneIn(2)) {
    target.kind = EvictionTarget::Kind::kTokens;
    target.tokens = random_.Between(1, 12);
  } else {
    target.ratio = *KeepRatio::Parse(absl::StrCat("0.", random_.Between(1, 9)));
  }
  return target;
}

Request RequestMaker::WrongRequest(Request request) {
  switch (random_.Between(0, 4)) {
    case 0:
      request.prompt.clear();
      break;
    case 1:
      request.prompt.assign(options_.page_size * options_.num_blocks + 1, 1);
      break;  // can never fit
    case 2:
      request.max_tokens = random_.Between(-1, 0);
      break;
    case 3:
      request.prompt[0] = -1;
      break;
    default:
      request.max_tokens = 1 << 20;
  }
  return request;
}

void RequestMaker::ShareEviction(RequestEviction* eviction) {
  // Few evictions, so that sharers meet.
  Random random(static_cast<uint64_t>(options_.seed) * 4 +
                static_cast<uint64_t>(random_.Between(0, 1)));
  eviction->share_prefix = true;
  eviction->share_multiple = options_.page_size * random.Between(0, 2);
  eviction->policy = EvictionPolicy();
  eviction->policy.scorer.kind = random.Pick<ScorerKind>(
      {ScorerKind::kSnapKv, ScorerKind::kStreaming, ScorerKind::kKeyDiff});
  eviction->policy.scorer.window =
      random.Between(1, std::clamp(options_.query_window, 1, 4));
  eviction->policy.protect.sinks = random.Between(0, 2);
  eviction->target = EvictionTarget();
  eviction->target.ratio =
      *KeepRatio::Parse(absl::StrCat("0.", random.Between(1, 6)));
  if (random.OneIn(2)) {
    eviction->target.kind = EvictionTarget::Kind::kTokens;
    eviction->target.tokens = random.Between(1, 8);
  }
  if (eviction->mode == EvictionMode::kEveryChunk) {
    eviction->compress_every =
        options_.page_size * random.Between(1, 1 + 16 / options_.page_size);
  }
  eviction->table = nullptr;
  MaybeUseTable(&random, &eviction->policy, &eviction->table);
  MaybeUseQueryStats(options_, &random, &eviction->policy);
}

void RequestMaker::EvictLater(RequestEviction* eviction) {
  eviction->mode = EvictionMode::kDecode;
  eviction->compress_every =
      options_.page_size * random_.Between(1, 1 + 8 / options_.page_size);
  if (!eviction->share_prefix && random_.OneIn(2)) {
    eviction->mode = EvictionMode::kPressure;
  }
}

void RequestMaker::MaybeEvictInWindows(RequestEviction* eviction) {
  if (options_.window_evict_percent == 0 ||
      random_.Between(1, 100) > options_.window_evict_percent) {
    return;
  }
  const bool is_allowed =
      eviction->policy.scorer_state() == ScorerState::kNone &&
      eviction->table == nullptr;
  // A few ask for what is refused.
  if (!is_allowed && !random_.OneIn(20)) return;
  // One for all sharers, so that they meet.
  const int32_t tenths = eviction->share_prefix ? 4 : random_.Between(1, 8);
  eviction->target.window_keep_ratio = {tenths, 10};
}

void RequestMaker::GoOn(Request* request) {
  const auto num_served = static_cast<int32_t>(served_.size());
  if (num_served == 0 || random_.OneIn(4)) return;
  const int32_t back = random_.Between(1, std::min(num_served, 8));
  const Request& earlier = served_[num_served - back].request;
  const auto num_earlier = static_cast<int32_t>(earlier.prompt.size());
  if (num_earlier == 0 || num_earlier > options_.max_prompt) return;
  request->prompt = earlier.prompt;
  request->scope = earlier.scope;
  if (earlier.eviction.share_prefix) request->eviction = earlier.eviction;
  const int32_t num_more = random_.OneIn(6) ? 0 : random_.Between(1, 20);
  for (int32_t i = 0; i < num_more; ++i) {
    request->prompt.push_back(random_.Between(0, options_.grammar_tokens));
  }
}

void RequestMaker::ForkRecent(Request* request) {
  int32_t index = Pick(4);
  // A few of requests that have ended, or were refused.
  const auto is_over = [this](int32_t i) {
    const std::deque<ServedRequest::Life>& lives = served_[i].lives;
    return lives.empty() || lives.back().finish.has_value() ||
           lives.back().stream_broke;
  };
  if (!random_.OneIn(20)) {
    while (index >= 0 && is_over(index)) --index;
  }
  if (index < 0 || served_[index].request.prompt.empty()) return;
  const ServedRequest& parent = served_[index];
  request->fork_of = parent.request.id;
  request->prompt = parent.request.prompt;
  if (!parent.lives.empty() && !parent.lives.back().outputs.empty()) {
    const std::vector<int32_t>& outputs = parent.lives.back().outputs;
    const int32_t count =
        random_.Between(0, static_cast<int32_t>(outputs.size()));
    request->prompt.insert(request->prompt.end(), outputs.begin(),
                           outputs.begin() + count);
  }
  if (random_.OneIn(2)) {
    request->prompt.push_back(random_.Between(0, options_.grammar_tokens));
  }
  // A few ask for what forks may not have.
  if (!random_.OneIn(20)) request->scope = parent.request.scope;
  if (!random_.OneIn(20)) request->eviction = RequestEviction();
}

std::vector<RetentionWish> RequestMaker::RandomRetention() {
  std::vector<RetentionWish> wishes(random_.Between(1, 2));
  for (RetentionWish& wish : wishes) {
    wish.begin = random_.Between(0, options_.max_prompt);
    if (random_.OneIn(2)) wish.end = wish.begin + random_.Between(1, 30);
    wish.priority = random_.Between(0, kMaxPriority);
    if (random_.OneIn(2)) wish.duration_ms = random_.Between(1, 200);
  }
  return wishes;
}

std::vector<MediaItem> RequestMaker::RandomMedia(int32_t num_tokens) {
  // Few places and few inputs, so that equal tokens have equal media at times,
  // and at times for a while.
  std::vector<MediaItem> media;
  Random places(random_.Between(1, 2));
  int32_t begin = places.Between(0, 2 * options_.page_size);
  while (begin < num_tokens && media.size() < 3) {
    const int32_t length = std::min(places.Between(1, 4), num_tokens - begin);
    media.push_back({begin, length, random_.OneIn(3) ? "b" : "a"});
    begin += length + places.Between(0, 2 * options_.page_size);
  }
  return media;
}

Request RequestMaker::RandomRequest() {
  Request request;
  request.prompt = RandomPrompt();
  request.max_tokens = random_.Between(1, options_.max_output);
  request.priority = random_.Between(-1, 1);
  request.engine_data = absl::StrCat(request.max_tokens, "/", request.priority);
  request.scope.tenant =
      absl::StrCat("tenant", random_.Between(1, options_.num_tenants));
  if (random_.Between(1, 100) <= options_.scope_percent) {
    (random_.OneIn(2) ? request.scope.lora : request.scope.cache_salt) = "x";
  }
  if (random_.Between(1, 100) <= options_.retention_percent) {
    request.retention = RandomRetention();
  }
  if (random_.OneIn(4)) {
    request.stop_token_ids = {random_.Between(0, options_.vocabulary - 1)};
  }
  if (random_.Between(1, 100) <= options_.evict_percent) {
    RequestEviction& eviction = request.eviction;
    eviction.mode = EvictionMode::kAfterPrefill;
    eviction.policy = RandomPolicy();
    const bool has_state = options_.num_scorer_states > 0 && random_.OneIn(2);
    if (has_state) {
      eviction.policy.scorer.kind = random_.Pick<ScorerKind>(
          {ScorerKind::kH2o, ScorerKind::kExpectedAttention});
    }
    if (!has_state) MaybeUseQueryStats(options_, &random_, &eviction.policy);
    eviction.target = RandomTarget();
    MaybeUseTable(&random_, &eviction.policy, &eviction.table);
    if (random_.OneIn(3)) {
      eviction.mode = EvictionMode::kEveryChunk;
      eviction.compress_every =
          options_.page_size * random_.Between(1, 1 + 16 / options_.page_size);
    }
    if (!has_state && random_.Between(1, 100) <= options_.share_percent) {
      ShareEviction(&eviction);
      GoOn(&request);
    }
    // Only prompts can be shared.
    const bool may_be_later = !eviction.share_prefix || random_.OneIn(20);
    if (may_be_later && random_.Between(1, 100) <= options_.later_percent) {
      EvictLater(&eviction);
    }
    MaybeEvictInWindows(&eviction);
  }
  // Stored runs of worlds without draw what they drew.
  if (options_.again_percent > 0 &&
      random_.Between(1, 100) <= options_.again_percent) {
    GoOn(&request);
  }
  const bool may_fork = !request.eviction.share_prefix || random_.OneIn(4);
  if (may_fork && random_.Between(1, 100) <= options_.fork_percent) {
    ForkRecent(&request);
  }
  // Stored runs of worlds without media draw what they drew.
  if (options_.media_percent > 0 &&
      random_.Between(1, 100) <= options_.media_percent) {
    request.scope.media =
        RandomMedia(static_cast<int32_t>(request.prompt.size()));
  }
  if (random_.OneIn(25)) return WrongRequest(std::move(request));
  // The edge of what fits is where limits are wrong.
  if (random_.OneIn(10)) {
    const int32_t room = options_.page_size * (options_.num_blocks - 1);
    const auto num_prompt = static_cast<int32_t>(request.prompt.size());
    request.max_tokens =
        std::max(1, room - num_prompt + 1 + random_.Between(-1, 1));
  }
  return request;
}

EvictionCommand RequestMaker::RandomCommand() {
  EvictionCommand eviction;
  eviction.policy = RandomPolicy();
  eviction.target = RandomTarget();
  const int32_t num_heads = options_.num_layers * options_.num_heads;
  if (random_.OneIn(2)) {
    eviction.cut =
        options_.page_size *
        random_.Between(1, 1 + options_.max_prompt / options_.page_size);
  }
  if (eviction.cut > 0 && random_.OneIn(3)) {
    eviction.policy.scorer.kind = ScorerKind::kExternal;
    eviction.scores =
        std::make_shared<std::vector<float>>(num_heads * eviction.cut, 1.0f);
  }
  if (random_.OneIn(3)) {
    eviction.policy.budget.kind = BudgetKind::kExternal;
    std::vector<int32_t> budgets(num_heads);
    for (int32_t& budget : budgets) budget = random_.Between(0, 12);
    budgets[0] = std::max(budgets[0], 1);
    eviction.budgets =
        std::make_shared<std::vector<int32_t>>(std::move(budgets));
  } else {
    MaybeUseTable(&random_, &eviction.policy, &eviction.table);
  }
  return eviction;
}

}  // namespace blockmgr::sim
