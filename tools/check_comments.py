#!/usr/bin/env python3
"""Checks the language of comments: none begins with a word that announces a fragment ("Of", "What", "Whose"), and none
leaves a quantity without a name ("so many", "of as many"). Comments of src/ must not use the words that the glossary of
the project replaces either ("knows", "heard"); names in backticks and in capitals may.
Run by ctest as `comments`.

  tools/check_comments.py [ROOT]    exit code 1, and one line for each finding, if something is wrong
"""
import os
import re
import sys
from typing import NamedTuple

FOLDERS = ("src", "tests", "benchmarks", "tools", "cmake")
RULES = (
    (re.compile(r"(Of|What|Whose|As many|As much|So many|So much|Such as|Those that)\b"),
     "a comment begins with \"{}\": write a whole sentence with a subject and a verb"),
    (re.compile(r".*?\b(so many|so much|of as many|of as much)\b", re.S),
     "a comment says \"{}\": name the quantity"),
)
# Replaced words, with the words to use. Comments of src/ only.
REPLACED = {
    "heard": "received", "told": "reported, passed", "said": "reported", "speaks": "reports", "knows": "has",
    "settles?": "finalize", "settled": "finalized", "judges?": "validate", "judged": "validated",
    "meetings?": "rendezvous", "departures?": "send completion", "spoiled": "with_mutation",
    "put away": "free", "loads? again": "re-gather", "as many as": "equally many", "beside": "compared with, together with",
    "first like": "replica leader", "those alike": "replicas",
}
NAMES = re.compile(r"`[^`]*`|\b[A-Z][A-Z_]+\b")
ALLOWED = ("src/comm/gloo_stubs",)  # declarations of another library


class Comment(NamedTuple):
    line: int
    text: str


def comments_of(path, text):
    """Returns the comments that stand on lines of their own; consecutive lines are one comment."""
    marker = re.compile(r"\s*//+ ?(.*)" if path.endswith((".h", ".cc")) else r"\s*# ?(.*)")
    found, begin, lines = [], 0, []
    for number, line in enumerate(text.splitlines() + [""], 1):
        match = marker.fullmatch(line)
        if match and not line.startswith("#!"):
            begin = begin or number
            lines.append(match[1])
        elif lines:
            found.append(Comment(begin, " ".join(lines).strip()))
            begin, lines = 0, []
    return found


def check_file(path, text):
    """Returns the findings of one file, as lines of text."""
    comments = comments_of(path, text)
    found = [f"{path}:{comment.line}: {message.format(match[1])}" for comment in comments
             for rule, message in RULES if (match := rule.match(comment.text))]
    if path.startswith("src/"):
        found += [f"{path}:{comment.line}: a comment says \"{match[0]}\": use {better}" for comment in comments
                  for word, better in REPLACED.items()
                  if (match := re.search(rf"\b{word}\b", NAMES.sub("", comment.text), re.I))]
    return found


def files_of(root):
    for folder in FOLDERS:
        for at, _, names in sorted(os.walk(os.path.join(root, folder))):
            for name in sorted(names):
                path = os.path.relpath(os.path.join(at, name), root)
                if (name.endswith((".h", ".cc", ".py", ".cmake")) or name == "CMakeLists.txt") and not path.startswith(ALLOWED):
                    yield path


def check(root):
    findings = []
    for path in files_of(root):
        with open(os.path.join(root, path), encoding="utf-8") as stream:
            findings += check_file(path, stream.read())
    return findings


def main(arguments):
    root = arguments[0] if arguments else os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
    findings = check(root)
    for finding in findings:
        print(f"error: {finding}")
    print(f"{len(findings)} findings" if findings else "all comments pass")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
