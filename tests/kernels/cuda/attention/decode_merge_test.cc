// Merges of decode attention by numbers of blocks that no launch has for them.

#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/cuda/attention/decode_kernels.cuh"
#include "kernels/cuda/simt.h"
#include "tests/kernels/cuda/attention/attention_cases.h"
#include "tests/kernels/cuda/attention/attention_checks.h"
#include "tests/kernels/cuda/attention/decode_runner.h"

namespace blockmgr {
namespace {

using Element = simt::BFloat16;
constexpr int32_t kDim = 128;

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
  const int32_t num_lists = params.lists.num_sequences * params.lists.num_heads;
  return simt::Launch({},
                      {.grid = {static_cast<uint32_t>(num_lists), merge_blocks},
                       .threads = kDecodeThreads,
                       .shared_bytes = MergeShape<kDim>::kSharedBytes},
                      MergeDecodeAttention<Element, kDim>, params)
      .error;
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

// Shares in order, each tile in the one that the merge looks for it in, and the
// slots of parts those that decode attention wrote, whatever the numbers leave
// over.
TEST(DecodeMergeTest, PartsAreWhereSharesAre) {
  for (const int32_t num_tiles : {1, 2, 7, 23, 131, 264, 4097}) {
    for (const int32_t num_ctas : {1, 2, 3, 16, 23, 132, 264}) {
      SCOPED_TRACE(testing::Message() << num_tiles << " tiles " << num_ctas);
      const int32_t list_begin = num_tiles / 3;
      const std::vector<int32_t> offsets{list_begin, num_tiles};
      DecodeParams params;
      params.lists.num_sequences = 1;
      params.lists.num_heads = 1;
      params.num_ctas = num_ctas;
      params.tile_offsets = offsets.data();
      PartSlots slots(params, 0, 0);
      for (int32_t cta = 0; cta < num_ctas; ++cta) {
        const int32_t begin = ShareBegin(num_tiles, cta, num_ctas);
        const int32_t end = ShareBegin(num_tiles, cta + 1, num_ctas);
        for (int32_t tile = begin; tile < end; ++tile) {
          ASSERT_EQ(OwnerOfTile(params, num_tiles, tile), cta) << tile;
        }
        const int64_t slot = PartSlots(params, 0, cta).Next();
        EXPECT_EQ(slot, begin == end ? PartSlots::kNoSlot
                                     : SlotOfCta(cta, begin <= list_begin));
        EXPECT_EQ(slots.Next(), slot) << cta;
      }
    }
  }
}

}  // namespace
}  // namespace blockmgr
