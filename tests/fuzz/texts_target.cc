// Files and flags: what users write by hand, and what other programs wrote.
#include <cstdint>
#include <sstream>
#include <string>
#include <variant>
#include <vector>

#include <absl/strings/str_cat.h>

#include "bench/datasets.h"
#include "blockmgr/base/npy.h"
#include "blockmgr/eviction/budget_table.h"
#include "blockmgr/eviction/keep_ratio.h"
#include "blockmgr/eviction/lukv_profile.h"
#include "blockmgr/eviction/policy.h"
#include "blockmgr/eviction/query_stats_table.h"
#include "scheduler/scheduler_options.h"
#include "scheduler/server/listen_address.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/testing/sealed_bytes.h"

namespace blockmgr::fuzz {
namespace {

constexpr int64_t kMaxRows = 20;  // of a trace

void CheckPolicy(absl::string_view text) {
  const auto policy = ParsePolicy(text);
  if (!policy.ok()) return;
  Require(policy->Validate().ok(), "a policy was parsed that is not valid");
  const std::string written = FormatPolicy(*policy);
  const auto again = ParsePolicy(written);
  Require(again.ok(), absl::StrCat("cannot read what was written: ", written));
  Require(FormatPolicy(*again) == written,
          absl::StrCat("written differently the second time: ", written));
}

void CheckRatio(absl::string_view text) {
  const auto ratio = KeepRatio::Parse(text);
  if (!ratio.ok()) return;
  const auto again = KeepRatio::Parse(ratio->ToString());
  Require(again.ok() && *again == *ratio, "a ratio that changes when written");
}

void CheckTenant(absl::string_view text) {
  SchedulerOptions options;
  const SchedulerOptions before = options;
  if (ParseTenant(std::string(text), &options).ok()) {
    Require(options.Validate().ok(), "limits were parsed that are not valid");
    return;
  }
  Require(options.tenants == before.tenants &&
              options.tenant_limits == before.tenant_limits,
          "a refused tenant left a trace");
}

// The format's own checksum is no obstacle.
void CheckProfile(absl::string_view bytes) {
  const auto profile = DecodeLuKvProfile(Sealed(std::string(bytes)));
  if (!profile.ok()) return;
  Require(profile->Validate().ok(), "a profile was read that is not valid");
  Require(EncodeLuKvProfile(*profile) == Sealed(std::string(bytes)),
          "a profile that changes when written");
}

void CheckQueryStats(absl::string_view bytes) {
  const auto table = DecodeQueryStats(Sealed(std::string(bytes)));
  if (!table.ok()) return;
  Require(table->Validate().ok(), "statistics were read that are not valid");
  Require(EncodeQueryStats(*table) == Sealed(std::string(bytes)),
          "statistics that change when written");
}

// What is read can be used.
void CheckBudgetTable(absl::string_view bytes) {
  const auto table = DecodeBudgetTable(bytes);
  if (!table.ok()) return;
  const auto* scores = std::get_if<HeadScores>(&*table);
  if (scores == nullptr) return;
  Require(scores->Validate().ok(), "head scores were read that are not valid");
  if (!scores->of_query_heads) return;
  const HeadScores of_kv_heads{scores->num_layers, 1,
                               scores->OfKvHeads(1, 1.0)};
  Require(of_kv_heads.Validate().ok(), "groups of heads that are not valid");
}

void CheckNpy(absl::string_view bytes) {
  const auto array = DecodeNpy(bytes);
  if (!array.ok()) return;
  size_t num_values = 1;
  for (const int64_t size : array->shape) {
    num_values *= static_cast<size_t>(size);
  }
  Require(array->values.size() == num_values, "not the values of the shape");
  // Two bytes and more in the file.
  Require(num_values <= bytes.size() / 2, "more values than there are bytes");
}

void CheckTrace(absl::string_view text, bool azure) {
  std::istringstream input{std::string(text)};
  (void)(azure ? ParseAzure(input, "trace", 1, kMaxRows)
               : ParseMooncake(input, "trace", 1, kMaxRows));
}

}  // namespace

void RunTexts(absl::string_view input) {
  if (input.empty()) return;
  const absl::string_view text = input.substr(1);
  switch (input.front()) {
    case 'p':
      return CheckPolicy(text);
    case 'r':
      return CheckRatio(text);
    case 't':
      return CheckTenant(text);
    case 'l':
      return CheckProfile(text);
    case 'q':
      return CheckQueryStats(text);
    case 'b':
      return CheckBudgetTable(text);
    case 'n':
      return CheckNpy(text);
    case 'a':
    case 'm':
      return CheckTrace(text, input.front() == 'a');
    case 'h':
      return (void)ParseListenAddress(std::string(text));
    default:
      return;
  }
}

namespace {

// A .npy file with so many bytes of data.
std::string Npy(absl::string_view type, absl::string_view fortran_order,
                absl::string_view shape, int num_bytes) {
  const std::string header =
      absl::StrCat("{'descr': '", type, "', 'fortran_order': ", fortran_order,
                   ", 'shape': ", shape, ", }\n");
  std::string bytes("\x93NUMPY\1\0", 8);
  bytes.push_back(static_cast<char>(header.size()));
  bytes.push_back('\0');
  bytes += header;
  for (int i = 0; i < num_bytes; ++i) {
    bytes.push_back(static_cast<char>(i % 4 == 0 ? 1 + i : 0));
  }
  return bytes;
}

}  // namespace

std::vector<std::string> MakeTexts() {
  LuKvProfile profile;
  profile.num_layers = 1;
  profile.num_heads = 2;
  profile.rho = {0, 0.5, 1};
  profile.r = {0, 0, 0.25, 0.75, 1, 1};
  std::string bytes = EncodeLuKvProfile(profile);
  bytes.resize(bytes.size() - 8);
  std::string stats = EncodeQueryStats({.num_layers = 1,
                                        .num_q_heads = 1,
                                        .head_dim = 2,
                                        .num_queries = 3,
                                        .model = "m",
                                        .means = {1, 2},
                                        .covariances = {4, -1, 9}});
  stats.resize(stats.size() - 8);
  return {
      absl::StrCat("psnapkv(window=16,pool=max,kernel=5)|adakv(alpha=0.3)|",
                   "critical(first=0.4)|protect(sinks=4,recent=8)|token"),
      "pexpected_attention(n_future=64,stats=a.b)|pyramid(beta=9)|topk",
      "pkeydiff(anchor=median,metric=euclidean)|lukv(profile=a)|topk",
      "r0.25",
      "r1",
      "tteam:weight=3,max-blocks=1000,max-requests=50,max-queued-tokens=9999",
      "t*:weight=2",
      "h127.0.0.1:50051",
      "h[::1]:0",
      "hunix:/tmp/a",
      "b{\"num_layers\":1,\"num_heads\":2,\"scores\":[[0.5,0.25]]}",
      R"(b{"0-0":[0.5,0.25],"0-1":[1],"1-0":[0,2e3],"1-1":[7]})",
      absl::StrCat("b", Npy("<i4", "False", "(1, 2, 2)", 16)),
      absl::StrCat("n", Npy("<f4", "True", "(2, 1, 3)", 24)),
      absl::StrCat("n", Npy(">f8", "True", "(2, 2)", 32)),
      absl::StrCat("n", Npy("<f2", "False", "(3,)", 6)),
      absl::StrCat("l", bytes),
      absl::StrCat("q", stats),
      absl::StrCat("b", Sealed(bytes)),
      R"(m{"timestamp":0,"input_length":70,"output_length":5,"hash_ids":[1]})",
      R"(m{"timestamp":9,"input_length":3,"output_length":1,"hash_ids":[7]})",
      absl::StrCat("aTIMESTAMP,ContextTokens,GeneratedTokens\n",
                   "2023-11-16 18:15:46.6805900,374,44\n",
                   "2023-11-16 18:15:50.9951690,396,109\n")};
}

}  // namespace blockmgr::fuzz
