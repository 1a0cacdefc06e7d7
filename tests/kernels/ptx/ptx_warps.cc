// What lanes of a warp do together: barriers, shuffles and votes, sections
// 9.7.9.6 and 9.7.13 of the PTX ISA.
#include <cstdint>

#include "tests/kernels/ptx/ptx_machine.h"
#include "tests/kernels/ptx/ptx_operations.h"

namespace blockmgr::ptx {
namespace {

enum class Shuffle { kUp, kDown, kButterfly, kIndex };

// The lane that a lane reads, before it is known whether that is in range;
// `in_range` as the ISA's table has it. Operand c packs the last lane of a
// segment and the bits that tell segments apart.
uint32_t SourceLane(Shuffle kind, uint32_t lane, uint32_t b, uint32_t c,
                    bool* in_range) {
  const uint32_t segment = c >> 8 & 31u;
  const uint32_t clamp = c & 31u;
  const uint32_t most = (lane & segment) | (clamp & ~segment);
  b &= 31u;
  uint32_t source = lane;
  switch (kind) {
    case Shuffle::kUp:
      *in_range = static_cast<int32_t>(lane - b) >= static_cast<int32_t>(most);
      source = lane - b;
      break;
    case Shuffle::kDown:
      *in_range = lane + b <= most;
      source = lane + b;
      break;
    case Shuffle::kButterfly:
      *in_range = (lane ^ b) <= most;
      source = lane ^ b;
      break;
    case Shuffle::kIndex:
      source = (lane & segment) | (b & ~segment);
      *in_range = source <= most;
      break;
  }
  return *in_range ? source : lane;
}

// d|p, a, b, c, lanes.
template <Shuffle kKind>
void Exchange(Warp& warp, const Instruction& in, LaneMask mask) {
  const uint32_t* a = warp.Row<uint32_t>(in.rows[2]);
  const uint32_t* b = warp.Row<uint32_t>(in.rows[3]);
  const uint32_t* c = warp.Row<uint32_t>(in.rows[4]);
  uint32_t out[kLanes] = {};
  LaneMask valid = 0;
  for (uint32_t lane = 0; lane < kLanes; ++lane) {
    if ((mask >> lane & 1u) == 0) continue;
    bool in_range = false;
    const uint32_t source =
        SourceLane(kKind, lane, b[lane], c[lane], &in_range);
    if ((mask >> source & 1u) == 0) {
      warp.Fail(in, "a shuffle reads a lane that takes no part");
      return;
    }
    out[lane] = a[source];
    valid |= LaneMask{in_range} << lane;
  }
  warp.Store(in.rows[0], out, mask);
  warp.SetPredicate(in.rows[1], valid, mask);
}

void Ballot(Warp& warp, const Instruction& in, LaneMask mask) {
  const uint32_t votes = warp.Predicate(in.rows[1]) & mask;
  uint32_t out[kLanes];
  for (uint32_t& lane : out) lane = votes;
  warp.Store(in.rows[0], out, mask);
}

void Any(Warp& warp, const Instruction& in, LaneMask mask) {
  const bool any = (warp.Predicate(in.rows[1]) & mask) != 0;
  warp.SetPredicate(in.rows[0], any ? kAllLanes : 0, mask);
}

void All(Warp& warp, const Instruction& in, LaneMask mask) {
  const bool all = (warp.Predicate(in.rows[1]) & mask) == mask;
  warp.SetPredicate(in.rows[0], all ? kAllLanes : 0, mask);
}

void WarpBarrier(Warp& warp, const Instruction&, LaneMask) {
  warp.block().hazards.PassWarpBarrier(warp.index());
}

Form Together(Operation run, const char* operands) {
  Form form;
  form.run = run;
  form.operands = operands;
  form.flow = Flow::kGather;
  form.pipe = Pipe::kOther;
  return form;
}

}  // namespace

std::optional<Form> FindWarpOperation(absl::string_view opcode) {
  const char* const kShuffle = "wpwwwm";
  if (opcode == "shfl.sync.up.b32") {
    return Together(Exchange<Shuffle::kUp>, kShuffle);
  }
  if (opcode == "shfl.sync.down.b32") {
    return Together(Exchange<Shuffle::kDown>, kShuffle);
  }
  if (opcode == "shfl.sync.bfly.b32") {
    return Together(Exchange<Shuffle::kButterfly>, kShuffle);
  }
  if (opcode == "shfl.sync.idx.b32") {
    return Together(Exchange<Shuffle::kIndex>, kShuffle);
  }
  if (opcode == "vote.sync.ballot.b32") return Together(Ballot, "wpm");
  if (opcode == "vote.sync.any.pred") return Together(Any, "ppm");
  if (opcode == "vote.sync.all.pred") return Together(All, "ppm");
  if (opcode == "bar.warp.sync") return Together(WarpBarrier, "m");
  Form form;
  form.flow = Flow::kBlockBarrier;
  form.pipe = Pipe::kOther;
  if (opcode == "bar.sync") {
    form.operands = "i";
  } else if (opcode == "bar.red.or.pred") {
    form.operands = "pip";
    form.num_elements = 1;
  } else {
    return std::nullopt;
  }
  return form;
}

}  // namespace blockmgr::ptx
