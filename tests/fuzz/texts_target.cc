// Files and flags: what users write by hand, and what other programs wrote.
#include <cstdint>
#include <sstream>
#include <string>
#include <vector>

#include <absl/strings/str_cat.h>

#include "bench/datasets.h"
#include "blockmgr/eviction/budget_table.h"
#include "blockmgr/eviction/keep_ratio.h"
#include "blockmgr/eviction/lukv_profile.h"
#include "blockmgr/eviction/policy.h"
#include "scheduler/scheduler_options.h"
#include "scheduler/server/listen_address.h"
#include "tests/fuzz/fuzz_target.h"

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
std::string WithChecksum(absl::string_view bytes) {
  uint64_t hash = 0xCBF29CE484222325;
  for (const char byte : bytes) {
    hash = (hash ^ static_cast<uint8_t>(byte)) * 0x100000001B3;
  }
  std::string sealed(bytes);
  for (int i = 0; i < 8; ++i) {
    sealed.push_back(static_cast<char>(hash >> (8 * i) & 0xFF));
  }
  return sealed;
}

void CheckProfile(absl::string_view bytes) {
  const auto profile = DecodeLuKvProfile(WithChecksum(bytes));
  if (!profile.ok()) return;
  Require(profile->Validate().ok(), "a profile was read that is not valid");
  Require(EncodeLuKvProfile(*profile) == WithChecksum(bytes),
          "a profile that changes when written");
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
    case 'b':
      return (void)DecodeBudgetTable(text);
    case 'a':
    case 'm':
      return CheckTrace(text, input.front() == 'a');
    case 'h':
      return (void)ParseListenAddress(std::string(text));
    default:
      return;
  }
}

std::vector<std::string> MakeTexts() {
  LuKvProfile profile;
  profile.num_layers = 1;
  profile.num_heads = 2;
  profile.rho = {0, 0.5, 1};
  profile.r = {0, 0, 0.25, 0.75, 1, 1};
  std::string bytes = EncodeLuKvProfile(profile);
  bytes.resize(bytes.size() - 8);
  return {
      absl::StrCat("psnapkv(window=16,pool=max,kernel=5)|adakv(alpha=0.3)|",
                   "critical(first=0.4)|protect(sinks=4,recent=8)|token"),
      "pexpected(n_future=64,cov=false)|pyramid(beta=9)|topk",
      "pkeydiff(anchor=median,metric=euclidean)|lukv(profile=a)|topk",
      "r0.25",
      "r1",
      "tteam:weight=3,max-blocks=1000,max-requests=50,max-queued-tokens=9999",
      "t*:weight=2",
      "h127.0.0.1:50051",
      "h[::1]:0",
      "hunix:/tmp/a",
      "b{\"num_layers\":1,\"num_heads\":2,\"scores\":[[0.5,0.25]]}",
      absl::StrCat("l", bytes),
      absl::StrCat("b", WithChecksum(bytes)),
      R"(m{"timestamp":0,"input_length":70,"output_length":5,"hash_ids":[1]})",
      R"(m{"timestamp":9,"input_length":3,"output_length":1,"hash_ids":[7]})",
      absl::StrCat("aTIMESTAMP,ContextTokens,GeneratedTokens\n",
                   "2023-11-16 18:15:46.6805900,374,44\n",
                   "2023-11-16 18:15:50.9951690,396,109\n")};
}

}  // namespace blockmgr::fuzz
