// Merges of decode attention by numbers of blocks that no launch has for them.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/cuda/attention/decode_kernels.cuh"
#include "kernels/cuda/simt.h"
#include "tests/kernels/cuda/attention/attention_cases.h"
#include "tests/kernels/cuda/attention/attention_checks.h"
#include "tests/kernels/cuda/attention/attention_error.h"
#include "tests/kernels/cuda/attention/decode_runner.h"
#include "tests/kernels/kernel_cases.h"

namespace blockmgr {
namespace {

using Element = simt::BFloat16;
constexpr int32_t kDim = 128;

template <int kHeadDim>
std::string Merge(const DecodeParams& params, uint32_t merge_blocks) {
  const int64_t num_lists =
      int64_t{params.lists.num_sequences} * params.lists.num_heads;
  const int64_t num_blocks = CountMergeBlocks(
      params.max_tiles, num_lists, params.num_ctas, params.chunk_tiles);
  return simt::Launch(
             {},
             {.grid = {static_cast<uint32_t>(num_blocks), merge_blocks},
              .threads = kDecodeThreads,
              .shared_bytes = kMergeSharedBytes},
             MergeDecodeAttention<Element, kHeadDim>, params)
      .error;
}

// Attention of a group of at most 8 query heads, and its merge.
std::string Attend(const DecodeParams& params, uint32_t merge_blocks) {
  std::string error =
      simt::Launch(
          {},
          {.grid = {static_cast<uint32_t>(params.num_ctas)},
           .threads = kDecodeThreads,
           .shared_bytes = DecodeShape<Element, kDim, 1>::kSharedBytes},
          DecodeAttention<Element, kDim, 1>, params)
          .error;
  if (!error.empty()) return error;
  return Merge<kDim>(params, merge_blocks);
}

// Parts for every warp of the merge, more than one each and fewer than one, and
// query heads for every block of it.
TEST(DecodeMergeTest, AnyNumberOfBlocksMergesAlike) {
  AttentionShape shape = RaggedShape(kDim, 5);
  shape.region_lengths = {700, 150, 33, 0, 90, 460};
  shape.tail_lengths = {5, 90, 17};
  DecodeRunner<Element> runner(shape, 19);
  for (const int32_t chunk_tiles : {0, 1}) {
    SCOPED_TRACE(chunk_tiles);
    const DecodeOptions options{.num_ctas = 23, .chunk_tiles = chunk_tiles};
    ASSERT_EQ(runner.Run(options), "");
    ExpectMatches(runner);
    const auto expected = runner.Bits();
    for (const uint32_t merge_blocks : {1u, 2u, 5u, 7u}) {
      ASSERT_EQ(Attend(runner.Params(options), merge_blocks), "");
      EXPECT_EQ(runner.Bits(), expected) << merge_blocks;
    }
  }
}

// Parameters of a merge in which list l has the tiles [offsets[l], offsets[l +
// 1]).
DecodeParams ParamsOf(const std::vector<int32_t>& offsets, int32_t num_ctas,
                      int32_t chunk_tiles) {
  DecodeParams params;
  params.lists.num_sequences = static_cast<int32_t>(offsets.size()) - 1;
  params.lists.num_heads = 1;
  params.num_ctas = num_ctas;
  params.chunk_tiles = chunk_tiles;
  params.max_tiles = offsets.back();
  params.tile_offsets = offsets.data();
  return params;
}

// Shares in order, each tile in the one that the merge looks for it in, and the
// rows of parts those that decode attention wrote, whatever the numbers leave
// over.
TEST(DecodeMergeTest, PartsAreWhereSharesAre) {
  for (const int32_t num_tiles : {1, 2, 7, 23, 131, 264, 4097}) {
    for (const int32_t num_ctas : {1, 2, 3, 16, 23, 132, 264}) {
      SCOPED_TRACE(testing::Message() << num_tiles << " tiles " << num_ctas);
      const int32_t list_begin = num_tiles / 3;
      const std::vector<int32_t> offsets{list_begin, num_tiles};
      const DecodeParams params = ParamsOf(offsets, num_ctas, 0);
      const int32_t num_shares = CountShares(params, num_tiles);
      const ListParts parts(params, 0);
      const PartRows rows = parts.Rows(params, 0, parts.count(), 1);
      int32_t part = 0;
      for (int32_t cta = 0; cta < num_shares; ++cta) {
        const int32_t begin = ShareBegin(num_tiles, cta, num_shares);
        const int32_t end = ShareBegin(num_tiles, cta + 1, num_shares);
        ASSERT_LT(begin, end);
        for (int32_t tile = begin; tile < end; ++tile) {
          ASSERT_EQ(OwnerOfTile(num_tiles, tile, num_shares), cta) << tile;
        }
        if (end <= list_begin) continue;
        EXPECT_EQ(rows.Row(part++), 8 * SlotOfCta(cta, begin <= list_begin));
      }
      EXPECT_EQ(part, parts.count());
      for (int32_t cta = num_shares; cta < num_ctas; ++cta) {
        EXPECT_EQ(RangeOfCta(params, cta).end, 0) << cta;
      }
    }
  }
}

struct FindParams {
  DecodeParams decode;
  MergeGroup* groups;  // [blocks]
};

SIMT_KERNEL(32, 1)
void FindGroups(FindParams params) {
  simt::AwaitEarlierKernels();
  const auto block = static_cast<int32_t>(simt::BlockX());
  const MergeGroup group = GroupOfBlock(params.decode, block);
  if (Thread() == 0) params.groups[block] = group;
}

// Every group of every list has one block, and the host counts enough of them,
// also with room for more tiles than there are.
TEST(DecodeMergeTest, EveryGroupHasABlock) {
  Rng rng(22);
  const std::vector<int32_t> lengths = {1,   2,   127, 128,  129,  255,
                                        256, 257, 900, 1024, 1025, 5000};
  for (int32_t round = 0; round < 40; ++round) {
    const int32_t chunk_tiles = RandomInt(rng, 0, 3);
    const int32_t num_ctas = RandomInt(rng, 0, 1) == 0 ? 264 : 1200;
    SCOPED_TRACE(testing::Message() << chunk_tiles << " " << num_ctas);
    std::vector<int32_t> offsets = {0};
    for (int32_t list = RandomInt(rng, 1, 70); list > 0; --list) {
      const int32_t i =
          RandomInt(rng, 0, static_cast<int32_t>(std::ssize(lengths)) - 1);
      offsets.push_back(offsets.back() + lengths[i]);
    }
    DecodeParams params = ParamsOf(offsets, num_ctas, chunk_tiles);
    params.max_tiles += RandomInt(rng, 0, 4000);
    const int64_t num_lists = params.lists.num_sequences;
    const int64_t num_blocks =
        CountMergeBlocks(params.max_tiles, num_lists, num_ctas, chunk_tiles);
    std::vector<MergeGroup> groups(num_blocks);
    ASSERT_EQ(
        simt::Launch(
            {}, {.grid = {static_cast<uint32_t>(num_blocks)}, .threads = 32},
            FindGroups, FindParams{params, groups.data()})
            .error,
        "");
    for (int32_t list = 0; list < num_lists; ++list) {
      std::vector<int32_t> blocks(ListParts(params, list).CountGroups());
      for (const MergeGroup& group : groups) {
        const bool exists = group.list == list && group.group >= 0 &&
                            group.group < std::ssize(blocks);
        if (exists) ++blocks[group.group];
      }
      EXPECT_EQ(blocks, std::vector<int32_t>(blocks.size(), 1)) << list;
    }
  }
}

// Results of decode attention for lists of the given numbers of parts, and what
// becomes of them.
template <int kHeadDim>
class PartialResults {
 public:
  static constexpr int32_t kGroupSize = 2;

  // List l has num_parts[l] parts, drawn from seeds[l]: chunks of two tiles,
  // the last of one.
  PartialResults(const std::vector<int32_t>& num_parts,
                 const std::vector<uint64_t>& seeds) {
    for (const int32_t count : num_parts) {
      offsets_.push_back(offsets_.back() + 2 * count - 1);
    }
    params_ = ParamsOf(offsets_, 1, 2);
    const int64_t num_lists = std::ssize(num_parts);
    const int64_t slots =
        CountDecodeWorkspaceSlots(offsets_.back(), num_lists, 1, 2);
    partial_output_.assign(slots * 8 * kHeadDim, kNan);
    partial_stats_.assign(slots * 8 * 2, kNan);
    output_.assign(num_lists * kGroupSize * kHeadDim, Element{0x7FFF});
    lse_.assign(num_lists * kGroupSize, kNan);
    counters_.assign(num_lists * kGroupSize, 0);
    params_.group_size = kGroupSize;
    params_.partial_output = partial_output_.data();
    params_.partial_stats = partial_stats_.data();
    params_.merge_counters = counters_.data();
    params_.output = output_.data();
    params_.lse = lse_.data();
    for (int32_t list = 0; list < num_lists; ++list) {
      Rng rng(seeds[list]);
      for (int32_t part = 0; part < num_parts[list]; ++part) {
        for (int32_t q_head = 0; q_head < kGroupSize; ++q_head) {
          Draw(rng, list, part, q_head);
        }
      }
    }
  }

  std::string Merge(uint32_t merge_blocks) {
    return blockmgr::Merge<kHeadDim>(params_, merge_blocks);
  }
  // The sums in float64, of parts that have not been merged yet.
  HeadAttention Expected(int32_t list, int32_t q_head) const {
    HeadAttention expected;
    expected.output.assign(kHeadDim, 0.0);
    double sum = 0.0;
    for (int32_t part = 0; part < CountParts(list); ++part) {
      const int64_t row = Row(list, part, q_head);
      const double weight = std::exp2(double{partial_stats_[row * 2]});
      sum += weight * double{partial_stats_[row * 2 + 1]};
      for (int32_t e = 0; e < kHeadDim; ++e) {
        expected.output[e] +=
            weight * double{partial_output_[row * kHeadDim + e]};
      }
    }
    for (double& value : expected.output) value /= sum;
    expected.lse = std::log(sum);
    return expected;
  }
  AttentionError Error(int32_t list,
                       const std::array<HeadAttention, 2>& expected) const {
    ErrorSum sum;
    for (int32_t q_head = 0; q_head < kGroupSize; ++q_head) {
      const int64_t row = int64_t{list} * kGroupSize + q_head;
      sum.Add(expected[q_head], &output_[row * kHeadDim], lse_[row]);
    }
    return sum.Get();
  }
  std::vector<uint32_t> Bits(int32_t list) const {
    std::vector<uint32_t> bits;
    for (int32_t row = list * kGroupSize; row < (list + 1) * kGroupSize;
         ++row) {
      bits.push_back(simt::FloatBits(lse_[row]));
      for (int32_t e = 0; e < kHeadDim; ++e) {
        bits.push_back(output_[row * kHeadDim + e].bits);
      }
    }
    return bits;
  }
  bool CountersAreZero() const {
    return std::ranges::all_of(counters_, [](uint32_t c) { return c == 0; });
  }

 private:
  static constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

  int32_t CountParts(int32_t list) const {
    return (offsets_[list + 1] - offsets_[list] + 1) / 2;
  }
  int64_t Row(int32_t list, int32_t part, int32_t q_head) const {
    return 8 * SlotOfChunk(params_, list, offsets_[list], part) + q_head;
  }
  void Draw(Rng& rng, int32_t list, int32_t part, int32_t q_head) {
    const int64_t row = Row(list, part, q_head);
    // Some parts weigh nothing.
    const bool is_dead = RandomInt(rng, 0, 9) == 0;
    partial_stats_[row * 2] =
        is_dead ? -INFINITY : static_cast<float>(RandomInt(rng, -9, 9));
    partial_stats_[row * 2 + 1] =
        is_dead ? 0.0f : 1.0f + static_cast<float>(RandomInt(rng, 0, 99)) / 9;
    const std::vector<float> values = RandomFloats(rng, kHeadDim);
    for (int32_t e = 0; e < kHeadDim; ++e) {
      partial_output_[row * kHeadDim + e] = is_dead ? 0.0f : values[e];
    }
  }

  std::vector<int32_t> offsets_ = {0};
  DecodeParams params_;
  std::vector<float> partial_output_;
  std::vector<float> partial_stats_;
  std::vector<uint32_t> counters_;
  std::vector<Element> output_;
  std::vector<float> lse_;
};

// Merges lists of the given numbers of parts in one launch, then each alone:
// near the sums in float64, and the same bits.
template <int kHeadDim>
void CheckMerges(const std::vector<int32_t>& num_parts) {
  std::vector<uint64_t> seeds;
  seeds.reserve(num_parts.size());
  for (const int32_t count : num_parts) seeds.push_back(1000 + count);
  PartialResults<kHeadDim> all(num_parts, seeds);
  std::vector<std::array<HeadAttention, 2>> expected;
  expected.reserve(num_parts.size());
  const auto num_lists = static_cast<int32_t>(std::ssize(num_parts));
  for (int32_t list = 0; list < num_lists; ++list) {
    expected.push_back({all.Expected(list, 0), all.Expected(list, 1)});
  }
  ASSERT_EQ(all.Merge(1), "");
  EXPECT_TRUE(all.CountersAreZero());
  for (int32_t list = 0; list < num_lists; ++list) {
    SCOPED_TRACE(num_parts[list]);
    const AttentionError error = all.Error(list, expected[list]);
    EXPECT_LE(error.relative, 3e-3);
    EXPECT_LE(error.lse, 2e-5);
    PartialResults<kHeadDim> alone({num_parts[list]}, {seeds[list]});
    ASSERT_EQ(alone.Merge(PartialResults<kHeadDim>::kGroupSize), "");
    EXPECT_EQ(alone.Bits(0), all.Bits(list));
  }
}

// A group's parts and more, and several groups.
TEST(DecodeMergeTest, MatchesFloat64AtBoundariesOfGroups) {
  const std::vector<int32_t> num_parts = {2,
                                          kMergeParts - 1,
                                          kMergeParts,
                                          kMergeParts + 1,
                                          2 * kMergeParts,
                                          3 * kMergeParts + 1,
                                          9 * kMergeParts,
                                          17};
  CheckMerges<64>(num_parts);
  CheckMerges<128>(num_parts);
  CheckMerges<256>(num_parts);
}

// More groups than a group has parts.
TEST(DecodeMergeTest, MatchesFloat64WithMoreGroupsThanPartsOfOne) {
  CheckMerges<64>({kMergeParts * kMergeParts + 1, 3});
}

}  // namespace
}  // namespace blockmgr
