// What the core makes of the calls of gateways.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/scheduler/server/core_harness.h"
#include "tests/testing/status_matchers.h"

namespace blockmgr {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr int32_t kBadToken = 99;
constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

class CoreGenerateTest : public CoreTest {
 protected:
  CoreGenerateTest()
      : CoreTest(
            [this](const ModelLayout& layout, const SchedulerOptions& options)
                -> absl::StatusOr<std::unique_ptr<Scheduler>> {
              return std::make_unique<Recorder>(layout, options, &submitted_);
            }) {}

  static Request MakeRequest(size_t num_prompt, int32_t max_tokens) {
    Request request;
    request.id = "r";
    request.prompt.assign(num_prompt, 1);
    request.max_tokens = max_tokens;
    request.sampling.emplace();
    return request;
  }

  absl::Status Generate(Request request, int32_t num_answers = 1,
                        bool all_tokens = false) {
    absl::Status result = absl::UnknownError("no reply");
    tokens_ = std::make_shared<RecordingTokens>();
    Run(GenerateCommand{absl::StrCat("session ", ++num_calls_), tokens_,
                        std::move(request), num_answers,
                        [&result](absl::Status s) { result = std::move(s); },
                        false, all_tokens});
    return result;
  }

  std::vector<Request> submitted_;
  std::shared_ptr<RecordingTokens> tokens_;  // of the last call

 private:
  class Recorder : public FakeScheduler {
   public:
    Recorder(const ModelLayout& layout, const SchedulerOptions& options,
             std::vector<Request>* submitted)
        : FakeScheduler(layout, options), submitted_(submitted) {}
    absl::StatusOr<RequestId> Submit(Request request) override {
      submitted_->push_back(request);
      if (request.prompt.front() == kBadToken) {
        return absl::InvalidArgumentError("prompt[0]: bad");
      }
      return FakeScheduler::Submit(std::move(request));
    }

   private:
    std::vector<Request>* submitted_;
  };

  int num_calls_ = 0;
};

TEST_F(CoreGenerateTest, TheOtherAnswersAreForks) {
  const auto engine = AttachAndOpen();
  Request request = MakeRequest(3, 5);
  request.scope.tenant = "t";
  request.sampling->seed = 7;
  request.sampling->prompt_logprobs = 1;
  request.retention.emplace_back();
  request.eviction.mode = EvictionMode::kAfterPrefill;
  ASSERT_OK(Generate(request, 3));
  ASSERT_THAT(submitted_, SizeIs(3));
  EXPECT_EQ(submitted_[0].id, "r");
  EXPECT_EQ(submitted_[0].sampling, request.sampling);
  EXPECT_EQ(submitted_[0].eviction.mode, EvictionMode::kAfterPrefill);
  for (size_t i = 1; i < 3; ++i) {
    const Request& fork = submitted_[i];
    EXPECT_EQ(fork.id, absl::StrCat("r#", i));
    EXPECT_EQ(fork.fork_of, "r");
    EXPECT_EQ(fork.prompt, request.prompt);
    EXPECT_EQ(fork.scope.tenant, "t");
    EXPECT_EQ(fork.sampling->seed, 7 + static_cast<int64_t>(i));
    EXPECT_EQ(fork.sampling->prompt_logprobs, std::nullopt);
    EXPECT_THAT(fork.retention, IsEmpty());
    EXPECT_EQ(fork.eviction.mode, EvictionMode::kNone);
  }
}

TEST_F(CoreGenerateTest, NoForkIsMadeOfARefusedRequest) {
  const auto engine = AttachAndOpen();
  Request request = MakeRequest(3, 5);
  request.prompt[0] = kBadToken;
  EXPECT_THAT(Generate(request, 128), StatusIs(kInvalid, HasSubstr("bad")));
  EXPECT_THAT(submitted_, SizeIs(1));
  EXPECT_EQ(Stats(false).scheduler.num_running, 0);
}

TEST_F(CoreGenerateTest, TheContextLimitsPromptAndTokens) {
  model_ = std::make_shared<ServedModel>(ServedModel{.context_tokens = 10});
  const auto engine = AttachAndOpen();
  EXPECT_THAT(Generate(MakeRequest(10, 1)),
              StatusIs(kInvalid, HasSubstr("prompt: expected at most 9")));
  EXPECT_THAT(Generate(MakeRequest(10, 1), 1, true),
              StatusIs(kInvalid, HasSubstr("prompt: expected at most 9")));
  EXPECT_THAT(Generate(MakeRequest(4, 7)),
              StatusIs(kInvalid, HasSubstr("max_tokens: expected at most 6")));
  // A request of RequestService has the same limit.
  const auto tokens = OpenStream("a");
  Request longer = MakeRequest(4, 7);
  longer.id = "longer";
  EXPECT_THAT(Submit("a", longer),
              StatusIs(kInvalid, HasSubstr("max_tokens: expected at most 6")));
  EXPECT_THAT(submitted_, IsEmpty());
  EXPECT_EQ(Stats(false).requests.refused[static_cast<size_t>(kInvalid)], 4u);
  Request request = MakeRequest(4, 6);
  EXPECT_OK(Generate(request));
  request.id = "all";
  request.max_tokens = 100;
  EXPECT_OK(Generate(request, 1, true));
  request.id = "few";
  request.max_tokens = 3;
  EXPECT_OK(Generate(request, 1, true));
  ASSERT_THAT(submitted_, SizeIs(3));
  EXPECT_EQ(submitted_[1].max_tokens, 6);
  EXPECT_EQ(submitted_[2].max_tokens, 3);
}

// So a stream drops the end of its requests.
struct ClosedBeforeItsEnd : RecordingTokens {
  bool Deliver(std::span<const TokenItem> items) override {
    EXPECT_TRUE(closed.has_value());
    return RecordingTokens::Deliver(items);
  }
};

TEST_F(CoreGenerateTest, ACallIsClosedBeforeItsAnswersAreCancelled) {
  const auto engine = AttachAndOpen();
  const auto tokens = std::make_shared<ClosedBeforeItsEnd>();
  Run(GenerateCommand{"session", tokens, MakeRequest(3, 5), 2,
                      [](const absl::Status& s) { EXPECT_OK(s); }});
  Run(CloseAll{absl::UnavailableError("bye")});
  EXPECT_THAT(tokens->lines, SizeIs(2));
  ASSERT_TRUE(tokens->closed.has_value());
}

}  // namespace
}  // namespace blockmgr
