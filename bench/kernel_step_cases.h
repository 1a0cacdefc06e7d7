// Cases of the kernels that steps without an eviction launch: attention, and
// rows that are written, read and copied. The ceilings are here, too.
//
// Every function adds its cases to the builder.
#ifndef BENCH_KERNEL_STEP_CASES_H_
#define BENCH_KERNEL_STEP_CASES_H_

#include <cstdint>

#include "bench/kernel_case.h"

namespace blockmgr {

void AddCeilings(CaseBuilder& builder);
// The chunk_tiles of DecodeParams.
void AddDecode(const char* name, int32_t chunk_tiles, CaseBuilder& builder);
// Decode attention in stream-K with a sink for each query head, whose logit is
// 0: to be timed next to `decode`.
void AddDecodeSinks(CaseBuilder& builder);
// Decode attention for h2o: it writes logits, which are summed and then turned
// into scores.
void AddDecodeSums(CaseBuilder& builder);
// The last queries of the first sequences over their lists, as a chunk of a
// prompt. The tokens of the chunk follow those of the tail, on the first blocks
// of the pool.
void AddChunk(CaseBuilder& builder);
// Writes the rows of a prompt to every slot of half of the blocks.
void AddAppend(CaseBuilder& builder);
// Reads every other entry back.
void AddGather(CaseBuilder& builder);
// Copies half of the blocks to the other half.
void AddBlockCopies(CaseBuilder& builder);
// Moves half of the pages to staging memory on the device, and back.
void AddSwap(CaseBuilder& builder);

}  // namespace blockmgr

#endif  // BENCH_KERNEL_STEP_CASES_H_
