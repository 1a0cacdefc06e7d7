#include "scheduler/server/kv_event_packing.h"

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace blockmgr {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;
using Json = nlohmann::json;
using Kind = KvEvent::Kind;

constexpr int64_t kUnlimited = int64_t{1} << 30;
constexpr uint64_t kLargeHash = 0xFEDCBA9876543210u;

std::shared_ptr<const ContentScope> Scope(ContentScope scope) {
  return std::make_shared<const ContentScope>(std::move(scope));
}

// What another library makes of the only batch.
Json Decode(const std::vector<KvEvent>& events) {
  const std::vector<std::string> batches =
      PackKvEvents(events, 2, 1.5, kUnlimited);
  EXPECT_THAT(batches, SizeIs(1));
  return batches.empty() ? Json() : Json::from_msgpack(batches[0]);
}

TEST(KvEventPackingTest, NothingIsNoBatch) {
  EXPECT_THAT(PackKvEvents({}, 2, 1.5, kUnlimited), IsEmpty());
}

TEST(KvEventPackingTest, HasEventsAsMaps) {
  const Json batch =
      Decode({{.kind = Kind::kCleared},
              {.kind = Kind::kRemoved, .hashes = {1, kLargeHash}},
              {.kind = Kind::kBlocks,
               .hashes = {kLargeHash, 5},
               .scope = Scope({}),
               .tokens = {0, 127, 128, -1},
               .media = {{}, {}}},
              {.kind = Kind::kBlocks,
               .hashes = {6},
               .parent = kLargeHash,
               .scope = Scope({}),
               .tokens = {1 << 30, 70'000},
               .media = {{}}}});
  const Json expected = {1.5,
                         {{{"type", "AllBlocksCleared"}},
                          {{"type", "BlockRemoved"},
                           {"block_hashes", {1, kLargeHash}},
                           {"medium", "GPU"}},
                          {{"type", "BlockStored"},
                           {"block_hashes", {kLargeHash, 5}},
                           {"parent_block_hash", nullptr},
                           {"token_ids", {0, 127, 128, 4294967295u}},
                           {"block_size", 2},
                           {"lora_id", nullptr},
                           {"medium", "GPU"},
                           {"lora_name", nullptr}},
                          {{"type", "BlockStored"},
                           {"block_hashes", {6}},
                           {"parent_block_hash", kLargeHash},
                           {"token_ids", {1 << 30, 70'000}},
                           {"block_size", 2},
                           {"lora_id", nullptr},
                           {"medium", "GPU"},
                           {"lora_name", nullptr}}},
                         nullptr};
  EXPECT_EQ(batch, expected);
}

// The salt counts for the first block of a prompt alone, the adapter for all.
TEST(KvEventPackingTest, AdaptersSaltsAndMediaAreInTheirFields) {
  const auto scope = Scope({.lora = "adapter", .cache_salt = "salt"});
  const Json batch = Decode({{.kind = Kind::kBlocks,
                              .hashes = {1, 2},
                              .scope = scope,
                              .tokens = {1, 2, 3, 4},
                              .media = {{{1, 2, "image"}}, {{-1, 2, "image"}}}},
                             {.kind = Kind::kBlocks,
                              .hashes = {3},
                              .parent = 2,
                              .scope = scope,
                              .tokens = {5, 6},
                              .media = {{}}}});
  const Json& first = batch[1][0];
  EXPECT_EQ(first["lora_name"], "adapter");
  EXPECT_EQ(first["cache_salt"], "salt");
  EXPECT_EQ(first["extra_keys"], Json({{"adapter", {"image", 1}, "salt"},
                                       {"adapter", {"image", -1}}}));
  EXPECT_EQ(batch[1][1]["extra_keys"], Json::array({Json::array({"adapter"})}));
  EXPECT_EQ(batch[1][1]["cache_salt"], "salt");
}

TEST(KvEventPackingTest, BlocksWithoutKeysAreNil) {
  const Json batch = Decode({{.kind = Kind::kBlocks,
                              .hashes = {1, 2},
                              .scope = Scope({}),
                              .tokens = {1, 2, 3, 4},
                              .media = {{}, {{0, 1, "\xff\x01"}}}}});
  const Json& keys = batch[1][0]["extra_keys"];
  ASSERT_THAT(keys, SizeIs(2));
  EXPECT_EQ(keys[0], nullptr);
  // A hash that is no text.
  EXPECT_EQ(keys[1][0][0], Json::binary({0xff, 0x01}));
}

TEST(KvEventPackingTest, ATenantIsASalt) {
  const Json batch =
      Decode({{.kind = Kind::kBlocks,
               .hashes = {1},
               .scope = Scope({.tenant = "a", .cache_salt = "s"}),
               .tokens = {1, 2},
               .media = {{}}}});
  EXPECT_EQ(batch[1][0]["cache_salt"], "tenant=1:a;s");
  EXPECT_EQ(batch[1][0]["extra_keys"],
            Json::array({Json::array({"tenant=1:a;s"})}));
}

// No tenant and salt can be taken for others.
TEST(KvEventPackingTest, DifferentScopesHaveDifferentSalts) {
  std::map<std::string, std::pair<std::string, std::string>> scopes;
  const std::vector<std::string> texts = {
      "",    ";",       "a",          ";a",          "a;",           "a;s",
      "1:a", "tenant=", "tenant=a",   "tenant=a;s",  "tenant=1:a;s", "s",
      "a;;", "0:;s",    "tenant=0:;", "tenant=0:;s", ";tenant=1:a;", ";s"};
  for (const std::string& tenant : texts) {
    for (const std::string& salt : texts) {
      const Json batch =
          Decode({{.kind = Kind::kBlocks,
                   .hashes = {1},
                   .scope = Scope({.tenant = tenant, .cache_salt = salt}),
                   .tokens = {1, 2},
                   .media = {{}}}});
      const std::string told = batch[1][0].value("cache_salt", std::string());
      const auto [other, is_new] =
          scopes.try_emplace(told, std::pair(tenant, salt));
      EXPECT_TRUE(is_new) << told << " of '" << tenant << "', '" << salt
                          << "' and '" << other->second.first << "', '"
                          << other->second.second << "'";
    }
  }
  // Consumers compare a salt with the one that a request has.
  EXPECT_EQ(scopes.count("s"), 1u);
  EXPECT_EQ(scopes["s"].second, "s");
}

TEST(KvEventPackingTest, CompressedPrefixesHaveTheirPlan) {
  const Json batch = Decode({{.kind = Kind::kPrefix,
                              .hashes = {kLargeHash},
                              .scope = Scope({.lora = "l", .cache_salt = "s"}),
                              .tokens = {7, 8},
                              .media = {{{1, 2, "image"}}},
                              .first_token = 4096,
                              .length = 5000,
                              .plan = "keydiff | topk"},
                             {.kind = Kind::kPrefix,
                              .hashes = {1},
                              .scope = Scope({}),
                              .media = {{}}}});
  const Json expected = {{"type", "CompressedPrefixStored"},
                         {"block_hash", kLargeHash},
                         {"token_ids", {7, 8}},
                         {"first_token", 4096},
                         {"length", 5000},
                         {"plan", "keydiff | topk"},
                         {"block_size", 2},
                         {"medium", "GPU"},
                         {"lora_name", "l"},
                         {"media", Json::array({{"image", 1, 2}})},
                         {"cache_salt", "s"}};
  EXPECT_EQ(batch[1][0], expected);
  EXPECT_FALSE(batch[1][1].contains("media"));
}

TEST(KvEventPackingTest, LargeBatchesAreSplitBetweenEvents) {
  std::vector<KvEvent> events;
  for (uint64_t i = 0; i < 100; ++i) {
    events.push_back({.kind = Kind::kRemoved,
                      .hashes = std::vector<uint64_t>(100, kLargeHash + i)});
  }
  const std::vector<std::string> batches = PackKvEvents(events, 2, 1.5, 2000);
  EXPECT_THAT(batches, SizeIs(34));  // of three events of some 900 bytes
  uint64_t next = 0;
  for (const std::string& batch : batches) {
    const Json decoded = Json::from_msgpack(batch);
    for (const Json& event : decoded[1]) {
      EXPECT_EQ(event["block_hashes"][99], kLargeHash + next++);
    }
  }
  EXPECT_EQ(next, 100u);
}

}  // namespace
}  // namespace blockmgr
