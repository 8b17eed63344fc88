"""Tests of the errors for run files and command lines that request something impossible. The message names the key, its
value, and the line or the command line; it states the law and the nearest legal value. The run has written nothing."""
import json
import os
import pathlib

from orthant_process import ProcessTest, main


class RunFile(ProcessTest):
    def line_of(self, start):
        lines = (self.folder / "run.toml").read_text().splitlines()
        return next(number for number, line in enumerate(lines, 1) if line.startswith(start))

    def append(self, section, line):
        path = self.folder / "run.toml"
        path.write_text(path.read_text().replace(f"[{section}]\n", f"[{section}]\n{line}\n"))
        return f"run.toml:{self.line_of(line)}"

    def test_misspelt_key(self):
        place = self.append("training", "seq_length = 64")
        for command in ("train", "plan", "verify"):
            self.assert_says(self.orthant(command, "run.toml"), 1, "training.seq_length", place, "training.seq_len")

    def test_misspelt_key_on_the_command_line(self):
        result = self.train("--training.step", "5")
        self.assert_says(result, 2, "training.step", "training.steps", "usage:")
        self.assert_says(self.train("--resum"), 2, "--resum", "--resume")
        self.assert_says(self.orthant("trian", "run.toml"), 2, "trian", "train")

    def test_wrong_type_and_range(self):
        self.assert_says(self.train("training.steps=many"), 2, "training.steps", "many")
        self.write_run_file(steps='"ten"')
        self.assert_says(self.train(), 1, "training.steps", f"run.toml:{self.line_of('steps')}")
        self.write_run_file(lr="-1.0")
        self.assert_says(self.train(), 1, "optimizer.lr", "run.toml:")

    def test_contradictions(self):
        for setting, *parts in (
                ("training.local_batch_size=9", "training.local_batch_size = 9", "training.global_batch_size = 5"),
                ("model.num_key_value_heads=3", "model.num_key_value_heads = 3", "must divide model.num_attention_heads = 4", "set it to 2 or 4"),
                ("training.seq_len=500", "training.seq_len = 500", "max_position_embeddings = 128"),
                ("parallelism.data_parallel_degree=3", "parallelism.data_parallel_degree = 3", "2 ranks", "set it to 2"),
                ("parallelism.data_parallel_shard_degree=2", "parallelism.data_parallel_shard_degree = 2", "parallelism.zero_stage to 1"),
                ("model.vocab_size=100", "model.vocab_size = 100", "257"),
                ("training.seed_weights=false", "training.seed_weights", "model.from")):
            with self.subTest(setting):
                self.assert_says(self.train(setting), 1, "command line", *parts)
        self.assertFalse((self.dump / "metrics.jsonl").exists())

    def test_impossible_plan_is_refused_before_reading_text(self):
        (self.folder / "half.csv").write_text("0F0,SEND_F\n1F0\n")
        mesh, pipeline = ["run.ranks=4", "parallelism.data_parallel_degree=3"], "parallelism.pipeline_parallel_"
        for settings in (mesh, [pipeline + "degree=2", pipeline + "schedule=half.csv"],
                         ["run.memory_gib_per_rank=1e-5"], ["model.vocab_size=100"]):
            for command in ("train", "verify"):
                with self.subTest(settings=settings, command=command):
                    self.assert_says(self.orthant(command, "run.toml", *settings), 1, "(command line)")
            with self.subTest(settings=settings, launcher=True):
                self.assert_says(self.train(*settings, env={"WORLD_SIZE": "1", "RANK": "0"}), 1, "(command line)")
        self.assertFalse(self.dump.exists())
        self.train_well("training.steps=1", "validation.freq=0")
        self.assertTrue((self.dump / "data").exists())

    def test_tokenizer_that_cannot_be_trained(self):
        for spec in ("train:3", "train:2000000"):
            for command in ("plan", "train", "verify"):
                with self.subTest(spec=spec, command=command):
                    result = self.orthant(command, "run.toml", f"data.tokenizer={spec}")
                    self.assert_says(result, 1, spec, "expected train:N with N from 260")

    def test_plan_exceeds_memory_of_rank(self):
        limit = "run.memory_gib_per_rank=1e-5"
        for command in ("plan", "train"):
            result = self.orthant(command, "run.toml", limit)
            self.assert_says(result, 1, "run.memory_gib_per_rank = 1e-05 (command line)", "tensors of rank 0; set it to 0.00")
        self.assert_says(self.orthant("verify", "run.toml", limit), 1, "tensors of rank 0; set it to 0.00")
        plan = json.loads(self.orthant("plan", "run.toml", "--json").out)
        need = max(ranks["memory_bytes"]["total"] for ranks in plan["classes"])
        enough = f"run.memory_gib_per_rank={need / 2**30!r}"
        # `verify` also holds the oracle's model, but the limit applies to the planned memory of the run only.
        for command in ("plan", "verify"):
            result = self.orthant(command, "run.toml", enough)
            self.assertEqual(result.code, 0, result)

    def test_sequences_that_cannot_be_sharded(self):
        cut = "parallelism.context_parallel_"
        for settings, *parts in (
                ([cut + "ulysses=3"], cut + "ulysses = 3", "at most the 2 ranks", "set it to 2"),
                (["run.ranks=8", cut + "ulysses=8"], cut + "ulysses = 8", "must be at most model.num_attention_heads = 4", "set it to 4"),
                (["run.ranks=8", cut + "ring=8", "training.seq_len=9"], "training.seq_len = 9", "set it to 16"),
                (["run.ranks=4", cut + "ring=4", cut + "window=3"], cut + "window = 3", "set it to 2"),
                ([cut + "ring=2", cut + "attention=ring_self_attention", "model.attn_logit_softcapping=50"],
                 cut + 'attention = "ring_self_attention"', 'must be "ring_attention" with',
                 "model.attn_logit_softcapping = 50"),
                ([cut + "ring=2", cut + "attention=linformer"], "linformer_length")):
            with self.subTest(settings):
                self.assert_says(self.train(*settings), 1, "command line", *parts)
        for settings, *parts in (
                ([cut + "ring=2", cut + "placement=spiral"], "spiral", "contiguous", "zigzag", "stripe"),
                ([cut + "ring=2", cut + "attention=linear"], "linear", "ring_self_attention", "linformer")):
            with self.subTest(settings):
                self.assert_says(self.train(*settings), 2, "command line", *parts)
        self.assertFalse((self.dump / "metrics.jsonl").exists())

    def test_search_without_hardware(self):
        self.assert_says(self.orthant("plan", "run.toml", "--search"), 2, "--search requires --hardware", "help:")
        self.assert_says(self.orthant("plan", "run.toml", "--hardware", "h100-x8"), 1, "h100-8x")
        (self.folder / "machine.toml").write_text("[device]\nper_host = -1\n")
        self.assert_says(self.orthant("plan", "run.toml", "--search", "--hardware", "machine.toml"), 1, "machine.toml")

    def test_search_without_result(self):
        """A search in which nothing fits writes no file and says so; a law that excludes all layouts has its name."""
        search = ("plan", "run.toml", "--search", "--hardware", "this-cpu", "--write", "best.toml")
        (self.folder / "best.toml").write_text("# my own run file\n[run]\n")
        self.assert_says(self.orthant(*search), 1, "best.toml", "was not written by --write")
        (self.folder / "best.toml").unlink()
        self.assert_says(self.orthant(*search, "run.memory_gib_per_rank=0.0001"), 1, "--write best.toml",
                         "no layout fits")
        self.assert_says(self.orthant(*search, "parallelism.tensor_parallel_degree=3"), 1,
                         "parallelism.tensor_parallel_degree = 3", "set it to 2")
        self.assertFalse((self.folder / "best.toml").exists())

    def test_outputs_of_a_plan_overwrite_only_their_own(self):
        """An output takes the place of an earlier one, but not of another file, nor of another output."""
        before = (self.folder / "run.toml").read_text()
        for option in ("--svg", "--trace"):
            self.assert_says(self.orthant("plan", "run.toml", option, "run.toml"), 1, f"was not written by {option}")
            self.assert_says(self.orthant("plan", "run.toml", option, "no/such/file"), 1, "No such file")
            for _ in range(2):
                self.assertEqual(self.orthant("plan", "run.toml", option, "output" + option).code, 0)
        self.assertEqual((self.folder / "run.toml").read_text(), before)
        self.assert_says(self.orthant("plan", "run.toml", "--svg", "same", "--trace", "same"), 1, "different files")

    def test_same_error_under_launcher(self):
        self.append("training", "seq_length = 64")
        environment = {"WORLD_SIZE": "1", "RANK": "0"}
        self.assert_says(self.train(env=environment), 1, "training.seq_length", "training.seq_len")

    def test_missing_run_file(self):
        self.assert_says(self.orthant("train", "nowhere.toml"), 1, "nowhere.toml", str(self.folder), "No such file",
                         "orthant train examples/jargon.toml")
        self.assert_says(self.orthant("train", "run"), 1, "did you mean run.toml?")
        for command in ("train", "plan", "verify"):
            self.assert_says(self.orthant(command, ""), 2, "RUN_FILE", "is empty", "usage:")
        (self.folder / "broken.toml").write_text("[training]\nsteps = = 3\n")
        self.assert_says(self.orthant("train", "broken.toml"), 1, "broken.toml:2")

    def test_path_with_nul_byte(self):
        self.write_run_file(dump_folder=r'"a\u0000b"')
        self.assert_says(self.train(), 1, "job.dump_folder", "run.toml:2", "NUL")
        self.assertFalse((self.folder / "a").exists())

    def test_model_exceeds_memory_of_machine(self):
        large = ("model.hidden_size=65536", "model.intermediate_size=262144", "model.num_hidden_layers=100",
                 "model.num_attention_heads=64", "model.num_key_value_heads=64")
        for ranks in (1, 2):
            message = self.assert_says(self.train(*large, f"run.ranks={ranks}"), 1, "the plan needs", "TiB", "but this ",
                                       f"lower run.ranks = {ranks} (command line)", "model.hidden_size = 65536")
            self.assertFalse((self.dump / "metrics.jsonl").exists(), message)
        self.assert_says(self.orthant("verify", "run.toml", *large), 1, "the plan needs")
        # With this many float32 tokens, the rounding bound of `verify` would be larger than a mistake.
        many = ("training.dtype=float32", "training.global_batch_size=65536")
        self.assert_says(self.orthant("verify", "run.toml", *many), 1, 'training.dtype = "float32"', '"float64"')
        planned = self.orthant("plan", "run.toml", *large)  # only warns, because a plan may be for another machine
        self.assertEqual(planned.code, 0, planned)
        self.assertIn("warning: the plan needs", planned.err)
        self.assertNotIn("warning", self.orthant("plan", "run.toml").err)

    def test_folder_without_write_permission(self):
        (self.folder / "file").write_text("")
        for ranks in (1, 2):
            self.assert_says(self.train("job.dump_folder=file/run", f"run.ranks={ranks}"), 1, "file/run")
        self.assert_says(self.train("job.dump_folder=/proc/run"), 1, "/proc/run")


class ModelFrom(ProcessTest):
    def test_directory_without_model(self):
        self.assert_says(self.train("model.from=nowhere"), 1, "model.from", "nowhere", "must be a directory")
        name = "meta-llama/Llama-3.1-8B"
        for result in (self.train(f"model.from={name}"), self.orthant("plan", "--hf", name, "--ranks", "8")):
            self.assert_says(result, 1, f"download the model first: hf download {name} --local-dir DIR")
        (self.folder / "empty").mkdir()
        self.assert_says(self.train("model.from=empty"), 1, "model.from", "empty", "config.json")

    def model(self, **changes):
        self.train_well("training.steps=2", "validation.freq=0")
        path = self.latest() / "config.json"
        config = json.loads(path.read_text())
        config.update(changes)
        path.write_text(json.dumps({key: value for key, value in config.items() if value is not None}))
        return f"model.from={self.latest()}"

    def test_unsupported_model_type(self):
        source = self.model(model_type="gpt_neox", architectures=["GPTNeoXForCausalLM"])
        self.assert_says(self.train(source, "job.dump_folder=other"), 1, "config.json", "model_type", "gpt_neox")

    def test_size_differs_from_tensors(self):
        source = self.model(intermediate_size=96)
        result = self.train(source, "job.dump_folder=other", "training.seed_weights=false", "model.intermediate_size=96")
        self.assert_says(result, 1, "gate_proj", "[64, 32]", "[96, 32]")

    def test_refused_run_does_not_move_earlier_run(self):
        source = self.model(intermediate_size=96)
        before = sorted(path.name for path in self.dump.iterdir())
        config = (self.dump / "config.toml").read_text()
        result = self.train(source, "training.seed_weights=false", "model.intermediate_size=96")
        self.assert_says(result, 1, "gate_proj", "[64, 32]", "[96, 32]")
        self.assertEqual(sorted(path.name for path in self.dump.iterdir()), before)
        self.assertEqual((self.dump / "config.toml").read_text(), config)

    def test_malformed_json(self):
        source = self.model()
        (self.latest() / "config.json").write_text('{"hidden_size": 32,')
        self.assert_says(self.train(source, "job.dump_folder=other"), 1, "config.json")

    def test_sizes_and_weights_are_loaded(self):
        """The control: with an unchanged config.json the run takes its sizes and weights from the model. A size in the
        run file that contradicts the model is an error."""
        source = self.model()
        saved = pathlib.Path(os.fspath(self.latest()))
        contradicts = self.train(source, "job.dump_folder=other", "model.hidden_size=64")
        self.assert_says(contradicts, 1, "model.hidden_size = 64 (command line), but model.hidden_size = 32")
        run_file = (self.folder / "run.toml").read_text()
        (self.folder / "run.toml").write_text(run_file.replace("hidden_size = 32\n", ""))
        self.train_well(source, "job.dump_folder=other", "training.seed_weights=false", "training.steps=2")
        config = json.loads((self.latest(self.folder / "other") / "config.json").read_text())
        self.assertEqual(config["hidden_size"], json.loads((saved / "config.json").read_text())["hidden_size"])
        self.assertNotEqual(self.losses()[0], self.losses(self.folder / "other")[0])

    def test_generate_from_invalid_directory(self):
        self.assert_says(self.orthant("generate", "nowhere", "--prompt", "a"), 1, "nowhere")
        self.assert_says(self.orthant("generate", ".", "--prompt", "a"), 1, "config.json")
        self.assert_says(self.orthant("report", "nowhere"), 1, "nowhere")


if __name__ == "__main__":
    main()
