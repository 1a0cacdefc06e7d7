#!/usr/bin/env python3
"""Puts runs of `blockmgr-bench serve` beside simulations of the same workload.

  bench/compare_sim.py rates --ceilings kernels.json --calibration one.json
  bench/compare_sim.py table full.json=full_sim.json kept.json=kept_sim.json

rates prints the flags of `blockmgr-bench sim` that describe this machine:

  --sim-bandwidth      the reading ceiling of a report of `blockmgr-bench kernels`
  --sim-step-overhead  what a decode step of one sequence takes beyond reading
                       the parameters and its K and V at that speed
  --sim-flops          the FLOP of a prompt over what is left of its TTFT

The last two are from one run: requests of one length, one at a time, the prompt
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


def read_ceiling(path):
    """Bytes per second, the best of all sizes."""
    rates = [number(row, path, "gb_per_s")
             for row in load(path).get("results", [])
             if row.get("kernel") == "read_ceiling"]
    if not rates:
        sys.exit(f"compare_sim.py: {path}: results: expected a read_ceiling")
    return max(rates) * 1e9


def prompt_flop(model, tokens):
    """As engine/reference/sim_engine.h has it."""
    attended = model.layers * model.q_heads * tokens * (tokens + 1) / 2
    return 2 * model.params * tokens + 4 * model.head_dim * attended


def print_rates(arguments):
    bandwidth = read_ceiling(arguments.ceilings)
    path = arguments.calibration
    run = load(path)
    prompt = number(run, path, "random_input_len")
    output = number(run, path, "random_output_len")
    if run.get("max_concurrency") != 1 or run.get("random_range_ratio") != 0:
        sys.exit(f"compare_sim.py: {path}: expected requests of one length, one "
                 "at a time (--random-range-ratio 0 --max-concurrency 1)")
    entry_bytes = (2 * BYTES_PER_NUMBER * arguments.layers * arguments.heads *
                   arguments.head_dim)
    step_bytes = (BYTES_PER_NUMBER * arguments.params +
                  entry_bytes * (prompt + output / 2))
    tpot = number(run, path, "median_tpot_ms") / 1e3
    overhead = max(0.0, tpot - step_bytes / bandwidth)
    prefill = number(run, path, "median_ttft_ms") / 1e3 - overhead
    if prefill <= 0:
        sys.exit(f"compare_sim.py: {path}: median_ttft_ms: expected more than "
                 f"the {overhead * 1e3:.3g} ms that a step takes beside its work")
    print(f"--sim-bandwidth {bandwidth:.6g} "
          f"--sim-flops {prompt_flop(arguments, prompt) / prefill:.6g} "
          f"--sim-step-overhead {overhead:.6g}")


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
    rates.add_argument("--params", type=float, default=8.03e9)
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
