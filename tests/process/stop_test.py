"""Tests of runs that stop because of a signal, or because a rank dies or no longer responds. A run that was asked to
stop saves; if it is resumed, it equals an uninterrupted run to the bit. A run with a dead rank ends within STOP_S."""
import contextlib
import os
import pathlib
import re
import shutil
import signal
import sys
import time

from orthant_process import ORTHANT, STOP_S, ProcessTest, main, state_of, torchrun

class StopRequests(ProcessTest):
    def assert_resumes_as_if_nothing_had_happened(self, *keys):
        done = int(self.latest().name[-6:])
        self.assertEqual(self.steps()[-1]["step"], done)
        total = f"training.steps={done + 4}"
        self.train_well(total, *keys, "--resume")
        whole = self.folder / "whole"
        self.train_well(total, *keys, f"job.dump_folder={whole}")
        self.assertEqual(self.losses(), self.losses(whole))
        self.assertEqual(self.weights(), self.weights(whole))

    def test_sigterm_finishes_step_saves_and_exits_with_0(self):
        for ranks in ("run.ranks=1", "run.ranks=2"):
            with self.subTest(ranks):
                shutil.rmtree(self.dump, ignore_errors=True)
                running = self.start_training(ranks, "checkpoint.interval=0")
                os.kill(running.process.pid, signal.SIGTERM)
                result = running.result()
                self.assertEqual((result.code, result.errors()), (0, []), result)
                self.assertIn("--resume", result.out)
                self.assertRegex(result.out, rf"stopped +by SIGTERM, after step {self.steps()[-1]['step']} of 1000000 ")
                self.assert_resumes_as_if_nothing_had_happened(ranks)
                shutil.rmtree(self.folder / "whole")

    def test_post_validated_ranks_finish_step_after_sigterm(self):
        keys = ("run.ranks=2", "parallelism.pipeline_parallel_degree=2", "model.num_hidden_layers=2",
                "parallelism.pipeline_parallel_post_validation=true", "training.max_norm=100")
        running = self.start_training(*keys, "checkpoint.interval=0")
        os.kill(running.process.pid, signal.SIGTERM)
        result = running.result()
        self.assertEqual((result.code, result.errors()), (0, []), result)
        self.assertRegex(result.out, rf"stopped +by SIGTERM, after step {self.steps()[-1]['step']} of 1000000 ")
        self.assert_resumes_as_if_nothing_had_happened(*keys)

    def test_sigint_exits_with_130(self):
        running = self.start_training("checkpoint.interval=0")
        os.kill(running.process.pid, signal.SIGINT)
        result = running.result()
        self.assertEqual((result.code, result.errors()), (130, []), result)
        self.assertIn("--resume", result.out)
        self.assertRegex(result.out, r"stopped +by SIGINT, after step \d+ of 1000000 ")
        self.assert_resumes_as_if_nothing_had_happened("run.ranks=2")

    def test_interrupt_of_one_rank_stops_all(self):
        running = self.start_training("checkpoint.interval=0")
        os.kill(running.ranks()[1], signal.SIGINT)
        result = running.result()
        self.assertEqual((result.code, result.errors()), (130, []), result)
        self.assertRegex(result.out, r"stopped +by SIGINT, after step \d+ of 1000000 ")

    def test_ctrl_c_received_twice_counts_once(self):
        """A terminal sends SIGINT to the entire process group. If a wrapper also forwards it, the program receives it
        twice, and counts both as one."""
        for ranks in ("run.ranks=1", "run.ranks=2"):
            with self.subTest(ranks):
                shutil.rmtree(self.dump, ignore_errors=True)
                running = self.start_training(ranks, "checkpoint.interval=0", "training.global_batch_size=64")
                for pause in (0.005, 0.1, 0):
                    os.kill(running.process.pid, signal.SIGINT)
                    time.sleep(pause)
                result = running.result()
                self.assertEqual((result.code, result.errors()), (130, []), result)
                self.assertEqual(int(self.latest().name[-6:]), self.steps()[-1]["step"])

    def test_second_ctrl_c_ends_immediately(self):
        """A second SIGINT ends the run at once, without waiting for the end of the step, which takes many seconds."""
        running = self.start_training("run.ranks=1", "checkpoint.interval=0", "training.global_batch_size=400000",
                                      "training.local_batch_size=1000", until_step=0)
        running.until(lambda: "orthant 0" in running._text(0), "banner")
        os.kill(running.process.pid, signal.SIGINT)
        running.until(lambda: "press Ctrl-C again" in running._text(1), "word about the second")
        time.sleep(1.2)
        os.kill(running.process.pid, signal.SIGINT)
        self.assertEqual(running.result(STOP_S).code, -signal.SIGINT)

    def test_stop_during_sample(self):
        """SIGTERM arrives after the last step, during the sample, whose 240 tokens take seconds with this model. The
        run completes the sample and the report, and says so."""
        running = self.start_training("run.ranks=1", "training.steps=1", "model.hidden_size=768",
                                      "model.intermediate_size=2048", "model.num_hidden_layers=6",
                                      "model.max_position_embeddings=512", until_step=1)
        running.until(lambda: (self.dump / "checkpoints/latest").is_symlink(), "checkpoint")
        time.sleep(0.2)
        os.kill(running.process.pid, signal.SIGTERM)
        result = running.result()
        self.assertEqual((result.code, result.errors()), (0, []), result)
        self.assertIn("all steps are done and saved; ending after the sample and the report\n", result.err)
        self.assertNotIn("stopping", result.err)
        self.assertIn("Sample: ", result.out)

    def test_due_validation_is_done_after_stop(self):
        running = self.start_training("checkpoint.interval=0", "validation.freq=1")
        os.kill(running.process.pid, signal.SIGTERM)
        self.assertEqual(running.result().code, 0)
        validated = [record["step"] for record in self.records() if "validation_loss" in record]
        self.assertEqual(validated, [step for step, _ in self.losses()])
        self.assertEqual(self.latest().name, f"step-{validated[-1]:06d}")

    def test_second_run_states_how_to_resume_stopped_run(self):
        running = self.start_training("checkpoint.interval=0")
        os.kill(running.process.pid, signal.SIGTERM)
        self.assertEqual(running.result().code, 0)
        stopped = self.steps()[-1]["step"]
        result = self.train_well("training.steps=2")
        self.assertIn(f"its last checkpoint is of step {stopped} of ", result.err)
        self.assertIn("add --resume --job.dump_folder run/earlier/1\n", result.err)
        self.train_well(f"training.steps={stopped + 1}", "--resume", "--job.dump_folder", "run/earlier/1")
        self.assertEqual(self.steps(self.dump / "earlier/1")[-1]["step"], stopped + 1)
        self.assertNotIn("to resume it", self.train_well("training.steps=2").err)

    def test_stopped_run_resumes_with_other_number_of_ranks(self):
        double = "training.dtype=float64"
        running = self.start_training("checkpoint.interval=0", double)
        os.kill(running.process.pid, signal.SIGTERM)
        self.assertEqual(running.result().code, 0)
        total = f"training.steps={self.steps()[-1]['step'] + 4}"
        self.train_well(total, double, "run.ranks=3", "--resume")
        self.train_well(total, double, "run.ranks=2", "job.dump_folder=whole")
        for (step, loss), (other_step, other) in zip(self.losses(), self.losses(self.folder / "whole"), strict=True):
            self.assertEqual(step, other_step)
            self.assertAlmostEqual(loss, other, delta=1e-9)  # float64, another order of sums, some dozen steps


class DeadRanks(ProcessTest):
    def kill_a_rank(self, ranks, victim, command=(), **options):
        running = self.start_training(*([] if command else [f"run.ranks={ranks}"]), until_step=8, command=command, **options)
        pids = running.ranks()
        self.assertEqual(sorted(pids), list(range(ranks)))
        os.kill(pids[victim], signal.SIGKILL)
        result = running.result(STOP_S)
        for pid in pids.values():
            self.assertIn(state_of(pid), (None, "Z"))
        return result

    def assert_named_and_resumable(self, result, victim):
        message = self.assert_says(result, 1, f"rank {victim}", "killed by SIGKILL", "step-0000")
        done = len(self.steps())
        resume = self.resume_command(message)
        resume[2] = resume[2].replace("training.steps=1000000", f"training.steps={done + 5}")
        resumed = self.start(resume).result()
        self.assertEqual(resumed.code, 0, resumed)
        self.assertEqual(self.steps()[-1]["step"], done + 5)

    def test_one_of_two_ranks_is_killed(self):
        self.assert_named_and_resumable(self.kill_a_rank(2, 1), 1)

    def test_one_of_three_ranks_is_killed(self):
        self.assert_named_and_resumable(self.kill_a_rank(3, 2), 2)

    def test_rank_0_is_killed(self):
        self.assert_named_and_resumable(self.kill_a_rank(3, 0), 0)

    def test_rank_is_killed_before_first_checkpoint(self):
        running = self.start_training("checkpoint.interval=0")
        os.kill(running.ranks()[1], signal.SIGKILL)
        self.assert_says(running.result(STOP_S), 1, "rank 1", "SIGKILL", "no checkpoint yet", "start the run again")

    def test_rank_is_killed_under_torchrun(self):
        if not torchrun():
            self.skipTest("there is no torchrun: torch came without its scripts")
        result = self.kill_a_rank(2, 1, [torchrun(), "--standalone", "--no-python", "--nproc-per-node", "2"])
        self.assertNotEqual(result.code, 0)
        self.assertIn("rank: 1", result.err)  # torchrun's own report; it kills the other rank itself
        self.assertLessEqual(len(result.errors()), 1, result)

    def test_launcher_is_killed(self):
        running = self.start_training()
        pids = running.ranks()
        os.kill(running.process.pid, signal.SIGKILL)
        running.process.wait()
        self.until_gone(pids)

    def until_gone(self, pids):
        for _ in range(STOP_S * 50):
            if all(state_of(pid) in (None, "Z") for pid in pids.values()):
                return
            time.sleep(0.02)
        self.fail(f"still there: {[(pid, state_of(pid)) for pid in pids.values()]}")

    def test_rank_stops_sending_heartbeats(self):
        running = self.start_training(until_step=8)
        os.kill(running.ranks()[1], signal.SIGSTOP)
        message = self.assert_says(running.result(STOP_S), 1, "rank 1", "stopped", "step-0000")
        self.resume_command(message)

    def test_rank_is_stopped_before_it_connects(self):
        """The launcher names it within 5 s. With the negative control: a rank that is stopped for a short time only is
        not named."""
        for stopped_s in (0.5, 5):
            with self.subTest(stopped_s):
                running = self.start([ORTHANT, "train", "run.toml", "training.steps=2"])
                pid = running.until(lambda: running.ranks().get(1), "rank 1")
                os.kill(pid, signal.SIGSTOP)
                warning = lambda: re.findall(r"warning: .*", running._text(1))
                deadline = time.monotonic() + stopped_s
                while time.monotonic() < deadline and not warning():
                    time.sleep(0.02)
                self.assertEqual(warning(), [] if stopped_s < 1 else [
                    f"warning: the run waits for 1 stopped rank before all are connected: rank 1 (process {pid}, by "
                    f"SIGSTOP). Continue with `kill -CONT {pid}`, or end the run with Ctrl-C"])
                os.kill(pid, signal.SIGCONT)
                result = running.result()
                self.assertEqual((result.code, result.errors()), (0, []), result)


class Suspension(ProcessTest):
    """Ctrl-Z in a terminal, and later `fg`: the launcher and its ranks are suspended together, and the run goes on."""
    SUSPENDED_S, KEYS = 1.5, ()
    # Starts a command in a process group of its own, as a shell with job control does. A process group whose leader's
    # parent is in another session ignores SIGTSTP.
    SHELL = "import os, subprocess, sys; sys.exit(subprocess.Popen(sys.argv[1:], preexec_fn=os.setpgrp).wait())"

    def kill(self, pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    def test_suspended_run_goes_on(self):
        running = self.start_training("checkpoint.interval=0", *self.KEYS,
                                      command=[sys.executable, "-c", self.SHELL])
        ranks = running.ranks()
        launcher = int(pathlib.Path(f"/proc/{ranks[0]}/stat").read_text().rsplit(")", 1)[1].split()[1])
        self.addCleanup(self.kill, launcher)
        states = lambda: {state_of(pid) for pid in (launcher, *ranks.values())}
        time.sleep(0.5)  # into the computation of the next step
        os.killpg(launcher, signal.SIGTSTP)
        running.until(lambda: states() == {"T"}, "suspension of all processes")
        time.sleep(self.SUSPENDED_S)
        steps = len(self.steps())
        os.killpg(launcher, signal.SIGCONT)
        running.until(lambda: len(self.steps()) > steps + 2, "next steps")
        self.assertNotIn("T", states())
        self.assertNotRegex(running._text(1), "error:|failed|heartbeat|not answered|stopped rank")
        os.kill(launcher, signal.SIGINT)
        result = running.result()
        self.assertEqual((result.code, result.errors()), (130, []), result)


class LongSuspension(Suspension):
    """The suspension is longer than a rank may be silent, and than it may wait for another one. At any time, one of
    the two ranks waits for the other, which computes for a long time."""
    SUSPENDED_S = 40
    KEYS = ("run.timeout_s=30", "parallelism.pipeline_parallel_degree=2", "training.global_batch_size=32",
            "training.local_batch_size=32", "validation.freq=0", "model.hidden_size=256",
            "model.intermediate_size=1024", "model.num_hidden_layers=8")


if __name__ == "__main__":
    main()
