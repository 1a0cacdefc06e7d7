// Messages of clients, operators and engines to a daemon, in any order.
#include <cstdint>
#include <string>
#include <vector>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include "blockmgr/eviction/policy.h"
#include "proto/blockmgr/v1/engine.pb.h"
#include "proto/blockmgr/v1/eviction.pb.h"
#include "proto/blockmgr/v1/request.pb.h"
#include "tests/fuzz/daemon.h"
#include "tests/fuzz/fuzz_target.h"
#include "wire/policy_wire.h"

namespace blockmgr::fuzz {
namespace {

using Parts = std::vector<std::string>;

void SetPolicy(const char* text, v1::EvictionPolicy* policy) {
  const auto parsed = ParsePolicy(text);
  Require(parsed.ok(), parsed.status().message());
  ToProto(*parsed, policy);
}

std::string AttachPart(int32_t window = 0, int32_t num_shards = 1) {
  v1::AttachRequest attach;
  v1::ModelLayout* layout = attach.mutable_layout();
  layout->set_num_layers(2);
  layout->set_num_heads(2);
  layout->set_num_q_heads(4);
  layout->set_head_dim(8);
  layout->set_page_size(4);
  layout->set_dtype(v1::DTYPE_FLOAT32);
  layout->set_num_blocks(40);
  layout->set_num_shards(num_shards);
  if (window > 0) layout->add_group_windows(window);
  attach.set_engine_name("fuzz");
  attach.set_num_scorer_states(2);
  attach.set_num_host_blocks(16);
  attach.set_supports_window_evictions(window > 0);
  (*attach.mutable_query_stats())["chat"] = "1a2b";
  for (const v1::SamplingField field :
       {v1::SAMPLING_FIELD_TEMPERATURE, v1::SAMPLING_FIELD_MIN_TOKENS,
        v1::SAMPLING_FIELD_PROMPT_LOGPROBS, v1::SAMPLING_FIELD_STOP}) {
    attach.add_sampling_fields(field);
  }
  attach.set_vocabulary_size(1000000);
  attach.add_end_token_ids(5);
  return absl::StrCat("A", attach.SerializeAsString());
}

v1::SubmitRequest MakeRequest(const std::string& id, int num_prompt,
                              int max_tokens) {
  v1::SubmitRequest request;
  request.set_client_session("a");
  request.set_request_id(id);
  for (int i = 0; i < num_prompt; ++i) {
    request.add_prompt_token_ids(static_cast<uint32_t>(i % 50));
  }
  request.set_max_tokens(max_tokens);
  return request;
}

std::string SubmitPart(const v1::SubmitRequest& request) {
  return absl::StrCat("S", request.SerializeAsString());
}

v1::SubmitRequest MakeEvicting(const std::string& id, v1::EvictionMode mode,
                               const char* policy) {
  v1::SubmitRequest request = MakeRequest(id, 60, 30);
  v1::RequestEviction* eviction = request.mutable_eviction();
  eviction->set_mode(mode);
  SetPolicy(policy, eviction->mutable_policy());
  eviction->mutable_target()->set_keep_ratio("0.3");
  if (mode == v1::EVICTION_MODE_EVERY_CHUNK ||
      mode == v1::EVICTION_MODE_DECODE) {
    eviction->set_compress_every(16);
  }
  eviction->set_share_prefix(mode == v1::EVICTION_MODE_AFTER_PREFILL);
  return request;
}

void Append(const Parts& more, Parts* parts) {
  parts->insert(parts->end(), more.begin(), more.end());
}

Parts Steps(int count) { return Parts(static_cast<size_t>(count), "G"); }

std::string Join(uint8_t choices, const Parts& parts) {
  return absl::StrCat(std::string(1, static_cast<char>(choices)),
                      absl::StrJoin(parts, kPartEnd));
}

std::string PlainSeed(uint8_t choices) {
  Parts parts = {"Oa", "Ob", AttachPart(0, 2)};
  for (int i = 0; i < 4; ++i) {
    parts.push_back(SubmitPart(MakeRequest(absl::StrCat("r", i), 30 + i, 12)));
  }
  v1::SubmitRequest fork = MakeRequest("fork", 30, 9);
  fork.set_fork_of("r0");
  fork.add_stop_token_ids(7);
  fork.set_engine_data("adapter");
  fork.mutable_sampling()->set_min_tokens(3);
  fork.mutable_sampling()->set_prompt_logprobs(1);
  fork.mutable_sampling()->add_stop("stop");
  parts.push_back(SubmitPart(fork));
  Append(Steps(4), &parts);
  v1::StepResult data;
  data.add_lost_blocks(3);
  parts.push_back(absl::StrCat("M", data.SerializeAsString()));
  Append({"P", "W", "Cr1", "T\x05", "K"}, &parts);
  Append(Steps(12), &parts);
  Append({"Qa", "G", "D"}, &parts);
  return Join(choices, parts);
}

std::string EvictionSeed(uint8_t choices, int32_t window) {
  Parts parts = {"Oa", AttachPart(window)};
  parts.push_back(SubmitPart(MakeEvicting("e0", v1::EVICTION_MODE_AFTER_PREFILL,
                                          "streaming|uniform|topk")));
  parts.push_back(SubmitPart(MakeEvicting("e1", v1::EVICTION_MODE_EVERY_CHUNK,
                                          "keydiff|uniform|topk")));
  parts.push_back(SubmitPart(
      MakeEvicting("e2", v1::EVICTION_MODE_DECODE, "h2o|adakv|topk")));
  parts.push_back(SubmitPart(
      MakeEvicting("e3", v1::EVICTION_MODE_PRESSURE, "knorm|global|topk")));
  if (window > 0) {
    v1::SubmitRequest windows = MakeEvicting(
        "w", v1::EVICTION_MODE_AFTER_PREFILL, "streaming|uniform|topk");
    windows.mutable_eviction()->mutable_target()->set_window_keep_ratio("0.5");
    parts.push_back(SubmitPart(windows));
  }
  parts.push_back(SubmitPart(MakeRequest("plain", 24, 8)));
  Append(Steps(5), &parts);
  v1::EvictRequest evict;
  evict.set_request_id("plain");
  SetPolicy("knorm|uniform|topk", evict.mutable_policy());
  evict.mutable_target()->set_tokens_per_head(8);
  parts.push_back(absl::StrCat("E", evict.SerializeAsString()));
  Append(Steps(3), &parts);
  SetPolicy("external|uniform|topk", evict.mutable_policy());
  evict.set_cut(16);
  parts.push_back(absl::StrCat("F", evict.SerializeAsString()));
  // On what the first has left.
  parts.push_back(SubmitPart(MakeEvicting(
      "again", v1::EVICTION_MODE_AFTER_PREFILL, "streaming|uniform|topk")));
  Append(Steps(30), &parts);
  parts.push_back("X");
  parts.push_back(AttachPart(window));
  Append(Steps(10), &parts);
  return Join(choices, parts);
}

// Results from nowhere, attachments of others.
std::string StrangeSeed() {
  v1::StepResult result;
  result.set_step(1);
  result.add_sampled(5);
  result.add_num_accepted(1);
  result.add_accepted(3);
  result.add_token_data("data");
  result.add_logprobs()->mutable_prompt()->add_token_ids(4);
  result.mutable_logprobs(0)->mutable_outputs()->set_num_top(-1);
  result.add_lost_host_blocks(2);
  result.add_stop_matches()->set_stop(1);
  result.add_evictions()->add_counts(3);
  std::string other = AttachPart(8);
  other.front() = 'B';
  return Join(20, {"Oa", AttachPart(), SubmitPart(MakeRequest("r", 9, 9)), "G",
                   absl::StrCat("M", result.SerializeAsString()), "G",
                   absl::StrCat("R", result.SerializeAsString()), other,
                   AttachPart(), "Oa", "G", "Qb", "Z"});
}

}  // namespace

void RunCommands(absl::string_view input) { Play(input, nullptr); }

std::vector<std::string> MakeCommands() {
  std::vector<std::string> seeds = {StrangeSeed()};
  for (const int choices : {0, 7, 31, 64, 101, 143}) {
    seeds.push_back(PlainSeed(static_cast<uint8_t>(choices)));
    seeds.push_back(EvictionSeed(static_cast<uint8_t>(choices), 0));
    seeds.push_back(EvictionSeed(static_cast<uint8_t>(choices), 20));
  }
  return seeds;
}

}  // namespace blockmgr::fuzz
