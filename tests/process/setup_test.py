"""Tests of runs that end before the first step: ranks that die or are stopped early, folders that another run uses, and
settings that contradict the data."""
import fcntl
import os
import pathlib
import re
import shutil
import signal
import time

from orthant_process import ORTHANT, STOP_S, ProcessTest, main, meeting


class WhileTokenizing(ProcessTest):
    """A rank dies while rank 0 waits for the lock of the token folder, which the test holds, and the other ranks wait
    for rank 0. All other ranks end within STOP_S, with one message."""

    def by_hand(self, ranks):
        (self.dump / "data").mkdir(parents=True)
        lock = os.open(self.dump / "data", os.O_RDONLY | os.O_DIRECTORY)
        self.addCleanup(os.close, lock)
        fcntl.flock(lock, fcntl.LOCK_EX)
        variables = meeting(ranks)
        running = [self.start([ORTHANT, "train", "run.toml"], env={"RANK": str(rank), **variables})
                   for rank in range(ranks)]
        running[0].until(lambda: self.is_waited_for(lock), "rank 0 that wants to tokenize")
        return running

    @staticmethod
    def is_waited_for(lock):
        """Whether /proc/locks has a line `7: -> FLOCK ADVISORY WRITE 4321 08:01:123456 0 EOF` for the inode."""
        waiting = [line.split() for line in pathlib.Path("/proc/locks").read_text().splitlines() if "-> FLOCK" in line]
        return any(fields[6].endswith(f":{os.fstat(lock).st_ino}") for fields in waiting)

    @staticmethod
    def watches(running, watched):
        """Whether the process has a file descriptor of the other one (pidfd), through which it notices its end."""
        found = []
        for file in pathlib.Path(f"/proc/{running.process.pid}/fdinfo").iterdir():
            try:
                found += re.findall(r"^Pid:\t(\d+)$", file.read_text(), re.MULTILINE)
            except OSError:
                continue  # closed since it was listed
        return str(watched.process.pid) in found

    def assert_all_end(self, running, victim):
        os.kill(running[victim].process.pid, signal.SIGKILL)
        deadline = time.monotonic() + STOP_S
        results = [rank.result(max(0, deadline - time.monotonic())) for i, rank in enumerate(running) if i != victim]
        self.assertEqual({result.code for result in results}, {1}, results[0])
        messages = [line for result in results for line in result.errors()]
        self.assertEqual(len(messages), 1, messages)
        self.assertIn(f"rank {victim} died", messages[0])

    def test_rank_0_is_killed(self):
        running = self.by_hand(3)
        running[1].until(lambda: any(self.watches(rank, running[0]) for rank in running[1:]), "rank that watches rank 0")
        self.assert_all_end(running, 0)

    def test_rank_0_is_killed_immediately(self):
        running = self.by_hand(2)
        os.kill(running[0].process.pid, signal.SIGKILL)
        result = running[1].result(STOP_S)
        self.assert_says(result, 1, "rank 0")

    def test_other_rank_is_killed(self):
        self.assert_all_end(self.by_hand(3), 2)


class RankZeroServes(ProcessTest):
    def test_other_rank_is_killed_during_training(self):
        variables = meeting(3)
        running = [self.start([ORTHANT, "train", "run.toml", "training.steps=1000000"], env={"RANK": rank, **variables})
                   for rank in "012"]
        running[0].until(lambda: len(self.steps()) >= 3, "step 3")
        os.kill(running[2].process.pid, signal.SIGKILL)
        results = [rank.result(STOP_S) for rank in running[:2]]
        self.assertEqual([result.code for result in results], [1, 1], results[0])
        messages = [line for result in results for line in result.errors()]
        self.assertEqual(len(messages), 1, messages)
        self.assertIn("rank 2", messages[0])


class StoreInAFile(ProcessTest):
    """Two ranks with the environment of Open MPI, which meet through a file in TMPDIR. Several jobs run one after
    another under the same name."""

    def start_pair(self, *arguments):
        folder = self.folder / "tmp"
        folder.mkdir(exist_ok=True)
        variables = {"TMPDIR": str(folder), "PMIX_NAMESPACE": "1234", "OMPI_COMM_WORLD_SIZE": "2",
                     "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}
        return [self.start([ORTHANT, "train", "run.toml", *arguments],
                           env={"OMPI_COMM_WORLD_RANK": rank, "OMPI_COMM_WORLD_LOCAL_RANK": rank, **variables})
                for rank in "01"]

    def test_killed_run_does_not_affect_next_run(self):
        for victim in (0, 1):
            running = self.start_pair("training.steps=1000000", f"job.dump_folder=killed-{victim}")
            running[0].until(lambda: len(self.steps(self.folder / f"killed-{victim}")) >= 3, "step 3")
            os.kill(running[victim].process.pid, signal.SIGKILL)
            result = running[1 - victim].result(STOP_S)
            self.assert_says(result, 1, f"rank {victim} died")
            self.assertEqual(os.listdir(self.folder / "tmp"), [])
        # A rank that dies before the other one has arrived leaves its file. The next run is not affected by it.
        alone = self.start_pair()
        os.kill(alone[1].process.pid, signal.SIGKILL)
        alone[0].process.send_signal(signal.SIGKILL)
        for rank in alone:
            rank.result(STOP_S)
        for result in [rank.result() for rank in self.start_pair()]:
            self.assertEqual((result.code, result.errors()), (0, []), result)
        self.assertEqual(self.steps()[-1]["step"], 10)

    def test_ranks_with_unreadable_run_file(self):
        results = [rank.result() for rank in self.start_pair("training.seq_len=500")]
        self.assertEqual([result.code for result in results], [1, 1], results[0])
        self.assertEqual(len([line for result in results for line in result.errors()]), 1, results[0])


class StoppedEarly(ProcessTest):
    """A signal asks the run to stop before it has begun the first step."""

    SIGNALS = (signal.SIGTERM, signal.SIGINT)

    def test_stop_while_data_is_opened(self):
        (self.dump / "data").mkdir(parents=True)
        lock = os.open(self.dump / "data", os.O_RDONLY | os.O_DIRECTORY)
        self.addCleanup(os.close, lock)
        fcntl.flock(lock, fcntl.LOCK_EX)
        for number in self.SIGNALS:
            running = self.start([ORTHANT, "train", "run.toml"])
            running.until(lambda: WhileTokenizing.is_waited_for(lock), "run that wants to tokenize")
            os.kill(running.process.pid, number)
            result = running.result(STOP_S)
            self.assertEqual((result.code, result.errors()), (130, []), result)
            self.assertEqual(result.err.count(f"stopped by {number.name} before the first step"), 1, result)

    def test_stop_while_ranks_start(self):
        """The signal arrives at different times after the ranks exist: while they load libraries, during the
        rendezvous, or in the first steps."""
        for number in self.SIGNALS:
            for pause in self.sweep((0, 0.05, 0.3, 0.6, 1), 2):
                with self.subTest(signal=number.name, pause=pause):
                    shutil.rmtree(self.dump, ignore_errors=True)
                    running = self.start([ORTHANT, "train", "run.toml", "training.steps=1000000"])
                    running.until(lambda: len(running.ranks()) == 2, "ranks")
                    time.sleep(pause)
                    os.kill(running.process.pid, number)
                    result = running.result(STOP_S)
                    self.assertEqual(result.errors(), [], result)
                    early = result.err.count(f"stopped by {number.name} before the first step")
                    late = len(re.findall(rf"stopped +by {number.name}, after step", result.out))
                    self.assertEqual(early + late, 1, result)
                    done = late == 1 and number == signal.SIGTERM
                    self.assertEqual(result.code, 0 if done else 130, result)


class LongStoppedEarly(StoppedEarly):
    pass


class FolderInUse(ProcessTest):
    def test_folder_of_active_run_is_not_changed(self):
        for ranks in (1, 2):
            with self.subTest(ranks=ranks):
                shutil.rmtree(self.dump, ignore_errors=True)
                running = self.start_training(f"run.ranks={ranks}", "checkpoint.interval=1")
                running.until(lambda: (self.dump / "checkpoints/latest").exists(), "checkpoint")
                for more in ([], ["--resume"]):
                    result = self.train(f"run.ranks={ranks}", *more)
                    self.assert_says(result, 1, 'job.dump_folder = "run" (run.toml:2)', "another run writes to this folder")
                self.assertFalse((self.dump / "earlier").exists())
                seen = len(self.steps())
                running.until(lambda: len(self.steps()) > seen, "further step")
                os.kill(running.process.pid, signal.SIGKILL)
                running.process.wait()
                running.end()
                # A killed run leaves no lock on its folder.
                self.train_well(f"run.ranks={ranks}", "--resume", f"training.steps={self.steps()[-1]['step'] + 3}")


class Hangup(ProcessTest):
    def test_sigusr1_and_sighup_save_like_sigterm(self):
        for number in (signal.SIGUSR1, signal.SIGHUP):
            with self.subTest(number.name):
                shutil.rmtree(self.dump, ignore_errors=True)
                running = self.start_training("checkpoint.interval=0")
                os.kill(running.process.pid, number)
                result = running.result()
                self.assertEqual((result.code, result.errors()), (0, []), result)
                self.assertEqual(self.steps()[-1]["step"], int(self.latest().name[-6:]))


class OneDocument(ProcessTest):
    def test_validation_without_held_out_documents(self):
        (self.folder / "text.txt").write_text("one line " * 100)
        self.assert_says(self.train(), 1, "data.validation = 0.05 (default) cannot hold a document out", "validation.freq = 0")
        self.train_well("validation.freq=0")
        (self.folder / "text.txt").write_text("one line\n" * 100)
        self.train_well()
        self.assertTrue([r for r in self.records() if "validation_loss" in r])


if __name__ == "__main__":
    main()
