"""The Python of .venv, which has the packages of the tests."""
import os
import pathlib
import sys


def use_the_tests_python():
    """Executes the Python of .venv in place of this process, with the same arguments, if another one runs."""
    venv = pathlib.Path(__file__).resolve().parents[2] / ".venv"
    if (venv / "bin/python3").exists() and pathlib.Path(sys.prefix).resolve() != venv.resolve():
        os.execv(venv / "bin/python3", [str(venv / "bin/python3"), *sys.argv])
