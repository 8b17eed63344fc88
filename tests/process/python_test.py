"""Tests of the functions of the Python package: their values and messages equal those of the program."""
import json
import os
import pathlib
import xml.etree.ElementTree

from orthant_process import ORTHANT, SOURCE, main
from python_package import MODEL, PythonTest, orthant

EXAMPLES = sorted((SOURCE / "examples").glob("*.toml"))


class Plans(PythonTest):
    def test_every_example_has_the_plan_of_the_program(self):
        self.assertTrue(EXAMPLES)
        for example in EXAMPLES:
            with self.subTest(example.name):
                plan = orthant.plan(example)
                self.assertEqual(plan.to_dict(), self.plan_json(example))
                page = self.orthant("plan", example).out
                more = "\nmore with --show: memory, communication, schedule, layouts, or all\n"
                self.assertEqual(page, str(plan) + more)

    def test_attributes_are_the_fields(self):
        """The ranks differ: three data ranks share four sequences, on a pipeline of two."""
        settings = {"run.ranks": 6, "training.global_batch_size": 4, "training.local_batch_size": 1,
                    "parallelism.pipeline_parallel_degree": 2, "run.hardware": "h100-8x"}
        plan = orthant.plan("run.toml", **settings)
        words = [f"{key}={value}" for key, value in settings.items()]
        found = self.plan_json("run.toml", *words)
        self.assertGreater(len(found["classes"]), 2)
        self.assertEqual([m._asdict() for m in plan.memory], [rank["memory_bytes"] for rank in found["per_rank"]])
        self.assertEqual(plan.sent_bytes, [rank["communication_bytes"] for rank in found["per_rank"]])
        self.assertEqual((plan.ranks, plan.parameters), (6, found["parameters"]["count"]))
        self.assertEqual((plan.step_seconds, plan.fits), (found["step_seconds"], found["fits"]))
        self.assertEqual(plan.mesh, {axis["axis"]: axis["size"] for axis in found["mesh"]})
        self.assertEqual(plan.to_dict("communication").keys() & {"per_rank", "layouts"}, set())
        said = self.orthant("plan", "run.toml", "--show", "memory", *words)
        self.assertEqual(plan.page("memory"), said.out)
        self.assertIn("6 ranks", repr(plan))
        self.assertRaises(ValueError, plan.page, "everything")
        self.assertIsNone(orthant.plan("run.toml").step_seconds)
        self.assertIsNone(orthant.plan("run.toml").fits)

    def test_path_text_and_dictionary_are_the_same_run(self):
        run = {"run": {"ranks": 2}, "model": {**MODEL, "tie_word_embeddings": True},
               "training": {"seq_len": 32, "global_batch_size": 4},
               "optimizer.lr": 1e-2, "data": {"path": ["text.txt"], "validation": 0.25},
               "parallelism": {"tensor_parallel_kind": "2d", "tensor_parallel_mesh": [2, 1, 1]}}
        plan = orthant.plan(run)
        text = plan.run_file()
        (self.folder / "run.toml").write_text(text)
        self.assertIn("validation = 0.25", text)
        self.assertRegex(text, r"tensor_parallel_mesh = \[2, 1, 1\] +# run:")
        self.assertIn("tie_word_embeddings = true", text)
        for same in (text, "run.toml", pathlib.Path("run.toml")):
            self.assertEqual(orthant.plan(same).to_dict("memory"), plan.to_dict("memory"))
        changed = orthant.plan(run, training={"seq_len": 64}, **{"optimizer.name": "sgd"})
        self.assertNotEqual(changed.memory, plan.memory)
        self.assertIn('name = "sgd"', changed.run_file())
        # Validation sets with names, in the run and as a setting.
        sets = {"prose": ["text.txt"], "all of it": ["text.txt", "text.txt"]}
        self.assertRaisesRegex(orthant.ConfigError, "must name its sets", orthant.plan, run, data={"validation": sets})
        sets = {"prose": ["text.txt"], "all": ["text.txt", "text.txt"]}
        for named in (orthant.plan({**run, "data": {"path": ["text.txt"], "validation": sets}}),
                      orthant.plan(run, data={"validation": sets}), orthant.plan(run, **{"data.validation": sets})):
            self.assertRegex(named.run_file(), r'validation = \{.*prose"? = \["text.txt"\]')

    def test_model_of_hugging_face(self):
        path = self.write_hf()
        for source in (path.parent, str(path)):
            plan = orthant.plan(hf=source, ranks=8, seq_len=2048, global_batch=16)
            arguments = ["--hf", source, "--ranks", 8, "--seq-len", 2048, "--global-batch", 16]
            self.assertEqual(plan.to_dict("memory"), self.plan_json(*arguments, "--show", "memory"))
            self.assertGreater(plan.step_seconds, 0)

    def test_warnings_are_those_of_the_program(self):
        settings = {"run.ranks": 8, "training.global_batch_size": 4, "training.local_batch_size": 1}
        plan = orthant.plan("run.toml", **settings)
        said = self.orthant("plan", "run.toml", *[f"{key}={value}" for key, value in settings.items()]).err
        self.assertEqual(len(plan.warnings), 1)
        self.assertIn(f"warning: {plan.warnings[0]}\n", said)
        self.assertEqual(orthant.plan("run.toml").warnings, [])

    def test_drawing_is_xml(self):
        xml.etree.ElementTree.fromstring(orthant.plan(SOURCE / "examples/pipeline.toml").to_svg())


class Errors(PythonTest):
    def said(self, *arguments):
        result = self.orthant("plan", *arguments)
        self.assertNotEqual(result.code, 0, result)
        return result.err.split("error: ", 1)[1].split("\nusage:")[0].rstrip("\n")

    def test_messages_are_those_of_the_program(self):
        (self.folder / "typo.toml").write_text("[training]\nstep = 3\n")
        (self.folder / "syntax.toml").write_text("[training\n")
        for path, settings, kind in (
                ("run.toml", {"run.ranks": 3, "parallelism.tensor_parallel_degree": 2}, orthant.ConfigError),
                ("run.toml", {"training.stpes": 7}, orthant.ConfigError),
                ("run.toml", {"training.steps": 10 ** 30}, orthant.ConfigError),
                ("run.toml", {"data.path": "nowhere.txt"}, orthant.ConfigError),
                ("run.toml", {"run.hardware": "h1000"}, orthant.ConfigError),
                ("run.toml", {"run.memory_gib_per_rank": 1e-6}, orthant.ConfigError),
                ("typo.toml", {}, orthant.ConfigError), ("syntax.toml", {}, orthant.ConfigError),
                ("nowhere.toml", {}, orthant.ConfigError)):
            with self.subTest(path=path, settings=settings):
                with self.assertRaises(kind) as raised:
                    orthant.plan(path, **settings)
                words = [f"{key}={value}" for key, value in settings.items()]
                self.assertEqual(str(raised.exception), self.said(path, *words))

    def test_damaged_model(self):
        for changes in ({"model_type": "mamba"}, {"hidden_size": -1}):
            path = self.write_hf(**changes)
            with self.assertRaises(orthant.DataError) as raised:
                orthant.plan(hf=path, ranks=8)
            self.assertEqual(str(raised.exception), self.said("--hf", path, "--ranks", 8))
        with self.assertRaisesRegex(orthant.ConfigError, "ranks=8"):
            orthant.plan(hf=self.write_hf())

    def test_wrong_arguments(self):
        self.assertRaises(TypeError, orthant.plan)
        self.assertRaises(TypeError, orthant.plan, "run.toml", hf="config.json")
        self.assertRaises(TypeError, orthant.schedule, "1f1b", ranks=1.5, microbatches=2)
        self.assertRaisesRegex(orthant.ConfigError, "hf='config.json'", orthant.plan, "config.json")
        for run in ({"steps": 3}, {"training": 3}, {"training": {"steps": "many"}}, {"training": {"steps": []}}):
            self.assertRaises(orthant.ConfigError, orthant.plan, run)
        self.assertRaisesRegex(orthant.ConfigError, "run:2", orthant.plan, {"training": {"steps": 0}})
        for text in ("\0\n", "[model]\nfrom = \"\\u0000\"\n", "\udcff\n"):
            self.assertRaises(orthant.Error, orthant.plan, text)
        self.assertTrue(issubclass(orthant.ConfigError, orthant.Error) and issubclass(orthant.DataError, orthant.Error))


class Searches(PythonTest):
    def test_search_is_that_of_the_program(self):
        path = self.write_hf(num_hidden_layers=8)
        # A set key keeps the search short.
        found = orthant.search(hf=path, ranks=16, seq_len=2048, global_batch=32, parallelism={"zero_stage": 1},
                               job={"dump_folder": "best"})
        arguments = ["--hf", path, "--ranks", 16, "--seq-len", 2048, "--global-batch", 32, "parallelism.zero_stage=1",
                     "job.dump_folder=best", "--search"]
        self.assertEqual(found.to_dict(), self.plan_json(*arguments))
        said = self.orthant("plan", *arguments, "--write", "best.toml")
        self.assertEqual(said.out, str(found) + "the best layout is in best.toml\n")
        written = (self.folder / "best.toml").read_text()
        self.assertEqual(written[-len(found.best.run_file()):], found.best.run_file())
        self.assertEqual(len(found), len(found.to_dict()["search"]))
        self.assertEqual([layout.step_seconds for layout in found], sorted(layout.step_seconds for layout in found))
        again = orthant.plan(hf=path, ranks=16, seq_len=2048, global_batch=32, **found.best.settings)
        for plan in (again, orthant.plan(found.best.run_file())):
            self.assertEqual(plan.step_seconds, found.best.step_seconds)
            self.assertEqual(max(memory.total for memory in plan.memory), found.best.memory_bytes)
        fields = again.to_dict("communication")
        self.assertEqual((found.best.mfu, found.best.mfu_causal), (fields["mfu"], fields["mfu_causal"]))

    def test_nothing_fits_or_is_legal(self):
        path = self.write_hf(num_hidden_layers=320)
        found = orthant.search(hf=path, ranks=1)
        self.assertEqual(list(found), [])
        with self.assertRaisesRegex(orthant.ConfigError, "no layout fits: the smallest needs .* use more ranks"):
            found.best
        with self.assertRaisesRegex(orthant.ConfigError, "requires a machine"):
            orthant.search("run.toml")
        with self.assertRaisesRegex(orthant.ConfigError, "must be at most the 2 ranks"):
            orthant.search("run.toml", ranks=2, hardware="this-cpu", parallelism={"tensor_parallel_degree": 3})


class Schedules(PythonTest):
    NAMES = ("gpipe", "1f1b", "interleaved_1f1b", "zb_h1", "zb_h2", "zb_v", "v_half", "v_min", "dual_pipe_v")

    def test_schedules_are_those_of_plans_and_survive_csv(self):
        for name in self.NAMES:
            with self.subTest(name):
                schedule = orthant.schedule(name, ranks=4, microbatches=8)
                same = orthant.Schedule.from_csv(schedule.to_csv())
                self.assertEqual(same.to_csv(messages=True), schedule.to_csv(messages=True))
                self.assertEqual((same.bubble, same.stage_owner), (schedule.bubble, schedule.stage_owner))
                self.assertEqual(orthant.Schedule.from_csv(schedule.to_csv(messages=True)).to_csv(), schedule.to_csv())
                self.assertTrue(0 < schedule.bubble < 1)
                self.assertEqual(len(str(schedule).splitlines()), 4)
                xml.etree.ElementTree.fromstring(schedule.to_svg())
        # Durations decide where v_half places its backwards for the weights.
        slow = orthant.schedule("v_half", ranks=4, microbatches=8, durations=(1, 1, 3))
        self.assertNotEqual(slow.makespan, orthant.schedule("v_half", ranks=4, microbatches=8).makespan)
        self.assertEqual(orthant.schedule("interleaved_1f1b", ranks=2, microbatches=4, stages_per_rank=3).stages, 6)

    def test_impossible_schedules(self):
        for arguments, law in (
                ({"name": "zb_x"}, "did you mean zb_"), ({"ranks": 0}, "ranks = 0 must be from 1"),
                ({"microbatches": -1}, "microbatches = -1 must be from 1"), ({"ranks": 2 ** 40}, "must be from 1 to"),
                ({"ranks": 2 ** 63}, "must be from 1 to"), ({"stages_per_rank": 3}, "must be 0 or 1 with the schedule"),
                ({"microbatches": 2 ** 30}, "stages x microbatches"), ({"durations": (1, 0, 1)}, "above 0")):
            with self.subTest(law):
                with self.assertRaisesRegex(orthant.ConfigError, law):
                    orthant.schedule(**{"name": "1f1b", "ranks": 2, "microbatches": 4, **arguments})

    def test_damaged_csv(self):
        text = orthant.schedule("1f1b", ranks=2, microbatches=2).to_csv()
        for damaged, kind, law in (
                (text.replace("0B1", ""), orthant.ConfigError, "0B1 is missing"),
                (text.replace("0F1", "0X1"), orthant.DataError, "line 1, cell 2"),
                (text.replace("0F1", "0F0"), orthant.ConfigError, "0F0"),
                (text.replace("1F0,1B0", "1B0,1F0"), orthant.ConfigError, "1B0"),
                ("", orthant.ConfigError, "no pass"), ("0F3000000,9000000F1\n", orthant.DataError, "must be at most")):
            with self.subTest(damaged):
                with self.assertRaisesRegex(kind, law):
                    orthant.Schedule.from_csv(damaged)


class Verifications(PythonTest):
    def use_program(self, path):
        os.environ["ORTHANT_PROGRAM"] = str(path)
        self.addCleanup(os.environ.pop, "ORTHANT_PROGRAM", None)

    def test_the_result_is_that_of_the_program(self):
        self.use_program(ORTHANT)
        result = orthant.verify("run.toml", steps=1, parallelism={"tensor_parallel_degree": 2})
        said = self.orthant("verify", "run.toml", "--steps", 1, "--json", "parallelism.tensor_parallel_degree=2")
        fields = json.loads(said.out)
        self.assertTrue(result.ok and result)
        self.assertEqual((result.steps, result.loss), (1, fields["loss"]))
        self.assertEqual((result.gradients, result.weights), (fields["gradients"], fields["weights"]))
        with self.assertRaises(orthant.Error) as raised:
            orthant.verify("run.toml", ranks=3, parallelism={"tensor_parallel_degree": 2})
        refused = self.orthant("verify", "run.toml", "run.ranks=3", "parallelism.tensor_parallel_degree=2")
        self.assertEqual(str(raised.exception), refused.err.split("error: ", 1)[1].rstrip())

    def test_a_wrong_layout_and_a_program_that_fails(self):
        fields = {"ok": False, "steps": 1, "loss": {}, "gradients": {}, "weights": {}, "first_difference": "step 1"}
        program = self.folder / "orthant"
        for script, check in ((f"echo '{json.dumps(fields)}'; exit 1", lambda result: self.assertFalse(result)),
                              ("echo died >&2; exit 3", None), ("kill -9 $$", None)):
            program.write_text(f"#!/bin/sh\n{script}\n")
            program.chmod(0o755)
            self.use_program(program)
            if check:
                check(orthant.verify("run.toml"))
            else:
                self.assertRaisesRegex(orthant.Error, "without a result", orthant.verify, "run.toml")

    def test_a_program_that_is_not_installed(self):
        self.use_program(self.folder / "nowhere")
        self.assertRaisesRegex(orthant.Error, "nowhere.*make build.*PATH", orthant.verify, "run.toml")
        os.environ.pop("ORTHANT_PROGRAM")
        before = os.environ["PATH"]
        self.addCleanup(os.environ.__setitem__, "PATH", before)
        os.environ["PATH"] = str(self.folder)
        self.assertRaisesRegex(orthant.Error, "make build", orthant.verify, "run.toml")


if __name__ == "__main__":
    main()
