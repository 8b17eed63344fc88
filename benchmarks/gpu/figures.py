#!/usr/bin/env python3
"""Writes figures.json and figures.md from the measurements of tools/gpu_figures.sh: for each case of cases.py the step
of Orthant, that of PyTorch in turns with it, MFU, memory, and what Orthant plans; for each length of attention the rates
of cuDNN and of FlashAttention 2.

  python3 benchmarks/gpu/figures.py FOLDER --hardware h200-8x
"""
import argparse
import csv
import json
import pathlib
import sys

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "plan"))
import published  # noqa: E402  (from benchmarks/plan)


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def case_of(step):
    return tuple(step[key] for key in ("width", "layers", "seq_len", "sequences", "microbatches", "recompute"))


def steps(folder, orthant, hardware):
    """One dictionary for each case that Orthant ran."""
    peers = {case_of(step): step for step in lines_of(folder / "gpu-steps.jsonl")}
    found = []
    for step in lines_of(folder / "gpu-train.jsonl"):
        peer, plan = peers.get(case_of(step)), published.planned_step(orthant, hardware, step)
        found.append({
            "case": dict(zip(("width", "layers", "seq_len", "sequences", "microbatches", "recomputed"), case_of(step))),
            "step_seconds": step["step_seconds"], "tokens_per_second": step["tokens_per_second"], "mfu": step["mfu"],
            "peak_bytes": step["peak_bytes"], "pytorch_step_seconds": peer["step_seconds"] if peer else None,
            "pytorch_peak_bytes": peer["peak_bytes"] if peer else None, "planned_step_seconds": plan["step_seconds"],
            "planned_peak_bytes": plan["worst_rank"]["bytes"]})
    return found


def attention(folder):
    """Share of the peak of attention's kernels, by shape."""
    path = folder / "kernels.csv"
    if not path.exists():
        return []
    with path.open() as stream:
        return [{"kernel": row["kind"], "shape": row["shape"], "share_of_peak": float(row["share_of_peak"])}
                for row in csv.DictReader(stream) if row["kind"].startswith(("sdp", "flash"))]


def percent(value):
    return f"{100 * value:+.1f} %"


def markdown(figures):
    out = [f"# Figures of one {figures['device']}", "", figures["machine"], "", "## Training steps", "",
           "| width | layers | tokens | sequences × microbatches | recomputed | Orthant, ms | MFU | PyTorch, ms | ratio "
           "| planned step | planned memory |", "|---|---|---|---|---|---|---|---|---|---|---|"]
    for step in figures["steps"]:
        case, peer = step["case"], step["pytorch_step_seconds"]
        out.append("| " + " | ".join([
            case["width"], str(case["layers"]), f"{case['seq_len']:,}", f"{case['sequences']} × {case['microbatches']}",
            "layers" if case["recomputed"] else "nothing", f"{1e3 * step['step_seconds']:.1f}", f"{100 * step['mfu']:.1f} %",
            f"{1e3 * peer:.1f}" if peer else "", f"{peer / step['step_seconds']:.2f}x" if peer else "",
            percent(step["planned_step_seconds"] / step["step_seconds"] - 1),
            percent(step["planned_peak_bytes"] / step["peak_bytes"] - 1)]) + " |")
    out += ["", "## Attention", "", "| kernel | shape | share of the peak |", "|---|---|---|"]
    out += [f"| {each['kernel']} | {each['shape'].replace(';', ', ')} | {100 * each['share_of_peak']:.1f} % |"
            for each in figures["attention"]]
    return "\n".join(out) + "\n"


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("folder", type=pathlib.Path)
    p.add_argument("--hardware", required=True, help="profile or file that `orthant plan` reads")
    p.add_argument("--orthant", default="build-cuda/orthant")
    p.add_argument("--device", default="GPU")
    p.add_argument("--machine", default="")
    a = p.parse_args()
    figures = {"device": a.device, "machine": a.machine, "steps": steps(a.folder, a.orthant, a.hardware),
               "attention": attention(a.folder)}
    (a.folder / "figures.json").write_text(json.dumps(figures, indent=1) + "\n")
    (a.folder / "figures.md").write_text(markdown(figures))


if __name__ == "__main__":
    main()
