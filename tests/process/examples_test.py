"""Tests that every run file in examples/ can be planned and trained, with fewer steps. `verify` accepts the examples of
tensor and vocabulary parallelism. The tables in docs/choosing-a-layout.md are those that `plan` prints."""
import json

from orthant_process import SOURCE, ProcessTest, main

EXAMPLES = sorted((SOURCE / "examples").glob("*.toml"))
PAGE = SOURCE / "docs/choosing-a-layout.md"  # contains tables that `plan` prints for examples


class Examples(ProcessTest):
    def test_every_example_has_plan(self):
        """Every example has a plan, and the tables on the page are those that the plan prints."""
        self.assertTrue(EXAMPLES)
        for example in EXAMPLES:
            with self.subTest(example.name):
                plan = self.orthant("plan", example, "--show", "all")
                self.assertEqual(plan.code, 0, plan)
                if example.stem == "pipeline":
                    self.assertGreater(self.check_page(plan, "all schedules for "), 4)
                if "tensor_parallel" in example.read_text():
                    self.check_tensor_plan(plan)
                if "vocabulary_parallel" in example.read_text():
                    chosen = [line for line in plan.out.splitlines() if line.strip().startswith("algorithm_2")]
                    self.assertEqual([line.endswith("as planned; recommended") for line in chosen], [True], plan)

    def test_every_example_runs(self):
        for example in self.sweep(EXAMPLES, 2):
            with self.subTest(example.name):
                dump = self.folder / example.stem
                result = self.orthant("train", example, "training.steps=2", "lr_scheduler.warmup_steps=1",
                                      "validation.freq=2", "validation.steps=1", f"job.dump_folder={dump}")
                self.assertEqual(result.code, 0, result)
                self.assertEqual([step for step, _ in self.losses(dump)], [1, 2])
                self.assertTrue((dump / "report.html").exists())
                self.assertGreater(len((dump / "sample.txt").read_text()), 20)
                if "objective = \"masked\"" in example.read_text():
                    self.check_masked(dump, result)
                if "tensor_parallel" in example.read_text():
                    self.check_verified(example)
                    text = self.orthant("generate", dump, "--prompt", "The", "--max-new-tokens", "8")
                    self.assertEqual((text.code, text.out[:3]), (0, "The"), text)
                if "vocabulary_parallel" in example.read_text():
                    self.check_verified(example)

    def check_tensor_plan(self, plan):
        """The plan's table of tensor meshes marks the planned mesh."""
        chosen = [line for line in plan.out.splitlines() if line.strip().startswith("[2, 2, 2]")]
        self.assertEqual([line.endswith("as planned") for line in chosen], [True], plan)
        self.assertIn("lower bound forward for meshes without depth", plan.out)
        self.assertGreater(self.check_page(plan, "all tensor meshes of "), 9)

    def check_verified(self, example):
        verify = self.orthant("verify", example, "--steps", "1")
        self.assertEqual(verify.code, 0, verify)
        self.assertIn("ok: the layout computes what one device computes", verify.out)

    def check_page(self, plan, title):
        """Checks that the table with this title on the page consists of lines that the plan printed, in order; "..."
        stands for omitted lines. Returns the number of lines shown."""
        page, said = PAGE.read_text().splitlines(), plan.out.splitlines()
        begin = page.index("    " + next(line for line in said if line.startswith(title)))
        start, shown, at = said.index(page[begin][4:]), 0, None
        for line in (line[4:] for line in page[begin:page.index("", begin)]):
            if line.strip() == "...":
                at = None
                continue
            if at is None:
                self.assertIn(line, said[start:], plan)
                at = said.index(line, start)
            self.assertEqual(line, said[at], "what the plan says here")
            shown, at = shown + 1, at + 1
        return shown

    def check_masked(self, dump, result):
        """A run with masked words: its sample shows what the model fills in, no output states bits per byte, and
        `generate` refuses the model."""
        self.assertEqual([line.split(":")[0] for line in (dump / "sample.txt").read_text().splitlines()],
                         ["masked", "model", "text"])
        validations = [record for record in self.records(dump) if "validation_loss" in record]
        self.assertEqual([record["bits_per_byte"] for record in validations], [None])
        # "tokens" counts all tokens of 2 steps of 16 sequences of 128 tokens, not only the masked ones.
        self.assertEqual(self.steps(dump)[-1]["tokens"], 2 * 16 * 128)
        self.assertNotIn("bits/byte", result.out + (dump / "report.html").read_text())
        self.assertNotIn("orthant generate", result.out)
        config = json.loads((self.latest(dump) / "config.json").read_text())
        self.assertEqual((config["is_causal"], config["mask_token_id"]), (False, config["vocab_size"] - 1))
        self.assert_says(self.orthant("generate", dump, "--prompt", "The"), 1, str(dump), "model.objective = \"masked\"")


class LongExamples(Examples):
    pass


if __name__ == "__main__":
    main()
