#include "bench/evict/query_stats_profile.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include <absl/status/status.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>

#include "bench/evict/model_oracle.h"
#include "bench/evict/model_run.h"
#include "bench/evict/output_name.h"
#include "bench/evict/prefixed.h"
#include "bench/evict/tensors.h"
#include "blockmgr/base/invalid.h"
#include "blockmgr/base/npy.h"
#include "blockmgr/base/status_macros.h"
#include "blockmgr/eviction/policy.h"
#include "engine/reference/tiny_model.h"
#include "kernels/cpu/query_stats.h"
#include "program/output_file.h"
#include "program/progress.h"

namespace blockmgr {
namespace {

constexpr char kDims[] =
    "[layers,] query heads, positions, head dim (a multiple of 4)";

// Queries of one text: [layers, query heads, length, head_dim].
struct TextQueries {
  std::array<int64_t, 4> shape = {};
  std::vector<float> values;
};

absl::Status BadQueries(absl::string_view path, absl::string_view expected,
                        absl::string_view got) {
  return Invalid("--raw-queries ", path, ": expected ", expected, ", got ",
                 got);
}

absl::StatusOr<TextQueries> ReadText(const std::string& path) {
  absl::StatusOr<NpyArray> array = ReadNpy(path);
  if (!array.ok()) return Prefixed("--raw-queries", array.status());
  std::vector<int64_t> shape = array->shape;
  if (shape.size() == 3) shape.insert(shape.begin(), 1);
  const auto fits = [](int64_t size) {
    return size >= 1 && size <= std::numeric_limits<int32_t>::max();
  };
  if (shape.size() != 4 || !std::all_of(shape.begin(), shape.end(), fits) ||
      shape[3] % 4 != 0) {
    return BadQueries(path, kDims, ShapeText(array->shape));
  }
  return TextQueries{.shape = {shape[0], shape[1], shape[2], shape[3]},
                     .values = std::move(array->values)};
}

// Adds the queries behind the first `sinks` positions.
void AddText(const TextQueries& text, int32_t sinks,
             QueryStatsBuilder* builder) {
  const auto& [num_layers, num_heads, length, dim] = text.shape;
  std::vector<float> tokens;  // of one layer, [positions, query heads, dim]
  for (int64_t layer = 0; layer < num_layers; ++layer) {
    tokens.clear();
    for (int64_t position = sinks; position < length; ++position) {
      for (int64_t head = 0; head < num_heads; ++head) {
        const auto row = text.values.begin() +
                         ((layer * num_heads + head) * length + position) * dim;
        tokens.insert(tokens.end(), row, row + dim);
      }
    }
    builder->AddQueries(static_cast<int32_t>(layer), tokens);
  }
}

absl::StatusOr<QueryStatsTable> MeasureFiles(const ProfileFlags& flags,
                                             int32_t sinks) {
  std::optional<QueryStatsBuilder> builder;
  std::array<int64_t, 4> first = {};
  Progress progress(std::ssize(flags.raw_queries), true, "texts", "profile ");
  for (const std::string& path : flags.raw_queries) {
    BM_ASSIGN_OR_RETURN(const TextQueries text, ReadText(path));
    if (text.shape[2] <= sinks) {
      return BadQueries(path,
                        absl::StrCat("more positions than --sinks ", sinks),
                        absl::StrCat(text.shape[2]));
    }
    if (!builder.has_value()) {
      first = text.shape;
      builder.emplace(static_cast<int32_t>(first[0]),
                      static_cast<int32_t>(first[1]),
                      static_cast<int32_t>(first[3]));
    }
    first[2] = text.shape[2];
    if (text.shape != first) {
      return BadQueries(path,
                        absl::StrCat("layers, query heads and head dim of the "
                                     "first file, ",
                                     ShapeText(first)),
                        ShapeText(text.shape));
    }
    AddText(text, sinks, &*builder);
    progress.Step();
  }
  return builder->Finish(flags.model);
}

// Measures every context with the first of its queries. Answers are those of
// the prompt; the model adds none.
absl::StatusOr<QueryStatsTable> MeasureModel(const ProfileFlags& flags,
                                             int32_t sinks) {
  BM_ASSIGN_OR_RETURN(const ProfileSource source, OpenProfileSource(flags));
  const ModelShape& shape = source.model->shape();
  QueryStatsBuilder builder(shape.num_layers, shape.num_q_heads,
                            shape.head_dim);
  const auto width = static_cast<size_t>(shape.q_width());
  const ModelRun::LayerVisitor add = [&](int32_t layer, int32_t first,
                                         const ModelForward& forward) {
    const std::span<const float> rows = forward.raw_queries();
    const auto skipped = static_cast<size_t>(std::max(sinks - first, 0));
    builder.AddQueries(layer,
                       rows.subspan(std::min(rows.size(), skipped * width)));
  };
  Progress progress(std::ssize(source.prompts), true, "prompts", "profile ");
  for (const ContextPrompt& prompt : source.prompts) {
    std::vector<int32_t> tokens = prompt.context;
    tokens.insert(tokens.end(), prompt.queries.front().begin(),
                  prompt.queries.front().end());
    const auto length = static_cast<int32_t>(tokens.size());
    if (length <= sinks) {
      return Invalid("--context: expected more tokens than --sinks ", sinks,
                     " together with a query, got ", length);
    }
    BM_ASSIGN_OR_RETURN(
        const std::unique_ptr<ModelRun> run,
        ModelRun::Create(source.model.get(), length, source.threads.get()));
    run->Extend(tokens, add);
    progress.Step();
  }
  return builder.Finish(source.name);
}

}  // namespace

absl::StatusOr<QueryStatsTable> MeasureQueryStats(const ProfileFlags& flags) {
  const bool has_model = flags.tiny || !flags.model_file.empty();
  const int num_sources = static_cast<int>(flags.tiny) +
                          static_cast<int>(!flags.model_file.empty()) +
                          static_cast<int>(!flags.raw_queries.empty());
  if (num_sources != 1) {
    return Invalid(
        "--query-stats: expected queries of one of --model, --raw-queries and "
        "--tiny, got ",
        num_sources);
  }
  const int32_t sinks = flags.sinks >= 0 ? flags.sinks : ScorerSpec().n_sink;
  return has_model ? MeasureModel(flags, sinks) : MeasureFiles(flags, sinks);
}

std::string QueryStatsText(const QueryStatsTable& table) {
  std::string text = absl::StrFormat(
      "model %s\n"
      "%d layers of %d query heads of %d elements; %d queries of each\n"
      "per cent of the mean square of a head's queries that is their mean's:\n"
      "layer",
      table.model.empty() ? "unnamed" : table.model, table.num_layers,
      table.num_q_heads, table.head_dim, table.num_queries);
  for (int32_t head = 0; head < table.num_q_heads; ++head) {
    absl::StrAppendFormat(&text, " %6d", head);
  }
  const float* mean = table.means.data();
  const float* covariance = table.covariances.data();
  for (int32_t layer = 0; layer < table.num_layers; ++layer) {
    absl::StrAppendFormat(&text, "\n%5d", layer);
    for (int32_t head = 0; head < table.num_q_heads; ++head) {
      double square = 0;
      double variance = 0;
      for (int32_t i = 0; i < table.head_dim; ++i) {
        square += double{*mean} * double{*mean};
        ++mean;
        variance += *covariance;
        covariance += table.head_dim - i;
      }
      const double all = square + variance;
      absl::StrAppendFormat(&text, " %6.2f",
                            all > 0 ? 100.0 * square / all : 0.0);
    }
  }
  text.push_back('\n');
  return text;
}

absl::StatusOr<std::string> RunQueryStats(const ProfileFlags& flags) {
  BM_RETURN_IF_ERROR(
      CheckOutputName("--query-stats", flags.query_stats, ".qstats",
                      "a table of query statistics, which is binary,"));
  BM_ASSIGN_OR_RETURN(const QueryStatsTable table, MeasureQueryStats(flags));
  BM_RETURN_IF_ERROR(WriteOutputFiles(
      {{"--query-stats", flags.query_stats, EncodeQueryStats(table)}}));
  return QueryStatsText(table);
}

}  // namespace blockmgr
