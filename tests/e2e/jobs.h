// Small models, schedulers and requests for tests of the whole line.
#ifndef TESTS_E2E_JOBS_H_
#define TESTS_E2E_JOBS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <absl/status/statusor.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/string_view.h>
#include <gtest/gtest.h>

#include "blockmgr/eviction/policy.h"
#include "proto/blockmgr/v1/request.pb.h"
#include "scheduler/scheduler_options.h"
#include "tests/e2e/line.h"
#include "tests/engine/reference/test_util.h"
#include "wire/policy_wire.h"

namespace blockmgr {

// Of SmallModel.
inline constexpr int32_t kVocabulary = 64;

struct Job {
  std::vector<int32_t> prompt;
  int32_t max_tokens = 0;
};

inline std::vector<int32_t> RandomTokens(int32_t count,
                                         std::mt19937_64* random) {
  std::vector<int32_t> tokens(count);
  for (int32_t& token : tokens) {
    token = static_cast<int32_t>((*random)() % kVocabulary);
  }
  return tokens;
}

// Prompts of 1 to `longest` tokens; with `num_prefixes`, most begin with one of
// as many common prefixes of 70 tokens.
inline std::vector<Job> RandomJobs(int32_t count, int32_t longest,
                                   int32_t num_prefixes,
                                   std::mt19937_64* random) {
  std::vector<std::vector<int32_t>> prefixes;
  prefixes.reserve(num_prefixes);
  for (int32_t i = 0; i < num_prefixes; ++i) {
    prefixes.push_back(RandomTokens(70, random));
  }
  std::vector<Job> jobs;
  for (int32_t i = 0; i < count; ++i) {
    Job job;
    if (num_prefixes > 0 && (*random)() % 4 != 0) {
      job.prompt = prefixes[(*random)() % prefixes.size()];
    }
    const std::vector<int32_t> own = RandomTokens(
        1 + static_cast<int32_t>((*random)() % static_cast<uint64_t>(longest)),
        random);
    job.prompt.insert(job.prompt.end(), own.begin(), own.end());
    job.max_tokens = 1 + static_cast<int32_t>((*random)() % 100);
    jobs.push_back(std::move(job));
  }
  return jobs;
}

inline SchedulerOptions SmallScheduler(bool prefix_caching,
                                       int32_t steps_in_flight) {
  SchedulerOptions options;
  options.max_num_seqs = 12;
  options.max_num_batched_tokens = 64;
  options.max_model_len = 1024;
  options.watermark = 0.0;
  options.max_steps_in_flight = steps_in_flight;
  options.enable_prefix_caching = prefix_caching;
  options.reuse_partial_blocks = prefix_caching;
  return options;
}

inline v1::EvictionPolicy SnapKvAdaKv(int32_t window) {
  v1::EvictionPolicy policy;
  policy.mutable_snapkv()->set_window(window);
  policy.mutable_snapkv()->set_kernel(7);
  policy.mutable_adakv()->set_alpha(0.2);
  policy.mutable_topk();
  return policy;
}

// Asks a request to keep 40 % when `mode` says so; every 32 tokens, if that is
// in chunks or in decode.
inline v1::RequestEviction* SetEviction(v1::EvictionMode mode,
                                        v1::SubmitRequest* request) {
  v1::RequestEviction* eviction = request->mutable_eviction();
  eviction->set_mode(mode);
  *eviction->mutable_policy() = SnapKvAdaKv(8);
  eviction->mutable_target()->set_keep_ratio("0.4");
  if (mode == v1::EVICTION_MODE_EVERY_CHUNK ||
      mode == v1::EVICTION_MODE_DECODE) {
    eviction->set_compress_every(32);
  }
  return eviction;
}

// Does the same by this policy, every 48 tokens of a prompt or 16 of outputs.
inline v1::RequestEviction* SetPolicy(absl::string_view text,
                                      v1::EvictionMode mode,
                                      v1::SubmitRequest* request) {
  v1::RequestEviction* eviction = SetEviction(mode, request);
  const absl::StatusOr<EvictionPolicy> policy = ParsePolicy(text);
  EXPECT_TRUE(policy.ok()) << policy.status();
  if (policy.ok()) ToProto(*policy, eviction->mutable_policy());
  if (mode == v1::EVICTION_MODE_EVERY_CHUNK) eviction->set_compress_every(48);
  if (mode == v1::EVICTION_MODE_DECODE) eviction->set_compress_every(16);
  return eviction;
}

// Returns requests r0, r1 .. for the jobs, each with this mode of eviction.
inline std::vector<v1::SubmitRequest> RequestsFor(
    const std::vector<Job>& jobs,
    v1::EvictionMode mode = v1::EVICTION_MODE_NONE) {
  std::vector<v1::SubmitRequest> requests;
  for (const Job& job : jobs) {
    requests.push_back(Line::MakeRequest(absl::StrCat("r", requests.size()),
                                         job.prompt, job.max_tokens));
    if (mode != v1::EVICTION_MODE_NONE) SetEviction(mode, &requests.back());
  }
  return requests;
}

inline void ExpectSameTokens(const std::map<std::string, Answer>& answers,
                             const std::map<std::string, Answer>& expected) {
  ASSERT_EQ(answers.size(), expected.size());
  for (const auto& [id, answer] : answers) {
    EXPECT_EQ(answer.reason, v1::FINISH_REASON_LENGTH) << id << answer.error;
    EXPECT_EQ(answer.tokens, expected.at(id).tokens) << id;
  }
}

// Expects of each job the tokens of a run of nothing else, and its logits bit
// for bit.
inline void ExpectAsAlone(const LineOptions& options,
                          const std::vector<Job>& jobs, const Served& served) {
  ASSERT_EQ(served.answers.size(), jobs.size());
  for (size_t i = 0; i < jobs.size(); ++i) {
    SCOPED_TRACE(absl::StrCat("request ", i));
    const Answer& answer = served.answers.at(absl::StrCat("r", i));
    EXPECT_EQ(answer.reason, v1::FINISH_REASON_LENGTH) << answer.error;
    std::vector<int32_t> alone;
    const auto logits =
        RunAlone(options, jobs[i].prompt, jobs[i].max_tokens, &alone);
    EXPECT_EQ(answer.tokens, alone);
    const auto found = served.logits.find(jobs[i].prompt);
    ASSERT_NE(found, served.logits.end());
    for (const auto& [position, row] : logits) {
      // Vectors of floats have no tolerance.
      EXPECT_EQ(found->second.at(position), row) << "position " << position;
    }
  }
}

// Serves `leader`, three samples of its prompt, and two beams that go on from
// its first outputs: "same", with the token that comes there anyway, and
// "other". Expects of all but the last what the leader outputs.
// options.hold_at_step lies behind so many outputs.
inline Served ServeForks(const LineOptions& options,
                         const v1::SubmitRequest& leader, int32_t num_outputs) {
  Line line(options);
  line.Open();
  const std::vector<int32_t> prompt(leader.prompt_token_ids().begin(),
                                    leader.prompt_token_ids().end());
  std::vector<v1::SubmitRequest> requests = {leader};
  for (int32_t i = 0; i < 3; ++i) {
    requests.push_back(
        Line::MakeRequest(absl::StrCat("sample", i), prompt, 40));
    requests.back().set_fork_of(leader.request_id());
  }
  line.SubmitTogether(requests);
  line.WaitForHold();
  line.WaitForTokens(leader.request_id(), static_cast<size_t>(num_outputs));
  std::vector<int32_t> tokens = prompt;
  const std::vector<int32_t> outputs = line.TokensOf(leader.request_id());
  tokens.insert(tokens.end(), outputs.begin(), outputs.begin() + num_outputs);
  std::vector<v1::SubmitRequest> beams = {
      Line::MakeRequest("same", tokens, 30)};
  tokens.back() = (tokens.back() + 1) % kVocabulary;
  beams.push_back(Line::MakeRequest("other", tokens, 30));
  for (v1::SubmitRequest& beam : beams) beam.set_fork_of(leader.request_id());
  line.SubmitTogether(beams);
  Served served = Finish(&line, requests.size() + beams.size());
  const std::vector<int32_t>& alone =
      served.answers.at(leader.request_id()).tokens;
  for (const auto& [id, answer] : served.answers) {
    if (id == "other") continue;
    const auto begin = alone.begin() + (id == "same" ? num_outputs : 0);
    EXPECT_TRUE(std::equal(answer.tokens.begin(), answer.tokens.end(), begin))
        << id;
  }
  return served;
}

}  // namespace blockmgr

#endif  // TESTS_E2E_JOBS_H_
