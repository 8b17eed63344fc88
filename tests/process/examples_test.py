"""Every run file of examples/ runs, with fewer steps."""
import sys
import unittest

from orthant_process import SOURCE, ProcessTest

EXAMPLES = sorted((SOURCE / "examples").glob("*.toml"))


class Examples(ProcessTest):
    def test_each(self):
        self.assertTrue(EXAMPLES)
        for example in EXAMPLES:
            with self.subTest(example.name):
                dump = self.folder / example.stem
                result = self.orthant("train", example, "training.steps=2", "lr_scheduler.warmup_steps=1",
                                      "validation.freq=2", "validation.steps=1", f"job.dump_folder={dump}")
                self.assertEqual(result.code, 0, result)
                self.assertEqual([step for step, _ in self.losses(dump)], [1, 2])
                self.assertTrue((dump / "report.html").exists())
                self.assertGreater(len((dump / "sample.txt").read_text()), 20)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v", *sys.argv[1:]])
