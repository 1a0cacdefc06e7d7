#include "tests/kernels/cuda/selection/index_checks.h"

#include <algorithm>
#include <numeric>

#include <absl/strings/str_cat.h>

#include "blockmgr/base/bits.h"
#include "tests/kernels/cuda/selection/select_runner.h"
#include "tests/kernels/cuda/test_pool.h"

namespace blockmgr {

IndexCase::IndexCase(Rng& rng, bool has_regions)
    : num_sequences(RandomInt(rng, 1, 3)),
      num_heads(RandomInt(rng, 1, 4)),
      first_layer(RandomInt(rng, 0, 2)),
      num_layers(RandomInt(rng, 1, 3)),
      // Pages beyond 2^24, slots beyond 2^28.
      num_blocks(RandomInt(rng, 1 << 21, 1 << 22)),
      page_shift(RandomInt(rng, 4, 5)),
      offsets({0}) {
  DrawTables(rng, has_regions);
  for (int32_t layer = 0; layer < num_layers; ++layer) {
    for (int32_t sequence = 0; sequence < num_sequences; ++sequence) {
      // The same for all heads, as a limit on positions is.
      const int32_t num_tail =
          RandomInt(rng, 0, tail_lengths[sequence_slots[sequence]]);
      for (int32_t head = 0; head < num_heads; ++head) {
        Expect(layer, sequence, head, num_tail);
      }
    }
  }
}

void IndexCase::DrawTables(Rng& rng, bool has_regions) {
  const int32_t num_slots = num_sequences + RandomInt(rng, 0, 2);
  sequence_slots.resize(num_slots);
  std::iota(sequence_slots.begin(), sequence_slots.end(), 0);
  std::shuffle(sequence_slots.begin(), sequence_slots.end(), rng);
  tail_stride = 80;
  for (int32_t slot = 0; slot < num_slots; ++slot) {
    // Sometimes more words than a block takes in a turn.
    cuts.push_back(has_regions ? RandomInt(rng, 1, 1000) *
                                     (RandomInt(rng, 0, 3) == 0 ? 70 : 1)
                               : RandomInt(rng, 0, 1) * 48);
    tail_lengths.push_back(RandomInt(rng, 0, 80 << page_shift));
    longest_tail = std::max(longest_tail, tail_lengths.back());
  }
  for (int64_t i = 0; i < num_slots * tail_stride; ++i) {
    tail_blocks.push_back(RandomInt(rng, 0, num_blocks - 1));
  }
  if (!has_regions) return;
  region_pages.assign(1, -1);
  region_positions.assign(int64_t{1} << page_shift, -1);
  const int64_t num_rows = int64_t{num_layers} * num_slots * num_heads;
  // Sometimes several chunks.
  const int32_t most = RandomInt(rng, 0, 2) == 0 ? 7000 : 700;
  for (int64_t row = 0; row < num_rows; ++row) DrawRegion(rng, row, most);
}

void IndexCase::DrawRegion(Rng& rng, int64_t row, int32_t most) {
  const int64_t num_slots = std::ssize(cuts);
  const int32_t cut = cuts[row / num_heads % num_slots];
  const int32_t length =
      RandomInt(rng, 0, 4) == 0 ? 0 : RandomInt(rng, 1, std::min(cut, most));
  std::vector<int32_t> all(cut);
  std::iota(all.begin(), all.end(), 0);
  std::shuffle(all.begin(), all.end(), rng);
  region_offsets.push_back(std::ssize(region_pages));
  region_lengths.push_back(length);
  region_positions.insert(region_positions.end(), all.begin(),
                          all.begin() + length);
  const int32_t num_pages = CeilDiv(length, 1 << page_shift);
  for (int32_t page = 0; page < num_pages; ++page) {
    region_pages.push_back(RandomInt(rng, 0, num_blocks - 1));
  }
  // Dead places of the last page have any position.
  region_positions.resize(region_pages.size() << page_shift, 0);
}

void IndexCase::Expect(int32_t layer, int32_t sequence, int32_t head,
                       int32_t num_tail) {
  const int32_t slot = sequence_slots[sequence];
  const int64_t page_size = int64_t{1} << page_shift;
  const auto begin = std::ssize(expected);
  if (!region_lengths.empty()) {
    const int64_t row =
        (int64_t{layer} * std::ssize(cuts) + slot) * num_heads + head;
    for (int64_t i = 0; i < region_lengths[row]; ++i) {
      const int64_t place = region_offsets[row] * page_size + i;
      expected.emplace_back(
          region_positions[place],
          region_pages[place / page_size] * page_size + i % page_size);
    }
    std::sort(expected.begin() + begin, expected.end());
  }
  for (int64_t i = 0; i < num_tail; ++i) {
    const int64_t block = tail_blocks[slot * tail_stride + i / page_size];
    const int64_t page =
        ((first_layer + layer) * int64_t{num_blocks} + block) * num_heads +
        head;
    expected.emplace_back(cuts[slot] + i, page * page_size + i % page_size);
  }
  offsets.push_back(std::ssize(expected));
}

EntryIndexParams IndexCase::Params() {
  word_offsets_.assign(1, 0);
  for (int32_t i = 0; i < num_sequences; ++i) {
    word_offsets_.push_back(word_offsets_.back() +
                            CeilDiv(cuts[sequence_slots[i]], 32));
  }
  const int64_t num_words = word_offsets_.back() * num_heads * num_layers;
  marks_.assign(num_words, 0);
  // Read too early they would send entries anywhere if they were poisoned.
  words_.assign(num_words, {0, 0});
  slots = Poisoned<int64_t>(num_entries() + 1);
  positions = Poisoned<int32_t>(num_entries() + 1);
  error.assign(1, 0);
  EntryIndexParams params;
  params.lists.num_sequences = num_sequences;
  params.lists.num_heads = num_heads;
  params.lists.layer = first_layer;
  params.lists.sequence_slots = sequence_slots.data();
  if (!region_lengths.empty()) {
    params.lists.region_lengths = region_lengths.data();
    params.lists.region_offsets = region_offsets.data();
    params.lists.region_pages = region_pages.data();
    params.lists.region_positions = region_positions.data();
    params.region_stride = std::ssize(cuts) * num_heads;
    params.word_offsets = word_offsets_.data();
    params.marks = marks_.data();
    params.words = words_.data();
  }
  params.lists.cuts = cuts.data();
  params.lists.tail_blocks = tail_blocks.data();
  params.lists.tail_stride = tail_stride;
  params.lists.tail_lengths = tail_lengths.data();
  params.num_layers = num_layers;
  params.num_blocks = num_blocks;
  params.page_shift = page_shift;
  params.offsets = offsets.data();
  if (in_chunks) {
    chunks_ = SharedSplits(offsets, kIndexChunkEntries, 0);
    params.chunks = {chunks_.data(), chunks_.back()};
  }
  params.slots = slots.data();
  params.positions = positions.data();
  params.error = error.data();
  return params;
}

std::string IndexCase::Run(const simt::Schedule& schedule) {
  const EntryIndexParams params = Params();
  std::string failure =
      RunKernel(schedule, &DeviceRuntime::IndexEntries, params, longest_tail)
          .error;
  if (!failure.empty()) return failure;
  if (std::ranges::any_of(marks_, [](uint32_t mark) { return mark != 0; })) {
    return "marks are not zero again";
  }
  if (slots.back() != -1 || positions.back() != -1) {
    return "something behind the last entry";
  }
  for (int64_t i = 0; i < num_entries(); ++i) {
    const auto [position, slot] = expected[i];
    if (positions[i] == position && slots[i] == slot) continue;
    return absl::StrCat("entry ", i, ": position ", positions[i], ", slot ",
                        slots[i], ", expected ", position, ", ", slot);
  }
  return "";
}

std::string CheckIndex(uint64_t seed) {
  Rng rng(seed);
  IndexCase index(rng, seed % 4 != 0);
  const simt::Schedule schedule = SomeSchedules(rng)[seed % 4];
  for (const bool in_chunks : {false, true}) {
    index.in_chunks = in_chunks;
    std::string difference = index.Run(schedule);
    if (difference.empty() && index.error[0] != 0) {
      difference = absl::StrCat("error word ", index.error[0]);
    }
    if (!difference.empty()) {
      return absl::StrCat(difference, in_chunks ? ", in chunks" : "");
    }
  }
  return "";
}

}  // namespace blockmgr
