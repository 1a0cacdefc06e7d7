#include "wire/policy_wire.h"

#include <iterator>
#include <limits>
#include <string>
#include <utility>

#include <absl/strings/ascii.h>
#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <google/protobuf/descriptor.h>
#include <gtest/gtest.h>

#include "blockmgr/eviction/policy_fields.h"
#include "tests/testing/status_matchers.h"

namespace blockmgr {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;

TEST(PolicyWireTest, LayoutsComeBack) {
  for (const auto& [dtype, number] :
       {std::pair(DType::kFloat32, v1::DTYPE_FLOAT32),
        std::pair(DType::kBFloat16, v1::DTYPE_BFLOAT16),
        std::pair(DType::kFloat16, v1::DTYPE_FLOAT16)}) {
    const int32_t num_shards = dtype == DType::kFloat32 ? 1 : 3;
    const ModelLayout layout = {.num_layers = 2,
                                .num_heads = 3,
                                .num_q_heads = 6,
                                .head_dim = 16,
                                .page_size = 8,
                                .dtype = dtype,
                                .num_blocks = 5,
                                .num_shards = num_shards,
                                .group_windows = {8, 32}};
    v1::ModelLayout proto;
    ToProto(layout, &proto);
    EXPECT_EQ(proto.dtype(), number);
    EXPECT_EQ(proto.num_q_heads(), 6);
    EXPECT_EQ(proto.num_blocks(), 5);
    ASSERT_OK_AND_ASSIGN(const ModelLayout back, FromProto(proto));
    EXPECT_EQ(back, layout);
  }
  // A dtype or a field added to the message must be filled, and tested, here.
  EXPECT_EQ(v1::DType_descriptor()->value_count(), 1 + std::ssize(kDTypeNames));
  EXPECT_EQ(v1::ModelLayout::GetDescriptor()->field_count(), 10);
  EXPECT_THAT(FromProto(v1::ModelLayout()),
              StatusIs(kInvalid, HasSubstr("layout.dtype")));
}

TEST(PolicyWireTest, LayoutsOfOneWindowComeBack) {
  const ModelLayout layout = {.num_layers = 2,
                              .num_heads = 4,
                              .num_q_heads = 4,
                              .head_dim = 16,
                              .num_blocks = 5,
                              .window = 40};
  v1::ModelLayout proto;
  proto.add_group_windows(3);  // of a layout before
  ToProto(layout, &proto);
  ASSERT_OK_AND_ASSIGN(const ModelLayout back, FromProto(proto));
  EXPECT_EQ(back, layout);
  proto.add_group_windows(16);
  EXPECT_THAT(FromProto(proto),
              StatusIs(kInvalid, HasSubstr("layout: window: expected 0")));
  proto.clear_window();
  proto.add_group_windows(-16);
  EXPECT_THAT(
      FromProto(proto),
      StatusIs(kInvalid,
               HasSubstr("layout: group_windows[1]: expected at least "
                         "page_size (16), at most 1073741824, got -16")));
}

TEST(PolicyWireTest, EnginesThatNameNoShardsHaveOne) {
  ModelLayout layout = {.num_layers = 2,
                        .num_heads = 4,
                        .num_q_heads = 4,
                        .head_dim = 16,
                        .num_blocks = 5};
  v1::ModelLayout proto;
  ToProto(layout, &proto);
  proto.clear_num_shards();
  ASSERT_OK_AND_ASSIGN(const ModelLayout back, FromProto(proto));
  EXPECT_EQ(back, layout);
  proto.set_num_shards(3);
  EXPECT_THAT(
      FromProto(proto),
      StatusIs(kInvalid,
               HasSubstr("layout: num_shards: expected a divisor of num_heads "
                         "(4), got 3")));
  proto.set_num_shards(-1);
  EXPECT_THAT(FromProto(proto), StatusIs(kInvalid, HasSubstr("num_shards")));
}

// Every stage, with every key away from its default.
constexpr const char* kPolicies[] = {
    "snapkv",
    "snapkv(window=8,pool=avg,kernel=5,order=kvpress,group=max)",
    "h2o(norm=count,recent=3,obs_window=256) | pyramid(beta=10,"
    "formula=kvpress)",
    "tova | adakv(alpha=0.25,mode=floor) | topk | round(token)",
    "keydiff(anchor=pairwise) | ada_pyramid(alpha=0.5,beta=4,formula=factory)",
    "keydiff(anchor=median,metric=euclidean) | headkv(profile=needle,share=1.1,"
    "temp=2) | critical(first=0.25,eps=0.5,norm=l2)",
    "snapkv | global | critical(gqa_product=true)",
    "expected_attention(n_future=9,n_sink=2,cov=false,vnorm=false,eps=0) | "
    "lukv(profile=llama-3.1_8b.v2)",
    "expected_attention(stats=llama-3.1_8b.v2)",
    "streaming(sinks=7) | uniform | protect(sinks=9,recent=0)",
    "knorm | uniform",
    "random(seed=7)",
    "external | external | topk | protect(recent=40)",
    "dropkv(window=16,kernel=5) | duo(profile=heads) | topk | "
    "protect(recent=10%)"};

TEST(PolicyWireTest, PoliciesComeBack) {
  for (const char* text : kPolicies) {
    SCOPED_TRACE(text);
    ASSERT_OK_AND_ASSIGN(const EvictionPolicy policy, ParsePolicy(text));
    v1::EvictionPolicy proto;
    ToProto(policy, &proto);
    ASSERT_OK_AND_ASSIGN(const EvictionPolicy back, FromProto(proto));
    EXPECT_EQ(back, policy) << FormatPolicy(back);
  }
}

TEST(PolicyWireTest, EveryStageIsAmongThePolicies) {
  std::string all;
  for (const char* text : kPolicies) absl::StrAppend(&all, text, " | topk ");
  for (const absl::string_view name : EnumNames<ScorerKind>()) {
    EXPECT_THAT(all, HasSubstr(std::string(name)));
  }
  for (const absl::string_view name : EnumNames<BudgetKind>()) {
    EXPECT_THAT(all, HasSubstr(std::string(name)));
  }
  for (const absl::string_view name : EnumNames<SelectorKind>()) {
    EXPECT_THAT(all, HasSubstr(std::string(name)));
  }
}

TEST(PolicyWireTest, WhatIsUnsetHasItsDefault) {
  v1::EvictionPolicy proto;
  proto.mutable_expected_attention();
  ASSERT_OK_AND_ASSIGN(const EvictionPolicy policy, FromProto(proto));
  ASSERT_OK_AND_ASSIGN(const EvictionPolicy expected,
                       ParsePolicy("expected_attention"));
  EXPECT_EQ(policy, expected);
}

TEST(PolicyWireTest, AFieldOfZeroIsNotUnset) {
  v1::EvictionPolicy proto;
  proto.mutable_streaming()->set_sinks(0);
  ASSERT_OK_AND_ASSIGN(const EvictionPolicy policy, FromProto(proto));
  EXPECT_EQ(policy.scorer.sinks, 0);
}

// Values of enums have our numbers: their names end in ours.
template <typename E>
void ExpectNames(const google::protobuf::EnumDescriptor* descriptor) {
  ASSERT_EQ(static_cast<size_t>(descriptor->value_count()),
            EnumNames<E>().size())
      << descriptor->full_name();
  for (int i = 0; i < descriptor->value_count(); ++i) {
    const auto* value = descriptor->FindValueByNumber(i);
    ASSERT_NE(value, nullptr) << descriptor->full_name() << " " << i;
    const std::string suffix = absl::StrCat(
        "_", absl::AsciiStrToUpper(EnumNames<E>()[static_cast<size_t>(i)]));
    EXPECT_THAT(value->name(), ::testing::EndsWith(suffix));
  }
}

TEST(PolicyWireTest, EnumsHaveTheSameNumbers) {
  using P = v1::EvictionPolicy;
  ExpectNames<PoolKind>(P::SnapKv::Pool_descriptor());
  ExpectNames<PoolOrder>(P::SnapKv::Order_descriptor());
  ExpectNames<GroupReduce>(P::SnapKv::Group_descriptor());
  ExpectNames<H2oNorm>(P::H2o::Norm_descriptor());
  ExpectNames<KeyDiffAnchor>(P::KeyDiff::Anchor_descriptor());
  ExpectNames<KeyDiffMetric>(P::KeyDiff::Metric_descriptor());
  ExpectNames<PyramidFormula>(P::PyramidFormula_descriptor());
  ExpectNames<AdaKvMode>(P::AdaKv::Mode_descriptor());
  ExpectNames<ValueNorm>(P::Critical::Norm_descriptor());
  ExpectNames<Rounding>(P::Rounding_descriptor());
}

TEST(PolicyWireTest, ErrorsNameTheField) {
  v1::EvictionPolicy policy;
  EXPECT_THAT(FromProto(policy), StatusIs(kInvalid, HasSubstr("scorer")));
  policy.mutable_snapkv()->set_kernel(4);
  EXPECT_THAT(FromProto(policy), StatusIs(kInvalid, HasSubstr("kernel")));
  policy.mutable_snapkv()->set_kernel(3);
  EXPECT_OK(FromProto(policy));
  policy.mutable_snapkv()->set_pool(
      static_cast<v1::EvictionPolicy::SnapKv::Pool>(7));
  EXPECT_THAT(FromProto(policy), StatusIs(kInvalid, HasSubstr("snapkv.pool")));
  policy.mutable_snapkv()->clear_pool();
  policy.mutable_adakv()->set_alpha(std::numeric_limits<double>::quiet_NaN());
  EXPECT_THAT(FromProto(policy), StatusIs(kInvalid, HasSubstr("alpha")));
  policy.mutable_lukv();
  EXPECT_THAT(FromProto(policy),
              StatusIs(kInvalid, StartsWith("policy: lukv: profile")));
  policy.mutable_adakv()->set_alpha(0.5);
  policy.mutable_protect()->set_recent(-2);
  EXPECT_THAT(FromProto(policy), StatusIs(kInvalid, HasSubstr("recent")));
  policy.clear_protect();
  policy.set_rounding(static_cast<v1::EvictionPolicy::Rounding>(9));
  EXPECT_THAT(FromProto(policy), StatusIs(kInvalid, HasSubstr("rounding")));
}

TEST(PolicyWireTest, TargetsComeBack) {
  EvictionTarget ratio;
  ratio.ratio = *KeepRatio::Parse("0.2");
  EvictionTarget tokens;
  tokens.kind = EvictionTarget::Kind::kTokens;
  tokens.tokens = 128;
  EvictionTarget in_windows = tokens;
  in_windows.window_keep_ratio = *KeepRatio::Parse("0.3");
  for (const EvictionTarget& target : {ratio, tokens, in_windows}) {
    v1::EvictionTarget proto;
    ToProto(target, &proto);
    ASSERT_OK_AND_ASSIGN(const EvictionTarget back, FromProto(proto));
    EXPECT_EQ(back, target);
  }
}

TEST(PolicyWireTest, BadTargetsAreRefused) {
  v1::EvictionTarget target;
  EXPECT_THAT(FromProto(target), StatusIs(kInvalid, HasSubstr("target")));
  target.set_tokens_per_head(0);
  EXPECT_THAT(FromProto(target),
              StatusIs(kInvalid, HasSubstr("tokens_per_head")));
  target.set_keep_ratio("1.5");
  EXPECT_THAT(FromProto(target),
              StatusIs(kInvalid, HasSubstr("target.keep_ratio")));
  target.set_keep_ratio("0.5");
  target.set_window_keep_ratio("-1");
  EXPECT_THAT(FromProto(target),
              StatusIs(kInvalid, HasSubstr("target.window_keep_ratio")));
}

}  // namespace
}  // namespace blockmgr
