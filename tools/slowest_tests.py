#!/usr/bin/env python3
"""Prints the ten slowest tests of the last `make test` or `make test-full`, with their durations in seconds.

  tools/slowest_tests.py BUILD_FOLDER

Test programs write the duration of each test to BUILD_FOLDER/test_results/ENTRY.json, in GoogleTest's format;
tests/process/orthant_process.py does so too. An entry without such a file counts as one test, with the duration in
ctest's log.
"""
import json
import pathlib
import re
import sys

COUNT = 10


def seconds_of_entries(build):
    """Returns the duration of each ctest entry of the last run: entry -> seconds."""
    log = build / "Testing/Temporary/LastTest.log"
    text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    return {name: float(seconds) for name, seconds in
            re.findall(r'^\d+/\d+ Testing: (\S+)\n(?:.*\n)*?Test time = +([\d.]+) sec', text, re.M)}


def tests_of(path):
    """Yields the tests in one result file as (seconds, "suite.name")."""
    for suite in json.loads(path.read_text(encoding="utf-8")).get("testsuites", []):
        for test in suite["testsuite"]:
            yield float(test["time"].rstrip("s")), f"{suite['name']}.{test['name']}"


def main():
    build = pathlib.Path(sys.argv[1])
    entries = seconds_of_entries(build)
    tests = []
    for entry, seconds in entries.items():
        path = build / "test_results" / f"{entry}.json"
        tests += [(s, f"{name} ({entry})") for s, name in tests_of(path)] if path.exists() else [(seconds, entry)]
    if tests:
        print(f"\nThe {min(COUNT, len(tests))} slowest of {len(tests)} tests, {sum(entries.values()):.0f} s in all:")
        for seconds, name in sorted(tests, reverse=True)[:COUNT]:
            print(f"  {seconds:7.1f} s  {name}")


if __name__ == "__main__":
    main()
