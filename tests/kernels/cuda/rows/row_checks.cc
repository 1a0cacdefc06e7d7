#include "tests/kernels/cuda/rows/row_checks.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <limits>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include <absl/strings/str_cat.h>

#include "kernels/backend.h"
#include "kernels/cuda/rows/row_mover.h"
#include "kernels/cuda/simt.h"
#include "tests/kernels/cuda/test_device.h"
#include "tests/kernels/cuda/test_pool.h"
#include "tests/kernels/kernel_cases.h"

namespace blockmgr {
namespace {

constexpr int64_t kSpareRows = 40;

// A random pool, the backend that holds the same, and what happens to both.
struct Case {
  explicit Case(uint64_t seed)
      : rng(seed),
        layout(RandomLayout(rng,
                            seed % 2 == 0 ? DType::kBFloat16 : DType::kFloat32,
                            RandomInt(rng, 3, 7))),
        pool(layout,
             kAllKvTensorOrders[seed / 2 % std::size(kAllKvTensorOrders)]),
        schedule(SomeSchedules(rng)[seed % 4]) {
    PoolModel model(layout);
    for (SlotIndex slot = 0; slot < pool.num_slots(); ++slot) {
      if (RandomInt(rng, 0, 4) != 0) model.FillRandom(slot, rng);
    }
    backend = model.MakeBackend();
    pool.CopyFrom(*backend);
    for (int32_t& position : pool.positions()) {
      position = RandomInt(rng, 0, 1 << 20);
    }
    positions = pool.positions();
  }

  // Different slots of the pool, in random order.
  SharedVector<int64_t> DrawSlots(int64_t count) {
    SharedVector<int64_t> slots(pool.num_slots());
    std::iota(slots.begin(), slots.end(), int64_t{0});
    Shuffle(&slots, rng);
    slots.resize(std::min<int64_t>(count, pool.num_slots()));
    return slots;
  }

  // Runs a kernel of DeviceRuntime. Returns its failure, or "".
  template <typename Kernel, typename... Arguments>
  std::string Run(Kernel kernel, const Arguments&... arguments) const {
    return RunKernel(schedule, kernel, arguments...).error;
  }
  // Runs a kernel, then compares the pool, the positions and the error word
  // with what they must be. Returns the first failure or difference, or "".
  template <typename Kernel, typename... Arguments>
  std::string Outcome(Kernel kernel, const Arguments&... arguments) {
    std::string failure = Run(kernel, arguments...);
    return failure.empty() ? Outcome() : failure;
  }
  std::string Outcome() {
    if (error[0] != expected_error) {
      return absl::StrCat("error word ", error[0], ", expected ",
                          expected_error);
    }
    if (pool.positions() != positions) return "positions differ";
    return pool.Difference(*backend);
  }

  Rng rng;
  ModelLayout layout;
  TestPool pool;
  simt::Schedule schedule;
  std::unique_ptr<Backend> backend;
  SharedVector<int32_t> positions;  // expected
  SharedVector<uint32_t> error = {0};
  uint32_t expected_error = 0;
};

// New tokens for random slots of a layer, a few of them padding or out of the
// pool.
struct Tokens {
  explicit Tokens(Case* c)
      : layer(RandomInt(c->rng, 0, c->layout.num_layers - 1)) {
    const int64_t tail_slots =
        int64_t{c->layout.num_blocks} * c->layout.page_size;
    mapping.resize(tail_slots);
    std::iota(mapping.begin(), mapping.end(), int64_t{0});
    Shuffle(&mapping, c->rng);
    mapping.resize(RandomInt(c->rng, 1, static_cast<int32_t>(tail_slots)));
    valid = mapping;
    for (size_t i = 0; i < mapping.size(); ++i) {
      const int32_t draw = RandomInt(c->rng, 0, 9);
      if (draw > 1) continue;
      valid[i] = -1;
      mapping[i] = -1;
      if (draw == 1) continue;
      mapping[i] = RandomInt(c->rng, 0, 1) == 0 ? tail_slots : -77;
      c->expected_error = kSlotOutOfPool;
    }
    positions.resize(mapping.size());
    std::iota(positions.begin(), positions.end(), 77);
    width = int64_t{c->layout.num_heads} * c->layout.head_dim;
    rows = Shared(RandomFloats(c->rng, std::ssize(mapping) * 2 * width));
    for (float& value : rows) {
      if (RandomInt(c->rng, 0, 20) != 0) continue;
      value = RandomInt(c->rng, 0, 1) == 0
                  ? std::numeric_limits<float>::infinity()
                  : simt::BitsToFloat(0xFF812345u);  // a NaN with a payload
    }
  }

  // What the CPU makes of them.
  void Expect(Case* c) const {
    std::vector<float> keys;
    std::vector<float> values;
    for (size_t token = 0; token < valid.size(); ++token) {
      const auto row = rows.begin() + static_cast<int64_t>(token) * 2 * width;
      keys.insert(keys.end(), row, row + width);
      values.insert(values.end(), row + width, row + 2 * width);
      if (valid[token] == -1) continue;
      const int32_t page_size = c->layout.page_size;
      const BlockId block{static_cast<int32_t>(valid[token] / page_size)};
      for (int32_t head = 0; head < c->layout.num_heads; ++head) {
        c->positions[c->layout.slot(
            c->layout.page_id(layer, block, head),
            static_cast<int32_t>(valid[token] % page_size))] = positions[token];
      }
    }
    c->backend->Append({.layer = layer,
                        .slot_mapping = valid,
                        .keys = keys.data(),
                        .values = values.data()});
  }

  int32_t layer;
  SharedVector<int64_t> mapping;
  SharedVector<int64_t> valid;  // -1 where nothing is written
  SharedVector<int32_t> positions;
  int64_t width = 0;
  SharedVector<float> rows;  // [token][keys, values][width]
};

}  // namespace

std::string CheckAppend(uint64_t seed) {
  Case c(seed);
  const Tokens tokens(&c);
  tokens.Expect(&c);
  AppendRows append;
  append.pool = c.pool.pool();
  append.layer = tokens.layer;
  append.num_tokens = std::ssize(tokens.mapping);
  append.slot_mapping = tokens.mapping.data();
  append.positions = tokens.positions.data();
  append.keys = reinterpret_cast<const char*>(tokens.rows.data());
  append.values = append.keys + tokens.width * 4;
  append.token_stride = 2 * tokens.width * 4;
  append.head_stride = int64_t{c.layout.head_dim} * 4;
  append.error = c.error.data();
  const RowConversion conversion = c.layout.dtype == DType::kFloat32
                                       ? RowConversion::kNone
                                       : RowConversion::kFloatToBFloat16;
  return c.Outcome(&DeviceRuntime::Append, append, conversion);
}

std::string CheckGather(uint64_t seed) {
  Case c(seed);
  SharedVector<int64_t> slots = c.DrawSlots(RandomInt(c.rng, 1, 90));
  const size_t size = slots.size();
  slots[size / 2] = slots[0];  // one slot may be read twice
  const int64_t row_values = int64_t{2} * c.layout.head_dim;
  const RowConversion conversion = c.layout.dtype == DType::kFloat32
                                       ? RowConversion::kNone
                                       : RowConversion::kBFloat16ToFloat;
  // The host's bound is larger than what the device counted.
  slots.resize(size + kSpareRows);
  SharedVector<float> out((size + kSpareRows) * row_values, -1.0f);
  SharedVector<int32_t> positions(size + kSpareRows, -9);
  const SharedVector<int64_t> device_count = {static_cast<int64_t>(size)};
  GatherRows gather = {.pool = c.pool.pool(),
                       .rows = {.count = device_count[0] + kSpareRows,
                                .device_count = device_count.data()},
                       .slots = slots.data(),
                       .out = reinterpret_cast<char*>(out.data()),
                       .positions = positions.data(),
                       .error = c.error.data()};
  std::string failure = c.Outcome(&DeviceRuntime::Gather, gather, conversion);
  if (!failure.empty()) return failure;
  std::vector<float> want(row_values);
  for (size_t i = 0; i < size; ++i) {
    c.backend->ReadSlot(slots[i], want);
    if (std::memcmp(want.data(), &out[i * row_values], row_values * 4) != 0) {
      return absl::StrCat("row ", i, " differs");
    }
    if (positions[i] != c.positions[slots[i]]) return "a position differs";
  }
  if (positions[size] != -9 || out[size * row_values] != -1.0f) {
    return "written behind the end";
  }
  return "";
}

std::string CheckMoves(uint64_t seed) {
  Case c(seed);
  // Straight moves, of which no slot is both a source and a destination, then a
  // cycle by way of staging.
  for (const bool in_place : {false, true}) {
    const SharedVector<int64_t> slots = c.DrawSlots(200);
    CompactionMoves moves;
    for (size_t i = 0; i + 1 < slots.size(); i += in_place ? 1 : 2) {
      moves.moves.push_back({slots[i], slots[i + 1]});
    }
    if (in_place) moves.moves.push_back({slots.back(), slots.front()});
    moves.group_ends = {std::ssize(moves.moves)};
    moves.in_place = in_place;
    c.backend->Move(moves);
    SharedVector<RowMove> rows;
    const SharedVector<int32_t> before = c.positions;
    for (const SlotMove& move : moves.moves) {
      rows.push_back({move.source, move.destination});
      c.positions[move.destination] = before[move.source];
    }
    // What no move may do.
    rows.insert(rows.begin() + static_cast<ptrdiff_t>(rows.size() / 2),
                {{0, c.pool.num_slots()}, {-1, 0}});
    c.expected_error = kSlotOutOfPool;
    MoveRows move = {.pool = c.pool.pool(),
                     .rows = {.count = static_cast<int64_t>(rows.size())},
                     .moves = rows.data(),
                     .error = c.error.data()};
    SharedVector<simt::Vector16> staged(std::ssize(rows) * 2 *
                                        c.layout.row_bytes() / 16);
    SharedVector<int32_t> staged_positions(std::ssize(rows), -1);
    if (in_place) {
      move.staged = reinterpret_cast<char*>(staged.data());
      move.staged_positions = staged_positions.data();
    }
    std::string failure = c.Run(&DeviceRuntime::Move, move);
    if (!failure.empty()) return failure;
  }
  return c.Outcome();
}

std::string CheckCopyBlocks(uint64_t seed) {
  Case c(seed);
  std::vector<int32_t> blocks(c.layout.num_blocks);
  std::iota(blocks.begin(), blocks.end(), 0);
  Shuffle(&blocks, c.rng);
  std::vector<BlockCopy> copies;
  SharedVector<BlockPair> pairs = {{blocks[0], c.layout.num_blocks}};
  c.expected_error = kBlockOutOfPool;
  for (size_t i = 0; i + 1 < blocks.size(); i += 2) {
    copies.push_back({BlockId{blocks[i]}, BlockId{blocks[i + 1]}});
    pairs.push_back({blocks[i], blocks[i + 1]});
    for (int32_t layer = 0; layer < c.layout.num_layers; ++layer) {
      for (int32_t head = 0; head < c.layout.num_heads; ++head) {
        for (int32_t offset = 0; offset < c.layout.page_size; ++offset) {
          const auto slot = [&](int32_t block) {
            return c.layout.slot(c.layout.page_id(layer, BlockId{block}, head),
                                 offset);
          };
          c.positions[slot(blocks[i + 1])] = c.positions[slot(blocks[i])];
        }
      }
    }
  }
  c.backend->CopyBlocks(copies);
  const CopyBlockRows copy = {.pool = c.pool.pool(),
                              .num_pairs = static_cast<int64_t>(pairs.size()),
                              .pairs = pairs.data(),
                              .error = c.error.data()};
  return c.Outcome(&DeviceRuntime::CopyBlocks, copy);
}

// Pages out to staging, then into other pages of the pool.
std::string CheckSwap(uint64_t seed) {
  Case c(seed);
  const int32_t page_size = c.layout.page_size;
  std::vector<int32_t> pages(c.layout.num_pages());
  std::iota(pages.begin(), pages.end(), 0);
  Shuffle(&pages, c.rng);
  const auto count = std::min<int64_t>(40, c.layout.num_pages() / 2);
  SharedVector<int32_t> in(pages.begin() + count, pages.begin() + 2 * count);
  const SharedVector<int32_t> out(pages.begin(), pages.begin() + count);
  // Staged is what was in the pool, the K rows of a page first.
  const int64_t row = c.layout.row_bytes();
  std::vector<char> want(count * c.layout.page_bytes());
  SharedVector<int32_t> want_positions(count * page_size);
  CompactionMoves moves;
  for (int64_t i = 0; i < count; ++i) {
    for (int32_t offset = 0; offset < page_size; ++offset) {
      const SlotIndex source = int64_t{out[i]} * page_size + offset;
      const SlotIndex destination = int64_t{in[i]} * page_size + offset;
      const std::vector<char> bytes = c.pool.SlotBytes(source);
      char* key = want.data() + i * c.layout.page_bytes() + offset * row;
      std::copy_n(bytes.data(), row, key);
      std::copy_n(bytes.data() + row, row, key + row * page_size);
      want_positions[i * page_size + offset] = c.positions[source];
      c.positions[destination] = c.positions[source];
      moves.moves.push_back({source, destination});
    }
  }
  c.backend->Move(moves);
  SharedVector<simt::Vector16> staged(want.size() / 16);
  SharedVector<int32_t> staged_positions(want_positions.size(), -1);
  StagePages stage = {.pool = c.pool.pool(),
                      .num_pages = count,
                      .pages = out.data(),
                      .staged = reinterpret_cast<char*>(staged.data()),
                      .positions = staged_positions.data(),
                      .error = c.error.data()};
  std::string failure = c.Run(&DeviceRuntime::PackPages, stage);
  if (!failure.empty()) return failure;
  if (std::memcmp(staged.data(), want.data(), want.size()) != 0) {
    return "staged bytes differ";
  }
  if (staged_positions != want_positions) return "staged positions differ";
  in[count / 2] = static_cast<int32_t>(c.layout.num_pages());
  c.expected_error = kPageOutOfPool;
  // The page that stayed out, by hand.
  const int32_t missing = pages[count + count / 2];
  stage.pages = in.data();
  failure = c.Run(&DeviceRuntime::UnpackPages, stage);
  if (!failure.empty()) return failure;
  const SharedVector<int32_t> replacement = {missing};
  stage.num_pages = 1;
  stage.pages = replacement.data();
  stage.staged += count / 2 * c.layout.page_bytes();
  stage.positions += count / 2 * page_size;
  return c.Outcome(&DeviceRuntime::UnpackPages, stage);
}

}  // namespace blockmgr
