"""Tests under a real srun. The class starts Slurm's two daemons, with one node and no accounting, on free ports and in
a folder of its own. Without the daemons it is skipped."""
import getpass
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

from orthant_process import ORTHANT, STOP_S, ProcessTest, free_port, main, state_of

SLURM_CONF = """
ClusterName=orthant
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={control_port}
SlurmdPort={node_port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/none
CredType=cred/none
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/builtin
MpiDefault=none
ReturnToService=2
NodeName={host} NodeAddr=127.0.0.1 CPUs=8 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
START_S = 30  # seconds within which the node must accept jobs


class LongSlurm(ProcessTest):
    @classmethod
    def setUpClass(cls):
        for program in ("slurmctld", "slurmd", "srun", "scancel"):
            if not shutil.which(program, path=cls.path()):
                raise unittest.SkipTest(f"there is no {program} (Debian packages slurmctld, slurmd and slurm-client)")
        folder = pathlib.Path(tempfile.mkdtemp(prefix="orthant-slurm-"))
        cls.addClassCleanup(shutil.rmtree, folder, ignore_errors=True)
        for name in ("state", "spool"):
            (folder / name).mkdir()
        host = os.uname().nodename.split(".")[0]
        conf = folder / "slurm.conf"
        conf.write_text(SLURM_CONF.format(host=host, user=getpass.getuser(), folder=folder, control_port=free_port(),
                                          node_port=free_port()))
        cls.slurm = {"SLURM_CONF": str(conf), "PATH": cls.path()}
        daemons = [cls.start_daemon(folder, name, conf) for name in ("slurmctld", "slurmd")]
        deadline = time.monotonic() + START_S
        while cls.ask("sinfo", "--noheader", "--format=%t") != "idle":
            if time.monotonic() > deadline or any(daemon.poll() is not None for daemon in daemons):
                logs = "; ".join((folder / f"{name}.log").read_text()[-400:] for name in ("slurmctld", "slurmd"))
                raise unittest.SkipTest(f"Slurm's daemons do not start here: {logs}")
            time.sleep(0.1)

    @staticmethod
    def path():
        return os.environ["PATH"] + ":/usr/sbin:/sbin"  # of the daemons

    @classmethod
    def start_daemon(cls, folder, name, conf):
        with open(folder / f"{name}.log", "w") as log:
            daemon = subprocess.Popen([shutil.which(name, path=cls.path()), "-D", "-f", conf], stdout=log, stderr=log,
                                      env={**os.environ, **cls.slurm}, start_new_session=True)
        cls.addClassCleanup(cls.end_daemon, daemon)
        return daemon

    @staticmethod
    def end_daemon(daemon):
        daemon.terminate()
        try:
            daemon.wait(10)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()

    @classmethod
    def ask(cls, *command):
        return subprocess.run(command, env={**os.environ, **cls.slurm}, capture_output=True, text=True).stdout.strip()

    def setUp(self):
        super().setUp()
        self.addCleanup(self.ask, "scancel", "--signal=KILL", "--user", getpass.getuser())

    def srun(self, ranks, *options):
        return ["srun", *options, f"--ntasks={ranks}"]

    def ranks(self):
        """The process id of each rank. Tasks are descendants of slurmd, not of srun."""
        found = {}
        for folder in pathlib.Path("/proc").iterdir():
            try:
                if pathlib.Path(os.readlink(folder / "cwd")) != self.folder.resolve():
                    continue
                variables = (folder / "environ").read_bytes().split(b"\0")
            except OSError:
                continue
            ranks = [int(variable[13:]) for variable in variables if variable.startswith(b"SLURM_PROCID=")]
            if ranks:
                found[ranks[0]] = int(folder.name)
        return found

    def test_losses(self):
        """With mpi=pmi2, srun sets PMI_RANK too."""
        self.train_well("run.ranks=4")
        for options in ([], ["--mpi=pmi2"]):
            with self.subTest(options=options):
                dump = f"srun{len(options)}"
                result = self.start([*self.srun(4, *options), ORTHANT, "train", "run.toml", f"job.dump_folder={dump}"],
                                    self.slurm).result()
                self.assertEqual((result.code, result.errors()), (0, []), result)
                self.assertEqual(self.losses(self.folder / dump), self.losses())
                self.assertEqual(self.weights(self.folder / dump), self.weights())

    def assert_resumes_as_if_nothing_had_happened(self, resume):
        total = f"training.steps={int(self.latest().name[-6:]) + 4}"
        resume[2] = resume[2].replace("training.steps=1000000", total)
        self.assertEqual(self.start(resume, self.slurm).result().code, 0)
        self.train_well(total, "job.dump_folder=whole", "validation.freq=0")
        self.assertEqual(self.losses(), self.losses(self.folder / "whole"))
        self.assertEqual(self.weights(), self.weights(self.folder / "whole"))

    def test_other_rank_reports_dead_rank(self):
        running = self.start_training("validation.freq=0", until_step=8, command=self.srun(2), env=self.slurm)
        ranks = self.ranks()
        self.assertEqual(sorted(ranks), [0, 1])
        os.kill(ranks[1], signal.SIGKILL)
        result = running.result(STOP_S)
        message = self.assert_says(result, 128 + signal.SIGKILL, "rank 1 died")
        self.assertIn(state_of(ranks[0]), (None, "Z"))
        self.assert_resumes_as_if_nothing_had_happened(self.resume_command(message))

    def test_scancel_saves(self):
        """scancel sends SIGTERM, and SIGKILL after KillWait, 30 s by default. `--signal=USR1` sends only SIGUSR1, as
        does a time limit with `#SBATCH --signal=USR1@90`."""
        for options, name in ([], "SIGTERM"), (["--signal=USR1"], "SIGUSR1"):
            with self.subTest(name):
                shutil.rmtree(self.dump, ignore_errors=True)
                shutil.rmtree(self.folder / "whole", ignore_errors=True)
                running = self.start_training("checkpoint.interval=0", "validation.freq=0", command=self.srun(2),
                                              env=self.slurm)
                self.ask("scancel", *options, self.ask("squeue", "--noheader", "--format=%i"))
                result = running.result()
                self.assertEqual((result.code, result.errors()), (0, []), result)
                self.assertRegex(result.out, f"stopped +by {name}, after step")
                self.assertEqual(int(self.latest().name[-6:]), self.steps()[-1]["step"])
                self.assert_resumes_as_if_nothing_had_happened(self.resume_command(result.out))


if __name__ == "__main__":
    main()
