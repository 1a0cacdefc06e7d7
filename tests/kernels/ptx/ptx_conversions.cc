// Conversions and moves between widths: sections 9.7.9.1 and 9.7.9.21 of the
// PTX ISA.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>

#include "tests/kernels/ptx/ptx_halves.h"
#include "tests/kernels/ptx/ptx_machine.h"
#include "tests/kernels/ptx/ptx_operations.h"
#include "tests/kernels/ptx/ptx_rows.h"

namespace blockmgr::ptx {
namespace {

// Registers may be wider than the types: of a source the lower bits count, a
// result is extended by its sign.
template <typename In, typename Register>
void ReadRow(const Register* row, In* values) {
  for (uint32_t lane = 0; lane < kLanes; ++lane) {
    std::memcpy(&values[lane], &row[lane], std::min(sizeof(In), sizeof(*row)));
  }
}

template <typename Register, typename Out>
void WriteRow(Warp& warp, uint32_t row, const Out* values, LaneMask mask) {
  Register wide[kLanes];
  for (uint32_t lane = 0; lane < kLanes; ++lane) {
    if constexpr (std::is_integral_v<Out>) {
      wide[lane] = static_cast<Register>(values[lane]);
    } else {
      std::memcpy(&wide[lane], &values[lane],
                  std::min(sizeof(Register), sizeof(Out)));
    }
  }
  warp.Store(row, wide, mask);
}

template <typename Out, typename In>
void Convert(Warp& warp, const Instruction& in, LaneMask mask) {
  In from[kLanes] = {};
  if (in.bytes[1] == 2) {
    ReadRow(warp.Row<uint16_t>(in.rows[1]), from);
  } else if (in.bytes[1] == 4) {
    ReadRow(warp.Row<uint32_t>(in.rows[1]), from);
  } else {
    ReadRow(warp.Row<uint64_t>(in.rows[1]), from);
  }
  Out to[kLanes];
  for (uint32_t lane = 0; lane < kLanes; ++lane) {
    to[lane] = static_cast<Out>(from[lane]);
  }
  if (in.bytes[0] == 2) {
    WriteRow<uint16_t>(warp, in.rows[0], to, mask);
  } else if (in.bytes[0] == 4) {
    WriteRow<uint32_t>(warp, in.rows[0], to, mask);
  } else {
    WriteRow<uint64_t>(warp, in.rows[0], to, mask);
  }
}

// Toward zero, to the nearest that there is; 0x8000.. for what is no number.
int64_t Truncate(double value) {
  constexpr double kTop = 9223372036854775808.0;  // 2^63
  if (std::isnan(value) || value < -kTop) {
    return std::numeric_limits<int64_t>::min();
  }
  if (value >= kTop) return std::numeric_limits<int64_t>::max();
  return static_cast<int64_t>(value);
}

template <uint16_t (*kToHalf)(float)>
void PackHalves(Warp& warp, const Instruction& in, LaneMask mask) {
  const float* high = warp.Row<float>(in.rows[1]);
  const float* low = warp.Row<float>(in.rows[2]);
  uint32_t out[kLanes] = {};
  for (uint32_t lane = 0; lane < kLanes; ++lane) {
    if ((mask >> lane & 1u) == 0) continue;
    out[lane] = uint32_t{kToHalf(high[lane])} << 16 | kToHalf(low[lane]);
  }
  warp.Store(in.rows[0], out, mask);
}

template <typename Whole, typename Part>
void Join(Warp& warp, const Instruction& in, LaneMask mask) {
  const Part* low = warp.Row<Part>(in.rows[1]);
  const Part* high = warp.Row<Part>(in.rows[2]);
  Whole out[kLanes];
  for (uint32_t lane = 0; lane < kLanes; ++lane) {
    out[lane] =
        static_cast<Whole>(high[lane]) << (8 * sizeof(Part)) | low[lane];
  }
  warp.Store(in.rows[0], out, mask);
}

template <typename Whole, typename Part>
void Part2(Warp& warp, const Instruction& in, LaneMask mask) {
  const Whole* whole = warp.Row<Whole>(in.rows[2]);
  Part low[kLanes];
  Part high[kLanes];
  for (uint32_t lane = 0; lane < kLanes; ++lane) {
    low[lane] = static_cast<Part>(whole[lane]);
    high[lane] = static_cast<Part>(whole[lane] >> (8 * sizeof(Part)));
  }
  warp.Store(in.rows[0], low, mask);
  warp.Store(in.rows[1], high, mask);
}

template <typename Out, typename In>
void Add(const std::string& out, const std::string& in, Operations* all) {
  (*all)["cvt." + out + "." + in] = {Convert<Out, In>, "xx"};
}

template <typename In>
void AddIntegers(const std::string& in, Operations* all) {
  Add<int16_t, In>("s16", in, all);
  Add<uint16_t, In>("u16", in, all);
  Add<int32_t, In>("s32", in, all);
  Add<uint32_t, In>("u32", in, all);
  Add<int64_t, In>("s64", in, all);
  Add<uint64_t, In>("u64", in, all);
  Add<float, In>("rn.f32", in, all);
  Add<double, In>("rn.f64", in, all);
}

Operations MakeOperations() {
  Operations all;
  AddIntegers<int8_t>("s8", &all);
  AddIntegers<uint8_t>("u8", &all);
  AddIntegers<int16_t>("s16", &all);
  AddIntegers<uint16_t>("u16", &all);
  AddIntegers<int32_t>("s32", &all);
  AddIntegers<uint32_t>("u32", &all);
  AddIntegers<int64_t>("s64", &all);
  AddIntegers<uint64_t>("u64", &all);
  Add<double, float>("f64", "f32", &all);
  Add<float, double>("rn.f32", "f64", &all);
  all["cvt.rzi.s64.f64"] = {Unary<int64_t, double, Truncate>, "dd"};
  all["cvt.rn.f16.f32"] = {Unary<uint16_t, float, HalfOfFloat>, "hw"};
  all["cvt.rn.bf16.f32"] = {Unary<uint16_t, float, BFloatOfFloat>, "hw"};
  all["cvt.f32.f16"] = {Unary<float, uint16_t, FloatOfHalf>, "wh"};
  all["cvt.rn.f16x2.f32"] = {PackHalves<HalfOfFloat>, "www"};
  all["cvt.rn.bf16x2.f32"] = {PackHalves<BFloatOfFloat>, "www"};
  // Whose braces are opened: the parser says of which kind they were.
  all["mov.b32 1 2"] = {Join<uint32_t, uint16_t>, "whh"};
  all["mov.b64 1 2"] = {Join<uint64_t, uint32_t>, "dww"};
  all["mov.b32 2 1"] = {Part2<uint32_t, uint16_t>, "hhw"};
  all["mov.b64 2 1"] = {Part2<uint64_t, uint32_t>, "wwd"};
  return all;
}

}  // namespace

std::optional<Form> FindConversion(absl::string_view opcode) {
  static const auto* const kAll = new Operations(MakeOperations());
  return FindIn(*kAll, opcode);
}

}  // namespace blockmgr::ptx
