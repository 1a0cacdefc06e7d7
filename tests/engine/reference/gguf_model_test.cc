#include "engine/reference/gguf_model.h"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <random>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/gguf/gguf_file.h"
#include "tests/engine/reference/engine_harness.h"
#include "tests/engine/reference/gguf_reference.h"
#include "tests/engine/reference/test_util.h"
#include "tests/testing/gguf_writer.h"
#include "tests/testing/is_invalid.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_folder.h"

namespace blockmgr {
namespace {

using ::testing::HasSubstr;

class GgufModelTest
    : public ::testing::TestWithParam<std::tuple<const char*, TensorType>> {};

// Compares the engine's logits of a prefill in chunks and of a decode step with
// the reference's, for random tokens.
void ExpectReferenceLogits(const GgufSpec& spec, uint64_t seed) {
  const auto model = LoadSpec(spec);
  ASSERT_OK(model.status());
  std::mt19937_64 random(seed);
  EngineHarness engine(*model, DType::kFloat32, 64);
  engine.Start(0, RandomTokens(45, (*model)->shape().vocabulary, &random));
  // Pages have 16 tokens, gemma3's windows 20.
  const std::vector<float> prefill =
      engine.Prefill(0, std::vector<int32_t>{7, 30, 8});
  const std::vector<float> decode = engine.Decode(0);
  const std::vector<std::vector<double>> expected =
      ReferenceLogits(spec, std::span(engine.tokens(0)).first(46));
  EXPECT_LT(ErrorOf(prefill, expected[44]), 1e-3);
  EXPECT_LT(ErrorOf(decode, expected[45]), 1e-3);
}

TEST_P(GgufModelTest, EngineComputesTheModelOfTheFile) {
  const auto [architecture, type] = GetParam();
  ExpectReferenceLogits(RandomSpec(architecture, type, 7), 8);
}

std::string NameOf(
    const ::testing::TestParamInfo<GgufModelTest::ParamType>& info) {
  return std::string(std::get<0>(info.param)) + "_" +
         std::string(TensorTypeName(std::get<1>(info.param)));
}

INSTANTIATE_TEST_SUITE_P(ArchitecturesAndTypes, GgufModelTest,
                         ::testing::Combine(::testing::Values("llama", "qwen2",
                                                              "gemma3"),
                                            ::testing::ValuesIn(kTensorTypes)),
                         NameOf);

// A file as real models have it, with other sizes than the usual test file:
// heads that are no power of two, groups of odd size, heads wider than hidden /
// heads, rows that are no multiple of a vector, and keys that change rotation
// and scale.
struct OtherFile {
  const char* name;
  const char* architecture;
  TensorType type;
  SpecSizes sizes;
  std::vector<std::pair<std::string, float>> keys = {};
  std::vector<const char*> erased = {};
};

class GgufOtherModelTest : public ::testing::TestWithParam<OtherFile> {};

TEST_P(GgufOtherModelTest, EngineComputesTheModelOfTheFile) {
  const OtherFile& other = GetParam();
  GgufSpec spec = RandomSpec(other.architecture, other.type, 9, other.sizes);
  for (const auto& [key, value] : other.keys) spec.keys[key] = value;
  for (const char* name : other.erased) {
    ASSERT_EQ(spec.keys.erase(name) + spec.tensors.erase(name), 1) << name;
  }
  ExpectReferenceLogits(spec, 10);
}

INSTANTIATE_TEST_SUITE_P(
    Sizes, GgufOtherModelTest,
    ::testing::Values(OtherFile{"GroupOfSeven",
                                "qwen2",
                                TensorType::kF16,
                                {.hidden = 112,
                                 .mlp = 144,
                                 .vocabulary = 37,
                                 .num_q_heads = 14,
                                 .head_dim = 128}},
                      OtherFile{"GroupOfFiveNarrow",
                                "llama",
                                TensorType::kF32,
                                {.hidden = 48,
                                 .mlp = 80,
                                 .vocabulary = 33,
                                 .num_q_heads = 5,
                                 .num_heads = 1,
                                 .head_dim = 16}},
                      OtherFile{"NoGroups",
                                "llama",
                                TensorType::kBF16,
                                {.hidden = 240,
                                 .mlp = 16,
                                 .vocabulary = 65,
                                 .num_q_heads = 3,
                                 .num_heads = 3,
                                 .head_dim = 80},
                                {{"llama.rope.scaling.factor", 4.0f}},
                                {"llama.attention.head_count_kv"}},
                      OtherFile{"TiedWithoutDivisors",
                                "llama",
                                TensorType::kQ8_0,
                                {.hidden = 96,
                                 .mlp = 160,
                                 .vocabulary = 5,
                                 .num_q_heads = 6,
                                 .num_heads = 2,
                                 .head_dim = 96},
                                {},
                                {"rope_freqs.weight", "output.weight"}},
                      OtherFile{"GroupOfNineteen",
                                "qwen2",
                                TensorType::kQ4_1,
                                {.hidden = 160,
                                 .mlp = 224,
                                 .vocabulary = 100,
                                 .num_q_heads = 19,
                                 .num_heads = 1,
                                 .head_dim = 32}},
                      OtherFile{"WideHeads",
                                "gemma3",
                                TensorType::kQ5_0,
                                {.num_layers = 7,
                                 .hidden = 160,
                                 .mlp = 96,
                                 .num_q_heads = 4,
                                 .num_heads = 1,
                                 .head_dim = 256},
                                {{"gemma3.rope.freq_base_swa", 500.0f},
                                 {"gemma3.rope.scaling.factor", 8.0f}}},
                      OtherFile{"LayersOf27B",
                                "gemma3",
                                TensorType::kF32,
                                {.num_layers = 62,
                                 .hidden = 64,
                                 .mlp = 32,
                                 .num_q_heads = 6,
                                 .num_heads = 2,
                                 .head_dim = 48}}),
    [](const auto& test) { return std::string(test.param.name); });

TEST(GgufModelLoaderTest, KeysSayWhatTheFileLeavesOpen) {
  GgufSpec spec = RandomSpec("gemma3", TensorType::kF16, 1);
  ASSERT_OK_AND_ASSIGN(const auto model, LoadSpec(spec));
  EXPECT_EQ(model->shape().windows,
            (std::vector<int32_t>{20, 20, 20, 20, 20, 0, 20}));
  EXPECT_EQ(model->shape().head_dim, 64);
  EXPECT_EQ(model->shape().context_tokens, 512);
  EXPECT_FLOAT_EQ(model->score_scale(), 0.125f);
  spec.keys["gemma3.attention.sliding_window_pattern"] = uint32_t{2};
  spec.keys["gemma3.attention.scale"] = 0.25f;
  spec.keys["gemma3.rope.scaling.type"] = "linear";
  spec.keys["gemma3.rope.scaling.factor"] = 8.0f;
  ASSERT_OK_AND_ASSIGN(const auto other, LoadSpec(spec));
  EXPECT_EQ(other->shape().windows,
            (std::vector<int32_t>{20, 0, 20, 0, 20, 0, 20}));
  EXPECT_FLOAT_EQ(other->score_scale(), 0.25f);
  // Windows are not stretched.
  EXPECT_DOUBLE_EQ(other->InverseFrequencies(0)[0], 1.0);
  EXPECT_DOUBLE_EQ(other->InverseFrequencies(1)[0], 0.125);
  spec.keys["gemma3.attention.sliding_window_pattern"] =
      std::vector<int32_t>{0, 1, 1, 0, 0, 0, 1};
  ASSERT_OK_AND_ASSIGN(const auto listed, LoadSpec(spec));
  EXPECT_EQ(listed->shape().windows,
            (std::vector<int32_t>{0, 20, 20, 0, 0, 0, 20}));
}

// There may be so many values that they must not even be read.
TEST(GgufModelLoaderTest, CountsWindowsBeforeItReadsThem) {
  GgufSpec spec = RandomSpec("gemma3", TensorType::kF32, 1);
  auto& pattern = spec.keys["gemma3.attention.sliding_window_pattern"];
  pattern = std::vector<uint64_t>(8, ~uint64_t{0});
  EXPECT_THAT(LoadSpec(spec),
              IsInvalid("gemma3.attention.sliding_window_pattern: expected one "
                        "for each of 7 layers, got 8"));
  pattern = std::vector<uint64_t>(7, ~uint64_t{0});
  EXPECT_THAT(LoadSpec(spec),
              IsInvalid("expected an integer below 2^63, got 18446744073709551"
                        "615"));
  pattern = std::vector<uint64_t>();
  EXPECT_THAT(LoadSpec(spec), IsInvalid("for each of 7 layers, got 0"));
}

// A sparse file takes no room on the disk, and its values would take 512 GiB.
TEST(GgufModelLoaderTest, AHugeArrayOfWindowsTakesNoMemory) {
  const uint64_t num_values = uint64_t{1} << 36;
  GgufWriter writer;
  writer.Add("general.architecture", "gemma3");
  writer.AddArray("gemma3.attention.sliding_window_pattern",
                  GgufValueType<uint8_t>(), num_values, "");
  const TempFolder folder;
  const std::string path = folder.Write("sparse.gguf", writer.Finish());
  std::filesystem::resize_file(path, num_values + 4096);
  ASSERT_OK_AND_ASSIGN(const auto file, GgufFile::Open(path));
  EXPECT_THAT(LoadGgufModel(*file), StatusIs(absl::StatusCode::kNotFound));
}

TEST(GgufModelLoaderTest, APartOfASplitModelIsCalledThat) {
  GgufSpec spec = RandomSpec("llama", TensorType::kF32, 1);
  spec.keys["split.count"] = uint32_t{1};
  EXPECT_OK(LoadSpec(spec).status());
  spec.keys["split.count"] = uint32_t{3};
  // The second file of a model has no architecture.
  spec.keys.erase("general.architecture");
  EXPECT_THAT(
      std::string(LoadSpec(spec).status().message()),
      HasSubstr("split.count: expected a model in one file (llama-gguf-split "
                "--merge makes one), got one of 3 files"));
}

struct BadFile {
  std::function<void(GgufSpec&)> spoil;
  const char* message;
};

TEST(GgufModelLoaderTest, NamesWhatIsWrong) {
  const std::vector<BadFile> cases = {
      {[](GgufSpec& s) { s.keys["general.architecture"] = "mamba"; },
       "general.architecture: expected llama, qwen2 or gemma3, got mamba"},
      {[](GgufSpec& s) { s.keys.erase("general.architecture"); },
       "general.architecture"},
      {[](GgufSpec& s) { s.keys.erase("llama.block_count"); },
       "llama.block_count"},
      {[](GgufSpec& s) { s.keys["llama.block_count"] = uint32_t{0}; },
       "llama.block_count: expected a multiple of 1 in [1, 262144], got 0"},
      {[](GgufSpec& s) { s.keys["llama.block_count"] = uint32_t{3}; },
       "blk.2.attn_norm.weight: expected a tensor [256], got none"},
      {[](GgufSpec& s) { s.keys["llama.block_count"] = uint32_t{1}; },
       "blk.1.attn_k.weight: expected no such tensor"},
      {[](GgufSpec& s) { s.keys["llama.embedding_length"] = uint32_t{250}; },
       "llama.embedding_length: expected a multiple of 16"},
      {[](GgufSpec& s) { s.keys["llama.feed_forward_length"] = uint32_t{512}; },
       "blk.0.ffn_gate.weight: expected [256, 512], got [256, 256]"},
      {[](GgufSpec& s) {
         s.keys["llama.attention.head_count_kv"] = uint32_t{3};
       },
       "llama.attention.head_count_kv: expected a divisor of the 4 query "
       "heads, got 3"},
      {[](GgufSpec& s) { s.keys["llama.attention.head_count"] = uint32_t{6}; },
       "llama.attention.head_count: expected heads that divide 256"},
      {[](GgufSpec& s) {
         s.keys["llama.attention.value_length"] = uint32_t{32};
       },
       "llama.attention.value_length: expected 64"},
      {[](GgufSpec& s) {
         s.keys["llama.attention.key_length"] = uint32_t{1 << 18};
       },
       "llama.attention.head_count: expected at most 262144 elements"},
      {[](GgufSpec& s) { s.keys["llama.rope.scaling.type"] = "yarn"; },
       "llama.rope.scaling.type: expected none or linear, got yarn"},
      {[](GgufSpec& s) { s.keys["llama.rope.dimension_count"] = uint32_t{32}; },
       "llama.rope.dimension_count: expected 64"},
      {[](GgufSpec& s) { s.keys["llama.rope.freq_base"] = NAN; },
       "llama.rope.freq_base: expected a number > 1"},
      {[](GgufSpec& s) { s.keys["llama.expert_count"] = uint32_t{8}; },
       "llama.expert_count: expected 0 or no such key, got 8"},
      {[](GgufSpec& s) {
         s.keys["llama.attention.sliding_window"] = uint32_t{64};
       },
       "llama.attention.sliding_window: expected no such key, got 64"},
      {[](GgufSpec& s) { s.tensors.erase("token_embd.weight"); },
       "token_embd.weight: expected a tensor, got none"},
      {[](GgufSpec& s) { s.tensors.erase("blk.1.ffn_up.weight"); },
       "blk.1.ffn_up.weight: expected a tensor [256, 256], got none"},
      {[](GgufSpec& s) {
         s.tensors["output.weight"] = s.tensors["blk.0.attn_q.weight"];
       },
       "output.weight: expected [256, 96], got [256, 256]"},
      {[](GgufSpec& s) {
         s.tensors["rope_freqs.weight"].bytes.assign(128, std::byte{0});
       },
       "rope_freqs.weight: expected numbers > 0, got 0"},
  };
  const GgufSpec good = RandomSpec("llama", TensorType::kF32, 1);
  ASSERT_OK(LoadSpec(good).status());
  for (const BadFile& bad : cases) {
    GgufSpec spec = good;
    bad.spoil(spec);
    const absl::Status status = LoadSpec(spec).status();
    EXPECT_FALSE(status.ok()) << bad.message;
    EXPECT_THAT(std::string(status.message()), HasSubstr(bad.message));
  }
}

}  // namespace
}  // namespace blockmgr
