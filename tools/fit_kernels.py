#!/usr/bin/env python3
"""Fits the models of products, of attention and of memory in src/hardware/ to measured kernels, and prints the TOML
tables [memory], [products], [attention], [attention.forward] and [attention.backward], and the errors of the fit.

  tools/fit_kernels.py CSV --peak 312e12 --units 108 [--bandwidth 1.563e12] [--tile 128 256]
                       [--attention-tiles 128 128] [--residuals]

The CSV has the columns kind, shape and share_of_peak. Rows of kind matmul have the shape
"m=..;k=..;n=..;layout=TN|NN|NT;out_dtype=bf16|fp32", rows of kind sdp_fwd and sdp_bwd the shape
"batch=..;seq_len=..;head_num=..;qk_head_dim=..;v_head_dim=..". Shares of attention count the FLOPs of a causal mask as
if every token saw every other, so they may exceed 1; the model counts half of them. Rows of kind memory have the shape
"kernel=..;bytes=.." and the column seconds. Other kinds are ignored. benchmarks/gpu/kernels.py writes such a file.

The fit minimizes the mean of |log(model / measured)|, weighted by the fourth root of the measured time. It starts from
fixed points, so it is deterministic. The held-out error is that of a fit to a random half (seed 0) on the other half.
--bandwidth is in bytes/s, as reached; without it, it is fitted to the memory rows. Requires numpy and scipy.
"""
import argparse
import csv

import numpy as np
from scipy.optimize import minimize

LAYOUTS = {("TN", "bf16"): 0, ("NN", "bf16"): 1, ("NT", "bf16"): 2, ("NT", "fp32"): 3}
OUTPUT_BYTES = np.array([2, 2, 4, 8])  # moved per element of the output: bf16 write, bf16 or float32 accumulation
BACKWARD_WORK = 2.5                    # FLOPs of the backward pass of attention, divided by those of the forward pass


def read_rows(path):
    """Returns the rows (m, k, n, layout, share), (backward, heads, tokens, qk_dim, v_dim, share) and (bytes, seconds) as
    arrays."""
    products, attention, memory = [], [], []
    with open(path, encoding="utf-8") as stream:
        for row in csv.DictReader(stream):
            if row["kind"] not in ("matmul", "sdp_fwd", "sdp_bwd", "memory"):
                continue
            shape = dict(part.split("=") for part in row["shape"].split(";"))
            share = float(row["share_of_peak"])
            if row["kind"] == "matmul":
                products.append([int(shape[x]) for x in "mkn"] + [LAYOUTS[shape["layout"], shape["out_dtype"]], share])
            elif row["kind"] == "memory":
                memory.append([int(shape["bytes"]), float(row["seconds"])])
            else:
                attention.append([row["kind"] == "sdp_bwd", int(shape["batch"]) * int(shape["head_num"]),
                                  int(shape["seq_len"]), int(shape["qk_head_dim"]), int(shape["v_head_dim"]), share])
    return np.array(products, float), np.array(attention, float), np.array(memory, float)


def throttle(work, sustained, half_work):
    """Share of the rate of a short kernel that a kernel with this work reaches: from 1 down to `sustained`."""
    root = np.sqrt(work / half_work)
    return (1 + sustained * root) / (1 + root)


def memory_seconds(x, rows, machine):
    latency, bandwidth = x
    return latency * 1e-6 + rows[:, 0] / (bandwidth * 1e12)


def product_seconds(x, rows, machine):
    share, share_weight, latency, wave, small, sustained, log_half = x
    m, k, n, layout = rows[:, 0], rows[:, 1], rows[:, 2], rows[:, 3].astype(int)
    height, width = machine.tile
    compute = np.inf
    for rows_of, columns_of, tile_share in ((height, width, 1), (width, height, 1), (height, width // 2, small)):
        waves = np.ceil(m / rows_of) * np.ceil(n / columns_of) / machine.units
        waves = np.maximum(1, waves + wave * (np.ceil(waves) - waves))
        compute = np.minimum(compute, waves * machine.units * 2 * rows_of * columns_of * k / tile_share)
    rate = machine.peak * np.where(layout >= 2, share_weight, share) * throttle(2 * m * k * n, sustained, np.exp(log_half))
    output = OUTPUT_BYTES[layout] * m * n
    traffic = 2 * m * k + 2 * k * n + output
    return latency * 1e-6 + np.maximum(compute / rate + output / machine.bandwidth, traffic / machine.bandwidth)


def attention_seconds(x, rows, machine):
    forward, backward, tail_f, tail_b, wide_f, wide_b, narrow_f, narrow_b, latency, sustained, log_half = x
    is_backward, heads, tokens, qk, v = rows[:, 0] > 0, rows[:, 1], rows[:, 2], rows[:, 3], rows[:, 4]
    tile = np.where(is_backward, machine.attention_tiles[1], machine.attention_tiles[0])
    passes = np.where(is_backward, BACKWARD_WORK, 1)
    tiles = np.ceil(tokens / tile)
    longest = passes * 2 * tile * tokens * (qk + v)  # work of a tile whose rows see every token
    work = heads * tiles * longest / 2
    share = np.where(is_backward, backward, forward) * np.where(qk > 128, np.where(is_backward, wide_b, wide_f), 1)
    share *= np.where(qk < 128, np.where(is_backward, narrow_b, narrow_f), 1)
    rate = machine.peak * share * throttle(work, sustained, np.exp(log_half))
    longest = longest * machine.units
    tail = np.where(is_backward, tail_b, tail_f) * longest
    return latency * 1e-6 + np.maximum(longest, work + tail) / rate


def measured_seconds(rows, machine):
    if rows.shape[1] == 2:
        return rows[:, 1]
    if rows.shape[1] == 5:
        return 2 * rows[:, 0] * rows[:, 1] * rows[:, 2] / (machine.peak * rows[:, 4])
    work = 2 * rows[:, 1] * rows[:, 2] ** 2 * (rows[:, 3] + rows[:, 4]) * np.where(rows[:, 0] > 0, BACKWARD_WORK, 1)
    return work / (machine.peak * rows[:, 5])


def fit(model, rows, machine, starts, lowest, highest):
    """Returns the parameters with the smallest weighted error that Nelder-Mead finds from the given starts."""
    measured = measured_seconds(rows, machine)
    weights = measured ** 0.25 / np.sum(measured ** 0.25)

    def loss(x):
        outside = np.sum(np.maximum(0, lowest - x) + np.maximum(0, x - highest))
        predicted = model(np.clip(x, lowest, highest), rows, machine)
        return np.sum(weights * np.abs(np.log(predicted / measured))) + outside

    best = None
    for start in starts:
        x = np.array(start, float)
        for _ in range(6):
            found = minimize(loss, x, method="Nelder-Mead", options=dict(maxiter=4000, xatol=1e-5, fatol=1e-8))
            x = found.x
        if best is None or found.fun < best.fun:
            best = found
    return np.clip(best.x, lowest, highest)


def errors(model, x, rows, machine):
    """Returns the mean and the 90th percentile of |model / measured - 1|, and the relative error of the total time."""
    measured, predicted = measured_seconds(rows, machine), model(x, rows, machine)
    relative = np.abs(predicted / measured - 1)
    return np.mean(relative), np.quantile(relative, 0.9), predicted.sum() / measured.sum() - 1


def percent(values):
    return " | ".join(f"{100 * value:+.1f} %" if i == 2 else f"{100 * value:.1f} %" for i, value in enumerate(values))


def print_residuals(x, rows, machine):
    measured, predicted = measured_seconds(rows, machine), product_seconds(x, rows, machine)
    work = 2 * rows[:, 0] * rows[:, 1] * rows[:, 2]
    groups = [(f"layout {name} {dtype}", rows[:, 3] == i) for (name, dtype), i in LAYOUTS.items()]
    edges = [0, 3e10, 1e11, 3e11, 1e12, 3e12, 1e13, 1e16]
    groups += [(f"{a:.0e} to {b:.0e} FLOPs", (work >= a) & (work < b)) for a, b in zip(edges, edges[1:])]
    print("\n| rows | number | mean error | bias of the total time |\n|---|---|---|---|")
    for name, chosen in groups:
        if chosen.any():
            error = np.mean(np.abs(predicted[chosen] / measured[chosen] - 1))
            bias = predicted[chosen].sum() / measured[chosen].sum() - 1
            print(f"| {name} | {chosen.sum()} | {100 * error:.1f} % | {100 * bias:+.1f} % |")


def print_tables(memory, products, attention, machine):
    if memory is not None:
        print(f"[memory]\n# bytes_per_s x share = {memory[1] * 1e12:.4e}\nlatency_seconds = {memory[0] * 1e-6:.2e}\n")
    share, weight, latency, wave, small, sustained, log_half = products
    print(f"[products]\nshare = {share:.4f}\nweight_gradient_share = {weight:.4f}\nlatency_seconds = {latency * 1e-6:.2e}\n"
          f"tile = [{machine.tile[0]}, {machine.tile[1]}]\nsmall_tile_share = {small:.4f}\nwave_loss = {wave:.4f}\n"
          f"sustained_share = {sustained:.4f}\nhalf_work_flop = {np.exp(log_half):.3e}\n")
    forward, backward, tail_f, tail_b, wide_f, wide_b, narrow_f, narrow_b, latency, sustained, log_half = attention
    print(f"[attention]\nlatency_seconds = {latency * 1e-6:.2e}\nsustained_share = {sustained:.4f}\n"
          f"half_work_flop = {np.exp(log_half):.3e}\n")
    for name, values in (("forward", (forward, tail_f, wide_f, narrow_f, machine.attention_tiles[0])),
                         ("backward", (backward, tail_b, wide_b, narrow_b, machine.attention_tiles[1]))):
        print("[attention.{0}]\nshare = {1:.4f}\ntail = {2:.4f}\nwide_head_share = {3:.4f}\nnarrow_head_share = {4:.4f}\n"
              "tile_rows = {5}\n".format(name, *values))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("csv")
    parser.add_argument("--peak", type=float, required=True, help="FLOP/s in bfloat16")
    parser.add_argument("--units", type=int, required=True, help="compute units of the device")
    parser.add_argument("--bandwidth", type=float, help="bytes/s of memory, as reached")
    parser.add_argument("--tile", type=int, nargs=2, default=[128, 256])
    parser.add_argument("--attention-tiles", type=int, nargs=2, default=[128, 128], help="forward and backward")
    parser.add_argument("--residuals", action="store_true", help="print errors by layout and by size")
    machine = parser.parse_args()
    products, attention, memory = read_rows(machine.csv)
    if not len(products) or not len(attention):
        parser.error(f"{machine.csv} must have rows of the kinds matmul, sdp_fwd and sdp_bwd")
    if not machine.bandwidth and not len(memory):
        parser.error("without rows of kind memory, --bandwidth is required")
    jobs = (
        ("memory", memory_seconds, memory, [(3, 1), (3, 4)], np.array([0, 0.01]), np.array([100, 100])),
        ("products", product_seconds, products,
         [(0.8, 0.8, 4, 0.5, 0.85, s, h) for s in (1, 0.7, 0.5) for h in (24.5, 26)],
         np.array([0.05, 0.05, 0, 0, 0.2, 0.3, 20]), np.array([1, 1, 100, 1, 1, 1, 34])),
        ("attention", attention_seconds, attention,
         [(0.7, 0.6, t, t, 0.85, 0.8, 0.8, 0.8, 25, s, 25) for t in (0.1, 0.5, 1) for s in (1, 0.6)],
         np.array([0.05, 0.05, 0, 0, 0.2, 0.2, 0.2, 0.2, 0, 0.3, 22]), np.array([1, 1, 2, 2, 1, 1, 1, 1, 40, 1, 34])),
    )
    table, found = [], {}
    for name, model, rows, starts, lowest, highest in jobs:
        if not len(rows):
            continue
        found[name] = fit(model, rows, machine, starts, lowest, highest)
        if name == "memory" and not machine.bandwidth:
            machine.bandwidth = found[name][1] * 1e12
        chosen = np.random.default_rng(0).permutation(len(rows)) < len(rows) // 2
        half = fit(model, rows[chosen], machine, starts, lowest, highest)
        table.append(f"| {name} | {len(rows)} | {percent(errors(model, found[name], rows, machine))} | "
                     f"{percent(errors(model, half, rows[~chosen], machine))} |")
    print_tables(found.get("memory"), found["products"], found["attention"], machine)
    print("| kernel | rows | mean error | 90th percentile | bias of the total time "
          "| held out: mean error | 90th percentile | bias |\n|---|---|---|---|---|---|---|---|")
    print("\n".join(table))
    if machine.residuals:
        print_residuals(found["products"], products, machine)


if __name__ == "__main__":
    main()
