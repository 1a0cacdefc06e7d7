// The table of query statistics that expected_attention(stats=NAME) reads: mean
// and covariance of the queries of a model, measured offline.
#ifndef BLOCKMGR_EVICTION_QUERY_STATS_TABLE_H_
#define BLOCKMGR_EVICTION_QUERY_STATS_TABLE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <absl/strings/string_view.h>

namespace blockmgr {

// Queries are those before rotation. A layer is a layer of the model, whatever
// layer group it is in. A plain value; thread-compatible.
struct QueryStatsTable {
  int32_t num_layers = 0;
  int32_t num_q_heads = 0;
  int32_t head_dim = 0;
  int64_t num_queries = 0;   // queries of a head that were measured
  std::string model;         // free text
  std::vector<float> means;  // [num_layers, num_q_heads, head_dim]
  // [num_layers, num_q_heads, covariance_size()]. A covariance is symmetric.
  // Its upper triangle is stored, row by row:
  //
  //   (0,0) (0,1) .. (0,d-1)  (1,1) .. (1,d-1)  ..  (d-1,d-1)
  std::vector<float> covariances;

  int64_t covariance_size() const {
    return int64_t{head_dim} * (head_dim + 1) / 2;
  }

  // Checks that the arrays have the right sizes and that head_dim is even. No
  // mean may exceed 10^6 and no covariance 10^12 in absolute value: scores are
  // finite then. No variance may be negative. Errors name the field, what was
  // expected and what came. Cost: O(covariances).
  absl::Status Validate() const;
  // Checks that the table is for a model of this shape.
  absl::Status CheckShape(int32_t layers, int32_t q_heads, int32_t dim) const;
  friend bool operator==(const QueryStatsTable&,
                         const QueryStatsTable&) = default;
};

// The file is little-endian. It begins with the magic "QSTATS01", then has the
// fields (query_stats_table.cc has the layout), and ends with an FNV-1a 64 of
// all bytes before. EncodeQueryStats REQUIRES a valid table. DecodeQueryStats
// returns a valid table and allocates no more than the size of the file.
// IsQueryStats looks at the magic alone.
bool IsQueryStats(absl::string_view bytes);
std::string EncodeQueryStats(const QueryStatsTable& table);
absl::StatusOr<QueryStatsTable> DecodeQueryStats(absl::string_view bytes);

// Returns a text that identifies the content of the table: 128 bits (XXH3).
// Its model's name and its number of queries do not matter. Cost: O(table).
std::string QueryStatsFingerprint(const QueryStatsTable& table);

// The tables of an engine, by the name that policies give.
using QueryStatsTables =
    std::map<std::string, std::shared_ptr<const QueryStatsTable>>;

// Reads "NAME=FILE" arguments. Errors are those of ReadTableFiles.
absl::StatusOr<QueryStatsTables> LoadQueryStats(
    absl::string_view field, const std::vector<std::string>& arguments);

}  // namespace blockmgr

#endif  // BLOCKMGR_EVICTION_QUERY_STATS_TABLE_H_
