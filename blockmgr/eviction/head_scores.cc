#include "blockmgr/eviction/head_scores.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <optional>
#include <set>
#include <span>
#include <string>

#include <absl/strings/escaping.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <nlohmann/json.hpp>

#include "blockmgr/base/invalid.h"
#include "blockmgr/base/npy.h"
#include "blockmgr/base/status_macros.h"

namespace blockmgr {
namespace {

using Json = nlohmann::json;

// The number of characters of a file's text that an error message shows.
constexpr size_t kMaxShown = 120;

std::string Shown(absl::string_view text) {
  return absl::CHexEscape(text.substr(0, kMaxShown));
}

absl::Status BadScores(absl::string_view field, absl::string_view expected,
                       absl::string_view got) {
  return Invalid("head scores: ", field, ": expected ", expected, ", got ",
                 got);
}

absl::Status BadCounts(absl::string_view field, absl::string_view expected,
                       absl::string_view got) {
  return Invalid("retention counts: ", field, ": expected ", expected, ", got ",
                 got);
}

// Reads a number >= 0. NaN is refused.
absl::StatusOr<double> ReadScore(absl::string_view field, const Json& value) {
  if (!value.is_number()) {
    return BadScores(field, "a number", value.type_name());
  }
  const auto score = value.get<double>();
  if (score >= 0.0) return score;
  return BadScores(field, "a number >= 0", absl::StrCat(score));
}

// Adds the row of one layer. The row has a score for each KV head, or for each
// query head. The score of a KV head is then the sum over its group.
absl::Status AddRow(const Json& row, HeadScores* table) {
  const int64_t layer = std::ssize(table->scores) / table->num_heads;
  const std::string field = absl::StrCat("scores[", layer, "]");
  if (!row.is_array()) return BadScores(field, "an array", row.type_name());
  const auto num_heads = static_cast<size_t>(table->num_heads);
  if (row.empty() || row.size() % num_heads != 0) {
    return BadScores(field,
                     absl::StrCat("a multiple of ", num_heads, " numbers"),
                     absl::StrCat(row.size()));
  }
  const size_t group_size = row.size() / num_heads;
  for (size_t head = 0; head < num_heads; ++head) {
    double sum = 0.0;
    for (size_t q = head * group_size; q < (head + 1) * group_size; ++q) {
      BM_ASSIGN_OR_RETURN(const double score,
                          ReadScore(absl::StrCat(field, "[", q, "]"), row[q]));
      sum += score;
    }
    table->scores.push_back(static_cast<float>(sum));
  }
  return absl::OkStatus();
}

absl::Status ReadCount(const Json& object, const char* field, int32_t* count) {
  const auto found = object.find(field);
  if (found == object.end()) {
    return BadScores(field, "a whole number", "nothing");
  }
  if (!found->is_number_integer()) {
    return BadScores(field, "a whole number", found->type_name());
  }
  const auto value = found->get<int64_t>();
  if (value < 1 || value >= kMaxTableHeads) {
    return BadScores(field, absl::StrCat("1 to ", kMaxTableHeads - 1),
                     absl::StrCat(value));
  }
  *count = static_cast<int32_t>(value);
  return absl::OkStatus();
}

absl::StatusOr<HeadScores> FromRows(const Json& object) {
  HeadScores table;
  BM_RETURN_IF_ERROR(ReadCount(object, "num_layers", &table.num_layers));
  BM_RETURN_IF_ERROR(ReadCount(object, "num_heads", &table.num_heads));
  const auto rows = object.find("scores");
  if (rows == object.end()) return BadScores("scores", "an array", "nothing");
  if (!rows->is_array()) {
    return BadScores("scores", "an array", rows->type_name());
  }
  if (rows->size() != static_cast<size_t>(table.num_layers)) {
    return BadScores("scores", absl::StrCat(table.num_layers, " rows"),
                     absl::StrCat(rows->size()));
  }
  for (const Json& row : *rows) BM_RETURN_IF_ERROR(AddRow(row, &table));
  return table;
}

struct HeadName {
  int32_t layer = 0;
  int32_t q_head = 0;
  std::string ToKey() const { return absl::StrCat(layer, "-", q_head); }
};

// Accepts exactly the texts that ToKey writes.
std::optional<HeadName> ParseHeadName(absl::string_view key) {
  const size_t dash = key.find('-');
  HeadName name;
  if (dash == absl::string_view::npos ||
      !absl::SimpleAtoi(key.substr(0, dash), &name.layer) ||
      !absl::SimpleAtoi(key.substr(dash + 1), &name.q_head) || name.layer < 0 ||
      name.q_head < 0 || name.ToKey() != key) {
    return std::nullopt;
  }
  return name;
}

bool IsByHeadName(const Json& object) {
  for (const auto& [key, value] : object.items()) {
    if (ParseHeadName(key).has_value()) return true;
  }
  return false;
}

absl::StatusOr<float> MeanOfProbes(const std::string& key, const Json& list) {
  if (!list.is_array() || list.empty()) {
    return BadScores(key, "a list of scores",
                     list.is_array() ? "an empty one" : list.type_name());
  }
  double sum = 0.0;
  for (size_t i = 0; i < list.size(); ++i) {
    BM_ASSIGN_OR_RETURN(const double score,
                        ReadScore(absl::StrCat(key, "[", i, "]"), list[i]));
    sum += score;
  }
  const auto mean = static_cast<float>(sum / static_cast<double>(list.size()));
  if (std::isfinite(mean)) return mean;
  return BadScores(key, "scores whose mean is a float32", "larger ones");
}

absl::StatusOr<HeadScores> FromHeadNames(const Json& object) {
  int64_t num_layers = 0;
  int64_t num_heads = 0;
  for (const auto& [key, value] : object.items()) {
    const std::optional<HeadName> name = ParseHeadName(key);
    if (!name.has_value()) {
      return BadScores("keys", "LAYER-QUERYHEAD such as 3-17 only",
                       absl::StrCat("'", Shown(key), "'"));
    }
    num_layers = std::max(num_layers, int64_t{name->layer} + 1);
    num_heads = std::max(num_heads, int64_t{name->q_head} + 1);
  }
  const std::string sizes =
      absl::StrCat(num_layers, " layers of ", num_heads, " query heads");
  // A product of doubles cannot overflow.
  if (static_cast<double>(num_layers) * static_cast<double>(num_heads) >=
      kMaxTableHeads) {
    return BadScores(
        "keys", absl::StrCat("fewer than ", kMaxTableHeads, " heads"), sizes);
  }
  HeadScores table;
  table.num_layers = static_cast<int32_t>(num_layers);
  table.num_heads = static_cast<int32_t>(num_heads);
  table.of_query_heads = true;
  for (HeadName name; name.layer < table.num_layers; ++name.layer) {
    for (name.q_head = 0; name.q_head < table.num_heads; ++name.q_head) {
      const std::string key = name.ToKey();
      const auto found = object.find(key);
      if (found == object.end()) {
        return BadScores(
            key, absl::StrCat("a list of scores, for there are ", sizes),
            "nothing");
      }
      BM_ASSIGN_OR_RETURN(table.scores.emplace_back(),
                          MeanOfProbes(key, *found));
    }
  }
  return table;
}

// Thrown when the parser meets an object inside another value.
struct NestedObject {};

// Parses the document, which must be one object. An object inside it and a key
// that occurs twice are errors. (At the end of an inner object the parser would
// look at all elements of the value around it, which takes quadratic time.)
absl::StatusOr<Json> ParseObject(absl::string_view json) {
  std::set<std::string> keys;
  std::optional<std::string> twice;
  const auto note_key = [&](int depth, Json::parse_event_t event,
                            Json& parsed) {
    if (depth > 0 && event == Json::parse_event_t::object_start) {
      throw NestedObject();
    }
    if (depth == 1 && event == Json::parse_event_t::key && !twice) {
      const auto [key, is_new] = keys.insert(parsed.get<std::string>());
      if (!is_new) twice = *key;
    }
    return true;
  };
  Json object;
  try {
    object = Json::parse(json.begin(), json.end(), note_key);
  } catch (const NestedObject&) {
    return BadScores("file", "numbers and lists of numbers",
                     "an object inside");
  } catch (const Json::exception& error) {
    // An example is "[json.exception.parse_error.101] parse error at line 1,
    // column 2: syntax error while parsing value - invalid literal; last read:
    // 'N'". The file decides how long the part after "last read" is, so that
    // part is left out.
    absl::string_view what = error.what();
    what = what.substr(0, what.find("; last read"));
    what.remove_prefix(std::min(what.size(), what.find(' ') + 1));
    return BadScores("file", "JSON", what.substr(0, kMaxShown));
  }
  if (!object.is_object()) {
    return BadScores("file", "a JSON object", object.type_name());
  }
  if (!twice.has_value()) return object;
  return BadScores("keys", "each once",
                   absl::StrCat("'", Shown(*twice), "' twice"));
}

// Adds the shares of one prompt to `sums`. The share of a head is the number of
// entries it kept, divided by the mean over all heads.
absl::Status AddPrompt(int64_t prompt, std::span<const float> counts,
                       int64_t heads_per_layer, std::span<double> sums) {
  double kept = 0.0;
  for (size_t i = 0; i < counts.size(); ++i) {
    if (counts[i] < 0.0f) {
      const auto head = static_cast<int64_t>(i);
      return BadCounts(absl::StrCat("[", prompt, ", ", head / heads_per_layer,
                                    ", ", head % heads_per_layer, "]"),
                       "at least 0", absl::StrCat(counts[i]));
    }
    kept += counts[i];
  }
  if (kept == 0.0) {
    return BadCounts(absl::StrCat("[", prompt, "]"),
                     "a prompt of which some head kept something", "none");
  }
  const double mean = kept / static_cast<double>(counts.size());
  for (size_t i = 0; i < counts.size(); ++i) sums[i] += counts[i] / mean;
  return absl::OkStatus();
}

absl::Status CheckCounts(const NpyArray& counts) {
  constexpr std::array<const char*, 3> kDims = {"prompts", "layers",
                                                "KV heads"};
  if (!counts.has_integers) {
    return BadCounts("descr",
                     "int32 or int64, entries kept (what kvpress has of LU-KV "
                     "is for blockmgr-evict profile --import-kvpress)",
                     "floats");
  }
  if (counts.shape.size() != kDims.size()) {
    return BadCounts("shape",
                     absl::StrCat("[", absl::StrJoin(kDims, ", "), "]"),
                     ShapeText(counts.shape));
  }
  for (size_t dim = 0; dim < kDims.size(); ++dim) {
    if (counts.shape[dim] >= 1) continue;
    return BadCounts(kDims[dim], "at least 1", absl::StrCat(counts.shape[dim]));
  }
  if (counts.shape[1] * counts.shape[2] < kMaxTableHeads) {
    return absl::OkStatus();
  }
  return BadCounts("layers * KV heads",
                   absl::StrCat("fewer than ", kMaxTableHeads),
                   absl::StrCat(counts.shape[1], " * ", counts.shape[2]));
}

}  // namespace

absl::Status HeadScores::Validate() const {
  const int64_t heads = int64_t{num_layers} * num_heads;
  if (num_layers < 1 || num_heads < 1 || heads >= kMaxTableHeads) {
    return BadScores("num_layers * num_heads",
                     absl::StrCat("1 to ", kMaxTableHeads - 1, " heads"),
                     absl::StrCat(num_layers, " * ", num_heads));
  }
  if (std::ssize(scores) != heads) {
    return BadScores("scores", absl::StrCat(heads, " values"),
                     absl::StrCat(scores.size()));
  }
  float largest = 0.0f;
  for (size_t i = 0; i < scores.size(); ++i) {
    // The condition is also true for NaN.
    if (!(scores[i] >= 0.0f) || !std::isfinite(scores[i])) {
      return BadScores(absl::StrCat("scores[", i, "]"), "a finite number >= 0",
                       absl::StrCat(scores[i]));
    }
    largest = std::max(largest, scores[i]);
  }
  if (largest > 0.0f) return absl::OkStatus();
  return BadScores("scores", "one that is not 0", "none");
}

absl::Status HeadScores::CheckShape(const HeadShape& shape) const {
  const bool heads_fit = of_query_heads ? num_heads % shape.num_heads == 0
                                        : num_heads == shape.num_heads;
  if (num_layers == shape.num_layers && heads_fit) return absl::OkStatus();
  return Invalid("head scores: expected ", shape.num_layers, " layers of ",
                 of_query_heads ? "query heads in a multiple of the " : "",
                 shape.num_heads, " KV heads, got ", num_layers, " of ",
                 num_heads);
}

std::vector<float> HeadScores::OfKvHeads(int32_t kv_heads, double temp) const {
  // To the power of 0 all scores are 1.
  if (!of_query_heads || temp == 0.0) {
    const size_t size = size_t{1} * num_layers * kv_heads;
    return of_query_heads ? std::vector<float>(size, 1.0f) : scores;
  }
  // Scores are divided by the largest one, so that no mean is too small or too
  // large for a float.
  const double largest = *std::max_element(scores.begin(), scores.end());
  const auto group_size = static_cast<size_t>(num_heads / kv_heads);
  std::vector<float> means;
  means.reserve(scores.size() / group_size);
  for (size_t begin = 0; begin < scores.size(); begin += group_size) {
    double sum = 0.0;
    for (size_t i = begin; i < begin + group_size; ++i) {
      sum += std::pow(scores[i] / largest, temp);
    }
    means.push_back(static_cast<float>(
        std::pow(sum / static_cast<double>(group_size), 1.0 / temp)));
  }
  return means;
}

absl::StatusOr<HeadScores> HeadScores::FromJson(absl::string_view json) {
  BM_ASSIGN_OR_RETURN(const Json object, ParseObject(json));
  const bool has_rows = object.contains("num_layers") ||
                        object.contains("num_heads") ||
                        object.contains("scores");
  const bool has_names = IsByHeadName(object);
  if (!has_rows && !has_names) {
    return BadScores("file",
                     "num_layers, num_heads and scores, or a list of scores "
                     "for every LAYER-QUERYHEAD such as 3-17",
                     "neither");
  }
  BM_ASSIGN_OR_RETURN(HeadScores table,
                      has_names ? FromHeadNames(object) : FromRows(object));
  BM_RETURN_IF_ERROR(table.Validate());
  return table;
}

absl::StatusOr<HeadScores> HeadScores::FromRetentionCounts(
    absl::string_view npy) {
  const absl::StatusOr<NpyArray> counts = DecodeNpy(npy);
  if (!counts.ok()) {
    return Invalid("retention counts: ", counts.status().message());
  }
  BM_RETURN_IF_ERROR(CheckCounts(*counts));
  HeadScores table;
  table.num_layers = static_cast<int32_t>(counts->shape[1]);
  table.num_heads = static_cast<int32_t>(counts->shape[2]);
  const auto num_heads =
      static_cast<size_t>(counts->shape[1] * counts->shape[2]);
  std::vector<double> sums(num_heads);
  for (int64_t prompt = 0; prompt < counts->shape[0]; ++prompt) {
    const auto of_prompt =
        std::span(counts->values)
            .subspan(static_cast<size_t>(prompt) * num_heads, num_heads);
    BM_RETURN_IF_ERROR(AddPrompt(prompt, of_prompt, counts->shape[2], sums));
  }
  for (const double sum : sums) {
    table.scores.push_back(
        static_cast<float>(sum / static_cast<double>(counts->shape[0])));
  }
  BM_RETURN_IF_ERROR(table.Validate());
  return table;
}

}  // namespace blockmgr
