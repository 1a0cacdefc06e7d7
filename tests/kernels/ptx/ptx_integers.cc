// Integers, predicates and bits: section 9.7.1, 9.7.6 and 9.7.7 of the PTX ISA.
#include <algorithm>
#include <bit>
#include <cstdint>
#include <type_traits>

#include "tests/kernels/ptx/ptx_machine.h"
#include "tests/kernels/ptx/ptx_operations.h"
#include "tests/kernels/ptx/ptx_rows.h"

namespace blockmgr::ptx {
namespace {

__extension__ typedef __int128 Int128;

template <typename T>
T ShiftLeft(T value, uint32_t amount) {
  return amount >= sizeof(T) * 8 ? T{0} : static_cast<T>(value << amount);
}
// Signed values are filled with their sign.
template <typename T>
T ShiftRight(T value, uint32_t amount) {
  const auto most = static_cast<uint32_t>(sizeof(T) * 8 - 1);
  if (amount > most) return value < 0 ? static_cast<T>(-1) : T{0};
  return static_cast<T>(value >> amount);
}

// Divisions by zero are a fault: what hardware gives for them is its own.
template <typename T, bool kRemainder>
void Divide(Warp& warp, const Instruction& in, LaneMask mask) {
  const T* a = warp.Row<T>(in.rows[1]);
  const T* b = warp.Row<T>(in.rows[2]);
  T out[kLanes] = {};
  for (uint32_t lane = 0; lane < kLanes; ++lane) {
    if ((mask >> lane & 1u) == 0) continue;
    if (b[lane] == 0) {
      warp.Fail(in, "division by zero");
      return;
    }
    using Wide = std::conditional_t<std::is_signed_v<T>, Int128, T>;
    out[lane] = static_cast<T>(
        kRemainder ? static_cast<Wide>(a[lane]) % static_cast<Wide>(b[lane])
                   : static_cast<Wide>(a[lane]) / static_cast<Wide>(b[lane]));
  }
  warp.Store(in.rows[0], out, mask);
}

// The second half of an operand, or of a sum with a carry.
template <bool kSubtract, bool kCarryIn>
void AddWithCarry(Warp& warp, const Instruction& in, LaneMask mask) {
  const uint64_t* a = warp.Row<uint64_t>(in.rows[1]);
  const uint64_t* b = warp.Row<uint64_t>(in.rows[2]);
  uint64_t out[kLanes];
  LaneMask carries = 0;
  for (uint32_t lane = 0; lane < kLanes; ++lane) {
    const uint64_t carry = kCarryIn ? warp.carry() >> lane & 1u : 0;
    uint64_t sum;
    bool first;
    bool second;
    if constexpr (kSubtract) {
      first = __builtin_sub_overflow(a[lane], b[lane], &sum);
      second = __builtin_sub_overflow(sum, carry, &out[lane]);
    } else {
      first = __builtin_add_overflow(a[lane], b[lane], &sum);
      second = __builtin_add_overflow(sum, carry, &out[lane]);
    }
    carries |= static_cast<LaneMask>(first || second) << lane;
  }
  warp.carry() = (warp.carry() & ~mask) | (carries & mask);
  warp.Store(in.rows[0], out, mask);
}

template <typename T>
void InsertBits(Warp& warp, const Instruction& in, LaneMask mask) {
  const T* from = warp.Row<T>(in.rows[1]);
  const T* into = warp.Row<T>(in.rows[2]);
  const uint32_t* position = warp.Row<uint32_t>(in.rows[3]);
  const uint32_t* length = warp.Row<uint32_t>(in.rows[4]);
  T out[kLanes];
  for (uint32_t lane = 0; lane < kLanes; ++lane) {
    const uint32_t at = position[lane] & 0xFFu;
    const uint32_t count = length[lane] & 0xFFu;
    const T ones = count >= sizeof(T) * 8 ? static_cast<T>(~T{0})
                                          : ShiftLeft<T>(1, count) - 1;
    const T field = ShiftLeft<T>(ones, at);
    out[lane] = (into[lane] & ~field) | (ShiftLeft<T>(from[lane], at) & field);
  }
  warp.Store(in.rows[0], out, mask);
}

// Each byte of the result is one of the eight of a and b, or its sign's.
uint32_t PermuteBytes(uint32_t a, uint32_t b, uint32_t selector) {
  const uint64_t bytes = uint64_t{b} << 32 | a;
  uint32_t result = 0;
  for (uint32_t i = 0; i < 4; ++i) {
    const uint32_t select = selector >> (4 * i) & 0xFu;
    auto byte = static_cast<uint32_t>(bytes >> (8 * (select & 7u)) & 0xFFu);
    if ((select & 8u) != 0) byte = (byte & 0x80u) != 0 ? 0xFFu : 0;
    result |= byte << (8 * i);
  }
  return result;
}

uint32_t ReverseBits(uint32_t value) {
  uint32_t result = 0;
  for (uint32_t i = 0; i < 32; ++i) result |= (value >> i & 1u) << (31 - i);
  return result;
}

// By how much to shift the highest bit to the top.
uint32_t FindHighest(uint32_t value) {
  return value == 0 ? ~0u : static_cast<uint32_t>(std::countl_zero(value));
}

template <auto kCombine>
void CombinePredicates(Warp& warp, const Instruction& in, LaneMask mask) {
  warp.SetPredicate(
      in.rows[0],
      kCombine(warp.Predicate(in.rows[1]), warp.Predicate(in.rows[2])), mask);
}
void NotPredicate(Warp& warp, const Instruction& in, LaneMask mask) {
  warp.SetPredicate(in.rows[0], ~warp.Predicate(in.rows[1]), mask);
}
void MovePredicate(Warp& warp, const Instruction& in, LaneMask mask) {
  warp.SetPredicate(in.rows[0], warp.Predicate(in.rows[1]), mask);
}

constexpr auto kAdd = [](auto a, auto b) { return a + b; };
constexpr auto kSubtract = [](auto a, auto b) { return a - b; };
constexpr auto kMultiply = [](auto a, auto b) { return a * b; };
constexpr auto kAnd = [](auto a, auto b) { return a & b; };
constexpr auto kOr = [](auto a, auto b) { return a | b; };
constexpr auto kXor = [](auto a, auto b) { return a ^ b; };
constexpr auto kNot = [](auto a) { return ~a; };
constexpr auto kNegate = [](auto a) { return decltype(a){0} - a; };
constexpr auto kMin = [](auto a, auto b) { return std::min(a, b); };
constexpr auto kMax = [](auto a, auto b) { return std::max(a, b); };
constexpr auto kMultiplyAdd = [](auto a, auto b, auto c) { return a * b + c; };

// Of one width, whose unsigned and signed types are U and S.
template <typename U, typename S>
void AddWidth(const std::string& letter, Operations* all) {
  const std::string bits = std::to_string(sizeof(U) * 8);
  const std::string two = letter + letter;
  const std::string three = two + letter;
  const std::string shift = two + "w";
  for (const char* sign : {"s", "u"}) {
    const std::string type = sign + bits;
    (*all)["add." + type] = {Binary<U, kAdd>, three};
    (*all)["sub." + type] = {Binary<U, kSubtract>, three};
    (*all)["mul.lo." + type] = {Binary<U, kMultiply>, three};
    (*all)["mad.lo." + type] = {Ternary<U, kMultiplyAdd>, three + letter};
    (*all)["mov." + type] = {Unary<U, U, [](U a) { return a; }>, two};
    (*all)["selp." + type] = {SelectRow<U>, three + "p"};
    (*all)["setp.eq." + type] = {Compare<U, [](U a, U b) { return a == b; }>,
                                 "p" + two};
    (*all)["setp.ne." + type] = {Compare<U, [](U a, U b) { return a != b; }>,
                                 "p" + two};
  }
  (*all)["neg.s" + bits] = {Unary<U, U, kNegate>, two};
  (*all)["min.s" + bits] = {Binary<S, kMin>, three};
  (*all)["max.s" + bits] = {Binary<S, kMax>, three};
  (*all)["min.u" + bits] = {Binary<U, kMin>, three};
  (*all)["max.u" + bits] = {Binary<U, kMax>, three};
  (*all)["div.s" + bits] = {Divide<S, false>, three};
  (*all)["rem.s" + bits] = {Divide<S, true>, three};
  (*all)["div.u" + bits] = {Divide<U, false>, three};
  (*all)["rem.u" + bits] = {Divide<U, true>, three};
  (*all)["setp.eq.b" + bits] = (*all)["setp.eq.u" + bits];
  (*all)["setp.ne.b" + bits] = (*all)["setp.ne.u" + bits];
  (*all)["selp.b" + bits] = (*all)["selp.u" + bits];
  (*all)["mov.b" + bits] = (*all)["mov.u" + bits];
  const auto compare = [&](const std::string& name, Operation of_signed,
                           Operation of_unsigned) {
    (*all)["setp." + name + ".s" + bits] = {of_signed, "p" + two};
    (*all)["setp." + name + ".u" + bits] = {of_unsigned, "p" + two};
  };
  constexpr auto kLess = [](auto a, auto b) { return a < b; };
  constexpr auto kAtMost = [](auto a, auto b) { return a <= b; };
  constexpr auto kMore = [](auto a, auto b) { return a > b; };
  constexpr auto kAtLeast = [](auto a, auto b) { return a >= b; };
  compare("lt", Compare<S, kLess>, Compare<U, kLess>);
  compare("le", Compare<S, kAtMost>, Compare<U, kAtMost>);
  compare("gt", Compare<S, kMore>, Compare<U, kMore>);
  compare("ge", Compare<S, kAtLeast>, Compare<U, kAtLeast>);
  (*all)["and.b" + bits] = {Binary<U, kAnd>, three};
  (*all)["or.b" + bits] = {Binary<U, kOr>, three};
  (*all)["xor.b" + bits] = {Binary<U, kXor>, three};
  (*all)["not.b" + bits] = {Unary<U, U, kNot>, two};
  (*all)["shl.b" + bits] = {Shift<U, ShiftLeft<U>>, shift};
  (*all)["shr.u" + bits] = {Shift<U, ShiftRight<U>>, shift};
  (*all)["shr.b" + bits] = {Shift<U, ShiftRight<U>>, shift};
  (*all)["shr.s" + bits] = {Shift<S, ShiftRight<S>>, shift};
}

template <typename Wide, typename Narrow>
void Widen(Warp& warp, const Instruction& in, LaneMask mask) {
  const Narrow* a = warp.Row<Narrow>(in.rows[1]);
  const Narrow* b = warp.Row<Narrow>(in.rows[2]);
  Wide out[kLanes];
  for (uint32_t lane = 0; lane < kLanes; ++lane) {
    out[lane] = static_cast<Wide>(a[lane]) * static_cast<Wide>(b[lane]);
  }
  warp.Store(in.rows[0], out, mask);
}

Operations MakeOperations() {
  Operations all;
  AddWidth<uint16_t, int16_t>("h", &all);
  AddWidth<uint32_t, int32_t>("w", &all);
  AddWidth<uint64_t, int64_t>("d", &all);
  all["mul.wide.u16"] = {Widen<uint32_t, uint16_t>, "whh"};
  all["mul.wide.s16"] = {Widen<int32_t, int16_t>, "whh"};
  all["mul.wide.u32"] = {Widen<uint64_t, uint32_t>, "dww"};
  all["mul.wide.s32"] = {Widen<int64_t, int32_t>, "dww"};
  all["mul.hi.s64"] = {
      Binary<int64_t,
             [](int64_t a, int64_t b) {
               return static_cast<int64_t>(static_cast<Int128>(a) * b >> 64);
             }>,
      "ddd"};
  all["mul.hi.u32"] = {
      Binary<uint32_t,
             [](uint32_t a, uint32_t b) {
               return static_cast<uint32_t>(uint64_t{a} * b >> 32);
             }>,
      "www"};
  all["add.cc.s64"] = {AddWithCarry<false, false>, "ddd"};
  all["addc.cc.s64"] = {AddWithCarry<false, true>, "ddd"};
  all["sub.cc.s64"] = {AddWithCarry<true, false>, "ddd"};
  all["subc.cc.s64"] = {AddWithCarry<true, true>, "ddd"};
  all["bfi.b32"] = {InsertBits<uint32_t>, "wwwww"};
  all["bfi.b64"] = {InsertBits<uint64_t>, "dddww"};
  all["prmt.b32"] = {Ternary<uint32_t, PermuteBytes>, "wwww"};
  all["brev.b32"] = {Unary<uint32_t, uint32_t, ReverseBits>, "ww"};
  all["popc.b32"] = {
      Unary<uint32_t, uint32_t,
            [](uint32_t a) { return static_cast<uint32_t>(std::popcount(a)); }>,
      "ww"};
  all["clz.b32"] = {Unary<uint32_t, uint32_t,
                          [](uint32_t a) {
                            return static_cast<uint32_t>(std::countl_zero(a));
                          }>,
                    "ww"};
  all["bfind.shiftamt.u32"] = {Unary<uint32_t, uint32_t, FindHighest>, "ww"};
  all["and.pred"] = {CombinePredicates<kAnd>, "ppp"};
  all["or.pred"] = {CombinePredicates<kOr>, "ppp"};
  all["xor.pred"] = {CombinePredicates<kXor>, "ppp"};
  all["not.pred"] = {NotPredicate, "pp"};
  all["mov.pred"] = {MovePredicate, "pp"};
  return all;
}

}  // namespace

std::optional<Form> FindIntegerOperation(absl::string_view opcode) {
  static const auto* const kAll = new Operations(MakeOperations());
  return FindIn(*kAll, opcode);
}

}  // namespace blockmgr::ptx
