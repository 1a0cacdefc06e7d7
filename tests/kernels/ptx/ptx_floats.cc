// Floating point: section 9.7.3 of the PTX ISA. What is approximate there is
// the host's nearest here.
#include <cmath>
#include <cstdint>

#include "tests/kernels/ptx/ptx_machine.h"
#include "tests/kernels/ptx/ptx_operations.h"
#include "tests/kernels/ptx/ptx_rows.h"

#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__)
// Fused in hardware where there is such hardware, 20 times as fast.
#define PTX_FUSED __attribute__((target_clones("fma", "default")))
#else
#define PTX_FUSED
#endif

namespace blockmgr::ptx {
namespace {

PTX_FUSED void FuseRows(const float* a, const float* b, const float* c,
                        float* out) {
  for (uint32_t lane = 0; lane < kLanes; ++lane) {
    out[lane] = std::fma(a[lane], b[lane], c[lane]);
  }
}

void MultiplyAdd(Warp& warp, const Instruction& in, LaneMask mask) {
  float out[kLanes];
  FuseRows(warp.Row<float>(in.rows[1]), warp.Row<float>(in.rows[2]),
           warp.Row<float>(in.rows[3]), out);
  warp.Store(in.rows[0], out, mask);
}

// The one that is a number, if one is.
float Larger(float a, float b) { return std::fmax(a, b); }
float Smaller(float a, float b) { return std::fmin(a, b); }

float Flush(float x) {
  return std::fpclassify(x) == FP_SUBNORMAL ? std::copysign(0.0f, x) : x;
}
float ExponentialFlushed(float x) { return Flush(std::exp2(Flush(x))); }

constexpr auto kAdd = [](auto a, auto b) { return a + b; };
constexpr auto kSubtract = [](auto a, auto b) { return a - b; };
constexpr auto kMultiply = [](auto a, auto b) { return a * b; };
constexpr auto kDivide = [](auto a, auto b) { return a / b; };
constexpr auto kSame = [](auto a) { return a; };
constexpr auto kNegate = [](auto a) { return -a; };
constexpr auto kAbsolute = [](auto a) { return std::abs(a); };

template <typename T>
void AddWidth(const std::string& type, const std::string& letter,
              Operations* all) {
  const std::string two = letter + letter;
  const std::string three = two + letter;
  for (const char* rounding : {"", "rn."}) {
    const std::string rounded = rounding + type;
    (*all)["add." + rounded] = {Binary<T, kAdd>, three};
    (*all)["sub." + rounded] = {Binary<T, kSubtract>, three};
    (*all)["mul." + rounded] = {Binary<T, kMultiply>, three};
  }
  (*all)["div.rn." + type] = {Binary<T, kDivide>, three};
  (*all)["sqrt.rn." + type] = {Unary<T, T, [](T a) { return std::sqrt(a); }>,
                               two};
  (*all)["mov." + type] = {Unary<T, T, kSame>, two};
  (*all)["neg." + type] = {Unary<T, T, kNegate>, two};
  (*all)["abs." + type] = {Unary<T, T, kAbsolute>, two};
  (*all)["selp." + type] = {SelectRow<T>, three + "p"};
  const auto compare = [&](const char* name, Operation run) {
    (*all)["setp." + std::string(name) + "." + type] = {run, "p" + two};
  };
  // Those with a u are true of what is not a number.
  compare("eq", Compare<T, [](T a, T b) { return a == b; }>);
  compare("lt", Compare<T, [](T a, T b) { return a < b; }>);
  compare("le", Compare<T, [](T a, T b) { return a <= b; }>);
  compare("gt", Compare<T, [](T a, T b) { return std::isgreater(a, b); }>);
  compare("ge", Compare<T, [](T a, T b) { return a >= b; }>);
  compare("ne", Compare<T, [](T a, T b) { return std::islessgreater(a, b); }>);
  compare("equ",
          Compare<T, [](T a, T b) { return !std::islessgreater(a, b); }>);
  compare("neu", Compare<T, [](T a, T b) { return a != b; }>);
  compare("ltu", Compare<T, [](T a, T b) { return !(a >= b); }>);
  compare("leu", Compare<T, [](T a, T b) { return !std::isgreater(a, b); }>);
  compare("gtu", Compare<T, [](T a, T b) { return !(a <= b); }>);
  compare("geu", Compare<T, [](T a, T b) { return !(a < b); }>);
  compare("nan",
          Compare<T, [](T a, T b) { return std::isnan(a) || std::isnan(b); }>);
  compare(
      "num",
      Compare<T, [](T a, T b) { return !std::isnan(a) && !std::isnan(b); }>);
}

Operations MakeOperations() {
  Operations all;
  AddWidth<float>("f32", "w", &all);
  AddWidth<double>("f64", "d", &all);
  all["fma.rn.f32"] = {MultiplyAdd, "wwww"};
  all["max.f32"] = {Binary<float, Larger>, "www"};
  all["min.f32"] = {Binary<float, Smaller>, "www"};
  all["rcp.rn.f32"] = {Unary<float, float, [](float a) { return 1.0f / a; }>,
                       "ww"};
  all["ex2.approx.ftz.f32"] = {Unary<float, float, ExponentialFlushed>, "ww"};
  all["rsqrt.approx.f32"] = {
      Unary<float, float, [](float a) { return 1.0f / std::sqrt(a); }>, "ww"};
  return all;
}

}  // namespace

std::optional<Form> FindFloatOperation(absl::string_view opcode) {
  static const auto* const kAll = new Operations(MakeOperations());
  return FindIn(*kAll, opcode);
}

}  // namespace blockmgr::ptx
