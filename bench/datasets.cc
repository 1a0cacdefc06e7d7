#include "bench/datasets.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <fstream>
#include <random>
#include <utility>
#include <vector>

#include <absl/status/status.h>
#include <absl/strings/ascii.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_split.h>
#include <absl/strings/string_view.h>
#include <absl/time/time.h>
#include <nlohmann/json.hpp>

#include "bench/arrivals.h"
#include "blockmgr/base/bits.h"
#include "blockmgr/base/invalid.h"
#include "blockmgr/base/status_macros.h"

namespace blockmgr {
namespace {

using TraceJson = nlohmann::json;

constexpr absl::string_view kAzureHeader =
    "TIMESTAMP,ContextTokens,GeneratedTokens";

// Reads lines, counts them and makes errors that name them.
class LineReader {
 public:
  LineReader(std::istream& input, const std::string& file)
      : input_(input), file_(file) {}

  // The next line that is not blank, without its line end.
  bool Next() {
    while (std::getline(input_, line_)) {
      ++number_;
      if (!line_.empty() && line_.back() == '\r') line_.pop_back();
      if (!absl::StripAsciiWhitespace(line_).empty()) return true;
    }
    return false;
  }

  const std::string& line() const { return line_; }

  absl::Status Error(absl::string_view field, absl::string_view reason) const {
    return Invalid(file_, ":", number_, ": ", field, ": ", reason);
  }

  // The end of the file was reached, or an error of the disk.
  absl::Status Finish(const Workload& workload) const {
    if (input_.bad()) {
      return absl::DataLossError(
          absl::StrCat(file_, ":", number_, ": cannot be read further"));
    }
    if (workload.requests.empty()) {
      return Invalid(file_, ": expected at least one request, found none");
    }
    return absl::OkStatus();
  }

 private:
  std::istream& input_;
  const std::string& file_;
  std::string line_;
  int64_t number_ = 0;
};

bool Enough(const Workload& workload, std::optional<int64_t> limit) {
  return limit.has_value() &&
         static_cast<int64_t>(workload.requests.size()) >= *limit;
}

std::string Shown(const TraceJson& value) {
  std::string text =
      value.dump(-1, ' ', false, TraceJson::error_handler_t::replace);
  if (text.size() > 40) text = absl::StrCat(text.substr(0, 40), "...");
  return text;
}

absl::StatusOr<const TraceJson*> Field(const LineReader& reader,
                                       const TraceJson& object,
                                       const char* name) {
  const auto found = object.find(name);
  if (found == object.end()) return reader.Error(name, "missing");
  return &*found;
}

absl::StatusOr<int32_t> TokenCount(const LineReader& reader,
                                   const TraceJson& object, const char* name) {
  BM_ASSIGN_OR_RETURN(const TraceJson* value, Field(reader, object, name));
  if (!value->is_number_integer() || *value < 1 || *value > kMaxRequestTokens) {
    return reader.Error(
        name, absl::StrCat("expected an integer of 1 to ", kMaxRequestTokens,
                           ", got ", Shown(*value)));
  }
  return value->get<int32_t>();
}

// Milliseconds, as seconds.
absl::StatusOr<double> Timestamp(const LineReader& reader,
                                 const TraceJson& object) {
  BM_ASSIGN_OR_RETURN(const TraceJson* value,
                      Field(reader, object, "timestamp"));
  if (!value->is_number() || *value < 0) {
    return reader.Error(
        "timestamp", absl::StrCat("expected milliseconds of at least 0, got ",
                                  Shown(*value)));
  }
  return value->get<double>() / 1000.0;
}

absl::StatusOr<std::vector<PromptSegment>> HashedPrompt(
    const LineReader& reader, const TraceJson& object, int32_t input_length,
    uint64_t seed) {
  BM_ASSIGN_OR_RETURN(const TraceJson* ids, Field(reader, object, "hash_ids"));
  const int32_t blocks = CeilDiv(input_length, kMooncakeBlockTokens);
  if (!ids->is_array() || ids->size() != static_cast<size_t>(blocks)) {
    return reader.Error(
        "hash_ids",
        absl::StrCat(
            "expected an array of ", blocks, " ids (one per ",
            kMooncakeBlockTokens, " of ", input_length, " tokens), got ",
            ids->is_array() ? absl::StrCat(ids->size()) : Shown(*ids)));
  }
  std::vector<PromptSegment> prompt;
  prompt.reserve(ids->size());
  int32_t left = input_length;
  for (const TraceJson& id : *ids) {
    if (!id.is_number_unsigned()) {
      return reader.Error(
          "hash_ids",
          absl::StrCat("expected integers of at least 0, got ", Shown(id)));
    }
    prompt.push_back({StreamOf(StreamKind::kHashId, id.get<uint64_t>(), seed),
                      std::min(left, kMooncakeBlockTokens)});
    left -= kMooncakeBlockTokens;
  }
  return prompt;
}

absl::StatusOr<int32_t> CsvTokenCount(const LineReader& reader,
                                      absl::string_view name,
                                      absl::string_view text) {
  int32_t value = 0;
  if (!absl::SimpleAtoi(text, &value) || value < 1 ||
      value > kMaxRequestTokens) {
    return reader.Error(
        name, absl::StrCat("expected an integer of 1 to ", kMaxRequestTokens,
                           ", got '", text, "'"));
  }
  return value;
}

// The start of the trace is time 0; rows are in order of time.
absl::Status AppendInOrder(const LineReader& reader, absl::string_view field,
                           WorkloadRequest request, double* first_s,
                           Workload* workload) {
  if (workload->requests.empty()) *first_s = request.arrival_s;
  request.arrival_s -= *first_s;
  if (!workload->requests.empty() &&
      request.arrival_s < workload->requests.back().arrival_s) {
    return reader.Error(field, "earlier than the row before");
  }
  if (!(request.arrival_s <= kMaxArrivalSeconds)) {
    return reader.Error(
        field, absl::StrCat("expected at most a year after the first row, got ",
                            request.arrival_s / 86400,
                            " days: is the trace's unit another one?"));
  }
  workload->requests.push_back(std::move(request));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Workload> ParseMooncake(std::istream& input,
                                       const std::string& file, uint64_t seed,
                                       std::optional<int64_t> limit) {
  Workload workload;
  double first_s = 0;
  LineReader reader(input, file);
  while (!Enough(workload, limit) && reader.Next()) {
    const TraceJson object = TraceJson::parse(reader.line(), nullptr, false);
    if (!object.is_object()) {
      return reader.Error("line", "expected a JSON object");
    }
    WorkloadRequest request;
    BM_ASSIGN_OR_RETURN(request.arrival_s, Timestamp(reader, object));
    BM_ASSIGN_OR_RETURN(const int32_t input_length,
                        TokenCount(reader, object, "input_length"));
    BM_ASSIGN_OR_RETURN(request.output_tokens,
                        TokenCount(reader, object, "output_length"));
    BM_ASSIGN_OR_RETURN(request.prompt,
                        HashedPrompt(reader, object, input_length, seed));
    BM_RETURN_IF_ERROR(AppendInOrder(reader, "timestamp", std::move(request),
                                     &first_s, &workload));
  }
  BM_RETURN_IF_ERROR(reader.Finish(workload));
  return workload;
}

absl::StatusOr<Workload> ParseAzure(std::istream& input,
                                    const std::string& file, uint64_t seed,
                                    std::optional<int64_t> limit) {
  Workload workload;
  double first_s = 0;
  std::optional<absl::Time> start;
  LineReader reader(input, file);
  if (!reader.Next() || absl::string_view(reader.line()) != kAzureHeader) {
    return reader.Error("header", absl::StrCat("expected '", kAzureHeader,
                                               "', got '", reader.line(), "'"));
  }
  while (!Enough(workload, limit) && reader.Next()) {
    const std::vector<absl::string_view> fields =
        absl::StrSplit(reader.line(), ',');
    if (fields.size() != 3) {
      return reader.Error(
          "line", absl::StrCat("expected 3 fields, got ", fields.size()));
    }
    absl::Time time;
    std::string error;
    if (!absl::ParseTime("%Y-%m-%d %H:%M:%E*S", fields[0], &time, &error)) {
      return reader.Error(
          "TIMESTAMP",
          absl::StrCat("expected YYYY-MM-DD HH:MM:SS.fffffff, got '", fields[0],
                       "' (", error, ")"));
    }
    if (!start.has_value()) start = time;
    WorkloadRequest request;
    request.arrival_s = absl::ToDoubleSeconds(time - *start);
    BM_ASSIGN_OR_RETURN(const int32_t context,
                        CsvTokenCount(reader, "ContextTokens", fields[1]));
    BM_ASSIGN_OR_RETURN(request.output_tokens,
                        CsvTokenCount(reader, "GeneratedTokens", fields[2]));
    request.prompt.push_back(
        {StreamOf(StreamKind::kUnique, workload.requests.size(), seed),
         context});
    BM_RETURN_IF_ERROR(AppendInOrder(reader, "TIMESTAMP", std::move(request),
                                     &first_s, &workload));
  }
  BM_RETURN_IF_ERROR(reader.Finish(workload));
  return workload;
}

absl::StatusOr<Workload> MakeRandomDataset(const RandomDatasetOptions& options,
                                           int64_t num_prompts, uint64_t seed) {
  struct Bound {
    const char* name;
    int32_t value;
    int32_t least;
  };
  for (const Bound& bound :
       {Bound{"random-input-len", options.input_tokens, 1},
        Bound{"random-output-len", options.output_tokens, 1},
        Bound{"random-prefix-len", options.prefix_tokens, 0}}) {
    if (bound.value < bound.least || bound.value > kMaxRequestTokens) {
      return Invalid(bound.name, ": expected ", bound.least, " to ",
                     kMaxRequestTokens, ", got ", bound.value);
    }
  }
  if (num_prompts < 1 || num_prompts > kMaxPrompts) {
    return Invalid("num-prompts: expected 1 to ", kMaxPrompts,
                   " random requests, got ", num_prompts);
  }
  const double ratio = options.range_ratio;
  if (!(ratio >= 0 && ratio < 1)) {
    return Invalid("random-range-ratio: expected [0, 1), got ", ratio);
  }
  // The longest that the range allows, with the prefix before it.
  const auto most = [ratio](int32_t tokens, int32_t prefix) {
    return std::ceil(tokens * (1 + ratio)) + prefix;
  };
  if (const double tokens = most(options.input_tokens, options.prefix_tokens);
      tokens > kMaxRequestTokens) {
    return Invalid(
        "random-input-len: expected prompts of at most ", kMaxRequestTokens,
        " tokens, with --random-range-ratio and --random-prefix-len, got up "
        "to ",
        static_cast<int64_t>(tokens));
  }
  if (const double tokens = most(options.output_tokens, 0);
      tokens > kMaxRequestTokens) {
    return Invalid("random-output-len: expected outputs of at most ",
                   kMaxRequestTokens,
                   " tokens, with --random-range-ratio, got up to ",
                   static_cast<int64_t>(tokens));
  }
  const auto range = [ratio](int32_t tokens) {
    const auto low = static_cast<int32_t>(std::floor(tokens * (1 - ratio)));
    const auto high = static_cast<int32_t>(std::ceil(tokens * (1 + ratio)));
    return std::uniform_int_distribution<int32_t>(std::max(low, 1), high);
  };
  auto input_tokens = range(options.input_tokens);
  auto output_tokens = range(options.output_tokens);
  std::mt19937_64 random(SplitMix64(seed));
  Workload workload;
  workload.requests.reserve(static_cast<size_t>(num_prompts));
  for (int64_t i = 0; i < num_prompts; ++i) {
    WorkloadRequest request;
    if (options.prefix_tokens > 0) {
      request.prompt.push_back({StreamOf(StreamKind::kSharedPrefix, 0, seed),
                                options.prefix_tokens});
    }
    request.prompt.push_back(
        {StreamOf(StreamKind::kUnique, static_cast<uint64_t>(i), seed),
         input_tokens(random)});
    request.output_tokens = output_tokens(random);
    workload.requests.push_back(std::move(request));
  }
  return workload;
}

namespace {

absl::StatusOr<Workload> LoadTrace(const DatasetOptions& options) {
  if (options.path.empty()) {
    return Invalid("dataset-path: the ", options.name,
                   " data set needs a file");
  }
  std::ifstream input(options.path, std::ios::binary);
  if (!input) {
    return absl::NotFoundError(
        absl::StrCat("dataset-path: cannot open '", options.path, "'"));
  }
  const auto parse = options.name == "azure" ? ParseAzure : ParseMooncake;
  BM_ASSIGN_OR_RETURN(
      Workload workload,
      parse(input, options.path, options.seed, options.num_prompts));
  const auto found = static_cast<int64_t>(workload.requests.size());
  if (found < options.num_prompts.value_or(0)) {
    return Invalid("num-prompts: expected at most ", found,
                   ", the requests of ", options.path, "; got ",
                   *options.num_prompts);
  }
  return workload;
}

absl::Status CheckOutputTokens(const DatasetOptions& options,
                               const Workload& workload) {
  int64_t total = 0;
  for (const WorkloadRequest& request : workload.requests) {
    total += request.output_tokens;
  }
  if (total <= kMaxOutputTokens) return absl::OkStatus();
  return Invalid(options.name == "random" ? "num-prompts, random-output-len"
                                          : "num-prompts",
                 ": expected at most ", kMaxOutputTokens,
                 " output tokens of all requests together, got ", total, " of ",
                 workload.requests.size());
}

}  // namespace

absl::StatusOr<Workload> LoadDataset(const DatasetOptions& options) {
  if (options.num_prompts.has_value() && *options.num_prompts < 1) {
    return Invalid("num-prompts: expected at least 1, got ",
                   *options.num_prompts);
  }
  Workload workload;
  if (options.name == "random") {
    if (!options.path.empty()) {
      return absl::InvalidArgumentError(
          "dataset-path: the random data set reads no file");
    }
    BM_ASSIGN_OR_RETURN(
        workload,
        MakeRandomDataset(options.random, options.num_prompts.value_or(1000),
                          options.seed));
  } else if (options.name == "mooncake" || options.name == "azure") {
    BM_ASSIGN_OR_RETURN(workload, LoadTrace(options));
  } else {
    return Invalid("dataset-name: expected random, mooncake or azure, got '",
                   options.name, "'");
  }
  BM_RETURN_IF_ERROR(CheckOutputTokens(options, workload));
  return workload;
}

}  // namespace blockmgr
