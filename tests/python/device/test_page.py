"""The examples of docs/python.md, On a GPU, with a stand-in for PyTorch."""
import contextlib
import pathlib
import re
import sys
import types

import numpy as np

import blockmgr
from device_tensors import DeviceTensor
from model import DIM, Listed, close, noise, zeros

PAGE = (pathlib.Path(__file__).parents[3] / "docs/python.md").read_text()


def examples():
    section = PAGE[PAGE.index("\n## On a GPU"):]
    return re.findall(r"```python\n(.*?)```", section, re.DOTALL)


class FakeTensor(DeviceTensor):

    def copy_(self, values):
        assert values.shape == self.array.shape
        assert values.dtype == self.array.dtype
        self.array[...] = values

    def view(self, dtype):
        assert dtype == (2, 16, 1)  # float16, as DLPack has it
        return FakeTensor.of(self.array.view(np.float16))


def fake_torch(namespace):
    """What the example calls. A replay makes the calls of the capture again."""
    torch = types.ModuleType("torch")
    for name in ("float16", "int32", "int64", "uint8"):
        setattr(torch, name, np.dtype(name))

    def make(fill):

        def of(shape, *, dtype, device):
            assert device == "cuda"
            return FakeTensor.of(np.full(shape, fill, dtype))

        return of

    class Graph:

        def replay(self):
            for layer in range(namespace["layout"].num_layers):
                namespace["attend"](layer)

    def tensor(values, device=None):
        return values if device is None else FakeTensor.of(values)

    stream = types.SimpleNamespace(cuda_stream=0)
    torch.zeros, torch.ones, torch.tensor = make(0), make(1), tensor
    torch.cuda = types.SimpleNamespace(
        CUDAGraph=Graph, graph=lambda graph: contextlib.nullcontext(),
        current_stream=lambda: stream)
    return torch


def test_the_example_of_the_page(monkeypatch):
    buffers, step, _ = examples()
    namespace = {}
    monkeypatch.setitem(sys.modules, "torch", fake_torch(namespace))
    exec(buffers, namespace)
    layout, pool = namespace["layout"], namespace["pool"]
    scheduler = blockmgr.Scheduler(layout)
    tables = blockmgr.EngineTables(layout)
    for i in range(8):
        scheduler.submit(f"{i}", list(range(i, 30 + 2 * i)), 4)
    plan = scheduler.schedule()
    tables.apply(plan)
    sampled = np.arange(8, dtype=np.int32)
    tables.add_sampled(sampled)
    scheduler.update(blockmgr.StepResult(plan.step, sampled))
    # The rows of the prompts are noise.
    pool.array[...] = noise(1, *pool.array.shape)
    for name in ("queries", "keys", "values"):
        array = namespace[name].array
        array[...] = noise(len(name), *array.shape)
    namespace.update(tables=tables, plan=scheduler.schedule())
    exec(step, namespace)
    lengths = tables.inputs().lengths
    expected = blockmgr.CpuKernels(layout, pool.array).attend(
        1, namespace["queries"].array.astype(np.float32),
        np.arange(9, dtype=np.int32),
        tables.block_tables(namespace["plan"].slots), lengths)
    assert close(namespace["output"].array, expected, "float16")
    for i, slot in enumerate(tables.slot_mapping().tolist()):
        block, offset = divmod(slot, layout.page_size)
        assert np.array_equal(pool.array[1, block, :, 0, offset],
                              namespace["keys"].array[i])


def test_the_scores_of_the_page(monkeypatch):
    namespace = {}
    monkeypatch.setitem(sys.modules, "torch", fake_torch(namespace))
    buffers, _, scores = examples()
    exec(buffers, namespace)
    policy = "expected_attention(n_sink=0,vnorm=false)"
    entries = blockmgr.index_entries(namespace["layout"], [3, 5], 20)
    listed = Listed(types.SimpleNamespace(kernels=namespace["kernels"]), entries,
                    [20, 20])
    size = namespace["kernels"].score_workspace_bytes(policy, listed.plan)
    namespace.update(
        policy=policy, plan=listed.plan, entries=listed.lists,
        scores=zeros(len(entries)), workspace=zeros(size, np.uint8), stream=0,
        means=np.zeros((2, 4, DIM), np.float32),
        covariances=np.zeros((2, 4, DIM, DIM), np.float32),
        frequencies=np.ones(DIM // 2))
    exec(scores, namespace)
    namespace["kernels"].check(stream=0)
    # Nothing is known of the queries, so that all entries get the same share.
    assert np.allclose(namespace["scores"].array, 1 / 20)
