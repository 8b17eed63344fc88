"""Tests under real launchers: torchrun with restarts, Open MPI's mpirun and MPICH's. (srun is in slurm_test.py.) Losses
and weights equal those of our own launcher, to the bit. A launcher that is not installed is a reason to skip."""
import os
import re
import shutil
import signal
import subprocess

from orthant_process import ORTHANT, STOP_S, ProcessTest, free_port, main, state_of, torchrun


class LauncherTest(ProcessTest):
    def under(self, launcher, *arguments, dump="launched"):
        """Runs the training under a launcher, and checks that it ends well. Returns its result."""
        result = self.start([*launcher, ORTHANT, "train", "run.toml", f"job.dump_folder={dump}", *arguments]).result()
        self.assertEqual((result.code, result.errors()), (0, []), result)
        return result

    def assert_equals_own_launcher(self, *arguments, dump="launched"):
        self.train_well(*arguments)
        self.assertEqual(self.losses(self.folder / dump), self.losses())
        self.assertEqual(self.weights(self.folder / dump), self.weights())

    def assert_resumes_as_if_nothing_had_happened(self, launcher, ranks=2):
        """Resumes the stopped run, and compares it with an uninterrupted run of our own launcher."""
        done = int(self.latest().name[-6:])
        total = f"training.steps={done + 4}"
        self.under(launcher, total, "--resume", dump="run")
        self.train_well(total, "job.dump_folder=whole", f"run.ranks={ranks}")
        self.assertEqual(self.losses(), self.losses(self.folder / "whole"))
        self.assertEqual(self.weights(), self.weights(self.folder / "whole"))


class TorchrunTest(LauncherTest):
    STEPS = ["training.steps=100", "checkpoint.interval=20", "validation.freq=0"]

    def setUp(self):
        super().setUp()
        if not torchrun():
            self.skipTest("there is no torchrun: torch came without its scripts")

    def torchrun(self, ranks, *options):
        return [torchrun(), *options, "--no-python", "--nproc-per-node", ranks]

    def start_and_kill(self, rank, launchers, *arguments):
        """Starts the run, whose ranks have a secret, under each launcher, and kills one rank after a checkpoint and 5
        more steps. Returns the results of the launchers."""
        command = [ORTHANT, "train", "run.toml", *self.STEPS, *arguments]
        secret = {"ORTHANT_SECRET": "a secret of all ranks"}
        running = [self.start([*launcher, *command], env=secret) for launcher in launchers]
        running[0].until(lambda: len(self.steps()) >= 25, "step 25")
        ranks = {rank: pid for each in running for rank, pid in each.ranks().items()}
        os.kill(ranks[rank], signal.SIGKILL)
        results = [each.result() for each in running]
        self.assertEqual([result.code for result in results], [0] * len(results), "\n".join(map(str, results)))
        return results

    def assert_equals_undisturbed_run(self):
        self.train_well(*self.STEPS, "job.dump_folder=whole")
        self.assertEqual(self.losses(), self.losses(self.folder / "whole"))
        self.assertEqual(self.weights(), self.weights(self.folder / "whole"))


class Torchrun(TorchrunTest):
    def test_losses(self):
        self.under(self.torchrun(2, "--standalone"))
        self.assert_equals_own_launcher()

    def test_restarted_ranks_continue_from_newest_checkpoint(self):
        [result] = self.start_and_kill(1, [self.torchrun(2, "--standalone", "--max-restarts=1")], "--resume")
        self.assertIn("--resume: there is no checkpoint in run/checkpoints yet; the run begins with step 1", result.err)
        self.assertRegex(result.out, r"resumed +from run/checkpoints/step-0000[2468]0 ")
        self.assertNotIn("torchrun may restart this run", result.out)
        self.assert_equals_undisturbed_run()

    def test_error_message_is_cause(self):
        result = self.start([*self.torchrun(2, "--standalone"), ORTHANT, "train", "run.toml",
                             "data.path=nowhere.txt"]).result()
        self.assert_says(result, 1, "nowhere.txt")
        self.assertIn("nowhere.txt", result.err[result.err.index("Root Cause"):])

    def test_sigterm_saves(self):
        running = self.start_training("checkpoint.interval=0", command=self.torchrun(2, "--standalone"))
        os.kill(running.process.pid, signal.SIGTERM)
        result = running.result()
        self.assertEqual(result.errors(), [], result)
        self.assertEqual(int(self.latest().name[-6:]), self.steps()[-1]["step"])


class LongTorchrun(TorchrunTest):
    def test_restart_after_death_of_rank_0(self):
        self.start_and_kill(0, [self.torchrun(2, "--standalone", "--max-restarts=1")], "--resume")
        self.assert_equals_undisturbed_run()

    def test_restart_with_static_rendezvous(self):
        """Without --standalone, torchrun serves its store on the port of --master-port, also after a restart."""
        self.start_and_kill(1, [self.torchrun(2, "--max-restarts=1", f"--master-port={free_port()}")], "--resume")
        self.assert_equals_undisturbed_run()

    def test_restart_on_two_hosts(self):
        """Two torchruns stand for two hosts. Only that of the killed rank counts a restart; the other one starts its
        rank again because a host has left. Each may restart once, so the second start must succeed at once."""
        for victim in (0, 1):
            with self.subTest(victim=victim):
                shutil.rmtree(self.dump, ignore_errors=True)
                shutil.rmtree(self.folder / "whole", ignore_errors=True)
                host = self.torchrun(1, "--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint=localhost:{free_port()}",
                                     "--rdzv-id=hosts", "--max-restarts=1")
                results = self.start_and_kill(victim, [host, host], "--resume")
                errors = [error for result in results for error in result.errors()]
                self.assertLessEqual(len(errors), 1, errors)
                self.assert_equals_undisturbed_run()

    def test_restart_without_resume_begins_again(self):
        [result] = self.start_and_kill(1, [self.torchrun(2, "--standalone", "--max-restarts=1")])
        banner = " ".join(re.sub("[│╭╰─]", "", result.out).split())
        self.assertIn("torchrun may restart this run (--max-restarts=1)", banner)
        self.assertIn("the files of an earlier run were moved to run/earlier/1", result.err)
        self.assert_equals_undisturbed_run()
        self.assertGreaterEqual(len(self.steps(self.dump / "earlier/1")), 25)


class MpirunTest(LauncherTest):
    """Cases for both programs named mpirun; a subclass names one."""
    PROGRAMS, VERSION, PACKAGE, OPTIONS = [], "", "", []

    def setUp(self):
        super().setUp()
        for program in filter(shutil.which, self.PROGRAMS):
            if self.VERSION in subprocess.run([program, "--version"], capture_output=True, text=True).stdout:
                self.program = program
                return
        self.skipTest(f"there is no {self.PROGRAMS[0]} (Debian package {self.PACKAGE})")

    def mpirun(self, ranks):
        return [self.program, *self.OPTIONS, "-np", ranks]

    def stop(self, number, launcher):
        """Sends the signal to mpirun during training, and checks that the run has saved. Returns the result."""
        running = self.start_training("checkpoint.interval=0", "validation.freq=0", "metrics.log_freq=1000",
                                      command=launcher)
        os.kill(running.process.pid, number)
        result = running.result()
        self.assertEqual(result.errors(), [], result)
        self.assertEqual(int(self.latest().name[-6:]), self.steps()[-1]["step"])
        return result

    def kill_a_rank(self, victim):
        """Returns the result of mpirun. All other ranks must have ended with it, within STOP_S."""
        running = self.start_training("validation.freq=0", until_step=8, command=self.mpirun(3))
        ranks = running.ranks()
        self.assertEqual(sorted(ranks), [0, 1, 2])
        os.kill(ranks[victim], signal.SIGKILL)
        result = running.result(STOP_S)
        self.assertEqual([state_of(pid) in (None, "Z") for pid in ranks.values()], [True] * 3)
        self.assertNotEqual(result.code, 0)
        return result


class OpenMpiTest(MpirunTest):
    PROGRAMS, VERSION, PACKAGE = ["mpirun.openmpi", "mpirun"], "Open MPI", "openmpi-bin"
    OPTIONS = ["--allow-run-as-root", "--oversubscribe"]


class MpichTest(MpirunTest):
    PROGRAMS, VERSION, PACKAGE = ["mpirun.mpich", "mpiexec.hydra", "mpirun"], "HYDRA", "mpich"


class OpenMpi(OpenMpiTest):
    def test_losses(self):
        self.under(self.mpirun(2))
        self.assert_equals_own_launcher()


class Mpich(MpichTest):
    def test_losses(self):
        self.under(self.mpirun(2))
        self.assert_equals_own_launcher()


class LongOpenMpi(OpenMpiTest):
    def test_four_ranks(self):
        pipeline = ["parallelism.pipeline_parallel_degree=2", "training.local_batch_size=1"]
        self.under(self.mpirun(4), *pipeline)
        self.assert_equals_own_launcher(*pipeline, "run.ranks=4")

    def test_other_ranks_report_dead_rank(self):
        for victim in (0, 2):
            with self.subTest(victim=victim):
                shutil.rmtree(self.dump, ignore_errors=True)
                message = self.assert_says(self.kill_a_rank(victim), 128 + signal.SIGKILL, f"rank {victim} died")
                resume = self.resume_command(message)
                resume[2] = resume[2].replace("training.steps=1000000", f"training.steps={len(self.steps()) + 5}")
                self.assertEqual(self.start(resume).result().code, 0)

    def test_ctrl_c_saves(self):
        """Open MPI sends its ranks SIGTERM, and SIGKILL after 1 s by default. A busy machine may need more."""
        result = self.stop(signal.SIGINT, [*self.mpirun(2), "--mca", "odls_base_sigkill_timeout", "4"])
        self.assertEqual(result.code, 1)
        self.assertIn("by SIGTERM, after step", re.sub("\x1b\\[[0-9;]*m", "", result.out))
        self.assert_resumes_as_if_nothing_had_happened(self.mpirun(2))

    def test_sigusr1_saves(self):
        self.assertEqual(self.stop(signal.SIGUSR1, self.mpirun(2)).code, 0)
        self.assert_resumes_as_if_nothing_had_happened(self.mpirun(2))


class LongMpich(MpichTest):
    def test_four_ranks(self):
        ring = ["parallelism.context_parallel_ring=2"]
        self.under(self.mpirun(4), *ring)
        self.assert_equals_own_launcher(*ring, "run.ranks=4")

    def test_launcher_reports_dead_rank(self):
        """Hydra kills the other ranks at once and prints the signal, so they report nothing."""
        for victim in (0, 2):
            with self.subTest(victim=victim):
                shutil.rmtree(self.dump, ignore_errors=True)
                result = self.kill_a_rank(victim)
                self.assertEqual((result.code, result.errors()), (signal.SIGKILL, []), result)
                self.assertEqual(result.out.count("Killed (signal 9)"), 1, result)
                self.assert_resumes_as_if_nothing_had_happened(self.mpirun(3), ranks=3)

    def test_ctrl_c_saves(self):
        result = self.stop(signal.SIGINT, self.mpirun(2))
        self.assertEqual(result.code, 130)
        self.assertRegex(result.out, "stopped +by SIGINT, after step")
        self.assert_resumes_as_if_nothing_had_happened(self.mpirun(2))

    def test_sigusr1_saves(self):
        self.assertEqual(self.stop(signal.SIGUSR1, self.mpirun(2)).code, 0)
        self.assert_resumes_as_if_nothing_had_happened(self.mpirun(2))


if __name__ == "__main__":
    main()
