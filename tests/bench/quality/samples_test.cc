#include "bench/quality/samples.h"

#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/testing/is_invalid.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_folder.h"

namespace blockmgr {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

QualitySample Example(uint64_t index) {
  return {.task = "fact",
          .num_tokens = 512,
          .index = index,
          .mode = "agnostic",
          .cells = {"full", "agnostic/0.2/b", "agnostic/0.2/a"},
          .outcomes = std::vector<CellOutcome>(
              3, {.answers = {{.correct = true,
                               .token_share = 1.0,
                               .nll = 0.1,
                               .kl = 0.25 * static_cast<double>(index),
                               .depth = 0.3}},
                  .kept_share = 0.2,
                  .held_bytes = 4096,
                  .mean_entries = 99.25,
                  .tokens_per_s = 7.5})};
}

nlohmann::ordered_json Configuration(int seed) {
  return {{"model", "m"}, {"seed", seed}};
}

std::string ReadAll(const std::string& name) {
  std::ifstream file(name);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(SamplesTest, AreWrittenAndRead) {
  const QualitySample sample = Example(3);
  ASSERT_OK_AND_ASSIGN(const QualitySample read,
                       SampleFromJson(nlohmann::ordered_json::parse(
                           SampleToJson(sample).dump())));
  EXPECT_EQ(read, sample);
}

TEST(SamplesTest, AFileIsGoneOnFrom) {
  const TempFolder folder;
  const std::string name = folder.File("samples.jsonl");
  {
    ASSERT_OK_AND_ASSIGN(SampleFile file,
                         SampleFile::Open(name, Configuration(1)));
    EXPECT_THAT(file.samples(), IsEmpty());
    EXPECT_FALSE(file.Has(Example(0)));
    EXPECT_OK(file.Add(Example(0)));
    EXPECT_TRUE(file.Has(Example(0)));
  }
  {
    ASSERT_OK_AND_ASSIGN(SampleFile file,
                         SampleFile::Open(name, Configuration(1)));
    EXPECT_THAT(file.samples(), ElementsAre(Example(0)));
    EXPECT_OK(file.Add(Example(1)));
  }
  ASSERT_OK_AND_ASSIGN(const SampleFile file,
                       SampleFile::Open(name, Configuration(1)));
  EXPECT_THAT(file.samples(), ElementsAre(Example(0), Example(1)));
}

TEST(SamplesTest, ALineThatWasCutOffIsDropped) {
  const TempFolder folder;
  const std::string name = folder.File("samples.jsonl");
  ASSERT_OK_AND_ASSIGN(SampleFile first,
                       SampleFile::Open(name, Configuration(1)));
  EXPECT_OK(first.Add(Example(0)));
  EXPECT_OK(first.Add(Example(1)));
  const std::string whole = ReadAll(name);
  for (const size_t missing : {size_t{1}, size_t{2}, size_t{100}}) {
    folder.Write("samples.jsonl", whole.substr(0, whole.size() - missing));
    ASSERT_OK_AND_ASSIGN(SampleFile file,
                         SampleFile::Open(name, Configuration(1)));
    EXPECT_THAT(file.samples(), ElementsAre(Example(0)));
    EXPECT_OK(file.Add(Example(1)));
    EXPECT_EQ(ReadAll(name), whole);
  }
  folder.Write("samples.jsonl", whole.substr(0, 5));
  ASSERT_OK_AND_ASSIGN(const SampleFile file,
                       SampleFile::Open(name, Configuration(1)));
  EXPECT_THAT(file.samples(), IsEmpty());
}

// An interruption while the file is opened loses no sample: the file is never
// emptied, so that another name of it has all lines, too.
TEST(SamplesTest, WhatIsThereIsNotWrittenAgain) {
  const TempFolder folder;
  const std::string name = folder.File("samples.jsonl");
  ASSERT_OK_AND_ASSIGN(SampleFile first,
                       SampleFile::Open(name, Configuration(1)));
  EXPECT_OK(first.Add(Example(0)));
  const std::string whole = ReadAll(name);
  // The first program may go on writing: both append.
  ASSERT_OK_AND_ASSIGN(SampleFile second,
                       SampleFile::Open(name, Configuration(1)));
  EXPECT_OK(second.Add(Example(1)));
  EXPECT_OK(first.Add(Example(2)));
  EXPECT_TRUE(ReadAll(name).starts_with(whole));
  ASSERT_OK_AND_ASSIGN(const SampleFile file,
                       SampleFile::Open(name, Configuration(1)));
  EXPECT_THAT(file.samples(), ElementsAre(Example(0), Example(1), Example(2)));
}

TEST(SamplesTest, WhatCannotBeReadIsNotReplaced) {
  const TempFolder folder;
  EXPECT_THAT(SampleFile::Open(folder.path(), Configuration(1)),
              StatusIs(absl::StatusCode::kNotFound,
                       AllOf(HasSubstr("--output"), HasSubstr("a folder"))));
}

TEST(SamplesTest, TheErrorNamesWhatDiffers) {
  const TempFolder folder;
  const std::string name = folder.File("samples.jsonl");
  ASSERT_OK(SampleFile::Open(name, Configuration(1)));
  EXPECT_THAT(SampleFile::Open(name, Configuration(2)),
              IsInvalid("line 1: seed: expected 2, got 1; name another"));
}

TEST(SamplesTest, RefusesOtherFiles) {
  const TempFolder folder;
  const std::string name = folder.File("samples.jsonl");
  ASSERT_OK(SampleFile::Open(name, Configuration(1)));
  const std::string before = ReadAll(name);
  EXPECT_THAT(SampleFile::Open(name, Configuration(2)),
              IsInvalid("line 1", "--output"));
  EXPECT_EQ(ReadAll(name), before);
  folder.Write("samples.jsonl", before + "{\"task\": 1}\n");
  EXPECT_THAT(SampleFile::Open(name, Configuration(1)), IsInvalid("line 2"));
  EXPECT_THAT(
      SampleFile::Open(folder.File("none/samples.jsonl"), Configuration(1)),
      StatusIs(absl::StatusCode::kUnavailable, HasSubstr("--output")));
}

}  // namespace
}  // namespace blockmgr
