"""Tests of the Python package as a whole: it frees its memory, threads plan at the same time, its documentation is
true, and its wheel works in an environment without torch."""
import ast
import base64
import copy
import ctypes
import doctest
import hashlib
import importlib
import inspect
import json
import os
import pathlib
import re
import subprocess
import sys
import threading
import time
import zipfile

from orthant_process import ORTHANT, main
from python_package import MODEL, PACKAGE, SOURCE, PythonTest, orthant


class Library(PythonTest):
    def grown_bytes(self, work, times):
        """Bytes by which the resident memory of this process grows while `work` runs."""
        def resident():
            return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        for _ in range(50):  # the allocators grow to their working size
            work()
        before = resident()
        for _ in range(times):
            work()
        return resident() - before

    def test_memory_is_freed(self):
        run = {"run": {"ranks": 2}, "model": MODEL, "data": {"path": "text.txt"},
               "training": {"seq_len": 32, "global_batch_size": 4, "local_batch_size": 2}}

        def work():
            str(orthant.plan(run))
            self.assertRaises(orthant.ConfigError, orthant.plan, run, parallelism={"zero_stage": 7})
            orthant.schedule("1f1b", ranks=2, microbatches=4)

        self.assertLess(self.grown_bytes(work, 1000), 2 << 20)
        kept = []  # the control: plans that are kept
        self.assertGreater(self.grown_bytes(lambda: kept.append(orthant.plan(run)), 300), 2 << 20)

    def test_two_threads_plan_at_once(self):
        path = self.write_hf()
        runs = [lambda: orthant.plan("run.toml").to_dict("memory"),
                lambda: orthant.plan(hf=path, ranks=8, parallelism={"zero_stage": 3}).to_dict("memory")]
        expected, found = [run() for run in runs], [[], []]
        threads = [threading.Thread(target=lambda own=own: found[own].extend(runs[own]() for _ in range(10)))
                   for own in (0, 1)]
        plan, texts = orthant.plan("run.toml"), []
        threads += [threading.Thread(target=lambda: texts.extend(str(plan) for _ in range(10))) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(found, [[expected[0]] * 10, [expected[1]] * 10])
        self.assertEqual(texts, [str(plan)] * 20)

    def ticks_during(self, function):
        """Number of times that this thread runs while another one calls the function."""
        thread, ticks = threading.Thread(target=function), 0
        thread.start()
        while thread.is_alive():
            time.sleep(0.001)
            ticks += 1
        return ticks

    def test_a_search_releases_the_global_lock(self):
        request = json.dumps({"hf": str(self.write_hf()), "settings": ["run.ranks=8", "parallelism.zero_stage=1"]})
        path = str(PACKAGE / "liborthant.so")

        def search(library):
            error = ctypes.c_void_p()
            library.orthant_search.restype = ctypes.c_void_p
            answer = library.orthant_search(request.encode(), ctypes.byref(error))
            self.assertFalse(error.value)
            library.orthant_free_answer(ctypes.c_void_p(answer))

        ticks = self.ticks_during(lambda: orthant.search(hf="config.json", ranks=8, parallelism={"zero_stage": 1}))
        locked = self.ticks_during(lambda: search(ctypes.PyDLL(path)))  # the control holds the lock
        self.assertGreater(ticks, 10)
        self.assertLess(locked, ticks / 2)

    def test_it_exports_its_header_and_needs_only_glibc(self):
        header = SOURCE / "src/library/orthant_c.h"
        declared = set(re.findall(r"^[\w *]+?(orthant_\w+)\(", header.read_text(), re.M))
        table = subprocess.run(["nm", "-D", "--defined-only", PACKAGE / "liborthant.so"], check=True, text=True,
                               capture_output=True).stdout
        self.assertEqual({line.split()[-1] for line in table.splitlines()}, declared)
        needed = subprocess.run(["objdump", "-p", PACKAGE / "liborthant.so"], check=True, text=True,
                                capture_output=True).stdout
        names = {name.split(".so")[0] for name in re.findall(r"NEEDED\s+(\S+)", needed)}
        self.assertLessEqual(names, {"libc", "libm", "ld-linux-x86-64", "ld-linux-aarch64"})
        (self.folder / "use.c").write_text('#include "orthant_c.h"\n')
        subprocess.run(["cc", "-std=c99", "-Wall", "-Werror", "-fsyntax-only", "-I", header.parent, "use.c"],
                       check=True)

    def test_answers_cannot_be_copied(self):
        for value in (orthant.plan("run.toml"), orthant.schedule("1f1b", ranks=2, microbatches=2)):
            self.assertRaisesRegex(TypeError, "cannot be copied", copy.deepcopy, value)

    def test_documentation_is_true_and_sources_are_python_3_9(self):
        os.environ["ORTHANT_PROGRAM"] = ORTHANT
        self.addCleanup(os.environ.pop, "ORTHANT_PROGRAM")
        examples = 0
        for file in sorted(PACKAGE.glob("*.py")):
            ast.parse(file.read_text(), feature_version=(3, 9))
            if re.search("^import torch$", file.read_text(), re.M):
                continue  # tests/oracle/ring_attention.py tests the module that needs torch
            module = importlib.import_module(f"orthant.{file.stem}" if file.stem != "__init__" else "orthant")
            result = doctest.testmod(module)
            self.assertEqual(result.failed, 0, file.name)
            examples += result.attempted
        self.assertGreater(examples, 20)
        for name in orthant.__all__:
            self.assertTrue(name.startswith("__") or inspect.getdoc(getattr(orthant, name)), name)


class Wheel(PythonTest):
    SCRIPT = """
import importlib.metadata, importlib.util, orthant, sys
assert importlib.util.find_spec("torch") is None
assert importlib.metadata.version("orthant") == orthant.__version__
assert orthant.__file__.startswith(sys.prefix), orthant.__file__
plan = orthant.plan("run.toml", hardware="h100-8x")
assert plan.fits, plan
print(orthant.schedule("1f1b", ranks=2, microbatches=2).to_csv(), end="")
"""

    def make_wheel(self, folder):
        subprocess.run([sys.executable, SOURCE / "python/make_wheel.py", PACKAGE, folder], check=True,
                       capture_output=True)
        [wheel] = pathlib.Path(folder).glob("*.whl")
        return wheel

    def test_it_installs_without_a_network_and_without_torch(self):
        wheel = self.make_wheel(".")
        clean = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
        pip = SOURCE / ".venv/bin/python3"  # making a pip for the new environment would take five seconds
        new = self.folder / "venv"
        subprocess.run([sys.executable, "-m", "venv", *(["--without-pip"] if pip.exists() else []), new], check=True,
                       env=clean)
        install = [pip, "-m", "pip", "--python", new] if pip.exists() else [new / "bin/pip"]
        subprocess.run([*install, "install", "--quiet", "--disable-pip-version-check", "--no-index", wheel], check=True,
                       env=clean)
        done = subprocess.run([new / "bin/python3", "-c", self.SCRIPT], capture_output=True, text=True, env=clean)
        self.assertEqual((done.stdout, done.stderr), ("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n", ""))

    def test_its_record_is_right(self):
        wheel = self.make_wheel(".")
        self.assertLess(wheel.stat().st_size, 5_000_000)
        archive = zipfile.ZipFile(wheel)
        [record] = [name for name in archive.namelist() if name.endswith("/RECORD")]
        rows = [line.split(",") for line in archive.read(record).decode().splitlines()]
        self.assertEqual([name for name, _, _ in rows], archive.namelist())
        self.assertIn("orthant/py.typed", archive.namelist())
        for name, digest, size in rows[:-1]:
            data = archive.read(name)
            sha256 = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
            self.assertEqual((digest, size), (f"sha256={sha256}", str(len(data))), name)
        (self.folder / "again").mkdir()
        self.assertEqual(self.make_wheel("again").read_bytes(), wheel.read_bytes())


if __name__ == "__main__":
    main()
