// CpuKernels: attention and scores on the CPU, over a pool of another library.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include "kernels/backend.h"
#include "kernels/cpu/thread_pool.h"
#include "python/core/arrays.h"
#include "python/core/core.h"
#include "python/core/errors.h"
#include "python/core/eviction.h"
#include "python/core/kernel_checks.h"

namespace blockmgr::python {
namespace {

int32_t CheckedThreads(int32_t num_threads) {
  if (num_threads < 1 || num_threads > 1024) {
    ThrowInvalid("num_threads: expected 1 to 1024, got ", num_threads);
  }
  return num_threads;
}

AnyArray ImportPool(const ModelLayout& layout, ArrayArgument pool) {
  const std::array<int64_t, 6> shape = {layout.num_layers, layout.num_blocks,
                                        layout.num_heads,  2,
                                        layout.page_size,  layout.head_dim};
  return ImportArray("pool", pool.value, ElementTypeOf(layout.dtype), shape);
}

// Checks that `offsets` is CSR over `size` rows.
void CheckQueryOffsets(std::span<const int32_t> offsets, int64_t size) {
  for (size_t i = 0; i + 1 < offsets.size(); ++i) {
    if (offsets[i] > offsets[i + 1]) {
      ThrowInvalid("query_offsets: expected ascending values, got ", offsets[i],
                   ", ", offsets[i + 1], " at ", i);
    }
  }
  if (offsets.front() != 0 || offsets.back() != size) {
    ThrowInvalid("query_offsets: expected 0 first and ", size,
                 " last, the number of queries, got ", offsets.front(), " and ",
                 offsets.back());
  }
}

// The part of Entries that belongs to one layer.
struct LayerEntries {
  std::vector<int64_t> offsets;  // [num_heads + 1]
  EntryList list;
};

// Several threads of Python may call one object. They take turns.
class PyCpuKernels {
 public:
  PyCpuKernels(const ModelLayout& layout, ArrayArgument pool,
               int32_t num_threads)
      : layout_(CheckedLayout(layout)),
        pool_(ImportPool(layout, pool)),
        threads_(CheckedThreads(num_threads)) {
    // The calls below read the pool and never write it.
    auto* bytes = static_cast<std::byte*>(const_cast<void*>(pool_.data()));
    backend_ = ValueOrThrow(CreateCpuBackendOn(
        layout_, {bytes, static_cast<size_t>(layout_.pool_bytes())}));
  }

  const ModelLayout& layout() const { return layout_; }

  OwnArray<float, 3> Attend(int32_t layer, ArrayArgument queries,
                            ArrayArgument query_offsets,
                            ArrayArgument block_tables,
                            ArrayArgument tail_lengths,
                            const std::optional<std::vector<nb::object>>& given,
                            std::optional<float> scale, ArrayArgument sinks) {
    CheckLayer(layout_, layer);
    const In<float> rows("queries", queries,
                         {-1, layout_.num_q_heads, layout_.head_dim});
    const In<int32_t> lengths("tail_lengths", tail_lengths, {-1});
    const int64_t num_sequences = lengths.dimension(0);
    const In<int32_t> offsets("query_offsets", query_offsets,
                              {num_sequences + 1});
    const In<int32_t> tables("block_tables", block_tables, {num_sequences, -1});
    CheckQueryOffsets(offsets.values(), rows.dimension(0));
    CheckTails(offsets.values(), tables, lengths.values());
    const float factor = CheckedScale(layout_, scale);
    In<float> sink_logits;
    if (!sinks.is_none()) {
      sink_logits = In<float>("sinks", sinks, {layout_.num_q_heads});
    }
    const std::vector<nb::object> regions =
        CheckedRegions(given, num_sequences);
    std::vector<SequenceKv> sequences(static_cast<size_t>(num_sequences));
    const auto width = static_cast<size_t>(tables.dimension(1));
    for (size_t i = 0; i < sequences.size(); ++i) {
      SequenceKv& kv = sequences[i];
      kv.tail_blocks = reinterpret_cast<const BlockId*>(
          tables.values().subspan(i * width, width).data());
      kv.tail_length = lengths.values()[i];
      if (!regions[i].is_none()) {
        AddRegion(nb::cast<const PyRegion&>(regions[i]), layer, &kv);
      }
    }
    std::vector<float> output(rows.values().size());
    {
      const nb::gil_scoped_release release;
      const std::scoped_lock lock(mutex_);
      backend_->Attention({.layer = layer,
                           .sequences = sequences,
                           .query_offsets = offsets.values(),
                           .queries = rows.values().data(),
                           .output = output.data(),
                           .scale = factor,
                           .sinks = sink_logits.values().data(),
                           .threads = &threads_});
    }
    return Own<3>(std::move(output), {static_cast<size_t>(rows.dimension(0)),
                                      static_cast<size_t>(layout_.num_q_heads),
                                      static_cast<size_t>(layout_.head_dim)});
  }

  OwnArray<float> Score(const PolicyArgument& text, int32_t layer,
                        const PyEntries& entries, int32_t length,
                        ArrayArgument queries, std::optional<float> scale) {
    const EvictionPolicy policy = CheckedScorer(text);
    const LayerEntries own = EntriesOfLayer(layer, entries);
    if (length < 1) {
      ThrowInvalid("length: expected at least 1, got ", length);
    }
    for (const int32_t position : own.list.positions) {
      if (position >= length) {
        ThrowInvalid("length: expected more than ", position,
                     ", the position of an entry, got ", length);
      }
    }
    QueryWindow window = {.length = length};
    In<float> rows;
    if (const int32_t limit = policy.query_window(); limit > 0) {
      rows = In<float>("queries", queries,
                       {-1, layout_.num_q_heads, layout_.head_dim});
      if (rows.dimension(0) != std::min(limit, length)) {
        ThrowInvalid("queries: expected the last ", std::min(limit, length),
                     " queries, which ", FormatPolicy(policy), " reads, got ",
                     rows.dimension(0));
      }
      window.queries = rows.values().data();
      window.count = static_cast<int32_t>(rows.dimension(0));
    }
    const float factor = CheckedScale(layout_, scale);
    std::vector<float> scores(own.list.slots.size());
    {
      const nb::gil_scoped_release release;
      const std::scoped_lock lock(mutex_);
      backend_->Score({.layer = layer,
                       .scorer = policy.scorer,
                       .scale = factor,
                       .entries = own.list,
                       .window = window,
                       .scores = scores});
    }
    return Own(std::move(scores));
  }

  OwnArray<float> ValueNorms(const PolicyArgument& text, int32_t layer,
                             const PyEntries& entries,
                             ArrayArgument projection) {
    const EvictionPolicy policy = PolicyOf(text);
    const LayerEntries own = EntriesOfLayer(layer, entries);
    const In<float> weights("projection", projection,
                            {layout_.num_q_heads, layout_.head_dim, -1});
    if (weights.dimension(2) < 1 ||
        weights.dimension(2) > std::numeric_limits<int32_t>::max()) {
      ThrowInvalid("projection: expected at least 1 column, got ",
                   weights.dimension(2));
    }
    std::vector<float> norms(own.list.slots.size());
    {
      const nb::gil_scoped_release release;
      const std::scoped_lock lock(mutex_);
      backend_->ValueNorms(
          {.layer = layer,
           .norm = policy.selector.norm,
           .entries = own.list,
           .output_projection = weights.values().data(),
           .model_dim = static_cast<int32_t>(weights.dimension(2)),
           .norms = norms});
    }
    return Own(std::move(norms));
  }

 private:
  // Checks that every tail has its queries, and blocks for its tokens.
  void CheckTails(std::span<const int32_t> offsets, const In<int32_t>& tables,
                  std::span<const int32_t> lengths) const {
    const int64_t width = tables.dimension(1);
    for (size_t i = 0; i < lengths.size(); ++i) {
      const int32_t num_queries = offsets[i + 1] - offsets[i];
      if (lengths[i] < num_queries ||
          lengths[i] > width * int64_t{layout_.page_size}) {
        ThrowInvalid("tail_lengths[", i, "]: expected ", num_queries,
                     ", the number of queries, to ", width * layout_.page_size,
                     ", the tokens of the blocks, got ", lengths[i]);
      }
      const int64_t num_blocks =
          (int64_t{lengths[i]} + layout_.page_size - 1) / layout_.page_size;
      const auto blocks = tables.values().subspan(
          i * static_cast<size_t>(width), static_cast<size_t>(num_blocks));
      for (const int32_t block : blocks) {
        if (block < 0 || block >= layout_.num_blocks) {
          ThrowInvalid("block_tables[", i, "]: expected blocks from 0 to ",
                       layout_.num_blocks - 1, ", got ", block);
        }
      }
    }
  }

  // Returns a region or None for each sequence.
  std::vector<nb::object> CheckedRegions(
      const std::optional<std::vector<nb::object>>& given,
      int64_t num_sequences) const {
    if (!given.has_value()) {
      return std::vector<nb::object>(static_cast<size_t>(num_sequences),
                                     nb::none());
    }
    if (std::ssize(*given) != num_sequences) {
      ThrowInvalid("regions: expected ", num_sequences,
                   ", one for each sequence, got ", given->size());
    }
    for (const nb::object& region : *given) {
      if (region.is_none()) continue;
      if (!nb::isinstance<PyRegion>(region)) {
        throw nb::type_error("regions: expected Region or None");
      }
      const ModelLayout& own = nb::cast<const PyRegion&>(region).layout;
      if (own != layout_) {
        ThrowInvalid("regions: expected regions of the layout ",
                     layout_.ToString(), ", got one of ", own.ToString());
      }
    }
    return *given;
  }

  void AddRegion(const PyRegion& region, int32_t layer, SequenceKv* kv) const {
    const size_t head =
        static_cast<size_t>(layer) * static_cast<size_t>(layout_.num_heads);
    kv->region_pages = region.region.page_list().data();
    kv->region_offsets = region.region.page_offsets().subspan(head).data();
    kv->region_lengths = region.region.kept().subspan(head).data();
  }

  LayerEntries EntriesOfLayer(int32_t layer, const PyEntries& entries) const {
    CheckLayer(layout_, layer);
    if (entries.num_layers != layout_.num_layers ||
        entries.num_heads != layout_.num_heads) {
      ThrowInvalid("entries: expected ", layout_.num_layers, " layers of ",
                   layout_.num_heads, " heads, got ", entries.num_layers,
                   " of ", entries.num_heads);
    }
    if (entries.slots.size() != entries.positions.size()) {
      ThrowInvalid("entries: expected the slots of all entries, got none");
    }
    const auto num_heads = static_cast<size_t>(layout_.num_heads);
    const auto offsets =
        std::span(entries.offsets)
            .subspan(static_cast<size_t>(layer) * num_heads, num_heads + 1);
    const auto begin = static_cast<size_t>(offsets.front());
    const size_t size = static_cast<size_t>(offsets.back()) - begin;
    LayerEntries own;
    own.offsets.reserve(offsets.size());
    for (const int64_t offset : offsets) {
      own.offsets.push_back(offset - offsets.front());
    }
    own.list = {.offsets = own.offsets,
                .slots = std::span(entries.slots).subspan(begin, size),
                .positions = std::span(entries.positions).subspan(begin, size)};
    const int64_t num_slots = layout_.num_pages() * layout_.page_size;
    for (const int64_t slot : own.list.slots) {
      if (slot < 0 || slot >= num_slots) {
        ThrowInvalid("entries: expected slots of the pool, below ", num_slots,
                     ", got ", slot);
      }
    }
    return own;
  }

  const ModelLayout layout_;
  const AnyArray pool_;  // keeps the memory alive
  std::mutex mutex_;     // one thread at a time uses the two below
  ThreadPool threads_;
  std::unique_ptr<Backend> backend_;
};

}  // namespace

void BindKernels(nb::module_& m) {
  nb::class_<PyCpuKernels>(
      m, "CpuKernels",
      "Attention and scores on the CPU over a pool that the caller owns.\n\n"
      "The pool has the elements of layout.dtype and the shape [num_layers, "
      "num_blocks,\nnum_heads, 2 (K, V), page_size, head_dim], C-contiguous. "
      "This object keeps its memory\nalive and never writes it. Calls let "
      "other threads run, and take turns.")
      .def(nb::init<const ModelLayout&, ArrayArgument, int32_t>(),
           nb::arg("layout"), nb::arg("pool"), nb::arg("num_threads") = 1)
      .def_prop_ro("layout", &PyCpuKernels::layout)
      .def(
          "attend", &PyCpuKernels::Attend, nb::arg("layer"), nb::arg("queries"),
          nb::arg("query_offsets"), nb::arg("block_tables"),
          nb::arg("tail_lengths"), nb::arg("regions") = nb::none(),
          nb::kw_only(), nb::arg("scale") = nb::none(),
          nb::arg("sinks") = nb::none(),
          "Attention of one layer: decode and causal chunks of a prompt.\n\n"
          "queries: float32 [tokens, num_q_heads, head_dim]; those of sequence "
          "i are\nqueries[query_offsets[i]:query_offsets[i + 1]] and the last "
          "tokens of its tail.\nquery_offsets: int32 [sequences + 1]; "
          "block_tables: int32 [sequences, width];\ntail_lengths: int32 "
          "[sequences], with the tokens of this call. regions: Region or "
          "None\nfor each sequence. A query attends to the whole region, and "
          "to the tail up to its own\ntoken. scale: default 1 / "
          "sqrt(head_dim). sinks: float32 [num_q_heads], one logit of\neach "
          "query head that joins its softmax's denominators and has no value. "
          "Returns float32,\nshaped as queries.")
      .def("score", &PyCpuKernels::Score, nb::arg("policy"), nb::arg("layer"),
           nb::arg("entries"), nb::arg("length"), nb::kw_only(),
           nb::arg("queries") = nb::none(), nb::arg("scale") = nb::none(),
           "The scores of the entries of one layer, float32 [entries of the "
           "layer].\n\nlength: tokens of the sequence. queries: the last "
           "policy.query_window queries (or\nlength, if it is less), float32 "
           "[count, num_q_heads, head_dim].")
      .def("value_norms", &PyCpuKernels::ValueNorms, nb::arg("policy"),
           nb::arg("layer"), nb::arg("entries"), nb::arg("projection"),
           "What `select` reads as value_norms for critical: the norms of the "
           "values of one layer\nafter the output projection, float32 [entries "
           "of the layer]. projection: float32\n[num_q_heads, head_dim, "
           "model_dim], the rows of each query head.");
}

}  // namespace blockmgr::python
