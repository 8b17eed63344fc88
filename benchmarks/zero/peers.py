#!/usr/bin/env python3
"""Compares the stages of ZeRO with PyTorch's FSDP2, with real computation: same model, tokens, ranks and dtype.

The programs make complete training steps with AdamW and clipping; each rank has the cores / ranks as threads, at least
one. Ours is `orthant train` with zero_stage 1, 2 and 3; the peer is benchmarks/peers/zero.py: fully_shard over Gloo.
bfloat16 has float32 masters and float32 reductions in both programs.

The peer has up to 16 variants: reshard_after_forward true or false, gradients reduced in every microbatch or once per
step, eager mode or torch.compile of each block, mimalloc or malloc. All are measured once, in a short run. The turns
then include the fastest variant for each value of reshard_after_forward, and the variant with the least memory. All
variants must have the same losses, or there is no table. A variant that ends with an error is listed with its reason.

Programs take turns. The result of a run is the median over its steps without the first ones; the table has the median
over the runs. "peak MiB per rank" is the largest resident set of any process of the program (VmHWM). Ratios of speed
are to the fastest variant of the peer, and ratios of memory to the leanest and to the fastest one. "from, to": the
smallest and the largest ratio of speed of a turn.

  python3 benchmarks/zero/peers.py [--quick] [--sizes jargon,50m] [--dtypes float32,bfloat16] [--ranks 2,4] [--json F]
"""
import argparse
import itertools
import os
import sys
import tempfile

sys.path.append(os.path.join(os.path.dirname(__file__), ".."))
from common import SIZES, Runs, median_of, names_of, print_head, print_row
from comparison import LOSS_BOUND, Programs, RunFailed, add_program_arguments, find_programs, print_setting

STAGES = {
    "stage 1": {"zero_stage": 1},
    "stage 2": {"zero_stage": 2},
    **{f"stage 3 {when}": {"zero_stage": 3, "zero_reshard": when} for when in ("never", "step", "microbatch")},
}
DTYPES = {"float32": "float32", "bfloat16": "bfloat16_master"}  # our dtype -> the peer's
LOSS_BOUNDS = {"float32": LOSS_BOUND, "bfloat16": 5e-3}  # relative error between variants of the peer


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    quick = "--quick" in sys.argv
    add_program_arguments(p)
    p.add_argument("--sizes", type=names_of(SIZES), default="jargon" if quick else "jargon,50m")
    p.add_argument("--dtypes", type=names_of(DTYPES), default="float32,bfloat16")
    p.add_argument("--ranks", default="2" if quick else "2,4")
    p.add_argument("--stages", type=names_of(STAGES), default=",".join(STAGES))
    p.add_argument("--sequences", type=int, default=4, help="number of sequences per rank and step")
    p.add_argument("--microbatches", type=int, default=2, help="number of microbatches per rank and step")
    p.add_argument("--seq-len", type=int, default=64 if quick else 256)
    p.add_argument("--warmup-steps", type=int, default=2 if quick else 3, help="first steps of a run, not measured")
    p.add_argument("--steps", type=int, default=3 if quick else 24,
                   help="number of measured steps per run (a third of it for 50m)")
    p.add_argument("--quick", action="store_true", help="smoke test with few small steps and eager mode")
    a = p.parse_args()
    find_programs(a)
    if a.sequences % a.microbatches:
        p.error(f"--microbatches = {a.microbatches} must divide --sequences = {a.sequences}")
    return a


def ways(a, dtype, threads):
    """Returns all variants of the peer."""
    reductions = ("microbatch", "step") if a.microbatches > 1 else ("microbatch",)
    allocators = dict.fromkeys((a.allocator, "none"))
    return [{"reshard_after_forward": reshard, "reduce": reduction, "compile": compiled, "allocator": allocator,
             "dtype": DTYPES[dtype], "threads": threads} for reshard, reduction, compiled, allocator in
            itertools.product(("true", "false"), reductions, a.compilers, allocators)]


def way_text(way):
    allocator = "malloc" if way["allocator"] == "none" else os.path.basename(way["allocator"]).removeprefix("lib")
    return ", ".join([f"reshard_after_forward={way['reshard_after_forward']}", f"reduce per {way['reduce']}",
                      "eager" if way["compile"] == "none" else "compiled", allocator.split(".")[0]])


def figures(run):
    return {"speed": run.tokens_per_second(), "bytes": float(run.resident_bytes)}


def try_way(programs, ranks, steps, way):
    """Makes one run of the peer. Returns its figures, or the reason of its failure."""
    try:
        return figures(programs.peer(ranks, steps, way))
    except RunFailed as failure:
        return {"failure": failure.reason()}


def choose(survey, peers):
    """Returns the names of the peer's variants that the turns include, without duplicates."""
    good = [name for name in peers if "failure" not in survey[name][0]]
    if not good:
        sys.exit(f"every variant of the peer fails: {survey[next(iter(peers))][0]['failure']}")
    chosen = {}
    for reshard in ("true", "false"):
        if same := [name for name in good if peers[name]["reshard_after_forward"] == reshard]:
            chosen[max(same, key=lambda name: survey[name][0]["speed"])] = None
    chosen[min(good, key=lambda name: survey[name][0]["bytes"])] = None
    return list(chosen)


def measure(a, measured, folder, size, dtype, ranks):
    """Measures one model, dtype and number of ranks. Returns the survey of the peer's variants, the runs of our stages,
    and the runs of the chosen variants."""
    threads = max(1, len(os.sched_getaffinity(0)) // ranks)
    work = {**SIZES[size], "seq_len": a.seq_len, "local_batch_size": a.sequences // a.microbatches,
            "global_batch_size": a.sequences * ranks}
    programs = Programs(a, "zero.py", work, folder, a.warmup_steps, LOSS_BOUNDS[dtype])
    steps = max(3, a.steps // 3) if size == "50m" else a.steps
    peers = {way_text(way): way for way in ways(a, dtype, threads)}
    group = f"{size}, {dtype}, {ranks} ranks"
    survey = measured.take_turns(1, peers, lambda name, _: try_way(programs, ranks, min(5, steps), peers[name]),
                                 f"{group}, survey")

    def turn(case, _):
        if case in peers:
            return figures(programs.peer(ranks, steps, peers[case]))
        keys = {f"parallelism.{k}": v for k, v in STAGES[case].items()}
        return figures(programs.ours(ranks, steps, {"training.dtype": dtype, **keys}, threads))

    chosen = choose(survey, peers)
    found = measured.take_turns(a.repeats, [*a.stages, *chosen], turn, group)
    return survey, {name: found[name] for name in a.stages}, {name: found[name] for name in chosen}


def print_lines(labels, ours, peers):
    middle = {name: median_of(runs) for name, runs in (ours | peers).items()}
    fastest = max(peers, key=lambda name: middle[name]["speed"])
    leanest = min(peers, key=lambda name: middle[name]["bytes"])
    for name, runs in (ours | peers).items():
        ratios = [run["speed"] / other["speed"] for run, other in zip(runs, peers[fastest])]
        row, size = middle[name], middle[name]["bytes"]
        print_row([*labels, ("Orthant, " if name in ours else "FSDP2, ") + name, f"{row['speed']:,.0f}",
                   f"{row['speed'] / middle[fastest]['speed']:.2f}x", f"{min(ratios):.2f}, {max(ratios):.2f}",
                   f"{size / 2**20:,.0f}", *(f"{size / middle[other]['bytes']:.2f}x" for other in (leanest, fastest))])


def print_survey(surveys):
    """Prints the short runs of all variants of the peer, by which the turns' variants were chosen."""
    print("\nAll variants of FSDP2, one short run each:\n")
    print_head(["model", "dtype", "ranks", "variant", "tokens/s", "peak MiB per rank"])
    failures = {}
    for labels, survey in surveys:
        for name, (run, *_) in survey.items():
            if "failure" in run:
                number = failures.setdefault(run["failure"], len(failures) + 1)
                print_row([*labels, name, f"fails ({number})", ""])
            else:
                print_row([*labels, name, f"{run['speed']:,.0f}", f"{run['bytes'] / 2**20:,.0f}"])
    for reason, number in failures.items():
        print(f"\n({number}) {reason}")


def main():
    a = arguments()
    print_setting(a, f"{a.sequences} sequences of {a.seq_len} tokens a rank and step, {a.microbatches} microbatches")
    print_head(["model", "dtype", "ranks", "program", "tokens/s", "of the fastest FSDP2", "from, to",
                "peak MiB per rank", "of the leanest FSDP2", "of the fastest FSDP2"])
    measured, surveys = Runs(a.json), []
    with tempfile.TemporaryDirectory() as folder:
        for size, dtype, ranks in itertools.product(a.sizes, a.dtypes, map(int, a.ranks.split(","))):
            survey, ours, peers = measure(a, measured, folder, size, dtype, ranks)
            labels = [size, dtype, str(ranks)]
            print_lines(labels, ours, peers)
            surveys.append((labels, survey))
    print_survey(surveys)


if __name__ == "__main__":
    main()
