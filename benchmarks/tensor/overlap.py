#!/usr/bin/env python3
"""Measures whether the three products of a tensor mesh hide the transfer of their panels, between emulated hosts.

There is one rank on each host (benchmarks/hosts), and all ranks are in one row of the mesh, in float32. SUMMA has four
columns and therefore four panels. The stationary form has two columns, and splits the tokens into eight panels.
"Compute alone" is the products of the same panels without messages, "transfer alone" the same messages without
products. The program checks that both are those of the loop, to the bit and to the byte. If the shorter of the two is
hidden completely, wall / longer is 1. With c panels, the smallest possible value is 1 + 1/c x shorter / longer. The
rate of the links is chosen such that the products take 1.25 times as long as their messages. It follows from one
measurement without a limit and a second one with the resulting rate.

  python3 benchmarks/tensor/overlap.py [--quick] [--forms stationary,summa] [--products ab,abt,atb]

Requires root, as benchmarks/hosts does. Results are medians of the runs; all forms and products take turns.
"""
import argparse
import os
import sys

sys.path.append(os.path.join(os.path.dirname(__file__), ".."))
from common import (ROOT, Runs, add_json_argument, json_lines, machine, median_of, names_of, on_hosts, print_head,
                    print_row)

COLUMNS = {"stationary": 2, "summa": 4}
COMPUTE_OVER_TRANSFER = 1.25


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    quick = "--quick" in sys.argv
    p.add_argument("--forms", type=names_of(COLUMNS), default="stationary,summa")
    p.add_argument("--products", type=names_of(("ab", "abt", "atb")), default="ab" if quick else "ab,abt,atb")
    p.add_argument("--tokens", type=int, default=2048 if quick else 4096)
    p.add_argument("--in", type=int, default=512, dest="width")
    p.add_argument("--out", type=int, default=1024 if quick else 4096)
    p.add_argument("--turns", type=int, default=3 if quick else 5, help="number of measurements per run")
    p.add_argument("--repeats", type=int, default=1 if quick else 3, help="number of runs for each form and product")
    p.add_argument("--build", default=os.path.join(ROOT, "build"), help="folder of the compiled benchmark programs")
    add_json_argument(p)
    p.add_argument("--quick", action="store_true", help="smoke test with few and small cases")
    return p.parse_args()


def run(a, form, product, mbit):
    program = os.path.join(a.build, "benchmarks", "tensor_products")
    if not os.path.exists(program):
        sys.exit(f"{program} does not exist: build it (ninja -C {a.build} tensor_products), or set its folder "
                 "with --build")
    flags = ["--forms", form, "--products", product, "--tokens", str(a.tokens), "--in", str(a.width),
             "--out", str(a.out), "--turns", str(a.turns)]
    rate = f"{mbit}mbit" if mbit else "none"
    print(f"  {form} {product}, links of {rate}", file=sys.stderr)
    [line] = json_lines(on_hosts(COLUMNS[form], 1, rate, [program, *flags]))
    return line


def matched_rate(a, form, product):
    """Returns the link rate, in Mbit/s, for which the product takes COMPUTE_OVER_TRANSFER times as long as the
    transfer."""
    free = run(a, form, product, None)
    mbit = max(1, round(8e-3 * free["sent_bytes"] * COMPUTE_OVER_TRANSFER / free["compute_ms"]))
    first = run(a, form, product, mbit)
    return max(1, round(mbit * COMPUTE_OVER_TRANSFER * first["transfer_ms"] / first["compute_ms"]))


def main():
    a = arguments()

    def measure(case, runs):
        mbit = runs[0]["mbit"] if runs else matched_rate(a, *case.split())
        return {"mbit": mbit, **run(a, *case.split(), mbit)}

    cases = [f"{form} {product}" for form in a.forms for product in a.products]
    found = Runs(a.json).take_turns(a.repeats, cases, measure)
    print(f"{machine()}; {a.tokens} tokens, {a.width} -> {a.out}, float32; median of {a.repeats} runs\n")
    print_head(["form", "product", "columns", "link, Mbit/s", "compute alone, ms", "transfer alone, ms",
                "compute / transfer", "wall, ms", "wall / longer"])
    for case in cases:
        form, product = case.split()
        middle = median_of(found[case])
        compute, transfer, wall = (middle[f"{kind}_ms"] for kind in ("compute", "transfer", "both"))
        print_row([form, product, str(COLUMNS[form]), f"{middle['mbit']:.0f}", f"{compute:.3g}", f"{transfer:.3g}",
                   f"{compute / transfer:.2f}", f"{wall:.3g}", f"{wall / max(compute, transfer):.2f}"])


if __name__ == "__main__":
    main()
