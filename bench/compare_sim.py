#!/usr/bin/env python3
"""Puts runs of `blockmgr-bench serve` beside simulations of the same workload.

  bench/compare_sim.py rates --ceilings kernels.json --calibration one.json
  bench/compare_sim.py table full.json=full_sim.json kept.json=kept_sim.json

rates prints the flags of `blockmgr-bench sim` that describe this machine. The
first three are of a report of `blockmgr-bench kernels --kernels decode,chunk`:

  --sim-bandwidth            the reading ceiling
  --sim-attention-bandwidth  what decode attention reads
  --sim-attention-flops      what attention of a prompt computes
  --sim-step-overhead        what a decode step of one sequence takes beyond
                             reading parameters, K and V at these rates
  --sim-flops                the FLOP of a prompt's products over what is left
                             of its TTFT without attention and overhead

The last two are of one run of requests of one length, one at a time, the prompt
in one step. So the simulator is told nothing of batches, queues and evictions,
which are what it predicts.

table prints, for each MEASURED=SIMULATED, requests in flight, output tokens/s,
mean TTFT and mean TPOT of both, and whether all four are within --percent of
what was measured. A MEASURED alone has no prediction. --output writes the same as
JSON.
"""
import argparse
import json
import sys

# Key of the report, heading, digits.
FIGURES = [("mean_requests_in_flight", "in flight", 1),
           ("output_throughput", "output tok/s", 0),
           ("mean_ttft_ms", "TTFT ms", 0), ("mean_tpot_ms", "TPOT ms", 2)]
PEAK = "max_used_blocks"
BYTES_PER_NUMBER = 2


def load(path):
    try:
        with open(path, encoding="utf-8") as file:
            report = json.load(file)
    except (OSError, ValueError) as error:
        sys.exit(f"compare_sim.py: {path}: {error}")
    if not isinstance(report, dict):
        sys.exit(f"compare_sim.py: {path}: expected a report, an object, got "
                 f"{type(report).__name__}")
    return report


def number(report, path, key):
    value = report.get(key)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        sys.exit(f"compare_sim.py: {path}: {key}: expected a number, "
                 f"got {json.dumps(value)}")
    return value


def best_of(report, path, kernel, key):
    """The highest of a kernel's rates of all sizes."""
    rates = [number(row, path, key) for row in report.get("results", [])
             if row.get("kernel") == kernel]
    if not rates:
        sys.exit(f"compare_sim.py: {path}: results: expected a {kernel}")
    return max(rates)


def print_rates(arguments):
    """A step is what engine/reference/sim_engine.h says."""
    path = arguments.ceilings
    report = load(path)
    bandwidth = best_of(report, path, "read_ceiling", "gb_per_s") * 1e9
    attention_bandwidth = best_of(report, path, "decode", "gb_per_s") * 1e9
    attention_flops = best_of(report, path, "chunk", "tflop_per_s") * 1e12
    path = arguments.calibration
    run = load(path)
    prompt = number(run, path, "random_input_len")
    output = number(run, path, "random_output_len")
    if run.get("max_concurrency") != 1 or run.get("random_range_ratio") != 0:
        sys.exit(f"compare_sim.py: {path}: expected requests of one length, one "
                 "at a time (--random-range-ratio 0 --max-concurrency 1)")
    entry_bytes = (2 * BYTES_PER_NUMBER * arguments.layers * arguments.heads *
                   arguments.head_dim)
    params = arguments.layer_params + arguments.output_params
    reading = (BYTES_PER_NUMBER * params / bandwidth +
               entry_bytes * (prompt + output / 2) / attention_bandwidth)
    tpot = number(run, path, "median_tpot_ms") / 1e3
    overhead = max(0.0, tpot - reading)
    attention = (4 * arguments.head_dim * arguments.layers * arguments.q_heads *
                 prompt * (prompt + 1) / 2 / attention_flops)
    products = number(run, path, "median_ttft_ms") / 1e3 - overhead - attention
    if products <= 0:
        sys.exit(
            f"compare_sim.py: {path}: median_ttft_ms: expected more than the "
            f"{(overhead + attention) * 1e3:.3g} ms that attention and what a "
            "step takes beside its work are")
    flop = 2 * (arguments.layer_params * prompt + arguments.output_params)
    print(f"--sim-bandwidth {bandwidth:.6g} "
          f"--sim-attention-bandwidth {attention_bandwidth:.6g} "
          f"--sim-attention-flops {attention_flops:.6g} "
          f"--sim-step-overhead {overhead:.6g} "
          f"--sim-flops {flop / products:.6g}")


def compare(measured_path, simulated_path, percent):
    """A row of the table."""
    measured = load(measured_path)
    row = {"run": measured.get("label") or measured_path, "peak_blocks":
           measured.get(PEAK), "measured": {}, "simulated": None}
    for key, _, _ in FIGURES:
        row["measured"][key] = number(measured, measured_path, key)
    if simulated_path is None:
        return row
    simulated = load(simulated_path)
    row["simulated"] = {key: number(simulated, simulated_path, key)
                        for key, _, _ in FIGURES}
    row["outside"] = [
        key for key, _, _ in FIGURES
        if abs(row["simulated"][key] - row["measured"][key]) >
        percent / 100 * abs(row["measured"][key])]
    row["within"] = not row["outside"]
    return row


def format_rows(rows, percent):
    width = max(len(row["run"]) for row in rows)
    lines = [" ".join([f"{'run':{width}}", f"{'peak blocks':>11}"] +
                      [f"{heading:>12} {'simulated':>9}  "
                       for _, heading, _ in FIGURES] +
                      [f"within {percent:g} %"])]
    for row in rows:
        peak = "" if row["peak_blocks"] is None else row["peak_blocks"]
        cells = [f"{row['run']:{width}}", f"{peak:>11}"]
        for key, _, digits in FIGURES:
            simulated = row["simulated"]
            text, mark = "", " "
            if simulated is not None:
                text = f"{simulated[key]:.{digits}f}"
                mark = "!" if key in row["outside"] else " "
            cells.append(f"{row['measured'][key]:>12.{digits}f} "
                         f"{text:>9}{mark} ")
        cells.append({None: "", True: "yes", False: "no"}[row.get("within")])
        lines.append(" ".join(cells).rstrip())
    return "\n".join(lines)


def print_table(arguments):
    rows = []
    for pair in arguments.runs:
        measured, separator, simulated = pair.partition("=")
        rows.append(compare(measured, simulated if separator else None,
                            arguments.percent))
    print(format_rows(rows, arguments.percent))
    if arguments.output:
        with open(arguments.output, "w", encoding="utf-8") as file:
            json.dump({"percent": arguments.percent, "runs": rows}, file,
                      indent=2)
            file.write("\n")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    rates = commands.add_parser("rates", help="flags of blockmgr-bench sim")
    rates.add_argument("--ceilings", required=True, metavar="FILE")
    rates.add_argument("--calibration", required=True, metavar="FILE")
    # Llama-3.1-8B, as the flags of the simulated model.
    rates.add_argument("--layer-params", type=float, default=6.98e9)
    rates.add_argument("--output-params", type=float, default=0.525e9)
    rates.add_argument("--layers", type=int, default=32)
    rates.add_argument("--heads", type=int, default=8)
    rates.add_argument("--q-heads", type=int, default=32)
    rates.add_argument("--head-dim", type=int, default=128)
    rates.set_defaults(call=print_rates)
    table = commands.add_parser("table", help="measured and simulated")
    table.add_argument("runs", nargs="+", metavar="MEASURED[=SIMULATED]")
    table.add_argument("--percent", type=float, default=15)
    table.add_argument("--output", metavar="FILE")
    table.set_defaults(call=print_table)
    arguments = parser.parse_args()
    arguments.call(arguments)


if __name__ == "__main__":
    main()
