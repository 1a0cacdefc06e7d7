// blockmgr.cuda: CudaKernels and its lists.
#include <array>
#include <optional>

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include "python/core/core.h"
#include "python/core/cuda_devices.h"
#include "python/core/cuda_kernels.h"
#include "python/core/cuda_lists.h"
#include "python/core/errors.h"

namespace blockmgr::python {
namespace {

void BindPlans(nb::module_& m) {
  nb::class_<PyAttentionLists>(
      m, "AttentionLists",
      "The page lists that attention reads, on a device. CudaKernels.lists "
      "makes them. Keeps\nthe tensors alive.")
      .def_ro("num_sequences", &PyAttentionLists::num_sequences);
  nb::class_<PyPrefillPlan>(
      m, "PrefillPlan",
      "How the queries of some sequences are divided. CudaKernels.plan_prefill "
      "makes it.")
      .def_ro("num_tokens", &PyPrefillPlan::num_tokens)
      .def_prop_ro(
          "words", &ViewMember<&PyPrefillPlan::words>,
          "int32 [n]: to be copied to the device once for all layers.");
  nb::class_<PyEntryPlan>(
      m, "EntryPlan",
      "How some lists of entries are divided. CudaKernels.plan_entries makes "
      "it.")
      .def_prop_ro("num_entries", &PyEntryPlan::num_entries)
      .def_prop_ro(
          "words", &ViewMember<&PyEntryPlan::words>,
          "int32 [n]: to be copied to the device once for all launches.");
  nb::class_<PyEntryLists>(
      m, "EntryLists",
      "Lists of entries on a device. CudaKernels.entries makes them. Keeps the "
      "tensors alive.")
      .def_prop_ro("plan", [](const PyEntryLists& self) { return self.plan; });
  nb::class_<PyIndexPlan>(
      m, "IndexPlan",
      "What the host knows of an index of entries. CudaKernels.plan_index "
      "makes it.")
      .def_prop_ro("words", &ViewMember<&PyIndexPlan::words>,
                   "int32 [n]: to be copied to the device.")
      .def_prop_ro("workspace_bytes", &PyIndexPlan::workspace_bytes);
  nb::class_<PySelectionPlan>(
      m, "SelectionPlan",
      "What a selection shares out, and among which heads. "
      "CudaKernels.plan_selection makes it.")
      .def_prop_ro("words", &ViewMember<&PySelectionPlan::words>,
                   "int32 [n]: to be copied to the device.")
      .def_prop_ro("workspace_bytes", &PySelectionPlan::workspace_bytes)
      .def_prop_ro("num_survivor_words", &PySelectionPlan::num_survivor_words,
                   "Elements of `survivors`.");
}

void BindFutureQueries(nb::module_& m) {
  using Future = Self<PyFutureQueries>;
  const auto heads = [](const Future& self) {
    return std::array<size_t, 2>{
        self.p->num_groups, static_cast<size_t>(self.p->layout.num_q_heads)};
  };
  nb::class_<PyFutureQueries>(
      m, "FutureQueries",
      "The queries that expected_attention expects, to be copied to the "
      "device.\nCudaKernels.predict_queries makes it.")
      .def_prop_ro(
          "means",
          [heads](Future self) {
            const auto [groups, q_heads] = heads(self);
            return ViewOf<float, 3>(
                self.p->means.data(),
                {groups, q_heads, static_cast<size_t>(self.p->layout.head_dim)},
                self.h);
          },
          "float32 [groups, num_q_heads, head_dim].")
      .def_prop_ro(
          "covariances",
          [heads](Future self) {
            const auto [groups, q_heads] = heads(self);
            const auto dim = static_cast<size_t>(self.p->layout.head_dim);
            const bool is_empty = self.p->covariances.empty();
            return ViewOf<int16_t, 5>(
                reinterpret_cast<const int16_t*>(self.p->covariances.data()),
                {groups, q_heads, is_empty ? 0 : dim, 2, dim}, self.h);
          },
          "int16 [groups, num_q_heads, head_dim, 2, head_dim]: the bits of the "
          "pool's dtype, to\nbe viewed as it. The two parts of a row add up to "
          "it, in the unit of the query head.\nEmpty with cov=false.")
      .def_prop_ro(
          "units",
          [heads](Future self) {
            return ViewOf<float, 2>(self.p->units.data(), heads(self), self.h);
          },
          "float32 [groups, num_q_heads].");
}

void BindRows(nb::class_<PyCudaKernels>& type) {
  type.def("append", &PyCudaKernels::Append, nb::arg("layer"),
           nb::arg("slot_mapping"), nb::arg("keys"), nb::arg("values"),
           nb::kw_only(), nb::arg("stream"),
           "Writes the rows of new tokens of one layer.\n\n"
           "slot_mapping: int64 [tokens], block * page_size + offset, or -1 to "
           "skip the token.\nkeys, values: [tokens, num_heads, head_dim] of "
           "the pool's dtype, or float32, which is\nrounded. The strides of "
           "tokens and heads are free.")
      .def("gather", &PyCudaKernels::Gather, nb::arg("slots"), nb::arg("out"),
           nb::kw_only(), nb::arg("stream"),
           "Copies the K and V of slots to out.\n\nslots: int64 [rows]. out: "
           "[rows, 2 (K, V), head_dim] of the pool's dtype, or float32.")
      .def("move", &PyCudaKernels::Move, nb::arg("moves"),
           nb::arg("staged") = nb::none(), nb::kw_only(), nb::arg("stream"),
           "Moves rows from slot to slot.\n\nmoves: int64 [rows, 2 (source, "
           "destination)]. Without staged, no slot may be both a\nsource and a "
           "destination. staged: workspace [rows or more, 2, head_dim] of the "
           "pool's\ndtype; all rows are then read before one is written.")
      .def("copy_blocks", &PyCudaKernels::CopyBlocks, nb::arg("pairs"),
           nb::kw_only(), nb::arg("stream"),
           "Copies whole blocks, all layers and heads.\n\npairs: int32 [pairs, "
           "2 (source, destination)].")
      .def("pack_pages", &PyCudaKernels::PackPages, nb::arg("pages"),
           nb::arg("staged"), nb::kw_only(), nb::arg("stream"),
           "Copies pages to contiguous memory, for example to be swapped "
           "out.\n\npages: int32 [pages]. staged: [pages, 2 (K, V), page_size, "
           "head_dim] of the pool's dtype.")
      .def("unpack_pages", &PyCudaKernels::UnpackPages, nb::arg("pages"),
           nb::arg("staged"), nb::kw_only(), nb::arg("stream"),
           "Copies what pack_pages wrote to pages.");
}

void BindAttention(nb::class_<PyCudaKernels>& type) {
  type.def("lists", &PyCudaKernels::Lists, nb::arg("block_tables"),
           nb::arg("tail_lengths"), nb::kw_only(),
           nb::arg("region_lengths") = nb::none(),
           nb::arg("region_offsets") = nb::none(),
           nb::arg("region_pages") = nb::none(),
           "The page lists of some sequences, as EngineTables gives them.\n\n"
           "block_tables: int32 [sequences, width], rows of any stride. "
           "tail_lengths: int32\n[sequences], tokens, with those of the step. "
           "region_lengths: int32, region_offsets:\nint64 [num_layers, "
           "sequences, num_heads]; region_pages: int32 [pages] (RegionLists).\n"
           "Launches read the tensors when they run: a captured graph may be "
           "replayed after their\ncontents have changed.")
      .def("decode_workspace_bytes", &PyCudaKernels::DecodeWorkspaceBytes,
           nb::arg("num_sequences"), nb::arg("num_slots"), nb::kw_only(),
           nb::arg("balanced") = false,
           "Bytes of the workspace of decode.\n\nnum_slots: the most slots "
           "that all lists of a layer have together: for each sequence\nand "
           "head the entries of the region, rounded up to whole pages, and the "
           "tail.")
      .def("decode", &PyCudaKernels::Decode, nb::arg("layer"), nb::arg("lists"),
           nb::arg("queries"), nb::arg("output"), nb::arg("workspace"),
           nb::kw_only(), nb::arg("lse") = nb::none(),
           nb::arg("logits") = nb::none(), nb::arg("sinks") = nb::none(),
           nb::arg("scale") = nb::none(), nb::arg("balanced") = false,
           nb::arg("planned") = false, nb::arg("stream"),
           "Attention of one query per sequence.\n\n"
           "queries, output: [sequences, num_q_heads, head_dim] of the pool's "
           "dtype. workspace:\nuint8 [decode_workspace_bytes or more]. lse: "
           "float32 [sequences, num_q_heads], gets the\nnatural logarithm of "
           "each softmax's denominator. scale: default 1 / sqrt(head_dim).\n"
           "logits: float32 [decode_logit_rows or more, num_q_heads / "
           "num_heads], with lse: gets the\nlogits for add_decode_attention.\n"
           "sinks: float32 [num_q_heads], one logit of each query head that "
           "joins its softmax's\ndenominators, and so lse, and has no value.\n"
           "balanced: work is cut evenly over the device, which is faster; "
           "without it, the bits of\na sequence do not depend on the batch. "
           "planned: the workspace is as an earlier call left\nit, for the "
           "same lengths (the next layer of sequences without regions).\n"
           "Lists that do not fit the workspace or the logits are not "
           "computed; check() says so.")
      .def("decode_logit_rows", &PyCudaKernels::CountDecodeLogitRows,
           nb::arg("num_sequences"), nb::arg("num_slots"),
           "Rows of the logits of decode. num_slots: as in "
           "decode_workspace_bytes.")
      .def("add_decode_attention", &PyCudaKernels::AddDecodeAttention,
           nb::arg("layer"), nb::arg("lists"), nb::arg("workspace"),
           nb::arg("logits"), nb::arg("lse"), nb::arg("sum_offsets"),
           nb::arg("sums"), nb::kw_only(), nb::arg("stream"),
           "Adds the attention of the queries of a decode to sums, for "
           "h2o.\n\nlayer, lists, workspace, logits and lse are those of the "
           "decode. sum_offsets: int64\n[sequences * num_heads + 1], where the "
           "sums of each list begin, and where its room\nends. sums: float32 "
           "[sum_offsets[-1]]: of the region in the order of its slots, then "
           "of\nthe tail. Each entry gets the sum over the query heads of its "
           "head. Entries beyond the\nroom get none; check() says so.");
}

void BindPrefill(nb::class_<PyCudaKernels>& type) {
  type.def("plan_prefill", &PyCudaKernels::PlanPrefill,
           nb::arg("query_offsets"),
           "Divides the queries of some sequences: query_offsets, ints "
           "[sequences + 1].")
      .def("prefill", &PyCudaKernels::Prefill, nb::arg("layer"),
           nb::arg("lists"), nb::arg("plan"), nb::arg("words"),
           nb::arg("queries"), nb::arg("output"), nb::kw_only(),
           nb::arg("lse") = nb::none(), nb::arg("sinks") = nb::none(),
           nb::arg("scale") = nb::none(), nb::arg("stream"),
           "Causal attention of chunks of prompts.\n\n"
           "words: plan.words on the device. queries, output: [tokens, "
           "num_q_heads, head_dim] of\nthe pool's dtype; those of sequence i "
           "are the last tokens of its tail. A query attends\nto the whole "
           "region, and to the tail up to its own token. lse: float32 [tokens, "
           "num_q_heads].\nsinks: as in decode.");
}

void BindEntries(nb::class_<PyCudaKernels>& type) {
  type.def("plan_entries", &PyCudaKernels::PlanEntries, nb::arg("offsets"),
           nb::arg("lengths"),
           "Divides lists of entries of some groups, each a sequence in one "
           "layer.\n\noffsets: ints [groups * num_heads + 1], CSR "
           "(Entries.offsets of all layers, for example).\nlengths: ints "
           "[groups], tokens of each sequence.")
      .def("entries", &PyCudaKernels::Entries, nb::arg("plan"),
           nb::arg("words"), nb::arg("slots"), nb::arg("positions"),
           "Lists of entries.\n\nwords: plan.words on the device. slots: int64 "
           "[num_entries]; positions: int32\n[num_entries], ascending in each "
           "list (Entries.slots, Entries.positions).")
      .def("plan_index", &PyCudaKernels::PlanIndex, nb::arg("plan"),
           nb::arg("cuts"),
           "Plans an index of the entries of some sequences.\n\n"
           "plan: groups are the sequences of layer 0, then those of layer 1, "
           "and so on. A list has\nthe entries of its region, and as many of "
           "its tail as the offsets leave room for.\ncuts: ints [sequences], "
           "the position of the first token of each tail; 0 without a\n"
           "region.")
      .def("index_entries", &PyCudaKernels::IndexEntries, nb::arg("plan"),
           nb::arg("words"), nb::arg("lists"), nb::arg("slots"),
           nb::arg("positions"), nb::arg("workspace") = nb::none(),
           nb::kw_only(), nb::arg("region_positions") = nb::none(),
           nb::arg("stream"),
           "Writes the slots and positions of the entries that page lists "
           "have.\n\nwords: plan.words on the device. slots: int64 "
           "[num_entries], positions: int32\n[num_entries], for entries(). "
           "Lists with regions need region_positions, int32 [pages,\n"
           "page_size], as plan_moves writes them, in any order, and the "
           "workspace: uint8\n[plan.workspace_bytes or more]. Positions at or "
           "behind the cut, and lists of other lengths\nthan planned, are "
           "refused: check() says so, and the entries without one keep their "
           "values.");
}

void BindScores(nb::class_<PyCudaKernels>& type) {
  type.def("score_workspace_bytes", &PyCudaKernels::ScoreWorkspaceBytes,
           nb::arg("policy"), nb::arg("plan"),
           "Bytes of the workspace of score.")
      .def(
          "score",
          [](PyCudaKernels& self, const PolicyArgument& policy,
             const PyEntryLists& entries, TensorArgument scores,
             TensorArgument workspace, TensorArgument queries,
             std::optional<float> scale, TensorArgument num_queries,
             TensorArgument means, TensorArgument covariances,
             TensorArgument units, TensorArgument value_norms,
             TensorArgument products, const StreamArgument& stream) {
            self.Score(policy, entries,
                       {.scores = scores,
                        .workspace = workspace,
                        .queries = queries,
                        .num_queries = num_queries,
                        .value_norms = value_norms,
                        .products = products,
                        .means = means,
                        .covariances = covariances,
                        .units = units},
                       scale, stream);
          },
          nb::arg("policy"), nb::arg("entries"), nb::arg("scores"),
          nb::arg("workspace") = nb::none(), nb::kw_only(),
          nb::arg("queries") = nb::none(), nb::arg("scale") = nb::none(),
          nb::arg("num_queries") = nb::none(), nb::arg("means") = nb::none(),
          nb::arg("covariances") = nb::none(), nb::arg("units") = nb::none(),
          nb::arg("value_norms") = nb::none(), nb::arg("products") = nb::none(),
          nb::arg("stream"),
          "Scores of entries by knorm, keydiff, snapkv, tova, h2o or "
          "expected_attention.\n\n"
          "scores: float32 [num_entries]. workspace: uint8 "
          "[score_workspace_bytes or more].\nqueries: [groups, "
          "policy.query_window, num_q_heads, head_dim] of the pool's dtype: "
          "the last\nqueries of each group, after rotation, oldest first.\n"
          "h2o without obs_window: scores has the sums of attention, and gets "
          "the scores.\nnum_queries: int32 [groups], for h2o(norm=count): the "
          "queries that were added, which are\nthe last of each group.\n"
          "means, covariances, units: for expected_attention, as "
          "FutureQueries has them.\n"
          "value_norms: float32 [num_entries * group_size], products: float32 "
          "[num_entries], for\ncritical(gqa_product=true): value_norms is what "
          "the method of this name wrote, products\ngets what select reads.")
      .def("attention_workspace_bytes", &PyCudaKernels::AttentionWorkspaceBytes,
           nb::arg("plan"), nb::arg("num_queries"),
           "Bytes of the workspace of add_attention.")
      .def("add_attention", &PyCudaKernels::AddAttention, nb::arg("entries"),
           nb::arg("queries"), nb::arg("sums"),
           nb::arg("workspace") = nb::none(), nb::kw_only(),
           nb::arg("scale") = nb::none(), nb::arg("stream"),
           "Adds to sums the attention that queries pay to entries, for "
           "h2o.\n\nqueries: [groups, count, num_q_heads, head_dim] of the "
           "pool's dtype: the last queries of\neach group, after rotation, "
           "oldest first. sums: float32 [num_entries], in the order of\nthe "
           "entries. Each entry gets the sum over the queries that see it and "
           "over the query\nheads of its head. workspace: uint8 "
           "[attention_workspace_bytes or more].");
}

void BindQueriesAndValues(nb::class_<PyCudaKernels>& type) {
  type.def("predict_queries", &PyCudaKernels::PredictQueries, nb::arg("policy"),
           nb::arg("plan"), nb::arg("means"), nb::arg("covariances").none(),
           nb::arg("inverse_frequencies"),
           "The queries that expected_attention expects after the end of each "
           "sequence.\n\nmeans: float32 [groups, num_q_heads, head_dim], "
           "covariances: float32 [groups,\nnum_q_heads, head_dim, head_dim]: "
           "of the queries at positions from n_sink on, before\nrotation, or "
           "of a table. covariances may be None with cov=false. "
           "inverse_frequencies:\nfloat64 [head_dim / 2]; the pair (i, i + "
           "head_dim / 2) is rotated by position *\ninverse_frequencies[i]. "
           "The three are in the memory of the CPU, which does the work: some\n"
           "num_q_heads * head_dim**2 steps for each group. Lets other threads "
           "run.")
      .def("value_norms", &PyCudaKernels::ValueNorms, nb::arg("policy"),
           nb::arg("entries"), nb::arg("projection"), nb::arg("norms"),
           nb::kw_only(), nb::arg("stream"),
           "Norms of the values of entries after the output projection, for "
           "critical.\n\nprojection: [num_q_heads, head_dim, model_dim] of the "
           "pool's dtype; model_dim is a\nmultiple of 8. norms: float32 "
           "[num_entries], the mean over the query heads of a head. With\n"
           "critical(gqa_product=true): float32 [num_entries * group_size]; "
           "for each list a matrix\n[group_size, entries of the list], at "
           "group_size * its offset.");
}

void BindSelection(nb::class_<PyCudaKernels>& type) {
  type.def("plan_selection", &PyCudaKernels::PlanSelection, nb::arg("plan"),
           nb::arg("policy"), nb::arg("target").none(), nb::arg("cut"),
           "Plans a selection from the entries of one sequence, whose groups "
           "are its layers.\n\nPositions from cut on are no candidates. The "
           "policy has no table and no random scores.")
      .def("select", &PyCudaKernels::Select, nb::arg("plan"), nb::arg("words"),
           nb::arg("entries"), nb::arg("scores").none(), nb::arg("workspace"),
           nb::arg("counts"), nb::arg("survivors"), nb::arg("num_nan"),
           nb::kw_only(), nb::arg("value_norms") = nb::none(),
           nb::arg("products") = nb::none(), nb::arg("budgets") = nb::none(),
           nb::arg("stream"),
           "Selects what blockmgr.select selects, bit for bit.\n\n"
           "words: plan.words on the device. scores: float32 [num_entries], or "
           "None for streaming.\nworkspace: uint8 [plan.workspace_bytes or "
           "more]. Results: counts, int32 [num_layers,\nnum_heads], entries "
           "kept; survivors, int32 [plan.num_survivor_words], where entry i of "
           "list l\nis bit i % 32 of word offsets[l] // 32 + l + i // 32; "
           "num_nan, int64 [1], candidates whose\nscore is NaN. value_norms, "
           "or products with gqa_product: float32 [num_entries], for\n"
           "critical. budgets: int32 [num_layers, num_heads], for external "
           "budgets.")
      .def("plan_moves", &PyCudaKernels::PlanMoves, nb::arg("entries"),
           nb::arg("survivors"), nb::arg("page_offsets"), nb::arg("pages"),
           nb::arg("kept"), nb::arg("move_offsets"), nb::arg("moves"),
           nb::kw_only(), nb::arg("region_positions") = nb::none(),
           nb::arg("stream"),
           "Writes the moves of survivors to the pages of a new region.\n\n"
           "page_offsets: int32 [lists + 1], pages: int32 [pages], kept: int32 "
           "[groups, num_heads],\nas Region has them. move_offsets: int64 "
           "[lists], where the moves of each list begin in\nmoves, int64 [sum "
           "of kept, 2 (source, destination)]. region_positions: int32 "
           "[pages,\npage_size], gets the position of each entry.\n\n"
           "A list gets no moves and no positions if its pages are not among "
           "pages or are too few\nfor kept, or if its moves do not fit into "
           "moves. check() then raises InvalidArgumentError:\ncall it before "
           "the moves are executed.");
}

}  // namespace

void BindCuda(nb::module_& m) {
  BindPlans(m);
  BindFutureQueries(m);
  nb::class_<PyCudaKernels> type(
      m, "CudaKernels",
      "The CUDA kernels over a pool that the caller owns.\n\n"
      "The pool is a tensor [num_layers, num_blocks, num_heads, 2 (K, V), "
      "page_size, head_dim]\nof layout.dtype, or a list with a tensor for each "
      "layer. Rows are contiguous; other\nstrides are free if they are "
      "multiples of 16 bytes (permute a tensor of another order).\nThis object "
      "keeps the memory alive.\n\n"
      "All tensors come by DLPack and are on the pool's device. A launch "
      "checks dtypes, shapes,\nstrides and devices, enqueues kernels on the "
      "stream and returns. It does not wait, does\nnot allocate device memory "
      "and copies nothing from the host, so a graph can be captured.\nThe "
      "caller keeps the memory of arguments until the stream has come past the "
      "launch. What\nis in the lists is not checked on the host. Kernels that "
      "copy rows, decode,\nadd_decode_attention and index_entries refuse ids "
      "or lengths that do not fit: check() raises what they refused.");
  type.def(nb::init<const ModelLayout&, nb::object>(), nb::arg("layout"),
           nb::arg("pool"),
           nb::sig("def __init__(self, layout: KvLayout, pool: "
                   "blockmgr.cuda.Tensor | "
                   "collections.abc.Sequence[blockmgr.cuda.Tensor]) -> None"),
           "Waits for the device. Not while a graph is being captured.")
      .def_prop_ro("layout", &PyCudaKernels::layout)
      .def_prop_ro("device", &PyCudaKernels::device,
                   "The number of the CUDA device.")
      .def("check", &PyCudaKernels::Check, nb::kw_only(), nb::arg("stream"),
           "Waits for the stream, and raises InvalidArgumentError if kernels "
           "have refused ids or\nlengths since the last call. Not while a "
           "graph is being captured.");
  BindRows(type);
  BindAttention(type);
  BindPrefill(type);
  BindEntries(type);
  BindScores(type);
  BindQueriesAndValues(type);
  BindSelection(type);
  m.def(
      "_why_no_cuda", [] { return ErrorOf(Devices().probe()); },
      "None, or the exception that says what is missing.");
  // For tests: replaces the devices by another DeviceSource.
  m.def("_set_cuda_devices", [](const nb::capsule& source) {
    const void* devices = source.data("DeviceSource");
    if (devices == nullptr) throw nb::python_error();
    Devices() = *static_cast<const DeviceSource*>(devices);
  });
}

}  // namespace blockmgr::python
