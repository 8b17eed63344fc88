"""Tests of the errors for text and tokens that are missing, empty, too short, damaged, or from another vocabulary. The
message names the file and the offset. Also tests the errors for losses, gradients and weights that are not finite."""
import json
import os
import pathlib
import re
import shutil
import signal
import struct

from orthant_process import ORTHANT, ProcessTest, main, read_safetensors, wait_until


PLACEMENTS = ("none", "redistribution", "interlaced", "naive", "algorithm_1", "algorithm_2")


def write_tokens(prefix, documents, type_code=8, pack="<H"):
    """Writes a Megatron dataset, PREFIX.bin and PREFIX.idx. The type code 8 is uint16."""
    with open(f"{prefix}.bin", "wb") as data:
        for document in documents:
            data.write(b"".join(struct.pack(pack, token) for token in document))
    width, at, offsets = struct.calcsize(pack), 0, []
    for document in documents:
        offsets.append(at)
        at += len(document) * width
    with open(f"{prefix}.idx", "wb") as index:
        index.write(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, type_code, len(documents), len(documents) + 1))
        index.write(struct.pack(f"<{len(documents)}i", *map(len, documents)))
        index.write(struct.pack(f"<{len(documents)}q", *offsets))
        index.write(struct.pack(f"<{len(documents) + 1}q", *range(len(documents) + 1)))


class Text(ProcessTest):
    def test_missing_file(self):
        for ranks in (1, 2):
            result = self.train("data.path=nowhere.txt", f"run.ranks={ranks}")
            self.assert_says(result, 1, "data.path", "nowhere.txt", "no such file")
            self.assertFalse((self.dump / "metrics.jsonl").exists())

    def test_glob_without_matches(self):
        self.assert_says(self.train("data.path=books/*.txt"), 1, "data.path", "books/*.txt", "matches no file",
                         str(self.folder))

    def test_folder_instead_of_file(self):
        (self.folder / "books").mkdir()
        self.assert_says(self.train("data.path=books"), 1, "books", "directory")

    def test_empty_and_blank_text(self):
        (self.folder / "text.txt").write_text("")
        self.assert_says(self.train(), 1, "text.txt", "empty")
        (self.folder / "text.txt").write_text("\n \n\t\n")
        self.assert_says(self.train(), 1, "text.txt", "blank")

    def test_blank_text_to_tokenize(self):
        (self.folder / "blank.txt").write_text("\n \n\t\r\n")
        for tokenizer in ("byte", "train:300"):
            result = self.orthant("tokenize", "blank.txt", "--output", "out", "--tokenizer", tokenizer)
            self.assert_says(result, 1, "no text")
            self.assertEqual([path.name for path in self.folder.glob("out*")], [])
            self.assertEqual([path.name for path in self.folder.glob("*.tmp*")], [])

    def test_pipes_are_refused(self):
        os.mkfifo(self.folder / "pipe.txt")
        self.assert_says(self.train("data.path=pipe.txt"), 1, "data.path", "pipe.txt", "not a regular file",
                         "write it to a file")
        self.assert_says(self.orthant("tokenize", "pipe.txt", "--output", "out"), 1, "pipe.txt", "not a regular file")
        for name in ("pipe.model", "tokens.idx", "tokens.bin"):
            os.mkfifo(self.folder / name)
        self.assert_says(self.train("data.tokenizer=pipe.model"), 1, "data.tokenizer", "pipe.model", "not a regular file")
        self.assert_says(self.train("data.path=tokens"), 1, "tokens.idx", "not a regular file")

    def test_broken_paths(self):
        long = "n" * 300
        for key, ending in (("data.path", ""), ("data.tokenizer", ".model")):
            os.symlink("loop" + ending, self.folder / ("loop" + ending))
            self.assert_says(self.train(f"{key}=loop{ending}"), 1, f"loop{ending}: ", "symbolic link", "points to itself")
            self.assert_says(self.train(f"{key}={long}{ending}"), 1, long, "too long", "shorter")
        self.assert_says(self.orthant("tokenize", "loop", "--output", "out"), 1, "loop: ", "points to itself")
        self.assert_says(self.orthant("generate", "loop"), 1, "loop", "points to itself")

    def test_too_little_text(self):
        (self.folder / "text.txt").write_text("A few words.\n")
        self.assert_says(self.train("validation.freq=0"), 1, "data.path", "14 tokens", "training.seq_len + 1 = 33")

    def test_too_little_text_to_hold_out(self):
        (self.folder / "text.txt").write_text("One document only, of more than enough tokens. " * 20)
        self.assert_says(self.train(), 1, "data.validation", "single document", "data.validation = 0")

    def test_damaged_gzip(self):
        (self.folder / "text.gz").write_bytes(b"\x1f\x8b\x08" + bytes(40))
        self.assert_says(self.train("data.path=text.gz"), 1, "text.gz")


class Tokens(ProcessTest):
    def setUp(self):
        super().setUp()
        result = self.orthant("tokenize", "text.txt", "--output", "tokens")
        self.assertEqual(result.code, 0, result)
        self.bin = self.folder / "tokens.bin"

    def test_intact_tokens_train_like_their_text(self):
        self.train_well("data.path=tokens", "training.steps=3")
        tokens = self.losses()
        self.train_well("training.steps=3", "job.dump_folder=other")
        self.assertEqual(tokens, self.losses(self.folder / "other"))

    def test_truncated_bin(self):
        size = self.bin.stat().st_size
        with open(self.bin, "r+b") as file:
            file.truncate(size - 101)
        self.assert_says(self.train("data.path=tokens"), 1, "tokens.bin", f"{size}", f"{size - 101}")
        self.bin.unlink()
        self.assert_says(self.train("data.path=tokens"), 1, "tokens.bin")

    def test_truncated_idx(self):
        index = self.folder / "tokens.idx"
        index.write_bytes(index.read_bytes()[:-9])
        self.assert_says(self.train("data.path=tokens"), 1, "tokens.idx", "offset")

    def test_tokens_outside_vocabulary(self):
        documents = [list(range(100, 200)) for _ in range(40)]
        documents[7][13] = 300  # a token of a larger vocabulary
        write_tokens(self.folder / "large", documents)
        parts = ("large.bin", f"offset {2 * (7 * 100 + 13)}", "document 7, position 13: token 300", "257", "tokenizer")
        for ranks in (1, 2):
            self.assert_says(self.train("data.path=large", "training.steps=200", f"run.ranks={ranks}"), 1, *parts)
        for placement in PLACEMENTS:
            self.assert_says(self.train("data.path=large", "parallelism.pipeline_parallel_degree=2",
                                        f"parallelism.vocabulary_parallel={placement}"), 1, *parts)

    def test_labels_damaged_on_disk(self):
        place = self.bin.stat().st_size // 4 * 2
        with open(self.bin, "r+b") as file:
            file.seek(place)
            file.write(b"\xff\xff")
        for placement in PLACEMENTS:
            message = self.assert_says(self.train("data.path=tokens", "parallelism.pipeline_parallel_degree=2",
                                                  f"parallelism.vocabulary_parallel={placement}"),
                                       1, "tokens.bin", f"offset {place}", "token 65535", "257")
            self.assertRegex(message, r"document \d+, position \d+")
        self.assert_says(self.train("data.path=tokens", "run.ranks=1"), 1, "tokens.bin", f"offset {place}")

    def test_verify_and_plan_report_same_error(self):
        for command in ("verify", "plan"):
            self.assert_says(self.orthant(command, "run.toml", "data.path=nowhere"), 1, "nowhere")
        self.assert_says(self.orthant("tokenize", "nowhere", "--output", "x"), 1, "nowhere")


    def test_dataset_truncated_during_read(self):
        for ranks in (1, 2):
            running = self.start_training("data.path=tokens", f"run.ranks={ranks}", "checkpoint.interval=0",
                                          "validation.freq=0")
            whole = self.bin.read_bytes()
            os.truncate(self.bin, 0)
            result = running.result()
            self.assertEqual(result.code, 1, result)
            self.assertIn("error: tokens.bin: the file was shortened while it was being read", result.err)
            self.bin.write_bytes(whole)
            shutil.rmtree(self.dump)


class Documents(ProcessTest):
    """data.mask_documents with documents that are longer than a sample."""

    def documents(self, name, longer={}):
        write_tokens(self.folder / name, [[100 + i] * longer.get(i, 20) for i in range(40)])
        return name

    def asked(self, name, *settings, command="train"):
        dry = ["--dry-run"] if command == "train" and "run.ranks=2" not in settings else []
        return self.orthant(command, "run.toml", f"data.path={name}", "data.mask_documents=true", *settings, *dry)

    def test_document_as_long_as_sample(self):
        self.documents("books", {11: 32})
        result = self.asked("books")
        self.assertEqual(result.code, 0, result)

    def test_documents_longer_than_sample(self):
        self.documents("books", {11: 33, 12: 150, 30: 34})
        parts = ("data.mask_documents = true (command line)", "document 12 (from 0) of data.path = [\"books\"]",
                 "150 tokens, more than training.seq_len = 32 (run.toml:", "3 of 40 documents",
                 "Set training.seq_len to at least 150 and model.max_position_embeddings too",
                 "data.long_documents to \"cut\"")
        for ranks in (1, 2):
            self.assert_says(self.asked("books", f"run.ranks={ranks}"), 1, *parts)
        self.assert_says(self.asked("books", command="verify"), 1, *parts)
        self.assertFalse((self.dump / "metrics.jsonl").exists())
        self.train_well("data.path=books", "data.mask_documents=true", "data.long_documents=cut", "training.steps=2")
        self.train_well("data.path=books", "training.steps=2")  # without the mask, documents of any length are legal

    def test_suggested_length_works(self):
        self.documents("books", {5: 33})
        message = self.assert_says(self.asked("books"), 1, "document 5 (from 0)", "at least 33, or")
        self.assertNotIn("max_position_embeddings", message)
        self.assertEqual(self.asked("books", "training.seq_len=33").code, 0)

    def test_held_out_documents_longer_than_sample(self):
        self.documents("books")
        self.documents("held", {39: 40})
        self.assert_says(self.asked("books", "data.validation=held"), 1, "document 39 (from 0) of data.validation")


class CachedTokens(ProcessTest):
    """The tokens and the tokenizer in a run folder are made again if they were damaged, with a note, and the losses
    are unchanged."""

    def damage(self, name):
        path, = (self.dump / "data").glob(name)
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
        return path

    def test_damaged_tokens_are_created_again(self):
        self.train_well("training.steps=8")
        whole = self.losses()
        for arguments in (("training.steps=8",), ("training.steps=5",), ("training.steps=8", "--resume")):
            path = self.damage("tokens-*.bin")
            result = self.train_well(*arguments)
            self.assertEqual(result.err.count("is damaged"), 1, result)
            self.assertIn(f"note: run/data/{path.name} is damaged", result.err)
            self.assertEqual(self.losses(), whole[:len(self.losses())])
        self.assertNotIn("damaged", self.train_well("training.steps=5").err)

    def test_damaged_tokenizer_is_trained_again(self):
        settings = ("data.tokenizer=train:300", "training.steps=5")
        self.train_well(*settings)
        whole = self.losses()
        path = self.damage("tokenizer-*.model")
        result = self.train_well(*settings, "training.steps=8", "--resume")
        self.assertIn(f"note: run/data/{path.name} is damaged", result.err)
        self.assertEqual(self.losses()[:5], whole)


class Programs(ProcessTest):
    def test_tokenizer_training_ends_with_killed_run(self):
        (self.folder / "bin").mkdir()
        program = self.folder / "bin/spm_train"
        program.write_text("#!/bin/sh\necho $$ > pid\nexec sleep 1000\n")
        program.chmod(0o755)
        arguments = ("tokenize", "text.txt", "--output", "out", "--tokenizer", "train:300")
        running = self.start([ORTHANT, *arguments], {"PATH": f"{self.folder}/bin:{os.environ['PATH']}"})

        def started():
            return [path for path in self.folder.glob(".orthant-tokenizer.*/work/*.tmp*/pid") if path.read_text().endswith("\n")]

        running.until(started, "spm_train")
        pid = int(started()[0].read_text())
        running.process.kill()
        self.assertEqual(running.result().code, -signal.SIGKILL)

        def lives():
            try:
                return ") Z " not in pathlib.Path(f"/proc/{pid}/stat").read_text()
            except OSError:
                return False

        wait_until(lambda: not lives(), f"end of {pid}")
        self.assertTrue(started())  # the temporary folder is left, because a killed program cannot remove it
        (self.folder / "out-tokenizer.backup").mkdir()  # a folder of the user
        result = self.orthant(*arguments)
        self.assertEqual(result.code, 0, result)
        self.assertEqual(list(self.folder.glob("*.tmp*")) + list(self.folder.glob(".orthant*")), [])
        self.assertTrue((self.folder / "out-tokenizer.backup").exists())


class Numbers(ProcessTest):
    def test_learning_rate_too_large(self):
        for ranks in (1, 2):
            shutil.rmtree(self.dump, ignore_errors=True)
            result = self.train("optimizer.lr=1e10", "checkpoint.interval=1", "training.steps=50", "validation.freq=0",
                                "training.max_norm=0", f"run.ranks={ranks}")
            message = self.assert_says(result, 1, "is not finite: the ", "run/checkpoints/step-0000", "optimizer.lr")
            self.assertRegex(message, r"step \d+: loss \S+, gradient norm (nan|inf)")
            command = self.resume_command(message)
            good = self.weights()
            self.assertIn(self.latest().name, message)
            # Resumed with a rate that is still too large, the run fails again, and the checkpoint remains the good one.
            again = self.start(command).result()
            self.assert_says(again, 1, "is not finite")
            self.assertEqual(self.weights(), good)

    def test_skipped_steps(self):
        """The logit of one token is -inf, so that the loss is infinite in each batch that has the token as a label. The
        same steps are skipped on one rank, on two, and with post-validation, and their lines say so."""
        paragraphs = (self.folder / "text.txt").read_text().split("\n\n")
        (self.folder / "text.txt").write_text("\n\n".join(
            paragraph + (" Z" if i % 40 == 7 else "") for i, paragraph in enumerate(paragraphs)))
        self.train_well("training.steps=1")
        model = self.latest()
        header, data, head = read_safetensors(model / "model.safetensors")
        embedding = header["model.embed_tokens.weight"]
        for row in range(embedding["shape"][0]):  # then the first channel of the head's input is about sqrt(32)
            data[(begin := embedding["data_offsets"][0] + 4 * 32 * row):begin + 4] = struct.pack("<f", 50)
        begin = header["lm_head.weight"]["data_offsets"][0] + 4 * 32 * ord("Z")
        data[begin:begin + 4 * 32] = struct.pack("<32f", -3e38, *[0] * 31)
        (model / "model.safetensors").write_bytes(head + data)
        keys = [f"model.from={model}", "training.seed_weights=false", "training.steps=30", "validation.freq=0",
                "checkpoint.interval=0"]
        self.assert_says(self.train(*keys, "job.dump_folder=stopped"), 1, "loss inf,")
        keys += ["training.on_nonfinite=skip", "training.max_skipped_steps=3", "training.max_norm=100", "optimizer.lr=1e-3"]
        layouts = (["run.ranks=1"], ["run.ranks=2", "parallelism.zero_stage=3"],
                   ["run.ranks=2", "parallelism.pipeline_parallel_degree=2",
                    "parallelism.pipeline_parallel_post_validation=true"])
        skipped = []
        for i, layout in enumerate(layouts):
            result = self.train_well(*keys, *layout, f"job.dump_folder=skips{i}", "metrics.enable_prometheus=true")
            steps = self.steps(self.folder / f"skips{i}")
            self.assertEqual([step["step"] for step in steps], list(range(1, 31)))
            skipped.append([step["step"] for step in steps if step.get("skipped")])
            self.assertEqual([step["step"] for step in steps if step["loss"] is None], skipped[i])
            self.assertIn(f"\northant_skipped_steps_total {len(skipped[i])}\n",
                          (self.folder / f"skips{i}/metrics.prom").read_text())
            self.assertEqual(len(re.findall(r"^skip +\d+/30  loss +inf  gnorm +\S+  update left out; [123] of at most 3 in",
                                            result.out, re.M)), len(skipped[i]), result)
            self.assertEqual(len(re.findall(r"^step +\d+/30  loss +\d", result.out, re.M)), 30 - len(skipped[i]))
        self.assertTrue(0 < len(skipped[0]) < 15, skipped)
        self.assertEqual(skipped, [skipped[0]] * len(layouts))
        for one, *others in zip(*(self.losses(self.folder / f"skips{i}") for i in range(len(layouts)))):
            for other in others:
                self.assertEqual(other[1] is None, one[1] is None)
                self.assertAlmostEqual(other[1] or 0, one[1] or 0, 3)
        state = json.loads((self.latest(self.folder / "skips0") / "orthant/state.json").read_text())
        self.assertEqual(state["skipped_steps"], len(skipped[0]))

    def test_more_skipped_steps_than_allowed(self):
        """No checkpoint is saved while steps are skipped, so those before remain."""
        self.train_well("training.steps=5")
        result = self.train("--resume", "optimizer.lr=1e10", "training.steps=50", "validation.freq=0",
                            "checkpoint.interval=1", "training.max_norm=0", "training.on_nonfinite=skip",
                            "training.max_skipped_steps=3")
        message = self.assert_says(result, 1, ", after training.max_skipped_steps = 3 skipped steps in a row. ",
                                   "not finite: the ", "step-000006", "move that checkpoint away")
        self.assertEqual([step.get("skipped", False) for step in self.steps()][-4:], [False, True, True, True])
        self.assertEqual(sorted(path.name for path in (self.dump / "checkpoints").glob("step-*")),
                         ["step-000005", "step-000006"])
        *shell, command = self.resume_command(message)
        # The update of step 6 has ruined the weights, so the message's first way out fails, and its second succeeds.
        rate = re.search(r"optimizer\.lr=1e\+09", message).group()
        again = ["optimizer.lr=1e-3", "training.steps=12"]
        self.assert_says(self.start([*shell, " ".join([command, rate, *again])]).result(), 1, "not finite: the ")
        shutil.move(self.dump / "checkpoints/step-000006", self.folder)
        result = self.start([*shell, " ".join([command, *again])]).result()
        self.assertEqual(result.code, 0, result)

    def test_saves_of_skipped_steps_remove_nothing(self):
        """The update of step 6 ruins the weights. The last step is saved although it is skipped, and the checkpoint from
        before stays."""
        self.train_well("training.steps=5")
        self.train_well("--resume", "optimizer.lr=1e10", "training.steps=8", "validation.freq=0", "checkpoint.interval=1",
                        "training.max_norm=0", "training.on_nonfinite=skip")
        self.assertEqual(sorted(path.name for path in (self.dump / "checkpoints").glob("step-*")),
                         ["step-000005", "step-000006", "step-000008"])

    def test_save_waits_for_an_update(self):
        """A save that falls due at a skipped step is made after the next update, and the last one in any case."""
        keys = ["training.steps=20", "validation.freq=0", "checkpoint.interval=0", "training.max_norm=0",
                "optimizer.lr=1e-12"]
        self.train_well(*keys)
        norms = {step["step"]: step["grad_norm"] for step in self.steps()}
        largest = sorted(norms, key=norms.get)[-6:]
        limit = (norms[largest[0]] + norms[largest[1]]) / 2
        skipped = sorted(largest[1:])
        layouts = (["run.ranks=1"], ["run.ranks=2", "parallelism.pipeline_parallel_degree=2",
                                     "parallelism.pipeline_parallel_post_validation=true"])
        for i, layout in enumerate(layouts):
            result = self.train_well(*keys, *layout, "training.on_nonfinite=skip", f"training.skip_above_norm={limit}",
                                     "checkpoint.interval=1", "checkpoint.keep_latest_k=0",
                                     f"job.dump_folder=spikes{i}")
            folder = self.folder / f"spikes{i}"
            self.assertEqual([step["step"] for step in self.steps(folder) if step.get("skipped")], skipped)
            self.assertEqual(result.out.count("update left out"), len(skipped))
            self.assertEqual([int(path.name[5:]) for path in sorted((folder / "checkpoints").glob("step-*"))],
                             [step for step in norms if step not in skipped or step == 20])
            self.assertEqual(json.loads((self.latest(folder) / "orthant/state.json").read_text())["skipped_steps"], 5)
        self.assert_says(self.train(*keys, "training.on_nonfinite=skip", "training.skip_above_norm=1e-3"), 1,
                         "step 11: ", "10 skipped steps in a row. The norm exceeds training.skip_above_norm = 0.001")
        self.assert_says(self.train("training.skip_above_norm=1"), 1, "training.skip_above_norm = 1",
                         "has no effect with training.on_nonfinite")
        result = self.orthant("verify", "run.toml", "training.on_nonfinite=skip", "training.skip_above_norm=1e-3",
                              "parallelism.zero_stage=1")
        self.assertEqual((result.code, result.out.splitlines()[-1][:3]), (0, "ok:"), result)

    def test_overflowed_update_is_not_saved(self):
        for ranks in (1, 2):
            result = self.train("optimizer.lr=1e38", "checkpoint.interval=1", "training.steps=50", f"run.ranks={ranks}")
            self.assert_says(result, 1, "step 1: the update made the weight ", "not finite", "optimizer.lr")
            self.assertFalse((self.dump / "checkpoints").exists())

    def test_not_finite_before_first_checkpoint(self):
        self.assert_says(self.train("optimizer.lr=1e38", "training.steps=50", "validation.freq=0",
                                    "checkpoint.interval=0"), 1, "not finite", "no checkpoint yet", "optimizer.lr")

    def test_infinite_weight(self):
        self.train_well("training.steps=2")
        model = self.latest()
        header, data, head = read_safetensors(model / "model.safetensors")
        begin = header["model.layers.1.mlp.down_proj.weight"]["data_offsets"][0]
        data[begin + 40:begin + 44] = struct.pack("<f", float("inf"))
        (model / "model.safetensors").write_bytes(head + data)
        for ranks in (1, 2):
            result = self.train(f"model.from={model}", "training.seed_weights=false", "job.dump_folder=other",
                                f"run.ranks={ranks}")
            self.assert_says(result, 1, "model.layers.1.mlp.down_proj.weight has values that are not finite", str(model))


if __name__ == "__main__":
    main()
