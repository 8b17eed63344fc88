"""What is done with a run when it is over: text from its model, its report."""
import struct
import sys
import unittest

from orthant_process import ProcessTest, read_safetensors


class Generate(ProcessTest):
    def setUp(self):
        super().setUp()
        self.train_well("training.steps=5", "run.ranks=1", "validation.freq=0")

    def generate(self, *arguments):
        return self.orthant("generate", "run", "--prompt", "The red door", "--temperature", "0", *arguments)

    def test_where_the_positions_end(self):
        result = self.generate("--max-new-tokens", "1000")
        self.assertEqual((result.code, len(result.err.splitlines())), (0, 1), result)
        self.assertIn("max_position_embeddings = 128", result.err)
        self.assertGreater(len(result.out), len("The red door") + 100)
        result = self.generate("--max-new-tokens", "20")  # the control
        self.assertEqual((result.code, result.err), (0, ""), result)

    def test_weights_that_are_not_finite(self):
        model = self.latest()
        header, data, head = read_safetensors(model / "model.safetensors")
        for value in (float("nan"), float("inf")):
            begin = header["model.layers.0.mlp.up_proj.weight"]["data_offsets"][0]
            data[begin + 40:begin + 44] = struct.pack("<f", value)
            (model / "model.safetensors").write_bytes(head + data)
            self.assert_says(self.generate(), 1, str(model.name), "model.layers.0.mlp.up_proj.weight", "not finite",
                             "earlier checkpoint")

    def test_numbers_beyond_all_measure(self):
        largest = 2**63 - 1
        for option in ("--seed", "--max-new-tokens"):
            for value in (largest + 1, 2**64 + 1, 10**30, "1.5", "1e3"):
                result = self.generate(option, str(value))
                self.assert_says(result, 2, option, str(value), str(largest))
        self.assertEqual(self.generate("--seed", str(largest)).code, 0)

    def test_another_seed_is_another_text(self):
        texts = {self.orthant("generate", "run", "--temperature", "1", "--seed", str(seed)).out
                 for seed in (1, 1 + 2**32, 2**63 - 1)}
        self.assertEqual(len(texts), 3)


class Report(ProcessTest):
    def test_a_history_damaged_in_the_middle(self):
        self.train_well("training.steps=5", "run.ranks=1", "validation.freq=0")
        path = self.dump / "metrics.jsonl"
        lines = path.read_text().splitlines(keepends=True)
        path.write_text("".join(lines[:2]) + lines[2][:20] + "\n" + "".join(lines[3:]))
        self.assert_says(self.orthant("report", "run"), 1, "run/metrics.jsonl:3: ")
        path.write_text("".join(lines[:2]) + lines[2][:20])  # the control: a last line that is torn is left out
        self.assertEqual(self.orthant("report", "run").code, 0)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v", *sys.argv[1:]])
