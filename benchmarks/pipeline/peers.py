#!/usr/bin/env python3
"""Pipelines with real compute beside PyTorch's own: same model, microbatches, ranks, dtype and allocator.

Whole training steps of the 4-layer model of benchmarks/data_parallel on two ranks of one thread, float32. Ours is
`orthant train`; the peer is benchmarks/peers/pipeline.py: torch.distributed.pipelining over Gloo. Each of our schedules
stands beside the fastest of those of the peer that belong to it: tried first, each eager and, where the peer's schedule
takes compiled stages, under torch.compile. All of the peer's ways must show the same losses, or there is no table.

"of ideal" is tokens/s over twice the program's own on one rank, same microbatches. "schedule's" is the most that our
schedule allows of that: what simulate() makes of the durations measured in the last step, over the time that all
computations would take if no rank idled; "measured / simulated" is the last step over that simulation (timeline.json).
Programs take turns; a run's figure is the median over its steps without the first five, the table's is the median over
the runs; "from, to" are the ratios of the turns.

  python3 benchmarks/pipeline/peers.py [--quick] [--cases none,1f1b,zb_h1,...] [--repeats 3] [--json FILE]
"""
import argparse
import json
import math
import os
import statistics
import sys
import tempfile

sys.path.append(os.path.join(os.path.dirname(__file__), ".."))
from common import (SIZES, WARMUP, add_program_arguments, find_programs, machine, print_head, print_row, watch_peer,
                    watch_training, write_corpus)

LOSS_BOUND = 1e-5  # relative, of the peer's losses among themselves: float32, other orders of sums, a few steps
RANKS = 2
COMPILED = {"gpipe", "1f1b", "interleaved_1f1b"}  # of the peer's: those that do not split backward
# Ours -> the peer's. V-Half and ZB-H1 it has not: its zero-bubble schedules stand for them.
CASES = {
    "none": [],
    "1f1b": ["gpipe", "1f1b"],
    "interleaved_1f1b": ["interleaved_1f1b"],
    "zb_h1": ["interleaved_zero_bubble", "zbv"],
    "zb_v": ["zbv"],
    "v_half": ["zbv", "dual_pipe_v"],
}


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    quick = "--quick" in sys.argv
    add_program_arguments(p)
    p.add_argument("--cases", default="none,1f1b,zb_v" if quick else ",".join(CASES))
    p.add_argument("--microbatches", type=int, default=8)
    p.add_argument("--sequences", type=int, default=2, help="of a microbatch")
    p.add_argument("--seq-len", type=int, default=64 if quick else 256)
    p.add_argument("--repeats", type=int, default=1 if quick else 3, help="runs of each program a line")
    p.add_argument("--steps", type=int, default=3 if quick else 16, help="of a run that count")
    p.add_argument("--json", help="a file for every run, written after each")
    p.add_argument("--quick", action="store_true", help="does it work? few small steps, eager, three lines")
    a = p.parse_args()
    if unknown := set(a.cases.split(",")) - set(CASES):
        sys.exit(f"--cases {','.join(unknown)}: there are {', '.join(CASES)}")
    a.no_compile |= a.quick
    find_programs(a)
    return a


def tokens_per_second(a, lines):
    tokens = a.microbatches * a.sequences * a.seq_len
    return tokens / statistics.median(line["step_seconds"] for line in lines[WARMUP:])


def timeline_figures(path):
    """Of the last step: its seconds over the simulated ones, and the share of those in which ranks compute."""
    with open(path) as stream:
        trace = json.load(stream)
    spans = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    simulated_s = trace["otherData"]["simulated_s"]
    made_s = 1e-6 * (max(e["ts"] + e["dur"] for e in spans) - min(e["ts"] for e in spans))
    busy_s = 1e-6 * sum(e["dur"] for e in spans if e["cat"] == "compute")
    return {"over_simulated": made_s / simulated_s, "simulated_share": busy_s / (RANKS * simulated_s)}


def run_ours(a, case, corpus, folder):
    ranks = 1 if case == "none" else RANKS
    pipeline = {} if ranks == 1 else {"parallelism.pipeline_parallel_degree": ranks,
                                      "parallelism.pipeline_parallel_schedule": case}
    keys = {**{f"model.{k}": v for k, v in SIZES["tiny"].items()}, "model.max_position_embeddings": a.seq_len,
            "run.ranks": ranks, "run.threads_per_rank": 1, "data.path": corpus, "training.steps": WARMUP + a.steps,
            "training.seq_len": a.seq_len, "training.global_batch_size": a.microbatches * a.sequences,
            "training.local_batch_size": a.sequences, "optimizer.lr": 3e-4, **pipeline}
    lines = watch_training(a, keys, folder)[0]
    figures = {} if ranks == 1 else timeline_figures(os.path.join(folder, "run", "timeline.json"))
    return {"ours": tokens_per_second(a, lines), **figures}


class Peer:
    """The peer's runs, the losses that all of them must show, and what was found to be fastest."""

    def __init__(self, a, folder):
        self.a, self.folder, self.losses, self.tried = a, folder, None, {}

    def run(self, ranks, way, steps):
        a = self.a
        keys = {**SIZES["tiny"], "seq_len": a.seq_len, "global_batch_size": a.microbatches * a.sequences,
                "local_batch_size": a.sequences, "steps": WARMUP + steps, **way}
        lines, _, _, _, summary = watch_peer(a, "pipeline.py", ranks, 1, keys, self.folder)
        self.losses = self.losses or summary["losses"]
        for mine, first in zip(summary["losses"], self.losses):
            if not math.isclose(mine, first, rel_tol=LOSS_BOUND):
                sys.exit(f"the peer's {way} computes something else: loss {mine} where another has {first}")
        return tokens_per_second(a, lines)

    def fastest_of(self, case):
        """The fastest way to run a case, each tried once."""
        ranks, ways = (1 if case == "none" else RANKS), []
        for schedule in CASES[case] or ["none"]:
            chosen = {} if ranks == 1 else {"schedule": schedule}
            takes_compiled = not self.a.no_compile and (ranks == 1 or schedule in COMPILED)
            ways += [{**chosen, "compile": compiled} for compiled in (["none", "model"] if takes_compiled else ["none"])]
        for way in ways:
            name = way_text(way)
            if name not in self.tried:
                self.tried[name] = self.run(ranks, way, 3)
                print(f"  peer, {ranks} ranks, {name}: {self.tried[name]:,.0f} tokens/s", file=sys.stderr, flush=True)
        return max(ways, key=lambda way: self.tried[way_text(way)])


def way_text(way):
    return f"{way.get('schedule', 'none')}, {'eager' if way['compile'] == 'none' else 'compiled'}"


def print_table(found):
    print_head(["schedule", "Orthant tokens/s", "PyTorch tokens/s", "ratio", "from, to", "Orthant of ideal",
                "schedule's", "PyTorch's of ideal", "measured / simulated"])
    fields = ("ours", "peer", "simulated_share", "over_simulated")
    medians = {case: [statistics.median(run.get(field, math.nan) for run in runs) for field in fields]
               for case, (runs, _) in found.items()}
    one = medians.get("none", (math.nan, math.nan))
    for case, (runs, way) in found.items():
        ours, peer, share, over = medians[case]
        ratios = [run["ours"] / run["peer"] for run in runs]
        alone = case == "none"
        print_row(["one rank" if alone else case, f"{ours:,.0f}", f"{peer:,.0f} ({way_text(way)})", f"{ours / peer:.2f}x",
                   f"{min(ratios):.2f}, {max(ratios):.2f}", "" if alone else f"{ours / (RANKS * one[0]):.2f}",
                   "" if alone else f"{share:.2f}", "" if alone else f"{peer / (RANKS * one[1]):.2f}",
                   "" if alone else f"{over:.3f}"])


def main():
    a = arguments()
    print(f"{machine()}; {a.repeats} runs each; {a.microbatches} microbatches of {a.sequences} sequences of {a.seq_len} "
          f"tokens a step, float32, {RANKS} ranks of one thread; peer's allocator: {os.path.basename(a.allocator)}\n",
          flush=True)
    with tempfile.TemporaryDirectory() as folder:
        corpus, peer = write_corpus(a, folder), Peer(a, folder)
        found = {case: ([], peer.fastest_of(case)) for case in a.cases.split(",")}
        for turn in range(a.repeats):
            for case, (runs, way) in found.items():
                runs.append({**run_ours(a, case, corpus, folder),
                             "peer": peer.run(1 if case == "none" else RANKS, way, a.steps)})
                print(f"  {turn + 1}/{a.repeats} {case}: ours {runs[-1]['ours']:,.0f}, peer {runs[-1]['peer']:,.0f} "
                      "tokens/s", file=sys.stderr, flush=True)
                if a.json:
                    with open(a.json, "w") as stream:
                        json.dump({"machine": machine(), "cases": {name: {"way": it[1], "runs": it[0]}
                                                                   for name, it in found.items()}}, stream, indent=1)
    print_table(found)


if __name__ == "__main__":
    main()
