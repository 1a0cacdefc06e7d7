// The file, little-endian, without padding:
//
//   8 bytes  "QSTATS01"
//   u32      num_layers, num_q_heads, head_dim
//   u64      num_queries
//   text     model
//   f32      means[num_layers][num_q_heads][head_dim]
//   f32      covariances[num_layers][num_q_heads][head_dim (head_dim + 1) / 2]
//   u64      FNV-1a 64 of all bytes before
//
// where a text is a u32 count of bytes and the bytes.
#include "blockmgr/eviction/query_stats_table.h"

#include <array>
#include <cmath>
#include <cstddef>
#include <limits>
#include <span>
#include <utility>

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>

#include "blockmgr/base/check.h"
#include "blockmgr/base/invalid.h"
#include "blockmgr/base/status_macros.h"
#include "blockmgr/eviction/table_bytes.h"
#include "blockmgr/eviction/table_files.h"

namespace blockmgr {
namespace {

constexpr absl::string_view kStats = "query statistics";
constexpr absl::string_view kStatsMagic = "QSTATS01";
// The bounds are a hundred times what models have. Within them a key of 10^4
// has a finite score, whatever the number of elements.
constexpr float kMaxMean = 1e6f;
constexpr float kMaxCovariance = 1e12f;
constexpr int32_t kMaxDim = 1 << 14;

absl::Status BadTable(absl::string_view field, absl::string_view expected,
                      absl::string_view got) {
  return Invalid(kStats, ": ", field, ": expected ", expected, ", got ", got);
}

// Returns num_layers * num_q_heads, or -1 if no file could hold the arrays of
// so many heads.
int64_t CountHeads(const QueryStatsTable& table) {
  constexpr int64_t kMax = std::numeric_limits<int32_t>::max();
  const int64_t heads = int64_t{table.num_layers} * table.num_q_heads;
  return heads > kMax / table.covariance_size() ? -1 : heads;
}

absl::Status CheckNumber(absl::string_view field, int64_t value) {
  if (value >= 1) return absl::OkStatus();
  return BadTable(field, "at least 1", absl::StrCat(value));
}

// Checks everything but the arrays.
absl::Status CheckHeader(const QueryStatsTable& table) {
  BM_RETURN_IF_ERROR(CheckNumber("num_layers", table.num_layers));
  BM_RETURN_IF_ERROR(CheckNumber("num_q_heads", table.num_q_heads));
  // Rotary embedding turns pairs of elements.
  if (table.head_dim < 2 || table.head_dim > kMaxDim ||
      table.head_dim % 2 != 0) {
    return BadTable("head_dim",
                    absl::StrCat("an even number from 2 to ", kMaxDim),
                    absl::StrCat(table.head_dim));
  }
  BM_RETURN_IF_ERROR(CheckNumber("num_queries", table.num_queries));
  if (table.model.size() > kMaxTableText) {
    return BadTable("model", absl::StrCat("at most ", kMaxTableText, " bytes"),
                    absl::StrCat(table.model.size()));
  }
  if (CountHeads(table) >= 0) return absl::OkStatus();
  return BadTable(
      "covariances", "less than 2^31 values",
      absl::StrCat(table.num_layers, " layers of ", table.num_q_heads,
                   " query heads of ", table.covariance_size()));
}

absl::Status CheckSize(absl::string_view field, size_t size, int64_t expected) {
  if (size == static_cast<size_t>(expected)) return absl::OkStatus();
  return BadTable(field, absl::StrCat(expected, " values"), absl::StrCat(size));
}

// Returns "means[layer][head]" of the head with this index.
std::string FieldOf(absl::string_view array, int64_t head,
                    const QueryStatsTable& table) {
  return absl::StrCat(array, "[", head / table.num_q_heads, "][",
                      head % table.num_q_heads, "]");
}

absl::Status CheckMean(const QueryStatsTable& table, int64_t head,
                       std::span<const float> mean) {
  for (size_t i = 0; i < mean.size(); ++i) {
    // The condition is also false for NaN.
    if (std::abs(mean[i]) <= kMaxMean) continue;
    return BadTable(
        absl::StrCat(FieldOf("means", head, table), "[", i, "]"),
        absl::StrCat("a number in [", -kMaxMean, ", ", kMaxMean, "]"),
        absl::StrCat(mean[i]));
  }
  return absl::OkStatus();
}

absl::Status CheckCovariance(const QueryStatsTable& table, int64_t head,
                             std::span<const float> triangle) {
  size_t at = 0;
  for (int32_t row = 0; row < table.head_dim; ++row) {
    for (int32_t column = row; column < table.head_dim; ++column, ++at) {
      const float value = triangle[at];
      const float least = row == column ? 0.0f : -kMaxCovariance;
      // The condition is also false for NaN.
      if (value >= least && value <= kMaxCovariance) continue;
      return BadTable(
          absl::StrCat(FieldOf("covariances", head, table), "(", row, ", ",
                       column, ")"),
          absl::StrCat("a number in [", least, ", ", kMaxCovariance, "]"),
          absl::StrCat(value));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status QueryStatsTable::Validate() const {
  BM_RETURN_IF_ERROR(CheckHeader(*this));
  const int64_t num_heads = CountHeads(*this);
  const auto dim = static_cast<size_t>(head_dim);
  const auto size = static_cast<size_t>(covariance_size());
  BM_RETURN_IF_ERROR(CheckSize("means", means.size(), num_heads * head_dim));
  BM_RETURN_IF_ERROR(CheckSize("covariances", covariances.size(),
                               num_heads * covariance_size()));
  for (int64_t head = 0; head < num_heads; ++head) {
    const auto index = static_cast<size_t>(head);
    BM_RETURN_IF_ERROR(
        CheckMean(*this, head, std::span(means).subspan(index * dim, dim)));
    BM_RETURN_IF_ERROR(CheckCovariance(
        *this, head, std::span(covariances).subspan(index * size, size)));
  }
  return absl::OkStatus();
}

absl::Status QueryStatsTable::CheckShape(int32_t layers, int32_t q_heads,
                                         int32_t dim) const {
  if (num_layers == layers && num_q_heads == q_heads && head_dim == dim) {
    return absl::OkStatus();
  }
  const auto text = [](int32_t l, int32_t h, int32_t d) {
    return absl::StrCat(l, " layers of ", h, " query heads of ", d,
                        " elements");
  };
  return BadTable("shape", text(layers, q_heads, dim),
                  text(num_layers, num_q_heads, head_dim));
}

bool IsQueryStats(absl::string_view bytes) {
  return absl::StartsWith(bytes, kStatsMagic);
}

std::string EncodeQueryStats(const QueryStatsTable& table) {
  BM_CHECK(table.Validate().ok());
  std::string bytes(kStatsMagic);
  for (const int32_t count :
       {table.num_layers, table.num_q_heads, table.head_dim}) {
    AppendNumber(static_cast<uint32_t>(count), &bytes);
  }
  AppendNumber(static_cast<uint64_t>(table.num_queries), &bytes);
  AppendText(table.model, &bytes);
  for (const float value : table.means) AppendFloat(value, &bytes);
  for (const float value : table.covariances) AppendFloat(value, &bytes);
  AppendChecksum(&bytes);
  return bytes;
}

absl::StatusOr<QueryStatsTable> DecodeQueryStats(absl::string_view bytes) {
  BM_ASSIGN_OR_RETURN(TableReader reader,
                      OpenTable(kStats, kStatsMagic, bytes));
  QueryStatsTable table;
  table.num_layers = reader.Count();
  table.num_q_heads = reader.Count();
  table.head_dim = reader.Count();
  // A number that does not fit becomes negative, and CheckHeader refuses it.
  table.num_queries = static_cast<int64_t>(reader.Value<uint64_t>());
  table.model = reader.Text();
  BM_RETURN_IF_ERROR(CheckHeader(table));
  // Sizes are checked before anything is allocated.
  const int64_t num_means = CountHeads(table) * table.head_dim;
  const int64_t num_covariances = CountHeads(table) * table.covariance_size();
  const int64_t expected =
      (num_means + num_covariances) * static_cast<int64_t>(sizeof(float));
  if (!reader.ok() || static_cast<int64_t>(reader.remaining()) != expected) {
    return BadTable(
        "file",
        absl::StrCat(expected, " bytes of means and covariances after model"),
        reader.ok() ? absl::StrCat(reader.remaining()) : "too few");
  }
  table.means = reader.Floats(static_cast<size_t>(num_means));
  table.covariances = reader.Floats(static_cast<size_t>(num_covariances));
  BM_RETURN_IF_ERROR(table.Validate());
  return table;
}

std::string QueryStatsFingerprint(const QueryStatsTable& table) {
  const std::array shape = {table.num_layers, table.num_q_heads,
                            table.head_dim};
  return ContentHash({std::as_bytes(std::span(shape)),
                      std::as_bytes(std::span(table.means)),
                      std::as_bytes(std::span(table.covariances))});
}

absl::StatusOr<QueryStatsTables> LoadQueryStats(
    absl::string_view field, const std::vector<std::string>& arguments) {
  QueryStatsTables tables;
  BM_RETURN_IF_ERROR(ReadTableFiles(
      field, arguments,
      [&tables](const std::string& name, absl::string_view bytes) {
        absl::StatusOr<QueryStatsTable> table = DecodeQueryStats(bytes);
        if (!table.ok()) return table.status();
        tables[name] =
            std::make_shared<const QueryStatsTable>(*std::move(table));
        return absl::OkStatus();
      }));
  return tables;
}

}  // namespace blockmgr
