#include "scheduler/server/engine_fit.h"

#include <cstddef>
#include <cstdint>
#include <tuple>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <absl/strings/string_view.h>

#include "blockmgr/base/dtype.h"

namespace blockmgr {
namespace {

std::string DescribeSampling(const EngineSampling& had,
                             const EngineSampling& has) {
  for (int32_t field = 1; field <= kNumSamplingFields; ++field) {
    const auto kind = static_cast<SamplingField>(field);
    if (!had.Supports(kind) || has.Supports(kind)) continue;
    return absl::StrCat("sampling_fields: live requests need an engine with ",
                        field, ", got an engine without it");
  }
  if (had.vocabulary_size != has.vocabulary_size) {
    return absl::StrCat("vocabulary_size: live requests need ",
                        had.vocabulary_size, ", got ", has.vocabulary_size);
  }
  if (had.end_token_ids == has.end_token_ids) return "";
  return absl::StrCat("end_token_ids: live requests need [",
                      absl::StrJoin(had.end_token_ids, ", "), "], got [",
                      absl::StrJoin(has.end_token_ids, ", "), "]");
}

}  // namespace

std::string DescribeDifference(const ModelLayout& want,
                               const SchedulerOptions& had,
                               const ModelLayout& got,
                               const SchedulerOptions& has) {
  const std::tuple<absl::string_view, int32_t, int32_t> fields[] = {
      {"layout.num_layers", want.num_layers, got.num_layers},
      {"layout.num_heads", want.num_heads, got.num_heads},
      {"layout.num_q_heads", want.num_q_heads, got.num_q_heads},
      {"layout.head_dim", want.head_dim, got.head_dim},
      {"layout.page_size", want.page_size, got.page_size},
      {"layout.num_shards", want.num_shards, got.num_shards},
      {"layout.window", want.window, got.window},
      {"layout.group_windows.size()", want.num_window_groups(),
       got.num_window_groups()},
      {"layout.num_blocks", want.num_blocks, got.num_blocks},
      {"num_scorer_states", had.num_scorer_states, has.num_scorer_states},
      {"num_host_blocks", had.num_host_blocks, has.num_host_blocks}};
  for (const auto& [field, needed, offered] : fields) {
    if (needed == offered) continue;
    return absl::StrCat(field, ": live requests need ", needed, ", got ",
                        offered);
  }
  if (had.supports_window_evictions && !has.supports_window_evictions) {
    return "supports_window_evictions: live requests need 1, got 0";
  }
  for (size_t i = 0; i < want.group_windows.size(); ++i) {
    if (want.group_windows[i] == got.group_windows[i]) continue;
    return absl::StrCat("layout.group_windows[", i, "]: live requests need ",
                        want.group_windows[i], ", got ", got.group_windows[i]);
  }
  for (const auto& [name, fingerprint] : had.query_stats) {
    const auto found = has.query_stats.find(name);
    if (found != has.query_stats.end() && found->second == fingerprint) {
      continue;
    }
    return absl::StrCat(
        "query_stats['", name, "']: live requests need ", fingerprint, ", got ",
        found == has.query_stats.end() ? "none" : found->second);
  }
  if (want == got) return DescribeSampling(had.sampling, has.sampling);
  return absl::StrCat("layout.dtype: live requests need ",
                      DTypeName(want.dtype), ", got ", DTypeName(got.dtype));
}

std::string DescribeOtherModel(const ServedModel& needed,
                               const ServedModel* has) {
  if (has == nullptr) return "";
  if (!needed.name.empty() && !has->name.empty() && needed.name != has->name) {
    return absl::StrCat("model.name: live requests need \"", needed.name,
                        "\", got \"", has->name, "\"");
  }
  if (has->context_tokens == 0 ||
      has->context_tokens >= needed.context_tokens) {
    return "";
  }
  return absl::StrCat("model.context_tokens: live requests need ",
                      needed.context_tokens, ", got ", has->context_tokens);
}

}  // namespace blockmgr
