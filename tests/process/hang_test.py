"""Tests of runs that hang: the main thread of one rank stands still, while its heartbeats go on. Rank 0 prints one
picture that names the rank that the others wait for. The run goes on when that rank does."""
import contextlib
import ctypes
import errno
import os
import pathlib
import random
import re
import time
import unittest

from orthant_process import ProcessTest, main

REPORTED_S = 10  # seconds within which a hang must be reported
PTRACE_DETACH, PTRACE_SEIZE, PTRACE_INTERRUPT, ALL_THREADS = 17, 0x4206, 0x4207, 0x40000000
LIBC = ctypes.CDLL(None, use_errno=True)


def ptrace(request, pid):
    LIBC.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    if LIBC.ptrace(request, pid, None, None):
        if ctypes.get_errno() == errno.EPERM:
            raise unittest.SkipTest("this process may not hold threads of its children")
        raise OSError(ctypes.get_errno(), "ptrace: " + os.strerror(ctypes.get_errno()))


class HeldThread:
    """The main thread of a process, which stands still within the `with` block, in a computation and not in a system
    call such as a wait. Other threads of the process run."""

    def __init__(self, pid):
        self.pid = pid

    def __enter__(self):
        while True:
            ptrace(PTRACE_SEIZE, self.pid)
            ptrace(PTRACE_INTERRUPT, self.pid)
            os.waitpid(self.pid, ALL_THREADS)
            if pathlib.Path(f"/proc/{self.pid}/syscall").read_text().startswith("-1 "):
                return
            ptrace(PTRACE_DETACH, self.pid)
            time.sleep(random.uniform(0, 0.01))

    def __exit__(self, *_):
        with contextlib.suppress(ProcessLookupError):  # the process has ended
            ptrace(PTRACE_DETACH, self.pid)


class Hang(ProcessTest):
    SLOW = ("model.hidden_size=128", "model.intermediate_size=512", "model.num_hidden_layers=8")

    def warnings(self, running):
        return pathlib.Path(running.files[1].name).read_text()

    def check_goes_on(self, running):
        steps = len(self.steps())
        running.until(lambda: len(self.steps()) > steps + 1, "next step")
        self.assertNotIn("error:", self.warnings(running))

    def test_picture_names_the_rank_that_all_wait_for(self):
        """Also the negative control: no warning before the rank is held, and none if it is held for a short time."""
        running = self.start_training("run.ranks=4", "parallelism.pipeline_parallel_degree=2", "checkpoint.interval=0",
                                      "validation.freq=0", "training.global_batch_size=8", *self.SLOW)
        with HeldThread(running.ranks()[1]):
            time.sleep(2)
        self.check_goes_on(running)
        self.assertEqual(self.warnings(running).count("warning:"), 0, self.warnings(running))

        with HeldThread(running.ranks()[1]):
            start = time.monotonic()
            running.until(lambda: "warning:" in self.warnings(running) or time.monotonic() > start + REPORTED_S,
                          "warning")
            time.sleep(1)
            picture = self.warnings(running)
        self.assertEqual(picture.count("warning:"), 1, picture)
        self.assertRegex(picture, r"warning: no rank has made progress for 5 s\. "
                                  r"(\d ranks wait|1 rank waits), directly or through others, for rank 1:\n")
        self.assertRegex(picture, r"\n  rank 1 waits for no rank: for \d+ s it has been in .* of step \d+\n")
        self.assertRegex(picture, r"\n  ranks? [0-3].* waits? for rank 1 in \w+ of .* over (data|pipeline)")
        self.assertLessEqual(len(picture[picture.index("warning:"):].splitlines()), 5)  # two lines, and one per other rank
        self.check_goes_on(running)
        running.until(lambda: re.search(r"warning: the ranks make progress again, after \d+ s\n",
                                        self.warnings(running)), "second message")



class LongHang(Hang):
    def test_error_after_the_timeout_has_the_picture(self):
        running = self.start_training("run.ranks=3", "run.timeout_s=7", "checkpoint.interval=0", "validation.freq=0",
                                      *self.SLOW)
        with HeldThread(running.ranks()[2]):
            running.until(lambda: "error:" in self.warnings(running), "error")
        result = running.result()
        self.assertEqual(result.code, 1, result)
        self.assertEqual(len(result.errors()), 1, result)
        self.assertRegex(result.err, r"error: rank [01]: .* no progress from the peers within 7 s.*"
                                     r"2 ranks wait, directly or through others, for rank 2:")


if __name__ == "__main__":
    main()
