#!/usr/bin/env python3
"""Compares the speed of communication between ranks of one machine: Orthant on UCX and on Gloo, c10d's Gloo, Open MPI,
and one memcpy.

For each operation and number of ranks the programs take turns, with all sizes in each turn, so that other load on the
machine affects all of them. The result of a turn is the median of 20 batches, each the mean of its operations; the
table has the median over the turns. Ranks are processes of one thread; warm-up is not measured. Open MPI runs with its
defaults: it binds ranks to cores, and gets --oversubscribe only if there are more ranks than cores. The table also has
the CPU time (user and system, all ranks) in seconds per gigabyte sent. A second table has steps that compute for about
as long as their communication takes alone.

  python3 benchmarks/comm/run.py [--quick] [--ranks 2,4,8] [--bytes 4096,...] [--figure docs/images/comm.svg]

Tables go to stdout, progress to stderr, and every single result to the file of --json. Open MPI (Debian: openmpi-bin,
libopenmpi-dev) and PyTorch are left out, with a note, if they are not installed.
"""
import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile

from figure import Line, Panel, draw

sys.path.append(os.path.join(os.path.dirname(__file__), ".."))
from common import (PEERS, ROOT, json_lines, machine, median_of, names_of, output_of, own_python, print_head,
                    print_row)

NAMES = {"ucx": "Orthant on UCX", "gloo": "Orthant on Gloo", "c10d": "c10d Gloo", "mpi": "Open MPI", "memcpy": "memcpy"}
OPERATIONS = {"ring": "ring exchange", "all_reduce": "all-reduce"}
SIZES = "4096,65536,1048576,4194304,67108864"
OVERLAP_SIZES = "1048576,16777216,67108864"


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    quick = "--quick" in sys.argv
    p.add_argument("--build", default=os.path.join(ROOT, "build"), help="folder of the compiled benchmark programs")
    p.add_argument("--python", help="python3 that can import torch; default: the one of .venv")
    p.add_argument("--ranks", default="2" if quick else "2,4,8")
    p.add_argument("--bytes", default="4096,1048576" if quick else SIZES)
    p.add_argument("--overlap-bytes", default="1048576" if quick else OVERLAP_SIZES)
    p.add_argument("--ops", type=names_of(OPERATIONS), default="ring,all_reduce")
    p.add_argument("--programs", type=names_of(NAMES), default=",".join(NAMES))
    p.add_argument("--repeats", type=int, default=1 if quick else 5, help="number of runs of each program")
    p.add_argument("--seconds", type=float, default=0.05 if quick else 0.5,
                   help="measured time per size and run, in seconds")
    p.add_argument("--figure", help="file for the figure of the times (SVG)")
    p.add_argument("--json", help="file for all results (JSON)")
    p.add_argument("--quick", action="store_true", help="smoke test with few operations, sizes and ranks")
    a = p.parse_args()
    a.python = a.python or own_python()
    return a


def cores():
    return len(os.sched_getaffinity(0))


def our_program(a, name):
    path = os.path.join(a.build, "benchmarks", name)
    if not os.path.exists(path):
        sys.exit(f"{path} does not exist: build it (ninja -C {a.build} {name}), or set its folder with --build")
    return path


def available(a, folder):
    """Returns the requested programs that can run here. Compiles the one of Open MPI."""
    programs = list(a.programs)
    if "mpi" in programs and not (shutil.which("mpicc") and shutil.which("mpirun")):
        print("Open MPI is not installed (openmpi-bin, libopenmpi-dev), so it is not measured", file=sys.stderr)
        programs.remove("mpi")
    if "mpi" in programs:
        source, program = os.path.join(PEERS, "mpi_ring.c"), os.path.join(folder, "mpi_ring")
        subprocess.run(["mpicc", "-O2", source, "-o", program, "-lm"], check=True)
    if "c10d" in programs and subprocess.run([a.python, "-W", "ignore", "-c", "import torch.distributed"],
                                             stderr=subprocess.DEVNULL).returncode:
        print(f"{a.python} cannot import torch, so c10d is not measured", file=sys.stderr)
        programs.remove("c10d")
    return programs


def command_of(program, op, ranks, a, folder):
    flags = ["--bytes", a.bytes, "--seconds", str(a.seconds)]
    if program == "memcpy":
        return [our_program(a, "comm_benchmark"), "--op", "memcpy", *flags]
    if program == "c10d":
        return [a.python, os.path.join(PEERS, "c10d_ring.py"), "--ranks", str(ranks), "--op", op, *flags]
    if program == "mpi":
        options = ["--allow-run-as-root"] * (os.geteuid() == 0) + ["--oversubscribe"] * (ranks > cores())
        return ["mpirun", *options, "-np", str(ranks), os.path.join(folder, "mpi_ring"), op, str(a.seconds),
                *a.bytes.split(",")]
    return [our_program(a, "comm_benchmark"), "--transport", program, "--ranks", str(ranks), "--op", op, *flags]


def take_turns(programs, commands, a, what):
    """Runs the programs in turns. Returns the median line of each (program, bytes), and all lines."""
    found, everything = {}, []
    for turn in range(a.repeats):
        for program in programs:
            print(f"  {what}: {NAMES[program]}, turn {turn + 1} of {a.repeats}", file=sys.stderr)
            for line in json_lines(output_of(commands[program])):
                found.setdefault((program, line["bytes"]), []).append(line)
                everything.append({**line, "program": program, "turn": turn})
    return {key: median_of(lines) for key, lines in found.items()}, everything


def size_text(size):
    for unit, factor in (("MiB", 2**20), ("KiB", 2**10)):
        if size >= factor:
            return f"{size / factor:g} {unit}"
    return f"{size} B"


def time_text(us):
    return f"{us:.3g}" if us < 100 else f"{us:,.0f}"


def print_times(programs, op, ranks, found, sizes):
    for size in sizes:
        us = {program: found[program, size]["median_us"] for program in programs}
        cells = [OPERATIONS[op], str(ranks), size_text(size), *(time_text(us[p]) for p in programs)]
        for peer in ("mpi", "c10d"):
            if peer in us and "ucx" in us:
                cells.append(f"{us[peer] / us['ucx']:.2f}x")
        cells += [f"{found[p, size]['cpu_s_per_gb']:.3g}" for p in programs]
        print_row(cells)


def measure_messages(a, programs, folder, everything):
    """Prints the table of times. Returns the panels of the figure."""
    sizes = [int(size) for size in a.bytes.split(",")]
    print_head(["operation", "ranks", "bytes a rank", *(f"{NAMES[p]}, µs" for p in programs),
                *(f"{NAMES[peer]} / UCX" for peer in ("mpi", "c10d") if peer in programs and "ucx" in programs),
                *(f"{NAMES[p]}, CPU s/GB" for p in programs)])
    panels = []
    for op in a.ops:
        for ranks in map(int, a.ranks.split(",")):
            commands = {program: command_of(program, op, ranks, a, folder) for program in programs}
            found, lines = take_turns(programs, commands, a, f"{OPERATIONS[op]}, {ranks} ranks")
            everything += lines
            print_times(programs, op, ranks, found, sizes)
            panels.append(Panel(f"{OPERATIONS[op]}, {ranks} ranks", [
                Line(program, [(size, found[program, size]["median_us"]) for size in sizes]) for program in programs]))
    return panels


def measure_overlap(a, programs, everything):
    ours = [program for program in ("ucx", "gloo") if program in programs]
    if not ours:
        return
    print()
    print_head(["operation", "2 ranks over", "bytes a rank", "compute alone, ms", "transfer alone, ms", "both, ms",
                "both / longer"])
    for op in a.ops:
        commands = {program: [our_program(a, "overlap"), "--op", op, "--ranks", "2", "--transport", program, "--bytes",
                              a.overlap_bytes, "--seconds", str(a.seconds)] for program in ours}
        found, lines = take_turns(ours, commands, a, f"overlap, {OPERATIONS[op]}")
        everything += lines
        for (program, size), line in sorted(found.items(), key=lambda entry: (entry[0][1], ours.index(entry[0][0]))):
            cells = [OPERATIONS[op], program, size_text(size),
                     *(f"{line[key] / 1000:.3g}" for key in ("compute_us", "transfer_us", "both_us"))]
            print_row([*cells, f"{line['both_over_longer']:.2f}"])


def main():
    a = arguments()
    print(f"{machine()}; median of {a.repeats} runs of {a.seconds:g} s per size\n")
    everything = []
    with tempfile.TemporaryDirectory() as folder:
        programs = available(a, folder)
        panels = measure_messages(a, programs, folder, everything)
    measure_overlap(a, programs, everything)
    if a.figure:
        with open(a.figure, "w") as stream:
            stream.write(draw("Time of an operation between processes of one machine", machine(), panels,
                              len(a.ranks.split(",")), NAMES))
    if a.json:
        with open(a.json, "w") as stream:
            json.dump({"machine": machine(), "results": everything}, stream, indent=1)


if __name__ == "__main__":
    main()
