"""Tests that the command printed by a stopped run resumes it, under the launcher that started the run."""
import os
import signal
import sys

from orthant_process import ORTHANT, ProcessTest, main, meeting, torchrun

# A launcher that gives its ranks the environment of Open MPI's mpirun on one machine.
MPIRUN = """#!/usr/bin/env python3
import os, signal, subprocess, sys
ranks, command = int(sys.argv[2]), sys.argv[3:]
variables = lambda rank: {"OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_SIZE": str(ranks),
                          "OMPI_COMM_WORLD_LOCAL_RANK": str(rank), "OMPI_COMM_WORLD_LOCAL_SIZE": str(ranks),
                          "PMIX_NAMESPACE": str(os.getpid())}
started = [subprocess.Popen(command, env={**os.environ, **variables(rank)}) for rank in range(ranks)]
signal.signal(signal.SIGTERM, lambda *_: [process.terminate() for process in started])
sys.exit(max(process.wait() for process in started))
"""


class ResumingTest(ProcessTest):
    def stop_and_go_on(self, launcher, process_to_stop=lambda running: running.process.pid):
        """Stops a running training run and resumes it with the command in its summary. Returns the command."""
        running = self.start_training("checkpoint.interval=0", "optimizer.lr=1e-3", command=launcher)
        os.kill(process_to_stop(running), signal.SIGTERM)
        result = running.result()
        self.assertEqual((result.code, result.errors()), (0, []), result)
        shell = self.resume_command(result.out)
        done = self.steps()[-1]["step"]
        again = [*shell[:2], shell[2].replace("training.steps=1000000", f"training.steps={done + 4}")]
        resumed = self.start(again).result()
        self.assertEqual((resumed.code, resumed.errors()), (0, []), resumed)
        self.assertEqual(self.steps()[-1]["step"], done + 4)
        return shell[2]


class ResumeCommand(ResumingTest):
    def test_resume_of_spawned_ranks(self):
        command = self.stop_and_go_on([])
        self.assertEqual(command, f"{ORTHANT} train run.toml training.steps=1000000 checkpoint.interval=0 "
                                  "optimizer.lr=1e-3 --resume")

    def test_resume_under_mpirun(self):
        mpirun = self.folder / "mpirun"
        mpirun.write_text(MPIRUN)
        mpirun.chmod(0o755)
        command = self.stop_and_go_on([mpirun, "-np", "2"])
        self.assertTrue(command.startswith(f"{mpirun} -np 2 {ORTHANT} train run.toml "), command)

    def test_resume_of_ranks_started_by_hand(self):
        """No launcher can be repeated, so the message says how the user must start the ranks."""
        variables = meeting(2)
        ranks = [self.start([ORTHANT, "train", "run.toml", "training.steps=1000000"],
                            env={"RANK": str(rank), **variables}) for rank in (0, 1)]
        ranks[0].until(lambda: len(self.steps()) >= 8, "step 8")
        os.kill(ranks[1].process.pid, signal.SIGKILL)
        message = self.assert_says(ranks[0].result(), 1, "rank 1",
                                   "(run it as each of the 2 ranks, with RANK, WORLD_SIZE, ")
        self.resume_command(message)


class LongResumeCommand(ResumingTest):
    def test_resume_under_torchrun(self):
        if not torchrun():
            self.skipTest("there is no torchrun: torch came without its scripts")
        launcher = [torchrun(), "--standalone", "--no-python", "--nproc-per-node", "2"]
        command = self.stop_and_go_on(launcher, lambda running: running.ranks()[0])
        self.assertTrue(command.startswith(" ".join(launcher) + f" {ORTHANT} train run.toml "), command)


if __name__ == "__main__":
    main()
