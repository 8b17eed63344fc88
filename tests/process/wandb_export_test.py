"""Tests of tools/wandb_export.py with a module that stands in for wandb and writes each call to a file."""
import json
import sys

from orthant_process import SOURCE, ProcessTest, main

MODULE = """
import json, os
def write(*call):
    with open(os.environ["CALLS"], "a") as file:
        file.write(json.dumps(call) + "\\n")
class Run:
    def define_metric(self, name, **options): write("define_metric", name, options)
    def log(self, values, step): write("log", step, values)
    def finish(self): write("finish")
def init(**options):
    write("init", options)
    return Run()
"""


class Export(ProcessTest):
    def export(self, *arguments, module=MODULE):
        (self.folder / "modules").mkdir(exist_ok=True)
        (self.folder / "modules/wandb.py").write_text(module)
        (self.folder / "calls").unlink(missing_ok=True)
        return self.start([sys.executable, SOURCE / "tools/wandb_export.py", *arguments],
                          {"PYTHONPATH": str(self.folder / "modules"), "CALLS": str(self.folder / "calls")}).result()

    def calls(self):
        return [json.loads(line) for line in (self.folder / "calls").read_text().splitlines()]

    def test_records_of_a_run(self):
        self.train_well("training.steps=4", "validation.freq=2", "checkpoint.interval=0")
        with open(self.dump / "metrics.jsonl", "a") as file:
            file.write('{"step": 5, "loss": ')  # a run that is still writing
        result = self.export("run", "--project", "mine")
        self.assertEqual((result.code, result.out), (0, "6 records in run/wandb; upload them with wandb sync\n"), result)
        init, define, *logs, finish = self.calls()
        self.assertEqual({key: init[1][key] for key in ("project", "name", "dir", "mode")},
                         {"project": "mine", "name": "run", "dir": "run", "mode": "offline"})
        self.assertEqual(init[1]["config"]["training"]["steps"], 4)
        self.assertEqual((define[1], finish), ("validation_loss", ["finish"]))
        self.assertEqual([step for _, step, _ in logs], [1, 2, 2, 3, 4, 4])
        logged = [{"step": step, **values} for _, step, values in logs]
        lines = (self.dump / "metrics.jsonl").read_text().splitlines()[:6]
        self.assertEqual(logged, [{key: value for key, value in json.loads(line).items() if value is not None}
                                  for line in lines])
        self.assertEqual(self.export("run", "--online").code, 0)
        self.assertEqual(self.calls()[0][1]["mode"], "online")

    def test_errors(self):
        self.assert_says(self.export("."), 1, ". is not a run folder: it has no metrics.jsonl")
        self.dump.mkdir()
        (self.dump / "metrics.jsonl").write_text('{"step": 1, "loss": null}\n{"loss": 2}\n')
        self.assert_says(self.export("run"), 1, "run/metrics.jsonl:2: not a record of metrics")
        self.assertFalse((self.folder / "calls").exists())
        (self.dump / "metrics.jsonl").write_text('{"step": 1, "loss": null}\n')
        self.assert_says(self.export("run", module="raise ImportError"), 1, "package wandb is missing", "pip install wandb")


if __name__ == "__main__":
    main()
