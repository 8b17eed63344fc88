"""Tests of the transports where the machine or the environment prevents them: no UCX, too little shared memory, too few
open files, wrong addresses and interfaces. The run uses another transport, or ends with one message that states the
way out."""
import shutil
import subprocess
import time

from orthant_process import ORTHANT, ProcessTest, main, meeting

SHORT = ("training.steps=4", "checkpoint.interval=0", "validation.freq=0")
ENLARGE = "enlarge it (docker run --shm-size=1g"


def can_mount():
    """Whether this user may mount a /dev/shm in a mount namespace of its own."""
    return bool(shutil.which("unshare")) and subprocess.run(
        ["unshare", "--mount", "sh", "-c", "mount -t tmpfs none /dev/shm"], capture_output=True).returncode == 0


class TransportTest(ProcessTest):
    def under(self, command, *arguments, env={}):
        return self.start([*command, ORTHANT, "train", "run.toml", *SHORT, *arguments], env=env).result()

    def assert_carried_by(self, result, transport):
        self.assertEqual(result.code, 0, result)
        self.assertIn(f"{transport} transport", result.out)

    def without_ucx(self):
        """An environment in which UCX cannot be loaded."""
        folder = self.folder / "broken"
        folder.mkdir(exist_ok=True)
        (folder / "libucp.so.0").write_text("no library\n")
        return {"LD_LIBRARY_PATH": str(folder)}

    def has_ucx(self):
        report = self.orthant("doctor").out
        return any(line.split()[:2] == ["ok", "ucx"] for line in report.splitlines())

    def need_ucx(self):
        if not self.has_ucx():
            self.skipTest("this build or machine has no UCX")


class NoUcx(TransportTest):
    def test_auto_uses_gloo_and_reports_it(self):
        if self.has_ucx():
            self.assert_carried_by(self.under([]), "ucx")
        self.assert_carried_by(self.under([], env=self.without_ucx()), "gloo")

    def test_ucx_by_name_is_refused_before_start(self):
        result = self.under([], "run.transport=ucx", env=self.without_ucx())
        message = self.assert_says(result, 1, 'run.transport = "ucx" (command line)', '"auto" or "gloo"')
        self.assertIn("libucp.so.0", message)
        self.assertFalse(self.dump.exists())

    def ranks(self, *arguments):
        """Two ranks, the second of which has no UCX."""
        variables = meeting(2)
        command = [ORTHANT, "train", "run.toml", *SHORT, *arguments]
        running = [self.start(command, env={"RANK": rank, **variables, **more})
                   for rank, more in (("0", {}), ("1", self.without_ucx()))]
        return [process.result() for process in running]

    def test_one_rank_without_ucx_moves_all_to_gloo(self):
        results = self.ranks()
        self.assertEqual([result.code for result in results], [0, 0], results[0])
        self.assert_carried_by(results[0], "gloo")

    def test_one_rank_without_required_ucx(self):
        results = self.ranks("run.transport=ucx")
        self.assertEqual([result.code for result in results], [1, 1], results[0])
        messages = [line for result in results for line in result.errors()]
        self.assertEqual(len(messages), 1, messages)
        self.assertIn("libucp.so.0", messages[0])

    def test_doctor_reports_missing_ucx(self):
        report = self.orthant("doctor", env=self.without_ucx()).out
        self.assertRegex(report, r"warning +ucx +not available, so ranks use Gloo\n.*-> .*libucp.so.0")


class LittleSharedMemory(TransportTest):
    def setUp(self):
        super().setUp()
        self.need_ucx()
        if not can_mount():
            self.skipTest("only root, with unshare, can have a /dev/shm of another size")

    def within(self, size):
        return ["unshare", "--mount", "sh", "-c", f'mount -t tmpfs -o size={size} none /dev/shm && exec "$@"', "sh"]

    def test_too_little_shared_memory_is_reported(self):
        for (size, shown), ranks in self.sweep(
                [(size, ranks) for size in (("64k", "64.0 KiB"), ("1m", "1.0 MiB"), ("4m", "4.0 MiB")) for ranks in (2, 8)],
                2):
            started = time.monotonic()
            result = self.under(self.within(size), f"run.ranks={ranks}", "training.global_batch_size=8")
            self.assert_says(result, 1, f"free for the {ranks} ranks of this machine, but it has {shown}", ENLARGE,
                             'run.transport = "gloo"')
            self.assertLess(time.monotonic() - started, 60)

    def test_enough_shared_memory(self):
        self.assert_carried_by(self.under(self.within("64m")), "ucx")

    def test_gloo_needs_no_shared_memory(self):
        self.assert_carried_by(self.under(self.within("64k"), "run.transport=gloo"), "gloo")

    def test_ucx_over_tcp_needs_no_shared_memory(self):
        self.assert_carried_by(self.under(self.within("64k"), env={"UCX_TLS": "tcp,self"}), "ucx")

    def test_doctor_reports_same_problem(self):
        report = self.start([*self.within("1m"), ORTHANT, "doctor"]).result().out
        self.assertRegex(report, r"warning +/dev/shm +1\.0 MiB free\n.*-> /dev/shm must have .* free for the .* but it has 1\.0 MiB")
        self.assertIn(ENLARGE, report)


class FewFiles(TransportTest):
    def at_most(self, files):
        return ["sh", "-c", f'ulimit -n {files} && exec "$@"', "sh"]

    def test_enough_files_for_some_ranks(self):
        for files in (80, 128):
            result = self.under(self.at_most(files), "run.ranks=4", "training.global_batch_size=8")
            self.assertEqual(result.code, 0, result)

    def test_too_few_files_for_ranks(self):
        for files, ranks in ((48, 2), (64, 32), (128, 64)):
            result = self.under(self.at_most(files), f"run.ranks={ranks}", "training.global_batch_size=64")
            self.assert_says(result, 1, f"the highest that this process may set is {files}:",
                             f"ulimit -Hn {max(64, 16 + 5 * ranks)}")

    def test_soft_limit_is_raised(self):
        """16 open files are too few, unless the run raises this limit to the hard one."""
        result = self.under(["sh", "-c", 'ulimit -S -n 16 && exec "$@"', "sh"], "run.ranks=2")
        self.assertEqual(result.code, 0, result)


class WrongEnvironment(TransportTest):
    def test_ucx_variables_are_named(self):
        self.need_ucx()
        for name, value, reason in self.sweep((("UCX_TLS", "nothing", "transport 'nothing' is not available"),
                                               ("UCX_NET_DEVICES", "nosuch0", "network device 'nosuch0' is not available"),
                                               ("UCX_RNDV_THRESH", "abc", "Invalid value for RNDV_THRESH"),
                                               ("UCX_TLS", "self", "cannot reach rank")), 2):
            result = self.under([], "run.timeout_s=20", env={name: value})
            message = self.assert_says(result, 1, reason, f"the environment sets {name}={value}")
            self.assertNotIn("UCX_LOG_LEVEL", message)  # the program sets this variable, not the user

    def test_unknown_interface(self):
        result = self.under([], env={"GLOO_SOCKET_IFNAME": "nosuch0"})
        self.assertEqual(result.code, 1, result)
        self.assertIn("GLOO_SOCKET_IFNAME = nosuch0: this machine has no such network interface", result.err)

    def test_unreachable_address(self):
        started = time.monotonic()
        result = self.under([], "run.timeout_s=4", env={"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "192.0.2.1",
                                                        "MASTER_PORT": "29500"})
        self.assert_says(result, 1, "no store answered at 192.0.2.1:29500 for 4 s", "MASTER_ADDR")
        self.assertLess(time.monotonic() - started, 30)


class LongLittleSharedMemory(LittleSharedMemory):
    pass


class LongWrongEnvironment(WrongEnvironment):
    pass


if __name__ == "__main__":
    main()
