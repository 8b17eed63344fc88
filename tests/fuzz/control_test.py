#!/usr/bin/env python3
"""Negative controls of the replay of fuzz targets: the program must fail if a target throws another exception than
ConfigError or DataError, or takes more memory than its law allows. Usage: control_test.py PROGRAM"""
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

PROGRAM = ""


def replay(*contents: str) -> subprocess.CompletedProcess:
    with tempfile.TemporaryDirectory() as folder:
        for number, content in enumerate(contents):
            (Path(folder) / f"file{number}").write_text(content)
        return subprocess.run([PROGRAM, folder], capture_output=True, text=True, timeout=30)


class Controls(unittest.TestCase):
    def test_errors_about_the_file_are_accepted(self):
        result = replay("nothing", "data_error", "config_error")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("3 files", result.stdout)

    def test_other_exceptions_fail(self):
        for fault, named in (("out_of_range", "out_of_range"), ("logic_error", "LogicError")):
            result = replay("data_error", fault)
            self.assertEqual(result.returncode, 1, fault)
            self.assertIn("file1: the target threw", result.stderr)
            self.assertIn(named, result.stderr)

    def test_more_memory_than_the_law_fails(self):
        result = replay("memory")
        self.assertEqual(result.returncode, 1)
        self.assertIn("a file of 6 bytes took", result.stderr)
        self.assertIn("must be at most 1024 + 4 x 6 = 1048", result.stderr)

    def test_an_empty_corpus_fails(self):
        self.assertEqual(replay().returncode, 1)


if __name__ == "__main__":
    PROGRAM = sys.argv.pop(1)
    unittest.main()
