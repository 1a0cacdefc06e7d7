#include "scheduler/server/sequence_limits.h"

#include <algorithm>
#include <iterator>
#include <string>

#include "blockmgr/base/invalid.h"

namespace blockmgr {
namespace {

// Returns the most tokens that a request with this prompt may ask for and still
// have a place in the pool and in its tenant's quota, but at least 1.
int32_t MostTokens(const SchedulerOptions& options, const ModelLayout& layout,
                   int64_t most_sequence_tokens, int64_t num_prompt_tokens,
                   const std::string& tenant) {
  // The sum assumes that every group needs a block for every page.
  auto usable =
      static_cast<int64_t>((layout.num_blocks - 1) * (1.0 - options.watermark));
  const auto own = options.tenants.find(tenant);
  const TenantLimits& limits =
      own == options.tenants.end() ? options.tenant_limits : own->second;
  if (limits.max_blocks > 0) {
    usable = std::min<int64_t>(usable, limits.max_blocks);
  }
  const int64_t pages = usable / layout.num_groups() - 2;
  const int64_t most =
      std::min<int64_t>(most_sequence_tokens, pages * layout.page_size);
  return static_cast<int32_t>(std::max<int64_t>(most - num_prompt_tokens, 1));
}

}  // namespace

int32_t MaxSequenceTokens(const SchedulerOptions& options,
                          const ServedModel* model) {
  if (model == nullptr || model->context_tokens == 0) {
    return options.max_model_len;
  }
  return std::min(options.max_model_len, model->context_tokens);
}

absl::Status LimitTokens(const SchedulerOptions& options,
                         const ServedModel* model, const ModelLayout& layout,
                         bool all_tokens, Request* request) {
  const int64_t num_prompt = std::ssize(request->prompt);
  const int64_t most = MaxSequenceTokens(options, model);
  if (num_prompt >= most) {
    return Invalid("prompt: expected at most ", most - 1,
                   " tokens (a sequence has ", most, "), got ", num_prompt);
  }
  if (all_tokens) {
    request->max_tokens = std::min(
        request->max_tokens,
        MostTokens(options, layout, most, num_prompt, request->scope.tenant));
  } else if (request->max_tokens > most - num_prompt) {
    return Invalid("max_tokens: expected at most ", most - num_prompt,
                   " (a sequence has ", most, " tokens, the prompt ",
                   num_prompt, "), got ", request->max_tokens);
  }
  return absl::OkStatus();
}

}  // namespace blockmgr
