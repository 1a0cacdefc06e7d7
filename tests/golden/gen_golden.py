r"""Writes golden vectors from the float64 reference in ref_numpy.py.

    python3 gen_golden.py vectors                      the committed set
    python3 gen_golden.py other --seed 1 --shapes 4,2,72,8,24 6,3,101,24,20 \
        12,4,55,40,16 --ratios 0.3 0.62 --window 11 --n-sink 3 --n-future 33 \
        --block 10 --alpha 0.35 --first 0.3 --eps 0.001 --ea-eps 0.005 \
        --max-scores 60 --ties 40 --solves 25 --lengths 75 1500 30000 \
        --layers 3 28 --windows 10 48           the second committed set

Needs numpy only. bench/evict/golden.h describes the format. Inputs are not
stored: readers make them again from (seed, shape, bits, scale) and check their
hash. `margin` is the relative distance between any threshold that decides and
the nearest distinct value; seeds are drawn until it is at least MIN_MARGIN, so
that every honest float32 implementation must find exactly these sets.
"""
import argparse
import os

import numpy as np

import ref_numpy as R

MIN_MARGIN = 2e-5
MAX_TRIES = 4000
NO_GAP = np.inf
FORCED = 1e30  # above every score


def fnv1a64(values):
    hash_ = 0xcbf29ce484222325
    for byte in np.asarray(values, np.float32).tobytes():
        hash_ = ((hash_ ^ byte) * 0x100000001b3) & R.MASK64
    return hash_


class Writer:
    def __init__(self, folder, name):
        self.file = open(os.path.join(folder, name), "w")
        self.name = name
        self.num_cases = 0
        self.line("# kvgolden 1")

    def close(self):
        self.file.close()
        print(f"{self.name}: {self.num_cases} cases")

    def line(self, *words):
        self.file.write(" ".join(map(str, words)) + "\n")

    def case(self, name, method, **numbers):
        self.line("case", name)
        self.line("m", method)
        self.num_cases += 1
        for key, value in numbers.items():
            if isinstance(value, (int, np.integer)):
                self.line("i", key, value)
            else:
                self.line("d", key, repr(float(value)))

    def input(self, name, seed, bits, scale, values):
        self.line("in", name, seed, bits, repr(scale), values.ndim,
                  *values.shape, f"{fnv1a64(values):016x}")

    def table(self, name, values):
        self.line("tab", name, len(values),
                  *("nan" if v != v else repr(float(v)) for v in values))

    def results(self, kept, margin=None, budgets=None, scores=None):
        if budgets is not None:
            self.line("b", len(budgets), *map(int, budgets))
        for head, positions in enumerate(kept):
            self.line("kept", head, len(positions), *map(int, positions))
        if margin is not None:
            self.line("margin", repr(margin))
        if scores is not None:
            for head, row in enumerate(scores):
                self.line("sc", head, len(row), *(f"{v:.9g}" for v in row))
        self.line("end")


# ---------------------------------------------------------------- margins

def gap(values, k):
    """How far the k-th best is from the nearest value that is not equal."""
    values = np.sort(np.asarray(values, float).ravel())[::-1]
    if k <= 0 or k >= values.size:
        return NO_GAP
    threshold = values[k - 1]
    if values[k] != threshold:
        distances = np.array([threshold - values[k]])
    else:  # an exact tie is legitimate: the order decides it
        distances = np.abs(values[values != threshold] - threshold)
    if not distances.size:
        return NO_GAP
    return float(distances.min() / max(abs(threshold), 1e-300))


def force_best(scores, count):
    forced = scores.copy()
    for head in range(scores.shape[0]):
        forced[head, R.order_desc(scores[head])[:count]] = FORCED
    return forced


def margin_floor(scores, k, alpha, with_floor):
    safe = int(k * alpha)
    gaps = [gap(force_best(scores, safe), scores.shape[0] * k)]
    if safe and with_floor:
        gaps += [gap(row, safe) for row in scores]
    return min(gaps)


def margin_critical(scores, norms, k, ratio, first, eps, window):
    count = int((1 - ratio) * scores.shape[1] * first)
    gaps = []
    for row, norm in zip(scores, norms):
        products = (row + eps) * norm
        products[R.order_desc(row)[:count]] = FORCED
        gaps += [gap(products, k), gap(row, count) if count > window else NO_GAP]
    return min(gaps)


def margin_critical_budget(scores, norms, budgets, first, eps):
    gaps = []
    for row, norm, budget in zip(scores, norms, map(int, budgets)):
        count = int(budget * first)
        products = (row + eps) * norm
        products[R.order_desc(row)[:count]] = -1
        gaps += [gap(row, count), gap(products, budget - count)]
    return min(gaps)


def margin_critical_ada(scores, norms, k, alpha, first, eps):
    num_heads, length = scores.shape
    safe = int(k * alpha)
    forced = force_best(scores, safe)
    gaps = [gap(row, safe) for row in scores]
    gaps.append(gap(forced, num_heads * k))
    best = R.order_desc(forced.ravel())[:num_heads * k]
    budgets = np.bincount(best // length, minlength=num_heads)
    for head in range(num_heads):
        count = int(np.float32(budgets[head]) * np.float32(first))
        protected = max(count, safe)
        products = (scores[head] + eps) * norms[head]
        rest = np.delete(products, R.order_desc(forced[head])[:protected])
        gaps += [gap(forced[head], count),
                 gap(rest, int(budgets[head]) - protected)]
    return float(min(gaps))


def margin_block(keys, keep, block):
    smallest = NO_GAP
    for head in range(keys.shape[0]):
        kept = np.arange(keep)
        for begin in range(keep, keys.shape[1], block):
            end = min(begin + block, keys.shape[1])
            held = np.concatenate([kept, np.arange(begin, end)])
            scores = R.score_keydiff(keys[head:head + 1, held])[0]
            smallest = min(smallest, gap(scores, keep))
            kept = np.sort(held[R.order_desc(scores)[:keep]])
    return float(smallest)


# ------------------------------------------------- scores and selection

SCALES = {"Q": 4.0, "K": 2.0, "V": 1.0, "Wo": 0.25}


class Case:
    """All methods on one set of tensors; results[method] = (kept, budgets,
    scores, margin)."""

    def __init__(self, args, shape, bits, ratio, seed):
        self.args, self.ratio, self.bits, self.seed = args, ratio, bits, seed
        self.shape = H, KH, T, D, M = shape
        self.k = R.n_kept(T, ratio)
        shapes = {"Q": (H, T, D), "K": (KH, T, D), "V": (KH, T, D),
                  "Wo": (H, D, M)}
        self.tensors = {
            name: R.rand_tensor(seed + i, shapes[name], bits, scale)
            for i, (name, scale) in enumerate(SCALES.items())}
        self.norms = R.vwo_norm(self.tensors["V"], self.tensors["Wo"])
        self.scores = self.all_scores()
        self.results = {}
        self.run_kvpress()
        self.run_released()
        self.run_critical()
        if self.k > args.n_sink:
            keys = self.tensors["K"]
            self.results["block_iter/keydiff"] = (
                R.block_iterative_keydiff(keys, self.k, args.block), None, None,
                margin_block(keys, self.k, args.block))

    def all_scores(self):
        args = self.args
        Q, K, V = (self.tensors[name] for name in "QKV")
        def snapkv(**options):
            scores = R.score_snapkv(Q, K, args.window, **options)
            return R.pad_window(scores, args.window)
        return {
            "snapkv_avg5": snapkv(kernel=5, pool="avg"),
            "snapkv_max7_adakv": snapkv(kernel=7, pool="max", order="adakv"),
            "tova": R.score_tova(Q, K),
            "h2o_kvpress": R.score_h2o(Q, K),
            "keydiff": R.score_keydiff(K),
            "ea": R.score_expected_attention(
                Q, K, V, n_sink=args.n_sink, n_future=args.n_future,
                eps=args.ea_eps),
        }

    def run_kvpress(self):
        for name, scores in self.scores.items():
            self.results["uniform/" + name] = (
                R.sel_uniform(scores, self.k), None, scores,
                min(gap(row, self.k) for row in scores))
        for name in ("snapkv_avg5", "keydiff", "ea"):
            scores = self.scores[name]
            self.results["adakv_floor/" + name] = (
                R.sel_adakv_floor(scores, self.k, self.args.alpha), None, None,
                # Window and sinks tie: only here a floor can cut elsewhere.
                margin_floor(scores, self.k, self.args.alpha,
                             name == "keydiff"))

    def run_released(self):
        args = self.args
        base = self.k - args.window
        if base <= 0:
            return
        past = self.shape[2] - args.window
        scores = self.scores["snapkv_max7_adakv"][:, :past]
        norms = self.norms[:, :past]
        budgets, _ = R.budgets_adakv_blend(scores, base, args.alpha)
        budgets = np.minimum(budgets, past)  # a head has no more
        self.results["adakv_blend/snapkv_max7_adakv"] = (
            R.sel_budget(scores, budgets), budgets, None,
            min([gap(scores, len(scores) * base)] +
                [gap(row, b) for row, b in zip(scores, budgets)]))
        self.results["critical_budget/snapkv_max7_adakv"] = (
            R.sel_critical_budget(scores, norms, budgets, args.first, args.eps),
            budgets, None,
            margin_critical_budget(scores, norms, budgets, args.first,
                                   args.eps))

    def run_critical(self):
        args = self.args
        scores = self.scores["snapkv_avg5"]
        self.results["critical_kvpress/snapkv_avg5"] = (
            R.sel_critical(scores, self.norms, self.k, self.ratio, args.first,
                           args.eps),
            None, None,
            margin_critical(scores, self.norms, self.k, self.ratio, args.first,
                            args.eps, args.window))
        kept, budgets = R.sel_critical_ada(scores, self.norms, self.k,
                                           args.alpha, args.first, args.eps)
        self.results["critical_ada_kvpress/snapkv_avg5"] = (
            kept, budgets, None,
            margin_critical_ada(scores, self.norms, self.k, args.alpha,
                                args.first, args.eps))

    def is_clear(self):
        return all(result[3] >= MIN_MARGIN for result in self.results.values())

    def write(self, writer):
        args = self.args
        H, KH, T, D, M = self.shape
        for name, (kept, budgets, scores, margin) in self.results.items():
            method, scorer = name.split("/")
            writer.case(
                f"{method}.{scorer}.H{H}K{KH}T{T}D{D}.r{self.ratio}"
                f".b{self.bits}", name,
                H=H, KH=KH, T=T, D=D, M=M, window=args.window,
                kernel=7 if "max7" in name else 5, n_sink=args.n_sink,
                n_future=args.n_future, block=args.block, k=self.k,
                ratio=self.ratio, alpha=args.alpha, first=args.first,
                eps=args.eps, ea_eps=args.ea_eps, theta=10000.0)
            for i, (tensor, scale) in enumerate(SCALES.items()):
                writer.input(tensor, self.seed + i, self.bits, scale,
                             self.tensors[tensor])
            writer.results(kept, float(margin), budgets,
                           scores if T <= args.max_scores else None)


def write_selections(args):
    writer = Writer(args.folder, "qkv.txt")
    for bits in (21, 5):
        for index, shape in enumerate(args.shapes):
            for ratio in args.ratios:
                seed = args.first_seed + 1000 * index + 7
                for _ in range(MAX_TRIES):
                    case = Case(args, shape, bits, ratio, seed)
                    if case.is_clear():
                        break
                    seed += 10
                else:
                    raise SystemExit(f"no seed with clear margins: {shape}")
                case.write(writer)
    writer.close()


def write_ties(args):
    writer = Writer(args.folder, "select_ties.txt")
    rng = np.random.default_rng(3 + args.seed)
    for case in range(args.ties):
        KH, T = int(rng.integers(1, 5)), int(rng.integers(1, 40))
        k = int(rng.integers(0, T + 1))
        alpha = float(rng.choice([0, .2, .5, 1.0]))
        scores = rng.integers(0, 4, (KH, T)).astype(float)
        odd = {0: np.nan, 1: np.inf, 2: -np.inf}.get(case % 5)
        if odd is not None:
            count = max(1, scores.size // 10)
            scores.ravel()[rng.integers(0, scores.size, count)] = odd
        if case % 5 == 3:
            scores[:] = 1.0
        methods = [("uniform", R.sel_uniform(scores, k))]
        if np.isfinite(scores).all():
            methods.append(("adakv_floor", R.sel_adakv_floor(scores, k, alpha)))
        for method, kept in methods:
            writer.case(f"tie{case}.{method}", method, KH=KH, T=T, k=k,
                        alpha=alpha)
            for head in range(KH):
                writer.table(f"s{head}", scores[head])
            writer.results(kept)
    writer.close()


# ---------------------------------------------------------------- budgets

def write_pyramid(args, writer, T, ratio, L, window):
    kept = R.n_kept(T, ratio)
    writer.case(f"pyr.T{T}.r{ratio}.L{L}.w{window}", "pyramid", T=T, L=L,
                window=window, beta=20, ratio=ratio, n_kept=kept)
    layers = range(L)
    writer.line("kvpress", *(R.pyramid_kvpress(T, ratio, L, layer, window)
                             for layer in layers))
    base = kept - window
    if base > 0:
        writer.line("adakv", *(R.pyramid_adakv(T, base, L, layer, window)
                               for layer in layers))
        factory = [R.pyramid_factory(T, kept, L, layer, window)
                   for layer in layers]
        writer.line("factory", *(-1 if x is None else x for x in factory))
    writer.line("end")


def write_budgets(args):
    writer = Writer(args.folder, "budgets.txt")
    for T in args.lengths:
        for ratio in (.05, .25, .5, .7, .8, .9, .95, .99):
            for L in args.layers:
                for window in args.windows:
                    if T > window:
                        write_pyramid(args, writer, T, ratio, L, window)
    for i, beta in enumerate((1.005, 1.01, 1.1, 1.2, 1.5, 2.0, 5.0, 10.0)):
        scores = np.abs(R.rand_tensor(args.first_seed + 900 + i, (4, 8)))
        writer.case(f"headkv.beta{beta}", "headkv", base=96, beta=beta,
                    temp=1.0)
        writer.table("score", scores.ravel())
        writer.results([], budgets=R.headkv_budgets(scores, 96, beta).ravel())
    for i, T in enumerate((7, 64, 1000, 4096)):
        values = R.rand_tensor(args.first_seed + 950 + i, (8,))
        r = np.float32(np.clip(values * .4 + .7, 0, .99))
        writer.case(f"lukv_online.T{T}", "lukv_online", T=T)
        writer.table("r", r)
        writer.line("paper", *R.lukv_budgets_paper(r, T))
        writer.line("kvpress", *R.lukv_budgets_kvpress(r, T))
        writer.line("end")
    writer.close()


def write_solver(args):
    writer = Writer(args.folder, "lukv_solver.txt")
    rng = np.random.default_rng(11 + args.seed)
    for case in range(args.solves):
        H, T = int(rng.integers(1, 6)), int(rng.integers(1, 30))
        top = [3, 50, 10**6][case % 3]
        gains = [[float(x) for x in rng.integers(0, top, T)] for _ in range(H)]
        writer.case(f"solve{case}", "lukv_solver", H=H, T=T)
        for head in range(H):
            writer.table(f"g{head}", gains[head])
            blocks = R.pava_blocks(gains[head])
            writer.line("blocks", head, len(blocks),
                        *(f"{int(total)}/{count}" for total, count in blocks))
        for total in sorted(set(map(int, np.linspace(0, H * T, 7)))):
            budgets, cut = R.greedy_blocks(gains, total)
            best, _ = R.dp_mckp(gains, total)
            writer.line("solve", total, "frac", -1 if cut is None else cut,
                        "value", int(R.kept_value(gains, budgets)),
                        "dp", int(best), "b", *budgets)
        writer.line("end")
    writer.close()


def parse_shape(text):
    shape = tuple(map(int, text.split(",")))
    if len(shape) != 5 or shape[0] % shape[1]:
        raise argparse.ArgumentTypeError(
            f"expected H,KH,T,D,M with H a multiple of KH, got {text}")
    return shape


def parse_args():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", default="vectors")
    parser.add_argument("--seed", type=int, default=0, help="another set")
    parser.add_argument(
        "--shapes", type=parse_shape, nargs="+", metavar="H,KH,T,D,M",
        default=[(8, 2, 96, 16, 40), (4, 4, 130, 32, 24), (8, 1, 257, 16, 16),
                 (6, 2, 64, 64, 48)],
        help="query heads, KV heads, tokens, head and model dimension")
    parser.add_argument("--ratios", type=float, nargs="+",
                        default=[0.25, 0.5, 0.8], help="evicted fractions")
    for name, default in (("window", 16), ("n-sink", 4), ("n-future", 64),
                          ("block", 16), ("max-scores", 130), ("ties", 60),
                          ("solves", 40)):
        parser.add_argument("--" + name, type=int, default=default)
    for name, default in (("alpha", .2), ("first", .5), ("eps", 1e-4),
                          ("ea-eps", .02)):
        parser.add_argument("--" + name, type=float, default=default)
    for name, default in (("lengths", [64, 100, 1000, 4096, 16384, 131072]),
                          ("layers", [2, 32, 80]), ("windows", [8, 32, 64])):
        parser.add_argument("--" + name, type=int, nargs="+", default=default,
                            help="of the pyramid cases")
    args = parser.parse_args()
    args.first_seed = 100000 * args.seed
    return args


def main():
    args = parse_args()
    os.makedirs(args.folder, exist_ok=True)
    write_selections(args)
    write_ties(args)
    write_budgets(args)
    write_solver(args)


if __name__ == "__main__":
    main()
