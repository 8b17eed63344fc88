"""Tests that training does not wait for a slow disk: a thread reads the next batches. slow_disk.cc makes each read of a
page of the token file wait."""
import pathlib
import shutil
import statistics
import subprocess
import unittest

from orthant_process import ProcessTest, main

SHIM = pathlib.Path(__file__).with_name("slow_disk.cc")
STEPS = 12
ARGUMENTS = (f"training.steps={STEPS}", "training.seq_len=256", "training.global_batch_size=4", "run.ranks=1",
             "model.max_position_embeddings=256", "model.hidden_size=64", "data.path=tokens", "validation.freq=0",
             "checkpoint.interval=0")


@unittest.skipUnless(shutil.which("c++"), "no compiler")
class SlowDisk(ProcessTest):
    def setUp(self):
        super().setUp()
        self.shim = self.folder / "slow_disk.so"
        options = ["-std=c++20", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
        subprocess.run(["c++", *options, SHIM, "-o", self.shim], check=True)
        (self.folder / "text.txt").write_text("".join(f"Line {i} follows line {i - 1}.\n" for i in range(4000)))
        self.assertEqual(self.orthant("tokenize", "text.txt", "--output", "tokens").code, 0)

    def train_on_slow_disk(self, name, delay_s):
        """Trains while each read of a page takes delay_s longer. Returns the records of the steps after the first one,
        and the threads that waited, in order, from the first batch on: "main" or "other"."""
        log = self.folder / f"{name}.log"
        # UCX would replace mmap() by its own function, which does not call the shim.
        env = {"LD_PRELOAD": str(self.shim), "SLOW_DISK_MS": str(delay_s * 1e3), "SLOW_DISK_LOG": str(log),
               "UCX_MEM_MMAP_HOOK_MODE": "none"}
        self.train_well(*ARGUMENTS, f"job.dump_folder={self.folder / name}", env=env)
        # Before the first batch, the main thread reads the file to compute its fingerprint.
        lines = log.read_text().split()
        self.assertIn("other", lines)
        return self.steps(self.folder / name)[1:], lines[lines.index("other"):]

    def test_reads_are_hidden_unless_they_take_longer_than_a_step(self):
        def median(steps, key):  # a busy machine delays single steps
            return statistics.median(step[key] for step in steps)

        steps, threads = self.train_on_slow_disk("fast", 0)
        step_s = median(steps, "step_seconds")
        pages = len(threads) / STEPS
        self.assertGreater(pages, 3)  # a step reads 4 sequences from different pages

        # The reads of a step take a fifth of a step: the thread that reads ahead waits, training does not. The bound
        # leaves room for what training itself does with a batch.
        waiting_s = step_s / 5
        steps, threads = self.train_on_slow_disk("hidden", waiting_s / pages)
        self.assertGreater(threads.count("other"), 3 * (STEPS - 2))
        self.assertLess(threads.count("main"), 2 * pages)  # at most in the first step
        self.assertLess(median(steps, "data_seconds"), waiting_s / 4, (step_s, steps))

        # Control: reads that take six times as long as a step cannot be hidden, and data_seconds reports the wait.
        waiting_s = 6 * step_s
        steps, threads = self.train_on_slow_disk("exposed", waiting_s / pages)
        self.assertGreater(median(steps, "data_seconds"), waiting_s / 4, (step_s, steps))


if __name__ == "__main__":
    main()
