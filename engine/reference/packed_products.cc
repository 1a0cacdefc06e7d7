// Arrays of vectors need a vector size that the compiler knows. Machines with
// scalable vectors run the code of their fixed ones. (Highway takes this list
// of targets to leave out.)
#define HWY_BROKEN_TARGETS \
  (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)

#include "engine/reference/packed_products.h"

#include <algorithm>

#include "blockmgr/base/check.h"

// Highway compiles this file once per instruction set.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/reference/packed_products.cc"
#include <hwy/foreach_target.h>
// Must come after foreach_target.h.
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace blockmgr::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using D = hn::CappedTag<float, 16>;
using V = hn::Vec<D>;
using Signed = hn::RebindToSigned<D>;
using Unsigned = hn::RebindToUnsigned<D>;

constexpr size_t kLanes = hn::MaxLanes(D());
constexpr size_t kNumRegisters = kLanes == 16 || HWY_ARCH_ARM ? 32 : 16;

// Elements along `in` that have their scales in registers at a time.
constexpr size_t kRun = 16;
// Products of up to so many rows keep all sums in registers.
constexpr size_t kFewRows = 4;
// Products of up to so many rows keep the sums of kFewRows in registers.
constexpr size_t kSomeRows = 16;

// More rows share weights that are unpacked into a panel of so many elements
// along `in`: 64 KiB, which stay in the second cache while all rows pass.
constexpr size_t kPanelDepth = 512;
// The sums of a tile fill most registers. A tile is two vectors wide, or as
// wide as half a group if vectors are short and registers many.
constexpr size_t kTileVectors = kLanes == 4 && kNumRegisters == 32 ? 4 : 2;
constexpr size_t kTileColumns = kTileVectors * kLanes;
constexpr size_t kTileRows = kLanes == 16 ? 12 : 6;
static_assert(kPackedColumns % kTileColumns == 0);

// Returns how many vectors of columns of so many rows have their sums in
// registers, beside weights, scales and minima.
constexpr size_t VectorsOf(size_t num_rows) {
  return std::clamp<size_t>(kNumRegisters / 2 / num_rows, 1,
                            std::min<size_t>(8, kPackedColumns / kLanes));
}

// Loads bytes of any alignment into the lanes, in memory's order.
HWY_INLINE hn::Vec<Unsigned> LoadBits(const uint8_t* bytes) {
#if HWY_TARGET == HWY_SCALAR
  uint32_t bits;
  hwy::CopyBytes<sizeof(bits)>(bytes, &bits);
  return hn::Set(Unsigned(), bits);
#else
  const hn::Repartition<uint8_t, D> d8;
  return hn::BitCast(Unsigned(), hn::LoadU(d8, bytes));
#endif
}

HWY_INLINE V LoadNumbers(const float* numbers) {
  return hn::LoadU(D(), numbers);
}

HWY_INLINE V LoadNumbers(const hwy::float16_t* numbers) {
  return hn::PromoteTo(D(),
                       hn::LoadU(hn::Rebind<hwy::float16_t, D>(), numbers));
}

HWY_INLINE V LoadNumbers(const hwy::bfloat16_t* numbers) {
  const hn::Rebind<uint16_t, D> d16;
  const auto bits = hn::PromoteTo(
      Unsigned(), hn::LoadU(d16, reinterpret_cast<const uint16_t*>(numbers)));
  return hn::BitCast(D(), hn::ShiftLeft<16>(bits));
}

// The formats. A Run has kVectors vectors of columns from `column` on, and
// elements begin .. begin + kRun - 1 along `in`. Weight(v, k) is vector v of
// element begin + k.

template <typename Number>
struct Floats {
  static constexpr bool kHasScales = false;
  static constexpr size_t kRunBytes = kRun * kPackedColumns * sizeof(Number);

  template <size_t kVectors>
  struct Run {
    const Number* numbers;

    HWY_INLINE Run(const uint8_t* group, size_t begin, size_t column)
        : numbers(reinterpret_cast<const Number*>(group) +
                  begin * kPackedColumns + column) {}

    HWY_INLINE V Weight(size_t v, size_t k) const {
      return LoadNumbers(numbers + k * kPackedColumns + v * kLanes);
    }
  };
};

template <typename Scale, PackedFormat format>
struct Nibbles {
  static constexpr bool kHasScales = true;
  static constexpr size_t kRunBytes =
      PackedBlockBytes(format) * kRun / PackedBlockElements(format);

  template <size_t kVectors>
  struct Run {
    const uint8_t* codes;
    hn::Vec<Unsigned> mask;
    V scales[kVectors];
    V minima[kVectors];

    // In the high half of a byte, a code is 16 times too large.
    HWY_INLINE Run(const uint8_t* group, size_t begin, size_t column) {
      const size_t block = begin / PackedBlockElements(format);
      const bool high = begin % PackedBlockElements(format) != 0;
      const uint8_t* bytes = group + block * PackedBlockBytes(format);
      const auto* scale = reinterpret_cast<const Scale*>(bytes) + column;
      codes = bytes + kPackedColumns * 2 * sizeof(Scale) + column * 4;
      mask = hn::Set(Unsigned(), high ? 0xf0 : 0x0f);
      const V unit = hn::Set(D(), high ? 1.0f / 16 : 1.0f);
      HWY_UNROLL(8)
      for (size_t v = 0; v < kVectors; ++v) {
        scales[v] = hn::Mul(LoadNumbers(scale + v * kLanes), unit);
        minima[v] = LoadNumbers(scale + kPackedColumns + v * kLanes);
      }
    }

    // A load from one byte further on has the next code in the lowest byte of
    // each lane, which saves a shift.
    HWY_INLINE V Weight(size_t v, size_t k) const {
      const uint8_t* lowest =
          codes + k / 4 * kPackedColumns * 4 + v * kLanes * 4 + k % 4;
      const auto code = hn::BitCast(Signed(), hn::And(LoadBits(lowest), mask));
      return hn::MulAdd(scales[v], hn::ConvertTo(D(), code), minima[v]);
    }
  };
};

template <typename Scale, PackedFormat format>
struct Bytes {
  static constexpr bool kHasScales = true;
  static constexpr size_t kRunBytes =
      PackedBlockBytes(format) * kRun / PackedBlockElements(format);

  template <size_t kVectors>
  struct Run {
    const uint8_t* codes;
    V scales[kVectors];

    static constexpr float kUnit = 1.0f / (1 << 24);

    HWY_INLINE Run(const uint8_t* group, size_t begin, size_t column) {
      const size_t block = begin / PackedBlockElements(format);
      const size_t skipped = begin % PackedBlockElements(format);
      const uint8_t* bytes = group + block * PackedBlockBytes(format);
      const auto* scale = reinterpret_cast<const Scale*>(bytes) + column;
      codes = bytes + kPackedColumns * (sizeof(Scale) + skipped) + column * 4;
      HWY_UNROLL(8)
      for (size_t v = 0; v < kVectors; ++v) {
        scales[v] =
            hn::Mul(LoadNumbers(scale + v * kLanes), hn::Set(D(), kUnit));
      }
    }

    // A load that ends with the code has it in the highest byte of each lane,
    // with its sign.
    HWY_INLINE V Weight(size_t v, size_t k) const {
      const uint8_t* lowest =
          codes + k / 4 * kPackedColumns * 4 + v * kLanes * 4 + k % 4 - 3;
      const auto code = hn::BitCast(
          Signed(),
          hn::And(LoadBits(lowest), hn::Set(Unsigned(), 0xff000000u)));
      return hn::Mul(scales[v], hn::ConvertTo(D(), code));
    }
  };
};

// Rows of input and output that a kernel works on.
struct Rows {
  const float* input;
  size_t in;
  float* output;
  size_t out;
  size_t num_rows;
  size_t group_bytes;

  // A kernel for more rows than there are computes the last one again.
  HWY_INLINE const float* InputOf(size_t row) const {
    return input + std::min(row, num_rows - 1) * in;
  }
  HWY_INLINE float* OutputOf(size_t row) const {
    return output + std::min(row, num_rows - 1) * out;
  }
};

// Stores the first num_columns lanes of the vectors.
template <size_t kVectors>
HWY_INLINE void StoreSums(const V (&sums)[kVectors], size_t num_columns,
                          float* HWY_RESTRICT to) {
  if (num_columns >= kVectors * kLanes) {
    HWY_UNROLL(8)
    for (size_t v = 0; v < kVectors; ++v) {
      hn::StoreU(sums[v], D(), to + v * kLanes);
    }
    return;
  }
  HWY_ALIGN float columns[kVectors * kLanes];
  for (size_t v = 0; v < kVectors; ++v) {
    hn::Store(sums[v], D(), columns + v * kLanes);
  }
  std::copy_n(columns, num_columns, to);
}

// Sums of kRows rows and kVectors vectors of columns.
template <size_t kRows, size_t kVectors>
struct Sums {
  V of[kRows][kVectors];

  HWY_INLINE void Clear() {
    HWY_UNROLL(4)
    for (size_t r = 0; r < kRows; ++r) {
      HWY_UNROLL(8)
      for (size_t v = 0; v < kVectors; ++v) of[r][v] = hn::Zero(D());
    }
  }

  // Adds products with element i of each row's input.
  HWY_INLINE void Add(const V (&weights)[kVectors],
                      const float* const* HWY_RESTRICT inputs, size_t i) {
    HWY_UNROLL(4)
    for (size_t r = 0; r < kRows; ++r) {
      const V x = hn::Set(D(), inputs[r][i]);
      HWY_UNROLL(8)
      for (size_t v = 0; v < kVectors; ++v) {
        of[r][v] = hn::MulAdd(x, weights[v], of[r][v]);
      }
    }
  }
};

// Calls add(k) for the elements of a run: kRun of them, or fewer at the end of
// a matrix whose blocks have one element.
template <class Format, class Add>
HWY_INLINE void ForRun(size_t begin, size_t in, const Add& add) {
  if constexpr (Format::kHasScales) {
    HWY_UNROLL(16)
    for (size_t k = 0; k < kRun; ++k) add(k);
  } else {
    const size_t count = std::min(kRun, in - begin);
    for (size_t k = 0; k < count; ++k) add(k);
  }
}

// If several passes go over a group, each with kVectors vectors of columns, a
// pass asks with its run at `begin` for some weights of the next group. So
// memory is read in all passes, and not in the first alone, whose loads leave
// out lines. A single pass reads ahead well enough without it.
template <class Format, size_t kVectors>
HWY_INLINE void PrefetchNext(const uint8_t* group, size_t begin, size_t column,
                             size_t group_bytes) {
  constexpr size_t kWidth = kVectors * kLanes;
  if constexpr (kWidth == kPackedColumns) return;
  constexpr size_t kBytes = Format::kRunBytes * kWidth / kPackedColumns;
  const uint8_t* next = group + group_bytes + begin / kRun * Format::kRunBytes +
                        column / kWidth * kBytes;
  HWY_UNROLL(4)
  for (size_t i = 0; i < kBytes; i += 64) __builtin_prefetch(next + i, 0, 2);
}

template <class Run, size_t kVectors>
HWY_INLINE void LoadWeights(const Run& run, size_t k, V (&weights)[kVectors]) {
  HWY_UNROLL(8)
  for (size_t v = 0; v < kVectors; ++v) weights[v] = run.Weight(v, k);
}

// Computes the group's columns of up to kRows rows. The first column of the
// group is first_column of the matrix.
template <class Format, size_t kRows>
HWY_NOINLINE void MultiplyFewRows(const uint8_t* HWY_RESTRICT group,
                                  size_t first_column, const Rows& rows) {
  constexpr size_t kVectors = VectorsOf(kRows);
  const float* inputs[kRows];
  for (size_t r = 0; r < kRows; ++r) inputs[r] = rows.InputOf(r);
  const size_t num_columns = std::min(kPackedColumns, rows.out - first_column);
  for (size_t column = 0; column < num_columns; column += kVectors * kLanes) {
    Sums<kRows, kVectors> sums;
    sums.Clear();
    for (size_t begin = 0; begin < rows.in; begin += kRun) {
      const typename Format::template Run<kVectors> run(group, begin, column);
      PrefetchNext<Format, kVectors>(group, begin, column, rows.group_bytes);
      ForRun<Format>(begin, rows.in, [&](size_t k) HWY_ATTR {
        V weights[kVectors];
        LoadWeights(run, k, weights);
        sums.Add(weights, inputs, begin + k);
      });
    }
    for (size_t r = 0; r < kRows; ++r) {
      StoreSums(sums.of[r], num_columns - column,
                rows.OutputOf(r) + first_column + column);
    }
  }
}

constexpr size_t kPartVectors = VectorsOf(kFewRows);
using PartSums = Sums<kFewRows, kPartVectors>;

// Unpacks a run of weights of kPartVectors vectors of columns into `weights`,
// and adds their products with kFewRows rows.
template <class Format>
HWY_NOINLINE void AddAndKeep(const uint8_t* HWY_RESTRICT group, size_t begin,
                             size_t in, size_t column,
                             const float* const* HWY_RESTRICT inputs,
                             float* HWY_RESTRICT weights,
                             PartSums* HWY_RESTRICT part) {
  PartSums sums = *part;
  const typename Format::template Run<kPartVectors> run(group, begin, column);
  ForRun<Format>(begin, in, [&](size_t k) HWY_ATTR {
    V unpacked[kPartVectors];
    LoadWeights(run, k, unpacked);
    HWY_UNROLL(8)
    for (size_t v = 0; v < kPartVectors; ++v) {
      hn::Store(unpacked[v], D(), weights + (k * kPartVectors + v) * kLanes);
    }
    sums.Add(unpacked, inputs, begin + k);
  });
  *part = sums;
}

// Adds products of the weights that AddAndKeep kept with kFewRows more rows.
HWY_NOINLINE void AddKept(const float* HWY_RESTRICT weights, size_t begin,
                          size_t in, const float* const* HWY_RESTRICT inputs,
                          PartSums* HWY_RESTRICT part) {
  PartSums sums = *part;
  const size_t end = std::min(begin + kRun, in);
  HWY_UNROLL(4)
  for (size_t i = begin; i < end; ++i) {
    V loaded[kPartVectors];
    HWY_UNROLL(8)
    for (size_t v = 0; v < kPartVectors; ++v) {
      loaded[v] = hn::Load(D(), weights + v * kLanes);
    }
    weights += kPartVectors * kLanes;
    sums.Add(loaded, inputs, i);
  }
  *part = sums;
}

// Computes the group's columns of up to kSomeRows rows. The first few of the
// rows unpack a run of weights into a buffer, the next few rows use the buffer.
template <class Format>
HWY_NOINLINE void MultiplySomeRows(const uint8_t* HWY_RESTRICT group,
                                   size_t first_column, const Rows& rows) {
  const float* inputs[kSomeRows];
  for (size_t r = 0; r < kSomeRows; ++r) inputs[r] = rows.InputOf(r);
  const size_t num_parts = (rows.num_rows + kFewRows - 1) / kFewRows;
  const size_t num_columns = std::min(kPackedColumns, rows.out - first_column);
  HWY_ALIGN float weights[kRun * kPartVectors * kLanes];
  for (size_t column = 0; column < num_columns;
       column += kPartVectors * kLanes) {
    PartSums parts[kSomeRows / kFewRows];
    for (size_t part = 0; part < num_parts; ++part) parts[part].Clear();
    for (size_t begin = 0; begin < rows.in; begin += kRun) {
      PrefetchNext<Format, kPartVectors>(group, begin, column,
                                         rows.group_bytes);
      AddAndKeep<Format>(group, begin, rows.in, column, inputs, weights, parts);
      for (size_t part = 1; part < num_parts; ++part) {
        AddKept(weights, begin, rows.in, inputs + part * kFewRows,
                parts + part);
      }
    }
    for (size_t r = 0; r < num_parts * kFewRows; ++r) {
      StoreSums(parts[r / kFewRows].of[r % kFewRows], num_columns - column,
                rows.OutputOf(r) + first_column + column);
    }
  }
}

// Writes weights of elements begin .. end - 1 of the group's columns.
template <class Format>
HWY_NOINLINE void Unpack(const uint8_t* HWY_RESTRICT group, size_t begin,
                         size_t end, float* HWY_RESTRICT panel) {
  constexpr size_t kVectors = VectorsOf(kNumRegisters / 4);
  for (; begin < end; begin += kRun) {
    const size_t count = std::min(kRun, end - begin);
    for (size_t column = 0; column < kPackedColumns;
         column += kVectors * kLanes) {
      const typename Format::template Run<kVectors> run(group, begin, column);
      for (size_t k = 0; k < count; ++k) {
        HWY_UNROLL(8)
        for (size_t v = 0; v < kVectors; ++v) {
          hn::Store(run.Weight(v, k), D(),
                    panel + k * kPackedColumns + column + v * kLanes);
        }
      }
    }
    panel += count * kPackedColumns;
  }
}

// Adds the products of `depth` elements along `in` to a tile of output. Sums
// begin at zero if `first`, and otherwise where the last call stored them.
// Both are kept for the columns of the tile, where a matrix ends within it.
HWY_NOINLINE void MultiplyTile(const float* HWY_RESTRICT panel, size_t depth,
                               bool first, size_t num_columns,
                               const Rows& rows) {
  const float* inputs[kTileRows];
  for (size_t r = 0; r < kTileRows; ++r) {
    inputs[r] = rows.InputOf(r);
  }
  V sums[kTileRows][kTileVectors];
  HWY_UNROLL(12)
  for (size_t r = 0; r < kTileRows; ++r) {
    HWY_UNROLL(4)
    for (size_t v = 0; v < kTileVectors; ++v) sums[r][v] = hn::Zero(D());
  }
  if (!first) {
    HWY_ALIGN float columns[kTileColumns] = {};
    HWY_UNROLL(12)
    for (size_t r = 0; r < kTileRows; ++r) {
      const float* from = rows.OutputOf(r);
      if (num_columns < kTileColumns) {
        std::copy_n(from, num_columns, columns);
        from = columns;
      }
      HWY_UNROLL(4)
      for (size_t v = 0; v < kTileVectors; ++v) {
        sums[r][v] = hn::LoadU(D(), from + v * kLanes);
      }
    }
  }
  for (size_t k = 0; k < depth; ++k) {
    V weights[kTileVectors];
    HWY_UNROLL(4)
    for (size_t v = 0; v < kTileVectors; ++v) {
      weights[v] = hn::Load(D(), panel + k * kPackedColumns + v * kLanes);
    }
    HWY_UNROLL(12)
    for (size_t r = 0; r < kTileRows; ++r) {
      const V x = hn::Set(D(), inputs[r][k]);
      HWY_UNROLL(4)
      for (size_t v = 0; v < kTileVectors; ++v) {
        sums[r][v] = hn::MulAdd(x, weights[v], sums[r][v]);
      }
    }
  }
  HWY_UNROLL(12)
  for (size_t r = 0; r < kTileRows; ++r) {
    StoreSums(sums[r], num_columns, rows.OutputOf(r));
  }
}

// Unpacks the group's weights panel by panel, and multiplies all rows by each.
template <class Format>
void MultiplyManyRows(const uint8_t* group, size_t first_column,
                      const Rows& rows) {
  HWY_ALIGN float panel[kPanelDepth * kPackedColumns];
  const size_t num_columns = std::min(kPackedColumns, rows.out - first_column);
  for (size_t begin = 0; begin < rows.in; begin += kPanelDepth) {
    const size_t end = std::min(begin + kPanelDepth, rows.in);
    Unpack<Format>(group, begin, end, panel);
    for (size_t row = 0; row < rows.num_rows; row += kTileRows) {
      for (size_t column = 0; column < num_columns; column += kTileColumns) {
        Rows tile = rows;
        tile.input += row * rows.in + begin;
        tile.output += row * rows.out + first_column + column;
        tile.num_rows -= row;
        MultiplyTile(panel + column, end - begin, begin == 0,
                     num_columns - column, tile);
      }
    }
  }
}

template <class Format>
void MultiplyRows(const uint8_t* group, size_t first_column, const Rows& rows) {
  if (rows.num_rows == 1) {
    MultiplyFewRows<Format, 1>(group, first_column, rows);
  } else if (rows.num_rows == 2) {
    MultiplyFewRows<Format, 2>(group, first_column, rows);
  } else if (rows.num_rows <= kFewRows) {
    MultiplyFewRows<Format, kFewRows>(group, first_column, rows);
  } else if (rows.num_rows <= kSomeRows) {
    MultiplySomeRows<Format>(group, first_column, rows);
  } else {
    MultiplyManyRows<Format>(group, first_column, rows);
  }
}

// Calls work with an object of the format's class.
template <class Work>
void WithFormat(PackedFormat format, const Work& work) {
  switch (format) {
    case PackedFormat::kFloat32:
      return work(Floats<float>());
    case PackedFormat::kFloat16:
      return work(Floats<hwy::float16_t>());
    case PackedFormat::kBFloat16:
      return work(Floats<hwy::bfloat16_t>());
    case PackedFormat::kNibbles16:
      return work(Nibbles<hwy::float16_t, PackedFormat::kNibbles16>());
    case PackedFormat::kNibbles32:
      return work(Nibbles<float, PackedFormat::kNibbles32>());
    case PackedFormat::kBytes16:
      return work(Bytes<hwy::float16_t, PackedFormat::kBytes16>());
    case PackedFormat::kBytes32:
      return work(Bytes<float, PackedFormat::kBytes32>());
  }
}

void MultiplyGroupsOn(const PackedView& matrix, size_t first_group,
                      size_t last_group, const float* input, size_t num_rows,
                      float* output) {
  const Rows rows = {.input = input,
                     .in = matrix.in,
                     .output = output,
                     .out = matrix.out,
                     .num_rows = num_rows,
                     .group_bytes = matrix.group_bytes};
  WithFormat(matrix.format, [&](auto format) HWY_ATTR {
    for (size_t group = first_group; group < last_group; ++group) {
      MultiplyRows<decltype(format)>(matrix.groups + group * matrix.group_bytes,
                                     group * kPackedColumns, rows);
    }
  });
}

void UnpackColumnOn(const PackedView& matrix, size_t column, float* weights) {
  HWY_ALIGN float panel[kRun * kPackedColumns];
  const uint8_t* group =
      matrix.groups + column / kPackedColumns * matrix.group_bytes;
  WithFormat(matrix.format, [&](auto format) HWY_ATTR {
    for (size_t begin = 0; begin < matrix.in; begin += kRun) {
      const size_t end = std::min(begin + kRun, matrix.in);
      Unpack<decltype(format)>(group, begin, end, panel);
      for (size_t i = begin; i < end; ++i) {
        weights[i] =
            panel[(i - begin) * kPackedColumns + column % kPackedColumns];
      }
    }
  });
}

}  // namespace
}  // namespace blockmgr::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace blockmgr {
HWY_EXPORT(MultiplyGroupsOn);
HWY_EXPORT(UnpackColumnOn);

void MultiplyGroups(const PackedView& matrix, size_t first_group,
                    size_t last_group, const float* input, size_t num_rows,
                    float* output) {
  BM_CHECK(num_rows > 0);
  HWY_DYNAMIC_DISPATCH(MultiplyGroupsOn)
  (matrix, first_group, last_group, input, num_rows, output);
}

void UnpackColumn(const PackedView& matrix, size_t column, float* weights) {
  HWY_DYNAMIC_DISPATCH(UnpackColumnOn)(matrix, column, weights);
}

}  // namespace blockmgr
#endif  // HWY_ONCE
