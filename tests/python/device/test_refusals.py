"""What CudaKernels refuses, argument by argument."""
import numpy as np
import pytest

import blockmgr
from blockmgr import cuda
from calls import good_calls, launch
from device_tensors import DeviceTensor, num_exported
from model import DIM, PAGE, Model, ints, layout_of

# Which tensors are written, and which may have strides of their own.
WRITTEN = {"out", "output", "lse", "logits", "workspace", "scores", "norms",
           "counts", "survivors", "num_nan", "moves", "region_positions", "staged",
           "sums", "products"}
READ = {("move", "moves"), ("select", "scores"), ("select products", "scores"),
        ("select products", "products"), ("plan_moves", "survivors"),
        ("unpack_pages", "staged"), ("add_decode_attention", "lse"),
        ("index_entries", "region_positions")}
STRIDED = {"keys", "values", "block_tables"}
NAMES = sorted(good_calls(Model.make()))


def bad_tensors(name, argument, good):
    """Tensors that differ from a good one in one point, and what is raised."""
    array = good.array
    other = np.float64 if array.dtype != np.float64 else np.float32
    yield "dtype", DeviceTensor.of(array.astype(other)), TypeError
    yield "code", DeviceTensor(array, dtype=(5, 8 * array.itemsize, 1)), TypeError
    yield "lanes", DeviceTensor(array, dtype=(*good.dtype[:2], 4)), TypeError
    yield "cpu", array, ValueError
    yield "cpu of others", DeviceTensor(array, place=(1, 0)), ValueError
    yield "other gpu", DeviceTensor(array, place=(2, 1)), ValueError
    yield "rocm", DeviceTensor(array, place=(10, 0)), ValueError
    yield "dimension", good.view(array[None]), ValueError
    yield "scalar", good.view(array.reshape(-1)[:1].reshape(())), ValueError
    yield "negative", DeviceTensor(array, shape=[-1] * array.ndim), ValueError
    yield "text", "tensor", TypeError
    yield "class", DeviceTensor, TypeError
    yield "list", array.tolist(), TypeError
    yield "capsule", good.__class__.__dict__["__dlpack__"], TypeError
    if array.shape[-1] > 1:
        wide = DeviceTensor.of(np.zeros((*array.shape[:-1], 2 * array.shape[-1]),
                                        array.dtype))
        yield "strides", wide.view(wide.array[..., ::2]), ValueError
        yield "negative stride", good.view(array[..., ::-1]), ValueError
    if array.size > 1 and array.ndim > 1 and argument not in STRIDED:
        yield "fortran", good.view(np.asfortranarray(
            np.zeros(array.shape, array.dtype))), ValueError
    # Memory that is not aligned even to an element.
    if array.itemsize > 1:
        raw = DeviceTensor.of(np.zeros(array.nbytes + 1, np.uint8))
        yield "address", good.view(np.ndarray(
            array.shape, array.dtype, raw.array[1:])), ValueError
    if argument in WRITTEN and (name, argument) not in READ:
        yield "read-only", DeviceTensor(array, dtype=good.dtype,
                                        read_only=True), ValueError
    if array.size > 1:
        yield "short", good.view(array[..., :-1]), ValueError


@pytest.mark.parametrize("name", NAMES)
def test_every_wrong_tensor_is_an_exception(name):
    model = Model.make()
    function, arguments = good_calls(model)[name]
    launch(function, arguments)
    # Whose number of columns may be another.
    free = {("lists", "region_pages"), ("lists", "block_tables"),
            ("decode", "workspace"), ("add_decode_attention", "workspace"),
            ("add_decode_attention", "sums")}
    num_bad = 0
    for argument, good in arguments.items():
        if not isinstance(good, DeviceTensor):
            continue
        for kind, bad, error in bad_tensors(name, argument, good):
            if kind == "short" and (name, argument) in free:
                continue
            with pytest.raises(error) as raised:
                launch(function, {**arguments, argument: bad})
            text = str(raised.value)
            if kind != "short":
                assert argument in text or "does not fit" in text, (kind, text)
            num_bad += 1
    assert num_bad >= 14
    # Nothing is left behind: the good call is still good.
    launch(function, arguments)
    model.kernels.check(stream=0)


def test_what_is_not_a_tensor_is_an_exception():
    model = Model.make()
    for name, (function, arguments) in good_calls(model).items():
        for argument in arguments:
            for bad in (object(), [1, 2], 3.5, b"bytes", model):
                with pytest.raises((TypeError, ValueError)):
                    launch(function, {**arguments, argument: bad})
        if name not in ("lists", "entries"):
            for stream in (None, "0", -1, 2**64, 1.0, True, object()):
                with pytest.raises((TypeError, ValueError), match="stream"):
                    function(**arguments, stream=stream)
            with pytest.raises(TypeError):
                function(**arguments)


def test_a_tensor_that_has_been_consumed_is_an_exception():
    model = Model.make()
    rows = model.tensor(np.ones((1, 2, DIM)))
    capsule = rows.__dlpack__(stream=-1)
    slots = ints([17], np.int64)
    model.kernels.gather(slots, capsule, stream=0)
    with pytest.raises(TypeError, match="out: expected a tensor"):
        model.kernels.gather(slots, capsule, stream=0)


def test_a_null_address_is_an_exception():
    model = Model.make()

    class Null(DeviceTensor):

        class _Array:

            def __init__(self, array):
                self.itemsize, self.strides = array.itemsize, array.strides
                self.ctypes = type("Memory", (), {"data": None})

        def __dlpack__(self, **more):
            own = self.array
            self.array = self._Array(own)
            try:
                return super().__dlpack__(**more)
            finally:
                self.array = own

    with pytest.raises(blockmgr.InvalidArgumentError, match="slots: .* null"):
        model.kernels.gather(Null(np.zeros(1, np.int64)),
                             model.tensor(np.ones((1, 2, DIM))), stream=0)


def test_rows_must_be_aligned_for_copies():
    model = Model.make()
    flat = model.tensor(np.zeros(3 * 2 * DIM))
    for begin, fits in ((8, True), (4, False), (1, False)):
        out = flat.view(flat.array[begin:begin + 2 * DIM].reshape(1, 2, DIM))
        slots = ints([17], np.int64)
        if fits:
            model.kernels.gather(slots, out, stream=0)
        else:
            with pytest.raises(blockmgr.InvalidArgumentError, match="aligned"):
                model.kernels.gather(slots, out, stream=0)
    # Heads of 132 bytes.
    loose = model.tensor(np.zeros((2, 2, DIM + 2)))[..., :DIM]
    with pytest.raises(blockmgr.InvalidArgumentError, match="multiples of 16"):
        model.kernels.append(0, ints([3, 4], np.int64), loose, loose, stream=0)
    # Heads that lie on each other.
    rows = model.tensor(np.zeros((2, 2, DIM)))
    twice = rows.view(np.lib.stride_tricks.as_strided(
        rows.array, (2, 2, DIM), (2 * 64, 64, 2)))
    with pytest.raises(blockmgr.InvalidArgumentError, match="do not overlap"):
        model.kernels.append(0, ints([3, 4], np.int64), twice, twice, stream=0)
    wide = model.tensor(np.zeros((2, 2, 2 * DIM)))[..., :DIM]
    with pytest.raises(blockmgr.InvalidArgumentError, match="strides of keys"):
        model.kernels.append(0, ints([3, 4], np.int64), rows, wide, stream=0)


def test_wrong_numbers_and_plans_are_exceptions():
    model = Model.make()
    kernels = model.kernels
    calls = good_calls(model)
    other = cuda.CudaKernels(layout_of(num_layers=4),
                             model.tensor(np.zeros((4, 14, 2, 2, PAGE, DIM))))
    plan = other.plan_entries([0, 1, 2], [40])
    foreign = other.lists(ints([[1, 2], [3, 4]]), ints([20, 5]))
    short = kernels.plan_entries([0, 1, 2, 3, 4], [3, 3])
    long = kernels.plan_entries([0, 1, 2, 3, 4], [2**31 - 1, 2**31 - 1])
    pages = kernels.lists(ints([[1], [2], [3]]), ints([5, 5, 5]))
    bad = [
        ("append", dict(layer=2), "layer: expected 0 to 1"),
        ("append", dict(layer=-1), "layer"),
        ("decode", dict(layer=2), "layer"), ("prefill", dict(layer=2), "layer"),
        ("decode", dict(scale=0.0), "scale"),
        ("prefill", dict(scale=float("nan")), "scale"),
        ("score", dict(scale=-1.0), "scale"),
        ("decode", dict(lists=foreign), "lists: expected those of a pool"),
        ("prefill", dict(lists=foreign), "lists: expected those of a pool"),
        ("prefill", dict(plan=kernels.plan_prefill([0, 2])), "plan: expected"),
        ("prefill", dict(plan=other.plan_prefill([0, 1, 2])), "plan: expected"),
        ("entries", dict(plan=plan), "plan: expected one of the layout"),
        ("score", dict(policy="streaming"), "knorm, keydiff, snapkv"),
        ("score", dict(policy="external"), "or expected_attention, got external"),
        ("score", dict(policy="h2o(obs_window=41)"), "lengths: expected at least"),
        ("add_attention", dict(queries=model.tensor(np.ones((2, 41, 4, DIM)))),
         "lengths: expected at least 41 tokens"),
        ("add_attention", dict(scale=0.0), "scale"),
        ("add_decode_attention", dict(layer=2), "layer: expected 0 to 1"),
        ("add_decode_attention", dict(lists=foreign), "lists: expected those"),
        ("index_entries", dict(lists=foreign), "lists: expected those of a pool"),
        ("index_entries", dict(lists=pages), "lists: expected those of 2"),
        ("score", dict(policy="snapkv(window=41)"), "lengths: expected at least"),
        ("score", dict(policy="nobody"), "nobody"),
        ("lists", dict(region_pages=None), "all three or none, got 2"),
    ]
    for name, changed, text in bad:
        function, arguments = calls[name]
        with pytest.raises(blockmgr.InvalidArgumentError, match=text):
            launch(function, {**arguments, **changed})
    function, arguments = calls["value_norms"]
    with pytest.raises(blockmgr.InvalidArgumentError, match="multiple of 8"):
        launch(function, {**arguments, "projection": model.tensor(
            np.ones((4, DIM, 12)))})
    function, arguments = calls["select"]
    with pytest.raises(blockmgr.InvalidArgumentError, match="planned for"):
        launch(function, {**arguments, "entries": kernels.entries(
            short, ints(short.words), ints([1, 2, 3, 4], np.int64),
            ints([0, 0, 0, 0]))})
    for arguments in (([0, 1], [3]), ([0, 1, 2], []), ([1, 2, 3], [3]),
                      ([0, 2, 1], [3]), ([0, 1, 2], [0]), ([0, 0, 2**31], [3]),
                      ([0, -1, 2], [3]), ([0, 1, 2**40], [3])):
        with pytest.raises(blockmgr.InvalidArgumentError, match="offsets|lengths"):
            kernels.plan_entries(*arguments)
    for offsets in ([], [1], [0, 2, 1], [0, -1], [0, 2**31 - 1]):
        with pytest.raises(blockmgr.InvalidArgumentError, match="query_offsets"):
            kernels.plan_prefill(offsets)
    for arguments in ((-1, 5), (1, -1), (1, 2**62)):
        for size in (kernels.decode_workspace_bytes, kernels.decode_logit_rows):
            with pytest.raises(blockmgr.InvalidArgumentError, match="num_s"):
                size(*arguments)
    for num_queries, text in ((0, "num_queries: expected at least 1"),
                              (4, "lengths: expected at least 4")):
        with pytest.raises(blockmgr.InvalidArgumentError, match=text):
            kernels.attention_workspace_bytes(short, num_queries)
    for policy in ("snapkv(window=2147483647)", "h2o(obs_window=2147483647)"):
        with pytest.raises(blockmgr.InvalidArgumentError, match="queries: .* most"):
            kernels.score_workspace_bytes(policy, long)
    whole = kernels.plan_entries([0, 9, 18, 27, 36], [9, 9])
    for plan, policy, target, cut, text in (
            (short, "knorm", 0.5, 4, "cut: expected 1 to 3"),
            (whole, "knorm", 0.5, 0, "cut"),
            (whole, "knorm", None, 9, "target: expected"),
            (whole, "random", 0.5, 9, "random"),
            (whole, "knorm | headkv(profile=t)", 0.5, 9, "without a table"),
            (kernels.plan_entries([0, 9, 18], [9]), "knorm", 0.5, 9, "layers"),
            (kernels.plan_entries([0, 9, 18, 27, 36], [9, 8]), "knorm", 0.5, 8,
             "layers")):
        with pytest.raises(blockmgr.InvalidArgumentError, match=text):
            kernels.plan_selection(plan, policy, target, cut)


def test_wrong_plans_of_an_index_are_exceptions():
    kernels = Model.make().kernels
    plan = kernels.plan_entries([0, 9, 18, 27, 36], [9, 10])
    kernels.plan_index(plan, [9])
    for cuts, text in (([], "cuts: expected one for each sequence"),
                       ([0, 0], "got 2 cuts and 2 groups"),
                       ([10], r"cuts\[0\]: expected at most 9"),
                       ([-1], r"cuts\[0\]"), ([2**31], r"cuts\[0\]")):
        with pytest.raises(blockmgr.InvalidArgumentError, match=text):
            kernels.plan_index(plan, cuts)
    for cuts in (9, "9", [1.5], [None]):
        with pytest.raises(TypeError, match="cuts"):
            kernels.plan_index(plan, cuts)
    many = 2**15
    lists = kernels.plan_entries(np.zeros(4 * many + 1, np.int64), [1] * 2 * many)
    with pytest.raises(blockmgr.InvalidArgumentError, match="at most 32767"):
        kernels.plan_index(lists, [0] * many)
    size = 65535 * 1024
    for more in (0, 1):
        lists = kernels.plan_entries([0, size + more] + 3 * [size + more],
                                     2 * [2**27])
        if more:
            with pytest.raises(blockmgr.InvalidArgumentError,
                               match="entries of a head"):
                kernels.plan_index(lists, [0])
        else:
            kernels.plan_index(lists, [0])


def test_wrong_statistics_of_queries_are_exceptions():
    kernels = Model.make().kernels
    plan = kernels.plan_entries([0, 9, 18, 27, 36], [9, 10])
    good = dict(policy="expected_attention", plan=plan,
                means=np.zeros((2, 4, DIM), np.float32),
                covariances=np.zeros((2, 4, DIM, DIM), np.float32),
                inverse_frequencies=np.zeros(DIM // 2))
    kernels.predict_queries(**good)
    kernels.predict_queries(**{**good, "policy": "expected_attention(cov=false)",
                               "covariances": None})
    for name, value in (("policy", "h2o"), ("policy", "expected"),
                        ("means", good["means"][:1]),
                        ("means", good["means"][:, ::2]),
                        ("covariances", good["covariances"][..., 0]),
                        ("covariances", np.asfortranarray(good["covariances"])),
                        ("inverse_frequencies", np.zeros(DIM))):
        with pytest.raises(blockmgr.InvalidArgumentError, match=name):
            kernels.predict_queries(**{**good, name: value})
    for name, value in (("means", good["means"].astype(np.float64)),
                        ("covariances", None),
                        ("covariances", good["covariances"].tolist()),
                        ("inverse_frequencies", np.zeros(DIM // 2, np.float32))):
        with pytest.raises(TypeError, match=name):
            kernels.predict_queries(**{**good, name: value})


def test_streams_come_in_three_forms():
    model = Model.make()
    slots = ints([17], np.int64)
    out = model.tensor(np.zeros((1, 2, DIM)))

    class Torch:
        cuda_stream = 0

    class Core:

        def __cuda_stream__(self):
            return (0, 0)

    class Early:
        __cuda_stream__ = (0, 0)

    class Future:

        def __cuda_stream__(self):
            return (1, 0)

    class Wrong:
        cuda_stream = None

    for stream in (0, Torch(), Core(), Early()):
        model.kernels.gather(slots, out, stream=stream)
    with pytest.raises(blockmgr.InvalidArgumentError, match="version 0"):
        model.kernels.gather(slots, out, stream=Future())
    with pytest.raises(TypeError, match="stream"):
        model.kernels.gather(slots, out, stream=Wrong())


def test_producers_are_asked_not_to_synchronize():
    model = Model.make()
    assert model.pool.streams == [-1]
    slots = ints([17], np.int64)
    early = DeviceTensor.of(np.zeros((1, 2, DIM), np.float16), versions=False)
    model.kernels.gather(slots, early, stream=0)
    assert slots.streams == [-1] and early.streams == [-1, -1]
    assert num_exported() >= 1
