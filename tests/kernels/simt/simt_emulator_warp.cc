// Warp collectives, shared memory and asynchronous copies of the emulator.
#include <algorithm>
#include <array>
#include <cstring>

#include <absl/strings/str_cat.h>

#include "tests/kernels/simt/simt_emulator.h"
#include "tests/kernels/simt/simt_emulator_block.h"

namespace blockmgr::simt::emulator {
namespace {

SharedShadow::Access MakeAccess(BlockRun& block, Site site) {
  const uint32_t thread = block.current().place.thread;
  return {.warp = thread / kWarpThreads,
          .lane = thread % kWarpThreads,
          .warp_epoch = block.current_warp().epoch,
          .block_epoch = block.block_epoch(),
          .line = site.line};
}

// Offset of an access to shared memory; fails if it is not all inside.
size_t SharedOffset(BlockRun& block, const void* address, size_t bytes,
                    Site site) {
  const auto begin = reinterpret_cast<uintptr_t>(block.shared());
  const auto at = reinterpret_cast<uintptr_t>(address);
  if (at < begin || at + bytes > begin + block.shared_bytes()) {
    block.Fail(absl::StrCat("access out of the ", block.shared_bytes(),
                            " bytes of shared memory"),
               site);
  }
  return at - begin;
}

void Require(BlockRun& block, const std::string& error, Site site) {
  if (!error.empty()) block.Fail(error, site);
}

struct ExchangeInput {
  uint64_t value;
  uint32_t argument;
};

template <Exchange kKind>
void ComputeExchange(BlockRun& block, Warp& warp) {
  for (uint32_t lane = 0; lane < kWarpThreads; ++lane) {
    const uint32_t argument = warp.Input<ExchangeInput>(lane).argument;
    if (kKind != Exchange::kIndex &&
        argument != warp.Input<ExchangeInput>(0).argument) {
      block.Fail("lanes of a shuffle disagree on its argument", warp.site);
    }
    uint32_t source = lane;
    switch (kKind) {
      case Exchange::kIndex:
        source = argument % kWarpThreads;
        break;
      case Exchange::kXor:
        source = (lane ^ argument) % kWarpThreads;
        break;
      case Exchange::kUp:
        source = lane >= argument ? lane - argument : lane;
        break;
      case Exchange::kDown:
        source = lane + argument < kWarpThreads ? lane + argument : lane;
        break;
    }
    warp.Output<uint64_t>(lane) = warp.Input<ExchangeInput>(source).value;
  }
}

void ComputeVote(BlockRun&, Warp& warp) {
  uint32_t votes = 0;
  for (uint32_t lane = 0; lane < kWarpThreads; ++lane) {
    votes |= warp.Input<uint32_t>(lane) << lane;
  }
  for (uint32_t lane = 0; lane < kWarpThreads; ++lane) {
    warp.Output<uint32_t>(lane) = votes;
  }
}

using Registers4 = std::array<uint32_t, 4>;

uint32_t Join(uint16_t low, uint16_t high) {
  return low | static_cast<uint32_t>(high) << 16;
}

uint16_t Part(uint32_t value, uint32_t part) {
  return static_cast<uint16_t>(value >> (16 * part));
}

// Shared memory has 32 banks of 4 bytes; the 8 rows of 16 bytes of one matrix
// go in one pass if they cover all of them.
int64_t CountConflicts(const Warp& warp, uint32_t matrix) {
  std::array<int64_t, 8> rows_at = {};
  std::array<const char*, 8> seen = {};
  for (uint32_t row = 0; row < 8; ++row) {
    const char* address = warp.Input<const char*>(matrix * 8 + row);
    // Lanes with one address are served together.
    if (std::find(seen.begin(), seen.begin() + row, address) !=
        seen.begin() + row) {
      continue;
    }
    seen[row] = address;
    ++rows_at[reinterpret_cast<uintptr_t>(address) / 16 % 8];
  }
  return *std::max_element(rows_at.begin(), rows_at.end()) - 1;
}

// Lane l gets elements 2 (l % 4) and 2 (l % 4) + 1 of row l / 4; transposed, of
// column l / 4.
template <bool kTransposed>
void ComputeLoadMatrix(BlockRun& block, Warp& warp) {
  for (uint32_t matrix = 0; matrix < 4; ++matrix) {
    block.report().bank_conflicts += CountConflicts(warp, matrix);
    std::array<std::array<uint16_t, 8>, 8> rows;
    for (uint32_t row = 0; row < 8; ++row) {
      std::memcpy(rows[row].data(), warp.Input<const char*>(matrix * 8 + row),
                  16);
    }
    for (uint32_t lane = 0; lane < kWarpThreads; ++lane) {
      const uint32_t major = lane / 4;
      const uint32_t minor = lane % 4 * 2;
      warp.Output<Registers4>(lane)[matrix] =
          kTransposed ? Join(rows[minor][major], rows[minor + 1][major])
                      : Join(rows[major][minor], rows[major][minor + 1]);
    }
  }
}

void ComputeMoveMatrix(BlockRun&, Warp& warp) {
  std::array<std::array<uint16_t, 8>, 8> rows;
  for (uint32_t lane = 0; lane < kWarpThreads; ++lane) {
    for (uint32_t part = 0; part < 2; ++part) {
      rows[lane / 4][lane % 4 * 2 + part] =
          Part(warp.Input<uint32_t>(lane), part);
    }
  }
  for (uint32_t lane = 0; lane < kWarpThreads; ++lane) {
    const size_t row = size_t{lane} % 4 * 2;
    warp.Output<uint32_t>(lane) =
        Join(rows[row][lane / 4], rows[row + 1][lane / 4]);
  }
}

struct MultiplyInput {
  std::array<float, 4> c;
  std::array<uint32_t, 4> a;
  std::array<uint32_t, 2> b;
};

template <bool kBFloat16>
float Element(uint32_t value, uint32_t part) {
  const uint16_t bits = Part(value, part);
  return kBFloat16 ? ToFloat(BFloat16{bits}) : HalfToFloat(bits);
}

// Fragments as the PTX manual lays m16n8k16 out.
template <bool kBFloat16>
void ComputeMultiply(BlockRun&, Warp& warp) {
  std::array<std::array<float, 16>, 16> a;  // [row][k]
  std::array<std::array<float, 8>, 16> b;   // [k][column]
  std::array<std::array<float, 8>, 16> c;   // [row][column]
  for (uint32_t lane = 0; lane < kWarpThreads; ++lane) {
    const auto& input = warp.Input<MultiplyInput>(lane);
    const uint32_t group = lane / 4;
    for (uint32_t part = 0; part < 2; ++part) {
      const uint32_t k = lane % 4 * 2 + part;
      a[group][k] = Element<kBFloat16>(input.a[0], part);
      a[group + 8][k] = Element<kBFloat16>(input.a[1], part);
      a[group][k + 8] = Element<kBFloat16>(input.a[2], part);
      a[group + 8][k + 8] = Element<kBFloat16>(input.a[3], part);
      b[k][group] = Element<kBFloat16>(input.b[0], part);
      b[k + 8][group] = Element<kBFloat16>(input.b[1], part);
      c[group][k] = input.c[part];
      c[group + 8][k] = input.c[2 + part];
    }
  }
  for (uint32_t row = 0; row < 16; ++row) {
    for (uint32_t k = 0; k < 16; ++k) {
      for (uint32_t column = 0; column < 8; ++column) {
        c[row][column] += a[row][k] * b[k][column];
      }
    }
  }
  for (uint32_t lane = 0; lane < kWarpThreads; ++lane) {
    auto& output = warp.Output<std::array<float, 4>>(lane);
    for (uint32_t i = 0; i < 4; ++i) {
      output[i] = c[lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2];
    }
  }
}

}  // namespace

char* SharedMemory() { return BlockRun::Current().shared(); }

void CheckSharedRange(size_t offset, size_t bytes, size_t alignment,
                      Site site) {
  BlockRun& block = BlockRun::Current();
  if (offset % alignment != 0) {
    block.Fail(absl::StrCat("shared array at byte ", offset,
                            ", expected a multiple of ", alignment),
               site);
  }
  if (offset > block.shared_bytes() || bytes > block.shared_bytes() - offset) {
    block.Fail(absl::StrCat("shared array of ", bytes, " bytes at ", offset,
                            " out of the ", block.shared_bytes(),
                            " bytes of shared memory"),
               site);
  }
}

void CheckIndex(uint32_t index, uint32_t count, Site site) {
  if (index < count) return;
  Fail(absl::StrCat("index ", index, " out of a shared array of ", count),
       site);
}

void ReadShared(const void* address, size_t bytes, Site site) {
  BlockRun& block = BlockRun::Current();
  const size_t offset = SharedOffset(block, address, bytes, site);
  Require(block, block.shadow().Read(offset, bytes, MakeAccess(block, site)),
          site);
}

void WriteShared(void* address, size_t bytes, Site site) {
  BlockRun& block = BlockRun::Current();
  const size_t offset = SharedOffset(block, address, bytes, site);
  Require(block, block.shadow().Write(offset, bytes, MakeAccess(block, site)),
          site);
}

void AtomicShared(void* address, size_t bytes, Site site) {
  BlockRun& block = BlockRun::Current();
  const size_t offset = SharedOffset(block, address, bytes, site);
  Require(block, block.shadow().Atomic(offset, bytes, MakeAccess(block, site)),
          site);
}

void WarpBarrier(Site site) {
  const char nothing = 0;
  char none = 0;
  BlockRun::Current().Collective(
      "SyncWarp", &nothing, sizeof(nothing), &none, sizeof(none),
      [](BlockRun&, Warp& warp) { ++warp.epoch; }, site);
}

uint64_t ExchangeLanes(Exchange kind, uint64_t value, uint32_t argument,
                       Site site) {
  struct Form {
    const char* what;
    void (*compute)(BlockRun&, Warp&);
  };
  static constexpr std::array<Form, 4> kForms = {
      {{"Shuffle", ComputeExchange<Exchange::kIndex>},
       {"ShuffleXor", ComputeExchange<Exchange::kXor>},
       {"ShuffleUp", ComputeExchange<Exchange::kUp>},
       {"ShuffleDown", ComputeExchange<Exchange::kDown>}}};
  const Form& form = kForms[static_cast<size_t>(kind)];
  const ExchangeInput input = {.value = value, .argument = argument};
  uint64_t result = 0;
  BlockRun::Current().Collective(form.what, &input, sizeof(input), &result,
                                 sizeof(result), form.compute, site);
  return result;
}

uint32_t Vote(const char* what, bool value, Site site) {
  const uint32_t input = value ? 1 : 0;
  uint32_t result = 0;
  BlockRun::Current().Collective(what, &input, sizeof(input), &result,
                                 sizeof(result), ComputeVote, site);
  return result;
}

void CheckAligned16(const void* address, Site site) {
  if (reinterpret_cast<uintptr_t>(address) % 16 == 0) return;
  Fail("a vector that is not 16-byte aligned", site);
}

void IssueCopy(void* shared, const void* global, bool valid, Site site) {
  BlockRun& block = BlockRun::Current();
  CheckAligned16(shared, site);
  CheckAligned16(global, site);
  const size_t offset = SharedOffset(block, shared, 16, site);
  Require(block, block.shadow().Issue(offset, 16, MakeAccess(block, site)),
          site);
  std::memset(shared, 0xFF, 16);
  block.current().groups.back().push_back(
      {static_cast<char*>(shared), global, valid, site});
}

void CommitGroup() { BlockRun::Current().current().groups.emplace_back(); }

void WaitGroups(int max_pending, Site) {
  BlockRun& block = BlockRun::Current();
  auto& groups = block.current().groups;
  const auto num_committed = static_cast<int64_t>(groups.size()) - 1;
  const int64_t num_due = std::max<int64_t>(num_committed - max_pending, 0);
  for (int64_t i = 0; i < num_due; ++i) {
    for (const Copy& copy : groups[static_cast<size_t>(i)]) {
      if (copy.valid) {
        std::memcpy(copy.shared, copy.global, 16);
      } else {
        std::memset(copy.shared, 0, 16);
      }
      block.shadow().Deliver(copy.shared - block.shared(), 16,
                             MakeAccess(block, copy.site));
    }
  }
  groups.erase(groups.begin(), groups.begin() + num_due);
}

void LoadMatrix(bool transposed, uint32_t (&r)[4], const void* row, Site site) {
  BlockRun& block = BlockRun::Current();
  CheckAligned16(row, site);
  const size_t offset = SharedOffset(block, row, 16, site);
  SharedShadow::Access access = MakeAccess(block, site);
  access.whole_warp = true;
  Require(block, block.shadow().Read(offset, 16, access), site);
  block.Collective(
      transposed ? "LoadMatrix4Transposed" : "LoadMatrix4", &row, sizeof(row),
      r, sizeof(r),
      transposed ? ComputeLoadMatrix<true> : ComputeLoadMatrix<false>, site);
}

uint32_t MoveMatrix(uint32_t value, Site site) {
  uint32_t result = 0;
  BlockRun::Current().Collective("MoveMatrixTransposed", &value, sizeof(value),
                                 &result, sizeof(result), ComputeMoveMatrix,
                                 site);
  return result;
}

void Multiply(bool bfloat16, float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
              uint32_t b1, Site site) {
  MultiplyInput input = {.c = {}, .a = {}, .b = {b0, b1}};
  std::copy_n(c, 4, input.c.begin());
  std::copy_n(a, 4, input.a.begin());
  BlockRun::Current().Collective(
      bfloat16 ? "Mma16816<BFloat16>" : "Mma16816<Half>", &input, sizeof(input),
      c, sizeof(c), bfloat16 ? ComputeMultiply<true> : ComputeMultiply<false>,
      site);
}

uint16_t FloatToHalf(float value) {
  const auto sign = static_cast<uint16_t>(FloatBits(value) >> 16 & 0x8000u);
  const float magnitude = std::fabs(value);
  if (std::isnan(value)) return 0x7FFF;  // what the device makes of any NaN
  if (magnitude >= 65520.0f) return sign | 0x7C00u;
  if (magnitude < 0x1p-14f) {
    // Subnormal: nearbyint rounds half to even in the default mode.
    return sign | static_cast<uint16_t>(std::nearbyint(magnitude * 0x1p24f));
  }
  const uint32_t bits = FloatBits(magnitude) - ((127u - 15u) << 23);
  return sign |
         static_cast<uint16_t>((bits + 0xFFFu + (bits >> 13 & 1u)) >> 13);
}

}  // namespace blockmgr::simt::emulator
