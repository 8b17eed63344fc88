"""Tests orthant.ring_attention() of the Python package on four processes; ring_attention_ranks.py has the checks. Also
runs the example of docs/python.md, and with --full more lengths and heads.

ring_attention.py --build BUILD [--full]

Exits with 77 (skipped) if torch cannot be imported or the build has no Python package.
"""
import argparse
import importlib.util
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

from venv_python import use_the_tests_python

SOURCE = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(SOURCE / "tests/process"))
from orthant_process import meeting  # noqa: E402

SKIPPED, RANKS, HANG_S = 77, 4, 900


def run_ranks(arguments, environment, folder):
    """Runs a process for each rank, and returns their outputs. If one fails, ends the others after ten seconds, and
    exits with all outputs."""
    outputs = [open(os.path.join(folder, f"output-{rank}"), "w+", encoding="utf-8") for rank in range(RANKS)]
    ranks = [subprocess.Popen([sys.executable, *arguments], env={**environment, "RANK": str(rank)}, cwd=folder,
                              stdin=subprocess.DEVNULL, stdout=outputs[rank], stderr=subprocess.STDOUT)
             for rank in range(RANKS)]
    deadline = time.monotonic() + HANG_S
    while any(rank.poll() is None for rank in ranks) and time.monotonic() < deadline:
        if any(rank.poll() for rank in ranks):
            deadline = min(deadline, time.monotonic() + 10)
        time.sleep(0.02)
    codes = [rank.poll() for rank in ranks]
    for rank in ranks:
        rank.kill()
        rank.wait()
    texts = []
    for output in outputs:
        output.seek(0)
        texts.append(output.read())
        output.close()
    if any(code != 0 for code in codes):  # None: the rank hangs
        sys.exit("\n".join(f"rank {rank}, exit code {codes[rank]}:\n{text}" for rank, text in enumerate(texts)))
    return texts


def example():
    """The script in the section "Ring attention" of docs/python.md."""
    page = (SOURCE / "docs/python.md").read_text(encoding="utf-8")
    section = page.split("\n## Ring attention\n")[1].split("\n## ")[0]
    blocks = re.findall(r"(?:^(?: {4}.*)?\n)+", section, re.M)
    [script] = [block for block in blocks if "init_process_group" in block]
    return re.sub("^ {4}", "", script, flags=re.M)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--build", required=True)
    p.add_argument("--full", action="store_true")
    a = p.parse_args()
    use_the_tests_python()
    package = pathlib.Path(a.build).resolve() / "python"
    if importlib.util.find_spec("torch") is None:
        print("skipped: there is no torch")
        return SKIPPED
    if (package / "missing").exists():
        print("skipped:", (package / "missing").read_text())
        return SKIPPED
    environment = {**os.environ, **meeting(RANKS), "PYTHONPATH": str(package), "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder:
        script = pathlib.Path(folder, "example.py")
        script.write_text(example(), encoding="utf-8")
        texts = run_ranks([SOURCE / "tests/oracle/ring_attention_ranks.py", os.path.join(folder, "store"), script,
                           *(["--full"] if a.full else [])], environment, folder)
    print(texts[0], end="")
    assert all(text.endswith("output and gradients are equal\n") for text in texts), texts
    return 0


if __name__ == "__main__":
    sys.exit(main())
