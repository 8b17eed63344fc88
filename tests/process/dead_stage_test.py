"""Tests of pipeline runs in which one rank is killed or stopped: within a step, and during validation, a save or the
sample. The run ends within STOP_S, its one message names the rank and the rank's last activity, and no process is
left."""
import contextlib
import os
import shutil
import signal
import time

from orthant_process import HANG_S, STOP_S, ProcessTest, main, state_of, text

HEARD_S = 1.5  # seconds after which the run is surely in the activity that the test expects


def stages(schedule, ranks):
    return (f"run.ranks={ranks}", f"parallelism.pipeline_parallel_degree={ranks}",
            f"parallelism.pipeline_parallel_schedule={schedule}", "checkpoint.interval=0", "validation.freq=1000000")


class DeadStage(ProcessTest):
    def start_run(self, *keys, until_step):
        shutil.rmtree(self.dump, ignore_errors=True)
        return self.start_training(*keys, until_step=until_step)

    def assert_named(self, running, victim, number, activity):
        """Sends the signal to the rank and checks the message: it names the rank, how the rank ended and its last
        activity. After SIGKILL, no process of the run is left."""
        pids = running.ranks()
        os.kill(pids[victim], number)
        # The launcher or another rank reports a killed rank, whichever detects it first, in different words.
        how = "SIGKILL|its process .* has ended" if number == signal.SIGKILL else "stopped"
        message = self.assert_says(running.result(STOP_S), 1, f"rank {victim}")
        self.assertRegex(message, how)
        self.assertRegex(message, rf"last reported activity: {activity}")
        if number == signal.SIGKILL:
            for pid in pids.values():
                self.assertIn(state_of(pid), (None, "Z"))


class InAStep(DeadStage):
    """The rank dies while it carries out its row of a step. Steps are long, so that the signal arrives within one."""

    # With post-validation, a rank awaits the sum of the gradient norm after its row.
    ACTION = (r"(\d+((F|B|I|W|S|T|E|EB|SEND_F|RECV_F|SEND_B|RECV_B|REDUCE_GRAD)\d+|FINALIZE|STEP), "
              r"action \d+ of \d+ of step \d+|receiving the gradient norm of step \d+)")

    def check(self, schedule, ranks, victim, number, *keys):
        with self.subTest(schedule, keys=keys):
            running = self.start_run(*stages(schedule, ranks), *keys, "model.num_hidden_layers=4",
                                     "training.global_batch_size=64", "training.local_batch_size=1", until_step=4)
            time.sleep(HEARD_S)
            self.assert_named(running, victim, number, self.ACTION)

    def test_killed_rank(self):
        for schedule, ranks, victim in self.sweep([("zb_v", 2, 0), ("zb_h1", 2, 1), ("1f1b", 3, 1)], 1):
            self.check(schedule, ranks, victim, signal.SIGKILL)

    def test_killed_rank_with_post_validation_or_sharded_vocabulary(self):
        for keys in ("parallelism.pipeline_parallel_post_validation=true",
                     "parallelism.vocabulary_parallel=algorithm_1"):
            for victim, number in self.sweep([(1, signal.SIGSTOP), (0, signal.SIGKILL)], 1):
                self.check("zb_h1", 2, victim, number, keys)

    def test_stopped_rank(self):
        for schedule, victim in self.sweep([("1f1b", 0), ("zb_v", 1)], 1):
            self.check(schedule, 2, victim, signal.SIGSTOP)


class OutsideSteps(DeadStage):
    """The rank dies outside a training step. The model has 400 layers, so that one forward takes long."""

    DEEP = (*stages("1f1b", 2), "model.num_hidden_layers=400", "model.hidden_size=16", "training.global_batch_size=1",
            "training.local_batch_size=1")
    WAYS = ((0, signal.SIGKILL), (1, signal.SIGSTOP))

    def setUp(self):
        super().setUp()
        (self.folder / "text.txt").write_text(text(4000))

    def test_killed_rank_during_validation(self):
        for victim, number in self.sweep(self.WAYS, 1):
            with self.subTest(victim):
                running = self.start_run(*self.DEEP, "data.validation=0.5", "validation.freq=1",
                                         "validation.steps=1000000", until_step=1)
                time.sleep(HEARD_S)
                self.assert_named(running, victim, number,
                                  r"\d(F|SEND_F|RECV_F)\d, action \d+ of \d+ of validation, batch \d+")

    def hold_writer(self):
        """Returns when the writer of a checkpoint hangs: it opens a pipe without a reader, which the test created under
        the name of a temporary file of the save."""
        def holds():
            for save in (self.dump / "checkpoints").glob(".tmp-*"):
                folder, name = save / "orthant", "optimizer.safetensors"
                if folder.exists() and not (folder / name).exists():
                    pipe = folder / f".{name}.tmp"
                    os.mkfifo(pipe)
                    if not (folder / name).exists():
                        return True
                    pipe.unlink()  # the file was written before the pipe existed
            return False

        deadline = time.monotonic() + HANG_S
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError):  # the save has ended; the next one is tried
                if holds():
                    return time.sleep(HEARD_S)
        self.fail("no save was met")

    def test_killed_rank_during_save(self):
        """A save, in which rank 0 writes the tensors that the other rank sends, one at a time."""
        for victim, number in self.sweep([(victim, number) for victim in (0, 1)
                                          for number in (signal.SIGSTOP, signal.SIGKILL)], 1):
            with self.subTest(victim=victim, number=number):
                running = self.start_run(*stages("1f1b", 2), "checkpoint.interval=1", until_step=1)
                self.hold_writer()
                self.assert_named(running, victim, number, r"saving step \d+")

    def test_killed_rank_during_sample(self):
        """The sample at the end of a run, which passes one token at a time through both stages. The learning rate makes
        the model learn not to end a text, so that the sample takes long."""
        for victim, number in self.sweep(self.WAYS[::-1], 1):
            with self.subTest(victim):
                running = self.start_run(*self.DEEP, "model.max_position_embeddings=512", "optimizer.lr=5e-2",
                                         "training.steps=6", until_step=6)
                running.until((self.dump / "checkpoints/latest").exists, "last checkpoint")
                time.sleep(HEARD_S)
                self.assert_named(running, victim, number, "writing a sample")


class LongInAStep(InAStep):
    pass


class LongOutsideSteps(OutsideSteps):
    pass


if __name__ == "__main__":
    main()
