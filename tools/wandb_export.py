#!/usr/bin/env python3
"""Copies the metrics of a run folder to Weights & Biases.

  tools/wandb_export.py RUN_DIR [--project NAME] [--online]

By default nothing is sent: the records go to RUN_DIR/wandb, and `wandb sync` uploads them later, from any machine. The
Python package wandb is needed. Values that are not known (null) are left out."""
import argparse
import json
import pathlib
import sys
import tomllib


def read_records(path):
    """The records of metrics.jsonl. An incomplete last line is ignored: the run may still write it."""
    records = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(keepends=True), 1):
        if not line.endswith("\n"):
            break
        try:
            record = json.loads(line)
            records.append((record.pop("step"), {key: value for key, value in record.items() if value is not None}))
        except (ValueError, KeyError, AttributeError) as error:
            raise SystemExit(f"error: {path}:{number}: not a record of metrics: {error!r}")
    return records


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run_dir", type=pathlib.Path, help="a run folder (job.dump_folder)")
    parser.add_argument("--project", default="orthant", help="project in Weights & Biases; default orthant")
    parser.add_argument("--online", action="store_true", help="send the records at once; needs a login")
    arguments = parser.parse_args()
    folder = arguments.run_dir
    if not (folder / "metrics.jsonl").exists():
        raise SystemExit(f"error: {folder} is not a run folder: it has no metrics.jsonl; give the job.dump_folder of a run")
    records = read_records(folder / "metrics.jsonl")
    try:
        import wandb
    except ImportError:
        raise SystemExit(f"error: the Python package wandb is missing; install it with {sys.executable} -m pip install wandb")
    config = folder / "config.toml"
    run = wandb.init(project=arguments.project, name=folder.resolve().name, dir=str(folder),
                     mode="online" if arguments.online else "offline",
                     config=tomllib.loads(config.read_text(encoding="utf-8")) if config.exists() else {})
    run.define_metric("validation_loss", summary="min")
    for step, values in records:
        run.log(values, step=step)
    run.finish()
    print(f"{len(records)} records" + ("" if arguments.online else f" in {folder}/wandb; upload them with wandb sync"))


if __name__ == "__main__":
    main()
