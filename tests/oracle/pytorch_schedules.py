"""Tests that torch.distributed.pipelining loads the schedule.pytorch_csv of `orthant plan --json` for every schedule,
and the schedules of the Python package, reads the same Actions, and can carry them out without a deadlock. The negative
control lacks one backward.

pytorch_schedules.py --build BUILD

Exits with 77 (skipped) if torch.distributed.pipelining cannot be imported.
"""
import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import types

from venv_python import use_the_tests_python

SKIPPED = 77
RANKS, MICROBATCHES = 4, 8
STAGES = {"gpipe": 1, "1f1b": 1, "interleaved_1f1b": 2, "zb_h1": 1, "zb_h2": 1, "zb_v": 2, "v_half": 2, "v_min": 2,
          "dual_pipe_v": 2}


def stage(index, stages):
    return types.SimpleNamespace(
        stage_index=index, num_stages=stages, group_rank=0, group_size=RANKS, device="cpu", is_first=index == 0,
        is_last=index == stages - 1, has_backward=True, submod=None, group=None, stage_index_to_group_rank={})


def load(text, stages, schedules, folder):
    path = os.path.join(folder, "schedule.csv")
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    of_rank_0 = [i for i in range(stages) if f"{i}F0" in text.splitlines()[0].split(",")]
    runtime = schedules._PipelineScheduleRuntime([stage(i, stages) for i in of_rank_0], MICROBATCHES,
                                                 loss_fn=lambda *_: 0)
    runtime._load_csv(path)  # validates the schedule, and adds messages
    # The simulation raises an exception if the schedule would deadlock. It does not know the Actions UNSHARD, RESHARD
    # and REDUCE_GRAD.
    order = {rank: [action for action in row if not re.search("SHARD|REDUCE", str(action))]
             for rank, row in runtime.pipeline_order_with_comms.items()}
    schedules._simulate_comms_compute(order, lambda s: runtime.stage_index_to_group_rank[s], stages)
    return runtime


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--build", required=True)
    a = p.parse_args()
    use_the_tests_python()
    try:
        from torch.distributed.pipelining import schedules
    except ImportError as error:
        print(f"skipped: {error}")
        return SKIPPED
    package = os.path.join(os.path.abspath(a.build), "python")
    has_package = not os.path.exists(os.path.join(package, "missing"))  # the file says why a build has no package
    if has_package:
        sys.path.insert(0, package)
        import orthant
    with tempfile.TemporaryDirectory() as folder:
        for name, chunks in STAGES.items():
            keys = {"run.ranks": RANKS, "parallelism.pipeline_parallel_degree": RANKS, "model.num_hidden_layers": 8,
                    "parallelism.pipeline_parallel_schedule": name, "training.global_batch_size": MICROBATCHES,
                    "training.local_batch_size": 1, "data.path": "text.txt"}
            run = os.path.join(folder, "run.toml")
            for path, text in ((run, ""), (os.path.join(folder, "text.txt"), "a text")):
                with open(path, "w", encoding="utf-8") as file:
                    file.write(text)
            said = subprocess.run([os.path.join(os.path.abspath(a.build), "orthant"), "plan", run, "--json",
                                   *[f"{key}={value}" for key, value in keys.items()]],
                                  capture_output=True, text=True, check=True, cwd=folder).stdout
            text = json.loads(said)["schedule"]["pytorch_csv"]
            runtime = load(text, chunks * RANKS, schedules, folder)
            for rank, line in enumerate(text.splitlines()):
                read = [str(action) for action in runtime.pipeline_order[rank] if action is not None]
                assert read == line.split(","), f"{name}, rank {rank}"
            if has_package:
                own = orthant.schedule(name, ranks=RANKS, microbatches=MICROBATCHES)
                load(own.to_csv(), chunks * RANKS, schedules, folder)
            print(f"{name}: loaded")
            # The negative control: PyTorch refuses a schedule without stage 0's backward of microbatch 3.
            try:
                cells = text.splitlines()[0].split(",")
                broken = [cell for cell in cells if cell not in ("0B3", "0I3", "0W3")]
                load("\n".join([",".join(broken), *text.splitlines()[1:]]) + "\n", chunks * RANKS, schedules, folder)
            except AssertionError:
                print("  one backward less: refused")
            else:
                raise SystemExit(f"{name}: PyTorch takes a schedule that lacks a backward")
    return 0


if __name__ == "__main__":
    sys.exit(main())
