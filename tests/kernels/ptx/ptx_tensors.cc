// Matrices of a warp: section 9.7.14 of the PTX ISA. Fragments are laid out by
// the ISA's figures, with group = lane / 4 and pair = lane % 4.
#include <array>
#include <cstdint>
#include <cstring>

#include "tests/kernels/ptx/ptx_halves.h"
#include "tests/kernels/ptx/ptx_machine.h"
#include "tests/kernels/ptx/ptx_operations.h"

namespace blockmgr::ptx {
namespace {

constexpr std::size_t kRowBytes = 16;  // 8 elements of 16 bits

using Tile = std::array<std::array<uint16_t, 8>, 8>;

uint32_t Pack(uint16_t low, uint16_t high) {
  return uint32_t{high} << 16 | low;
}

// Lane 8 m + r has the address of row r of matrix m.
template <bool kTransposed>
void LoadMatrices(Warp& warp, const Instruction& in, LaneMask) {
  std::array<Tile, 4> tiles;
  std::array<uint64_t, kLanes> addresses;
  for (uint32_t lane = 0; lane < kLanes; ++lane) {
    addresses[lane] = warp.Address(in, 4, 0, lane);
    const std::byte* row = warp.Resolve(in, Space::kShared, addresses[lane],
                                        kRowBytes, lane, Access::kRead);
    if (row == nullptr) return;
    std::memcpy(tiles[lane / 8][lane % 8].data(), row, kRowBytes);
  }
  for (std::size_t m = 0; m < tiles.size(); ++m) {
    uint32_t* out = warp.Row<uint32_t>(in.rows[m]);
    const Tile& tile = tiles[m];
    for (uint32_t lane = 0; lane < kLanes; ++lane) {
      const uint32_t group = lane / 4;
      const uint32_t first = lane % 4 * 2;
      out[lane] = kTransposed
                      ? Pack(tile[first][group], tile[first + 1][group])
                      : Pack(tile[group][first], tile[group][first + 1]);
    }
  }
  warp.block().counts->CountShared(addresses, kRowBytes, false);
}

void TransposeMatrix(Warp& warp, const Instruction& in, LaneMask mask) {
  const uint32_t* a = warp.Row<uint32_t>(in.rows[1]);
  Tile tile;
  for (uint32_t lane = 0; lane < kLanes; ++lane) {
    tile[lane / 4][lane % 4 * 2] = static_cast<uint16_t>(a[lane]);
    tile[lane / 4][lane % 4 * 2 + 1] = static_cast<uint16_t>(a[lane] >> 16);
  }
  uint32_t out[kLanes];
  for (uint32_t lane = 0; lane < kLanes; ++lane) {
    const uint32_t first = lane % 4 * 2;
    out[lane] = Pack(tile[first][lane / 4], tile[first + 1][lane / 4]);
  }
  warp.Store(in.rows[0], out, mask);
}

// d (4), a (4), b (2), c (4): d = a b + c, of 16 x 8 x 16.
template <float (*kToFloat)(uint16_t)>
void MultiplyMatrices(Warp& warp, const Instruction& in, LaneMask mask) {
  alignas(64) float a[16][16];
  alignas(64) float b[16][8];
  alignas(64) float sum[16][8];
  for (uint32_t i = 0; i < 4; ++i) {
    const uint32_t* words = warp.Row<uint32_t>(in.rows[4 + i]);
    const float* c = warp.Row<float>(in.rows[10 + i]);
    for (uint32_t lane = 0; lane < kLanes; ++lane) {
      const uint32_t group = lane / 4;
      const uint32_t first = lane % 4 * 2;
      const uint32_t row = group + (i % 2) * 8;
      const uint32_t column = first + (i / 2) * 8;
      a[row][column] = kToFloat(static_cast<uint16_t>(words[lane]));
      a[row][column + 1] = kToFloat(static_cast<uint16_t>(words[lane] >> 16));
      sum[group + (i / 2) * 8][first + i % 2] = c[lane];
    }
  }
  for (uint32_t i = 0; i < 2; ++i) {
    const uint32_t* words = warp.Row<uint32_t>(in.rows[8 + i]);
    for (uint32_t lane = 0; lane < kLanes; ++lane) {
      const uint32_t k = lane % 4 * 2 + i * 8;
      b[k][lane / 4] = kToFloat(static_cast<uint16_t>(words[lane]));
      b[k + 1][lane / 4] = kToFloat(static_cast<uint16_t>(words[lane] >> 16));
    }
  }
  for (uint32_t row = 0; row < 16; ++row) {
    for (uint32_t k = 0; k < 16; ++k) {
      for (uint32_t n = 0; n < 8; ++n) sum[row][n] += a[row][k] * b[k][n];
    }
  }
  for (uint32_t i = 0; i < 4; ++i) {
    float out[kLanes];
    for (uint32_t lane = 0; lane < kLanes; ++lane) {
      out[lane] = sum[lane / 4 + (i / 2) * 8][lane % 4 * 2 + i % 2];
    }
    warp.Store(in.rows[i], out, mask);
  }
}

}  // namespace

std::optional<Form> FindTensorOperation(absl::string_view opcode) {
  Form form;
  form.flow = Flow::kGather;
  form.pipe = Pipe::kTensor;
  if (opcode == "ldmatrix.sync.aligned.m8n8.x4.shared.b16") {
    form.run = LoadMatrices<false>;
    form.pipe = Pipe::kMemory;
    form.operands = "wwwwa";
  } else if (opcode == "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16") {
    form.run = LoadMatrices<true>;
    form.pipe = Pipe::kMemory;
    form.operands = "wwwwa";
  } else if (opcode == "movmatrix.sync.aligned.m8n8.trans.b16") {
    form.run = TransposeMatrix;
    form.operands = "ww";
  } else if (opcode == "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32") {
    form.run = MultiplyMatrices<FloatOfBFloat>;
    form.operands = "wwwwwwwwwwwwww";
  } else if (opcode == "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32") {
    form.run = MultiplyMatrices<FloatOfHalf>;
    form.operands = "wwwwwwwwwwwwww";
  } else {
    return std::nullopt;
  }
  return form;
}

}  // namespace blockmgr::ptx
