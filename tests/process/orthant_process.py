"""Helpers for tests of the real program. Each test has its own folder with a text and a run file, and every process
that it starts ends with the test. Other helpers read the files of a run, and check its error messages."""
import json
import os
import pathlib
import random
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import unittest

SOURCE = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("ORTHANT_BUILD", SOURCE / "build"))
ORTHANT = str(BUILD / "orthant")
HANG_S = 120  # seconds; a program that runs longer than this hangs
STOP_S = 10  # seconds; after the death of a rank, all other ranks end within this time
# prefixes of the environment variables that launchers set
LAUNCHERS = ("RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "GROUP_", "TORCHELASTIC_", "OMPI_", "PMI", "SLURM_", "OMP_", "GOMP_",
             "ORTHANT_SECRET")
RANK_VARIABLES = (b"RANK", b"OMPI_COMM_WORLD_RANK", b"PMI_RANK", b"SLURM_PROCID")


def free_port():
    """A free port below the ephemeral ports, which outgoing connections could take before the program does."""
    first_ephemeral = int(pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        port = random.randrange(10000, first_ephemeral if first_ephemeral > 11000 else 65536)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port


def meeting(ranks):
    """The environment variables, other than RANK, of ranks that are started by hand."""
    return {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}


RUN_FILE = """
[job]
dump_folder = "run"
[run]
ranks = 2
threads_per_rank = 1
[model]
hidden_size = 32
intermediate_size = 64
num_hidden_layers = 2
num_attention_heads = 4
num_key_value_heads = 2
max_position_embeddings = 128
[data]
path = ["text.txt"]
[training]
steps = 10
seq_len = 32
global_batch_size = 5
local_batch_size = 2
[optimizer]
lr = 1e-2
[lr_scheduler]
decay_type = "constant"
warmup_steps = 2
[validation]
freq = 5
steps = 2
[checkpoint]
interval = 5
"""


def text(paragraphs=400):
    colors, things = ("red", "green", "blue"), ("door", "key", "river", "lamp", "stone")
    return "".join(f"The {colors[i % 3]} {things[i * i % 5]} number {i * i % 97} leads to room {i % 13}.\n\n"
                   for i in range(paragraphs))


def read_safetensors(path):
    """Returns the header, the data part, and all bytes before the data part."""
    raw = path.read_bytes()
    size = struct.unpack("<Q", raw[:8])[0]
    return json.loads(raw[8:8 + size]), bytearray(raw[8 + size:]), raw[:8 + size]


class Result:
    """How a program ended: its exit code (the negative number of the signal that killed it), stdout and stderr."""

    def __init__(self, code, out, err):
        self.code, self.out, self.err = code, out, err

    def errors(self):
        return [line for line in self.err.splitlines() if line.startswith("error:")]

    def __str__(self):
        return f"exit code {self.code}\n--- stdout\n{self.out[-3000:]}\n--- stderr\n{self.err[-3000:]}"


def state_of(pid):
    """The process state, a letter of /proc/PID/stat such as "Z"; None if the process does not exist."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return None


def wait_until(condition, what):
    deadline = time.monotonic() + HANG_S
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"no {what}")
        time.sleep(0.01)


class Running:
    """A running program. Its stdout and stderr go to files in `folder`."""

    def __init__(self, folder, arguments, environment, **options):
        self.files = [tempfile.NamedTemporaryFile(dir=folder, prefix=".output-", delete=False) for _ in range(2)]
        self.process = subprocess.Popen(arguments, cwd=folder, env=environment, stdin=subprocess.DEVNULL,
                                        stdout=self.files[0], stderr=self.files[1], start_new_session=True, **options)

    def _text(self, which):
        return pathlib.Path(self.files[which].name).read_text(errors="replace")

    def result(self, limit_s=HANG_S):
        """Waits until the program ends. The test fails if the program runs longer than limit_s seconds."""
        try:
            code = self.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {limit_s} s: " + str(Result(None, self._text(0), self._text(1))))
        return Result(code, self._text(0), self._text(1))

    def until(self, condition, what):
        """Waits until the condition holds, and returns its value."""
        deadline = time.monotonic() + HANG_S
        while not (value := condition()):
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"no {what}: " + str(Result(self.process.poll(), self._text(0), self._text(1))))
            time.sleep(0.01)
        return value

    def ranks(self):
        """The process id of each rank, by rank. Ranks are the descendants that have a launcher's variable for the
        rank in their environment."""
        found, todo = {}, [self.process.pid]
        while todo:
            pid = todo.pop()
            try:
                todo += map(int, pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
                variables = pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            except OSError:
                continue
            for variable in variables:
                name, _, value = variable.partition(b"=")
                if name in RANK_VARIABLES and pid != self.process.pid:
                    found[int(value)] = pid
        return found

    def end(self):
        """Kills the program and its ranks, if they still run."""
        pids = [self.process.pid, *self.ranks().values()]
        for pid in pids:
            try:
                os.kill(pid, signal.SIGCONT)
                os.kill(pid, signal.SIGKILL)
            except OSError:
                pass
        self.process.wait()
        for file in self.files:
            file.close()


class ProcessTest(unittest.TestCase):
    maxDiff = None
    SPINNING = {"GOMP_SPINCOUNT": "100000"}

    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="orthant-process-"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        (self.folder / "text.txt").write_text(text())
        self.write_run_file()
        self.dump = self.folder / "run"

    def sweep(self, cases, num_sampled):
        """Returns all cases in a class named Long..., which only `make test-full` runs. In other classes it returns a
        sample of num_sampled cases at equal distances. The sample has the first and the last case; a sample of one has
        the last. tests/support/sweep.h does the same."""
        cases = list(cases)
        if type(self).__name__.startswith("Long") or num_sampled >= len(cases):
            return cases
        if num_sampled == 1:
            return cases[-1:]
        return [cases[i * (len(cases) - 1) // (num_sampled - 1)] for i in range(num_sampled)]

    def write_run_file(self, **values):
        """Writes RUN_FILE to run.toml, with the given keys replaced: write_run_file(steps="20")."""
        lines = []
        for line in RUN_FILE.strip().splitlines():
            key = line.split(" = ")[0]
            lines.append(f"{key} = {values.pop(key)}" if key in values else line)
        assert not values, f"no such line: {values}"
        (self.folder / "run.toml").write_text("\n".join(lines) + "\n")

    def environment(self, more):
        """The environment without the variables of launchers, and with GOMP_SPINCOUNT. Without GOMP_SPINCOUNT the
        program would execute itself again to bound spinning, which takes 0.3 s. idle_threads_test.py tests that."""
        clean = {k: v for k, v in os.environ.items() if not k.startswith(LAUNCHERS)}
        return {**clean, **self.SPINNING, **more}

    def start(self, arguments, env={}, **options):
        running = Running(self.folder, [str(a) for a in arguments], self.environment(env), **options)
        self.addCleanup(running.end)
        return running

    def orthant(self, *arguments, env={}, **options):
        return self.start([ORTHANT, *arguments], env, **options).result()

    def train(self, *arguments, **options):
        return self.orthant("train", "run.toml", *arguments, **options)

    def train_well(self, *arguments, **options):
        result = self.train(*arguments, **options)
        self.assertEqual(result.code, 0, result)
        self.assertEqual(result.errors(), [], result)
        return result

    def start_training(self, *arguments, until_step=3, command=(), **options):
        """Starts a run that does not end by itself, and returns it after until_step steps."""
        running = self.start([*command, ORTHANT, "train", "run.toml", "training.steps=1000000", *arguments], **options)
        running.until(lambda: len(self.steps()) >= until_step, f"step {until_step}")
        return running

    def records(self, dump=None):
        path = (dump or self.dump) / "metrics.jsonl"
        if not path.exists():
            return []
        return [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]

    def steps(self, dump=None):
        return [record for record in self.records(dump) if "loss" in record]

    def losses(self, dump=None):
        return [(record["step"], record["loss"]) for record in self.steps(dump)]

    def latest(self, dump=None):
        return (dump or self.dump) / "checkpoints" / os.readlink((dump or self.dump) / "checkpoints/latest")

    def weights(self, dump=None):
        return (self.latest(dump) / "model.safetensors").read_bytes()

    def assert_says(self, result, code, *parts):
        """Checks that the program failed with this exit code and with exactly one error message, which contains all
        parts. Returns the message."""
        self.assertEqual(result.code, code, result)
        self.assertEqual(len(result.errors()), 1, result)
        message = result.err[result.err.index("error:"):]
        for part in parts:
            self.assertIn(part, message)
        return message

    def resume_command(self, message):
        """Returns the command that resumes the run, from the message that states it, as a shell command."""
        commands = [line.strip() for line in message.splitlines() if line.startswith("  ") and " --resume" in line]
        self.assertEqual(len(commands), 1, message)
        return ["sh", "-c", commands[0]]


def torchrun():
    """The path of torchrun: that of .venv, or else the one on PATH; None if there is none."""
    for path in (SOURCE / ".venv/bin/torchrun", shutil.which("torchrun")):
        if path and pathlib.Path(path).exists():
            return str(path)
    return None


class TimedResult(unittest.TextTestResult):
    """A result that also records the duration of each test: (class, method, seconds)."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.seconds = []

    def startTest(self, test):
        super().startTest(test)
        self.started = time.monotonic()

    def stopTest(self, test):
        super().stopTest(test)
        self.seconds.append((type(test).__name__, test.id().rsplit(".", 1)[-1], time.monotonic() - self.started))


def flat(suite):
    """All tests in a suite and in the suites that it contains."""
    return [test for part in suite for test in flat(part)] if isinstance(suite, unittest.TestSuite) else [suite]


def main():
    """Runs the tests of the file that was started: `FILE [--long] [NAME...]`. With --long, only classes named Long...
    run; without it, all other classes. NAME is Class or Class.method. Writes the durations of the tests to the file
    that GTEST_OUTPUT=json:PATH names, in GoogleTest's format, which tools/slowest_tests.py reads."""
    names = [name for name in sys.argv[1:] if name != "--long"]
    module, loader = sys.modules["__main__"], unittest.defaultTestLoader
    is_long = "--long" in sys.argv
    tests = list(flat(loader.loadTestsFromNames(names, module) if names else loader.loadTestsFromModule(module)))
    suite = unittest.TestSuite(test for test in tests if names or type(test).__name__.startswith("Long") == is_long)
    result = unittest.TextTestRunner(verbosity=2, resultclass=TimedResult).run(suite)
    if output := os.environ.get("GTEST_OUTPUT", "").removeprefix("json:"):
        pathlib.Path(output).parent.mkdir(parents=True, exist_ok=True)
        rows = [{"name": suite, "testsuite": [{"name": name, "time": f"{seconds:.3f}s"}]}
                for suite, name, seconds in result.seconds]
        pathlib.Path(output).write_text(json.dumps({"testsuites": rows}), encoding="utf-8")
    sys.exit(not (tests and result.wasSuccessful()))


if __name__ == "__main__":
    raise SystemExit("this file holds what the tests share")
