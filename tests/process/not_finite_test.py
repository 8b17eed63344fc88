"""Runs with losses, gradients and weights that are not finite: the errors, and the rules that skip such steps."""
import json
import re
import shutil
import struct

from orthant_process import ProcessTest, main, read_safetensors


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
