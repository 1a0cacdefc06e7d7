#include "scheduler/server/engine_fit.h"

#include <cstddef>
#include <cstdint>
#include <vector>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <absl/strings/string_view.h>

#include "blockmgr/base/dtype.h"

namespace blockmgr {
namespace {

// A visitor of EngineAbilities that lists numbers. Two engines must have the
// same ones, but for flags, of which the other one may have more.
struct Rows {
  struct Row {
    std::string name;
    int32_t value = 0;
    bool is_flag = false;
  };
  std::vector<Row> rows;

  void Number(absl::string_view name, int32_t value, const auto&... /*rest*/) {
    rows.push_back({std::string(name), value, false});
  }
  void Bool(absl::string_view name, bool value, const char* /*help*/) {
    rows.push_back({std::string(name), value ? 1 : 0, true});
  }
};

std::vector<Rows::Row> RowsOf(const ModelLayout& layout,
                              const EngineAbilities& abilities) {
  Rows rows{{{"layout.num_layers", layout.num_layers},
             {"layout.num_heads", layout.num_heads},
             {"layout.num_q_heads", layout.num_q_heads},
             {"layout.head_dim", layout.head_dim},
             {"layout.page_size", layout.page_size},
             {"layout.num_shards", layout.num_shards},
             {"layout.window", layout.window},
             {"layout.group_windows.size()", layout.num_window_groups()},
             {"layout.num_blocks", layout.num_blocks}}};
  VisitEngineAbilities(abilities, rows);
  for (size_t i = 0; i < layout.group_windows.size(); ++i) {
    rows.Number(absl::StrCat("layout.group_windows[", i, "]"),
                layout.group_windows[i]);
  }
  return rows.rows;
}

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
                               const EngineAbilities& had,
                               const ModelLayout& got,
                               const EngineAbilities& has) {
  const std::vector<Rows::Row> needed = RowsOf(want, had);
  const std::vector<Rows::Row> offered = RowsOf(got, has);
  // Layouts with fewer groups differ in a row before those of the groups.
  for (size_t i = 0; i < needed.size(); ++i) {
    const auto& [name, value, is_flag] = needed[i];
    const int32_t other = offered[i].value;
    if (other == value || (is_flag && other > value)) continue;
    return absl::StrCat(name, ": live requests need ", value, ", got ", other);
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
