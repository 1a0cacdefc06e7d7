#include "bench/evict/query_stats_profile.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include <absl/status/status.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>

#include "bench/evict/output_name.h"
#include "bench/evict/prefixed.h"
#include "bench/evict/status_line.h"
#include "bench/evict/tensors.h"
#include "bench/evict/tiny_oracle.h"
#include "blockmgr/base/npy.h"
#include "blockmgr/base/status_macros.h"
#include "blockmgr/eviction/policy.h"
#include "engine/reference/tiny_model.h"
#include "kernels/cpu/query_stats.h"

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
  return absl::InvalidArgumentError(absl::StrCat(
      "--raw-queries ", path, ": expected ", expected, ", got ", got));
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

TextQueries TinyText(const ProfileFlags& flags, int32_t context) {
  const ModelShape shape;
  // Questions are not looked at.
  const TinyOracle oracle =
      MeasureTinyOracle(shape, {.seed = flags.seed,
                                .context = context,
                                .context_tokens = flags.context,
                                .num_queries = 1,
                                .query_tokens = 2});
  TextQueries text{.shape = {shape.num_layers, shape.num_q_heads, flags.context,
                             shape.head_dim},
                   .values = {}};
  for (const LayerTensors& layer : oracle.tensors.layers) {
    text.values.insert(text.values.end(), layer.raw_queries.begin(),
                       layer.raw_queries.end());
  }
  return text;
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

}  // namespace

absl::StatusOr<QueryStatsTable> MeasureQueryStats(const ProfileFlags& flags) {
  if (flags.tiny == !flags.raw_queries.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--query-stats: expected queries of --raw-queries or --tiny, got ",
        flags.tiny ? "both" : "neither"));
  }
  const int32_t sinks = flags.sinks >= 0 ? flags.sinks : ScorerSpec().n_sink;
  const int32_t num_texts =
      flags.tiny ? flags.num_contexts
                 : static_cast<int32_t>(flags.raw_queries.size());
  std::optional<QueryStatsBuilder> builder;
  std::array<int64_t, 4> first = {};
  StatusLine status_line("profile", num_texts);
  for (int32_t i = 0; i < num_texts; ++i) {
    TextQueries text;
    std::string path = "--tiny";
    if (flags.tiny) {
      text = TinyText(flags, i);
    } else {
      path = flags.raw_queries[static_cast<size_t>(i)];
      BM_ASSIGN_OR_RETURN(text, ReadText(path));
    }
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
    status_line.Step();
  }
  return builder->Finish(flags.model);
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
  std::ofstream file(flags.query_stats, std::ios::binary);
  file << EncodeQueryStats(table);
  file.close();
  if (!file) {
    return absl::UnavailableError(absl::StrCat(
        "--query-stats: expected a file that can be written, got '",
        flags.query_stats, "'"));
  }
  return QueryStatsText(table);
}

}  // namespace blockmgr
