// The division of decode attention's tiles among CTAs, and the places of
// partial results.
#ifndef KERNELS_CUDA_ATTENTION_DECODE_PIECES_CUH_
#define KERNELS_CUDA_ATTENTION_DECODE_PIECES_CUH_

#include <cstdint>

#include "kernels/cuda/attention/decode_attention.h"
#include "kernels/cuda/attention_list.cuh"
#include "kernels/cuda/list_splits.cuh"
#include "kernels/cuda/mma_rows.cuh"
#include "kernels/cuda/simt.h"

namespace blockmgr {
inline namespace SIMT_SPACE {

SIMT_DEVICE int32_t CountLists(const DecodeParams& params) {
  return params.lists.num_sequences * params.lists.num_heads;
}
SIMT_DEVICE int32_t CountTiles(const DecodeParams& params) {
  return params.tile_offsets[CountLists(params)];
}

// Returns whether there is room for the results of every tile.
SIMT_DEVICE bool HasRoom(const DecodeParams& params) {
  const bool needs_room = params.logits != nullptr || params.chunk_tiles > 0;
  return !needs_room || CountTiles(params) <= params.max_tiles;
}

// C. Returns the list that holds a tile. Every list has at least one tile.
SIMT_DEVICE int32_t ListOfTile(const DecodeParams& params, int32_t tile) {
  return CountLeading(
             CountLists(params),
             [&](int32_t list) { return params.tile_offsets[list] <= tile; }) -
         1;
}

// Returns how many CTAs have a share: none is empty.
SIMT_DEVICE int32_t CountShares(const DecodeParams& params, int32_t num_tiles) {
  return num_tiles < params.num_ctas ? num_tiles : params.num_ctas;
}
// Returns the first tile of a CTA's share, before chunks are considered: share
// c begins at c T / n.
SIMT_DEVICE int32_t ShareBegin(int32_t num_tiles, int32_t cta,
                               int32_t num_ctas) {
  return static_cast<int32_t>(int64_t{num_tiles} * cta / num_ctas);
}
// Returns the CTA whose share holds a tile: the last CTA with a share that
// begins at the tile or before, c T / n < tile + 1.
SIMT_DEVICE int32_t OwnerOfTile(int32_t num_tiles, int32_t tile,
                                int32_t num_ctas) {
  return static_cast<int32_t>(((int64_t{tile} + 1) * num_ctas - 1) / num_tiles);
}

// Returns the first begin of a chunk at or after a tile of `list`, or the end
// of the list.
SIMT_DEVICE int32_t ChunkAtOrAfter(const DecodeParams& params, int32_t list,
                                   int32_t tile) {
  const int32_t begin = params.tile_offsets[list];
  const int32_t end = params.tile_offsets[list + 1];
  const int32_t chunk =
      (tile - begin + params.chunk_tiles - 1) / params.chunk_tiles;
  const int32_t rounded = begin + chunk * params.chunk_tiles;
  return rounded < end ? rounded : end;
}

// The tiles of a CTA.
struct TileRange {
  int32_t list = 0;  // holds the first tile
  int32_t begin = 0;
  int32_t end = 0;
};

// C. The range may be empty.
SIMT_DEVICE TileRange RangeOfCta(const DecodeParams& params, int32_t cta) {
  const int32_t num_tiles = CountTiles(params);
  const int32_t num_shares = CountShares(params, num_tiles);
  TileRange range;
  if (cta >= num_shares) return range;
  range.begin = ShareBegin(num_tiles, cta, num_shares);
  range.end = ShareBegin(num_tiles, cta + 1, num_shares);
  range.list = ListOfTile(params, range.begin);
  if (params.chunk_tiles == 0) return range;
  if (range.end < num_tiles) {
    // Most shares end in the list in which they begin, and need no second
    // search, which is a chain of loads.
    const int32_t last = range.end < params.tile_offsets[range.list + 1]
                             ? range.list
                             : ListOfTile(params, range.end);
    range.end = ChunkAtOrAfter(params, last, range.end);
  }
  range.begin = ChunkAtOrAfter(params, range.list, range.begin);
  if (range.begin == params.tile_offsets[range.list + 1]) ++range.list;
  return range;
}

// Tiles of one list that one CTA adds up in one go. Tiles count from the first
// tile of all lists.
struct DecodePiece {
  int32_t list = 0;
  int32_t list_begin = 0;
  int32_t list_end = 0;
  int32_t begin = 0;
  int32_t end = 0;

  SIMT_DEVICE bool IsWhole() const {
    return begin == list_begin && end == list_end;
  }
};

// Returns the piece that begins at `tile` of `list`.
SIMT_DEVICE DecodePiece PieceAt(const DecodeParams& params,
                                const TileRange& range, int32_t list,
                                int32_t tile) {
  DecodePiece piece;
  piece.list = list;
  piece.list_begin = params.tile_offsets[list];
  piece.list_end = params.tile_offsets[list + 1];
  piece.begin = tile;
  piece.end = piece.list_end < range.end ? piece.list_end : range.end;
  if (params.chunk_tiles > 0) {
    const int32_t chunk = (tile - piece.list_begin) / params.chunk_tiles;
    const int32_t end = piece.list_begin + (chunk + 1) * params.chunk_tiles;
    if (end < piece.end) piece.end = end;
  }
  return piece;
}

// A CTA shares at most two lists with other CTAs: the list in whose middle its
// range begins, and the last list that it begins.
SIMT_DEVICE int64_t SlotOfCta(int32_t cta, bool begins_list) {
  return 2 * int64_t{cta} + (begins_list ? 1 : 0);
}
SIMT_DEVICE int64_t SlotOfChunk(const DecodeParams& params, int32_t list,
                                int32_t list_begin, int32_t chunk) {
  return int64_t{list_begin / params.chunk_tiles} + list + chunk;
}
SIMT_DEVICE int64_t SlotOfPiece(const DecodeParams& params,
                                const DecodePiece& piece) {
  if (params.chunk_tiles == 0) {
    return SlotOfCta(static_cast<int32_t>(simt::BlockX()),
                     piece.begin == piece.list_begin);
  }
  return SlotOfChunk(params, piece.list, piece.list_begin,
                     (piece.begin - piece.list_begin) / params.chunk_tiles);
}

}  // namespace SIMT_SPACE
}  // namespace blockmgr

#endif  // KERNELS_CUDA_ATTENTION_DECODE_PIECES_CUH_
