"""Tests of `--restarts`: after the death of a rank the run continues, and ends with the losses and weights of a run
without the failure, to the bit. Also tests of runs that are resumed on fewer ranks."""
import fcntl
import math
import os
import random
import re
import shutil
import signal
import struct
import time

from orthant_process import HANG_S, ORTHANT, ProcessTest, free_port, main, meeting, read_safetensors, torchrun


class RestartsTest(ProcessTest):
    STEPS = ["training.steps=100", "checkpoint.interval=20", "validation.freq=0"]

    def start_run(self, *arguments):
        return self.start([ORTHANT, "train", "run.toml", *arguments])

    def last_step(self):
        return self.steps()[-1]["step"] if self.steps() else 0

    def kill_after(self, running, step, rank):
        """Kills a rank of the newest start when the run has recorded this step."""
        running.until(lambda: self.last_step() >= step and rank in running.ranks(), f"step {step}")
        os.kill(running.ranks()[rank], signal.SIGKILL)

    def restarts(self, result):
        return [line for line in result.err.splitlines() if line.startswith("restart ")]

    def assert_equals_undisturbed_run(self, *arguments):
        self.train_well(*arguments, "job.dump_folder=whole")
        self.assertEqual(self.losses(), self.losses(self.folder / "whole"))
        self.assertEqual(self.weights(), self.weights(self.folder / "whole"))


class Restarts(RestartsTest):
    def test_killed_ranks(self):
        running = self.start_run(*self.STEPS, "--restarts", "3")
        self.kill_after(running, 25, rank=1)
        running.until(lambda: "restart 1 of 3" in running._text(1), "restart")
        self.kill_after(running, 65, rank=0)
        result = running.result()
        self.assertEqual((result.code, result.errors()), (0, []), result)
        first, second = self.restarts(result)
        self.assertRegex(first, r"^restart 1 of 3: rank 1 was killed by SIGKILL .*, after step \d+\. The ranks go on with "
                                r"step \d+1, from run/checkpoints/step-0000\d0; 2 restarts left$")
        self.assertRegex(second, r"^restart 2 of 3: rank 0 was killed by SIGKILL .*; 1 restart left$")
        self.assertEqual(len(re.findall(r"resumed +from run/checkpoints/step-0000[2468]0 ", result.out)), 2, result)
        self.assert_equals_undisturbed_run(*self.STEPS)

    def test_without_checkpoint_run_begins_again(self):
        """The folder has the checkpoint of an earlier run, with another seed, which this run must not continue."""
        self.train_well("training.steps=2", "training.seed=7")
        keys = ["training.steps=40", "checkpoint.interval=0", "validation.freq=0"]
        running = self.start_run(*keys, "--restarts", "1")
        running.until(lambda: (self.dump / "earlier/1").exists() and self.last_step() >= 5, "step 5")
        self.kill_after(running, 5, rank=1)
        result = running.result()
        self.assertEqual((result.code, result.errors()), (0, []), result)
        [line] = self.restarts(result)
        self.assertIn("begin again with step 1, because there is no checkpoint of this run yet; 0 restarts left", line)
        self.assertGreaterEqual(len(self.steps(self.dump / "earlier/2")), 5)
        self.assert_equals_undisturbed_run(*keys)

    def test_run_of_one_rank(self):
        running = self.start_run(*self.STEPS, "run.ranks=1", "--restarts", "1")
        self.kill_after(running, 25, rank=0)
        result = running.result()
        self.assertEqual((result.code, result.errors(), len(self.restarts(result))), (0, [], 1), result)
        self.assert_equals_undisturbed_run(*self.STEPS, "run.ranks=1")

    def test_failure_that_repeats_uses_up_restarts(self):
        """A rank reports its failure at each start. The message of a restart refers to it."""
        result = self.train("optimizer.lr=1e10", "checkpoint.interval=1", "training.steps=50", "validation.freq=0",
                            "training.max_norm=0", "run.ranks=1", "lr_scheduler.warmup_steps=20", "--restarts", "2")
        self.assertEqual(result.code, 1, result)
        self.assertIn("error: step ", result.err)
        self.assertEqual(len(self.restarts(result)) + 1, len(result.errors()), result)
        for line in self.restarts(result):
            self.assertIn("ended with exit code 1, for the reason above", line)
        self.assertRegex(result.err, "the ranks are not started again: (all 2 restarts of --restarts are used up|"
                                     "2 starts in a row have failed before their first step)")

    def test_damaged_checkpoint_is_skipped(self):
        """The newest checkpoint has a wrong byte. The first restart refuses it, and the second one uses the one before."""
        keys = ["training.steps=400", "checkpoint.interval=100", "validation.freq=0", "metrics.enable_tensorboard=false"]
        running = self.start_run(*keys, "--restarts", "2")
        newest = self.dump / "checkpoints/step-000200"
        running.until(newest.exists, "step 200")
        with open(newest / "model.safetensors", "r+b") as file:
            file.seek(-1, os.SEEK_END)
            last = file.read(1)[0]
            file.seek(-1, os.SEEK_END)
            file.write(bytes([last ^ 1]))
        os.kill(running.ranks()[1], signal.SIGKILL)
        result = running.result()
        self.assertEqual(result.code, 0, result)
        self.assertEqual(len(self.restarts(result)), 2, result)
        self.assertIn("so the run goes on from an earlier one: ", result.err)
        self.assertIn("go on with step 101, from run/checkpoints/step-000100", self.restarts(result)[1])
        self.assert_equals_undisturbed_run(*keys)

    def test_killed_too_often(self):
        running = self.start_run(*self.STEPS, "training.steps=1000000", "--restarts", "1")
        self.kill_after(running, 25, rank=1)
        running.until(lambda: "restart 1 of 1" in running._text(1), "restart")
        self.kill_after(running, 45, rank=1)
        message = self.assert_says(running.result(), 1, "rank 1 was killed by SIGKILL", "Resume from run/checkpoints/step-")
        self.assertIn("--restarts 1 --resume", self.resume_command(message)[2])

    def test_two_failed_starts_end_the_run(self):
        """The model that the run continues has an infinite weight, which its ranks refuse."""
        self.train_well("training.steps=1", "job.dump_folder=model")
        path = self.latest(self.folder / "model") / "model.safetensors"
        header, data, head = read_safetensors(path)
        begin = header["model.norm.weight"]["data_offsets"][0]
        data[begin:begin + 4] = struct.pack("<f", math.inf)
        path.write_bytes(head + bytes(data))
        result = self.train("model.from=model/checkpoints/latest", "training.seed_weights=false", "--restarts", "9")
        self.assertEqual((result.code, len(result.errors()), len(self.restarts(result))), (1, 2, 1), result)
        self.assertIn("before the first step", self.restarts(result)[0])
        self.assertIn("not started again: 2 starts in a row have failed before their first step", result.err)

    def test_stopped_run_does_not_start_again(self):
        for number, code in ((signal.SIGTERM, 0), (signal.SIGINT, 130)):
            shutil.rmtree(self.dump, ignore_errors=True)
            running = self.start_training("--restarts", "3", "checkpoint.interval=0")
            os.kill(running.process.pid, number)
            result = running.result()
            self.assertEqual((result.code, result.errors(), self.restarts(result)), (code, [], []), result)
            self.assertIn("step-", self.latest().name)

    def test_stop_while_ranks_start_again(self):
        """The ranks that receive the signal have trained no step yet."""
        for number in (signal.SIGTERM, signal.SIGINT):
            shutil.rmtree(self.dump, ignore_errors=True)
            running = self.start_training("--restarts", "3", "checkpoint.interval=2", until_step=5)
            os.kill(running.ranks()[1], signal.SIGKILL)
            running.until(lambda: "restart 1 of 3" in running._text(1), "restart")
            os.kill(running.process.pid, number)
            result = running.result()
            self.assertEqual((result.code, result.errors(), len(self.restarts(result))), (130, [], 1), result)

    def test_folder_of_another_run(self):
        """The other run's steps and checkpoints are not this run's: it neither starts nor restarts there."""
        self.train_well("checkpoint.interval=1", "training.steps=2")
        lock = os.open(self.dump, os.O_RDONLY)
        self.addCleanup(os.close, lock)
        fcntl.flock(lock, fcntl.LOCK_EX)
        result = self.train("--restarts", "3")
        self.assert_says(result, 1, "another run writes to this folder")
        self.assertNotIn("restart", result.err)

    def test_errors_of_run_file_and_usage(self):
        self.assert_says(self.train("training.seq_len=0", "--restarts", "3"), 2, "training.seq_len")
        self.assertEqual(self.train("--restarts", "some").code, 2)
        self.assertEqual(self.restarts(self.train("data.path=nowhere.txt", "--restarts", "3")), [])

    def test_other_launchers_refuse(self):
        variables = meeting(2)
        ranks = [self.start([ORTHANT, "train", "run.toml", "--restarts", "3"], env={"RANK": str(rank), **variables})
                 for rank in (0, 1)]
        results = [rank.result() for rank in ranks]
        errors = [error for result in results for error in result.errors()]
        self.assertEqual(([result.code for result in results], len(errors)), ([1, 1], 1), results[0])
        self.assertIn("--restarts requires that orthant starts the ranks itself, but another program started them; let a "
                      "script start the same command with --resume", errors[0])
        if torchrun():
            result = self.start([torchrun(), "--standalone", "--no-python", "--nproc-per-node", "2", ORTHANT, "train",
                                 "run.toml", "--restarts", "3"]).result()
            self.assertIn("use torchrun's --max-restarts, together with --resume", result.err)


class FewerRanksTest(RestartsTest):
    KEYS = ["training.dtype=float64", "validation.freq=0", "training.global_batch_size=8"]


class FewerRanks(FewerRanksTest):
    def assert_continues_with_same_batch(self, changed_at):
        """Compares the losses with those of two ranks, of which the steps up to `changed_at` came from four."""
        self.train_well(*self.KEYS, "training.steps=10", "run.ranks=2", "job.dump_folder=whole")
        have, want = self.steps(), self.steps(self.folder / "whole")
        self.assertEqual([step["step"] for step in have], list(range(1, 11)))
        self.assertEqual([step["tokens"] for step in have], [step["tokens"] for step in want])
        self.assertEqual([step["lr"] for step in have], [step["lr"] for step in want])
        for a, b in zip(have, want):
            self.assertLess(abs(a["loss"] - b["loss"]), 1e-11, a["step"])
        self.assertNotEqual(self.losses()[:changed_at], self.losses(self.folder / "whole")[:changed_at])  # other sums

    def test_resumed_run_is_planned_anew(self):
        self.train_well(*self.KEYS, "training.steps=5", "run.ranks=4", "lr_scheduler.warmup_steps=2")
        result = self.train_well(*self.KEYS, "training.steps=10", "run.ranks=2", "--resume")
        self.assertRegex(result.out, r"resumed +from run/checkpoints/step-000005")
        self.assertRegex(result.out, r"mesh +.*2 ranks")
        self.assert_continues_with_same_batch(5)
        # The control: another global batch is refused.
        refused = self.train(*self.KEYS, "training.steps=12", "run.ranks=2", "--resume", "training.global_batch_size=4")
        self.assert_says(refused, 1, "training.global_batch_size")

    def test_other_degrees_must_divide_the_ranks(self):
        keys = [*self.KEYS, "parallelism.pipeline_parallel_degree=2"]
        self.train_well(*keys, "training.steps=5", "run.ranks=4")
        self.assert_says(self.train(*keys, "training.steps=10", "run.ranks=3", "--resume"), 1, "run.ranks")


class LongFewerRanks(FewerRanksTest):
    def test_torchrun_restarts_on_fewer_hosts(self):
        """Two torchruns stand for two hosts, of which one is lost for good. The other starts its ranks again, alone."""
        if not torchrun():
            self.skipTest("there is no torchrun: torch came without its scripts")
        host = [torchrun(), "--nnodes=1:2", "--nproc-per-node=2", "--rdzv-backend=c10d",
                f"--rdzv-endpoint=localhost:{free_port()}", "--rdzv-id=hosts", "--max-restarts=3", "--no-python",
                "--rdzv-conf=last_call_timeout=5,keep_alive_interval=1,keep_alive_max_attempt=3"]
        # With the learning rate of the run file, differences by rounding grow to 1e-3 in 400 steps, without any restart.
        keys = [*self.KEYS, "training.steps=400", "checkpoint.interval=50", "optimizer.lr=1e-3"]
        first = self.start([*host, ORTHANT, "train", "run.toml", *keys, "--resume"])
        time.sleep(3)  # the first torchrun serves the rendezvous
        second = self.start([*host, ORTHANT, "train", "run.toml", *keys, "--resume"])
        first.until(lambda: len(self.steps()) >= 60, "step 60")
        ranks = second.ranks()
        self.assertEqual(len(ranks), 2)
        second.end()
        result = first.result(2 * HANG_S)
        self.assertEqual(result.code, 0, result)
        self.assertRegex(result.out, r"mesh +.*4 ranks")
        self.assertRegex(result.out, r"mesh +.*2 ranks")
        self.train_well(*keys, "run.ranks=2", "job.dump_folder=whole")
        have, want = self.steps(), self.steps(self.folder / "whole")
        self.assertEqual([step["tokens"] for step in have], [step["tokens"] for step in want])
        for a, b in zip(have, want):
            self.assertLess(abs(a["loss"] - b["loss"]), 1e-11, a["step"])


class LongRestarts(RestartsTest):
    def test_5000_steps_in_which_ranks_are_killed(self):
        """A random rank is killed about every 500 steps."""
        keys = ["training.steps=5000", "checkpoint.interval=100", "validation.freq=0", "metrics.enable_tensorboard=false",
                "metrics.log_freq=1000", "optimizer.lr=1e-3", "training.seq_len=16", "run.ranks=4",
                "training.global_batch_size=4", "training.local_batch_size=1"]
        start, chance, kills = time.monotonic(), random.Random(5000), 0
        running = self.start_run(*keys, "--restarts", "40")
        for step in range(500, 5000, 500):
            target, rank = step + chance.randrange(-90, 90), chance.randrange(4)
            deadline = time.monotonic() + 2 * HANG_S
            while self.last_recorded_step() < target or rank not in running.ranks():
                self.assertIsNone(running.process.poll())
                self.assertLess(time.monotonic(), deadline)
                time.sleep(0.005)
            os.kill(running.ranks()[rank], signal.SIGKILL)
            kills += 1
            running.until(lambda: f"restart {kills} of 40" in running._text(1), f"restart {kills}")
        result = running.result(4 * HANG_S)
        disturbed = time.monotonic() - start
        self.assertEqual((result.code, result.errors(), len(self.restarts(result))), (0, [], 9), result)
        self.assert_equals_undisturbed_run(*keys)
        self.assertEqual(len(self.losses()), 5000)
        print(f"5,000 steps with {kills} killed ranks took {disturbed:.0f} s, "
              f"{time.monotonic() - start - disturbed:.0f} s without")
        self.assertLess(time.monotonic() - start, 240)

    def last_recorded_step(self):
        """The step of the last complete line; the file is too long to be parsed at each look."""
        try:
            with open(self.dump / "metrics.jsonl", "rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - 4096))
                steps = re.findall(rb'^\{"step": (\d+), .*\}$', file.read(), re.M)
        except OSError:
            return 0
        return int(steps[-1]) if steps else 0


if __name__ == "__main__":
    main()
