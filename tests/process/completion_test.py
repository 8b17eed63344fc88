"""Drives the completions of bash, zsh and fish, and formats the manual page."""
import re
import shlex
import shutil
import subprocess
import unittest

from orthant_process import ProcessTest, main


class Written(ProcessTest):
    def write(self, name, *command):
        result = self.orthant(*command)
        self.assertEqual(result.code, 0, result)
        (self.folder / name).write_text(result.out)
        return result.out

    def run_here(self, *command, **options):
        return subprocess.run(command, cwd=self.folder, capture_output=True, text=True, timeout=60, **options)


class Bash(Written):
    def setUp(self):
        super().setUp()
        self.write("orthant.bash", "completion", "bash")
        (self.folder / "run two.toml").write_text("")
        (self.folder / "runs").mkdir()

    def complete(self, line, breaks=True):
        """The completions of the last word of a command line. Bash splits words at '=', unless COMP_WORDBREAKS lacks
        it."""
        words = line.split(" ")
        if breaks:
            words = [part for word in words for part in re.split("(=)", word) if part or word == ""]
            if line.endswith("="):
                words.append("")
        script = (f"source ./orthant.bash\nCOMP_WORDS=({' '.join(map(shlex.quote, words))})\n"
                  f"COMP_CWORD={len(words) - 1}\n_orthant\nprintf '%s\\n' \"${{COMPREPLY[@]}}\"")
        result = self.run_here("bash", "--norc", "--noprofile", "-c", script)
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        return sorted(result.stdout.split("\n")[:-1]) if result.stdout.strip() else []

    def test_commands_and_options(self):
        self.assertEqual(self.complete("orthant t"), ["tokenize", "train"])
        self.assertIn("completion", self.complete("orthant "))
        self.assertEqual(self.complete("orthant train --resu"), ["--resume"])
        self.assertEqual(self.complete("orthant tokenize --t"), ["--text-key", "--tokenizer"])
        self.assertEqual(self.complete("orthant doctor --training."), [])
        self.assertEqual(self.complete("orthant verify --training.st"), ["--training.steps"])
        self.assertEqual(self.complete("orthant verify run.toml training.st"), ["training.steps="])
        self.assertEqual(self.complete("orthant completion "), ["bash", "fish", "zsh"])

    def test_values(self):
        dtypes = ["bfloat16", "float32", "float64"]
        for line in ("--training.dtype ", "--training.dtype=", "training.dtype="):
            self.assertEqual(self.complete("orthant train run.toml " + line), dtypes)
            self.assertEqual(self.complete("orthant train run.toml " + line + "float3"), ["float32"])
        self.assertEqual(self.complete("orthant train --training.dtype=b", breaks=False), ["--training.dtype=bfloat16"])
        self.assertEqual(self.complete("orthant train training.dtype=b", breaks=False), ["training.dtype=bfloat16"])
        self.assertEqual(self.complete("orthant plan r --parallelism.pipeline-parallel-schedule zb_"),
                         ["zb_h1", "zb_h2", "zb_v"])
        self.assertEqual(self.complete("orthant plan run.toml --metrics.enable_tensorboard "), ["false", "true"])
        self.assertEqual(self.complete("orthant plan run.toml --show mem"), ["memory"])
        self.assertEqual(self.complete("orthant plan run.toml --show memory,sch"), ["memory,schedule"])
        self.assertEqual(self.complete("orthant plan run.toml --hardware h10"), ["h100-8x"])
        self.assertEqual(self.complete("orthant plan run.toml run.hardware=h10"), ["h100-8x"])
        self.assertEqual(self.complete("orthant tokenize --format j"), ["jsonl"])
        self.assertEqual(self.complete("orthant verify run.toml --steps "), [])  # any number
        self.assertEqual(self.complete("orthant train run.toml --training.steps "), [])

    def test_files(self):
        self.assertEqual(self.complete("orthant train ru"), ["run two.toml", "run.toml", "runs"])
        self.assertEqual(self.complete("orthant train run.toml --data.path t"), ["text.txt"])
        self.assertEqual(self.complete("orthant train run.toml data.tokenizer=t"), ["text.txt"])
        self.assertEqual(self.complete("orthant tokenize --tokenizer b"), ["byte"])
        self.assertEqual(self.complete("orthant plan --hf ru"), ["run two.toml", "run.toml", "runs"])
        self.assertEqual(self.complete("orthant report ru"), ["runs"])  # takes a folder
        self.assertEqual(self.complete("orthant checkpoint "), ["diff", "list", "runs", "verify"])


class OtherShells(Written):
    def test_fish(self):
        self.write("orthant.fish", "completion", "fish")
        if not shutil.which("fish"):
            self.skipTest("fish is not installed")

        def complete(line):
            result = self.run_here("fish", "--no-config", "-c", f"source orthant.fish; complete -C {shlex.quote(line)}")
            self.assertEqual((result.returncode, result.stderr), (0, ""))
            return sorted(word.split("\t")[0] for word in result.stdout.splitlines())

        self.assertEqual(complete("orthant t"), ["tokenize", "train"])
        self.assertEqual(complete("orthant train --resu"), ["--resume"])
        self.assertEqual(complete("orthant train --training.dtype "), ["bfloat16", "float32", "float64"])
        self.assertEqual(complete("orthant train --training.dtype=b"), ["--training.dtype=bfloat16"])
        self.assertEqual(complete("orthant plan --show memory,sch"), ["memory,schedule"])
        self.assertEqual(complete("orthant train run"), ["run.toml"])
        self.assertEqual(complete("orthant doctor --training."), [])
        self.assertEqual(complete("orthant completion z"), ["zsh"])
        self.assertEqual(complete("orthant checkpoint v"), ["verify"])

    def test_zsh(self):
        script = self.write("_orthant", "completion", "zsh")
        if not shutil.which("zsh"):
            self.skipTest("zsh is not installed")
        self.assertEqual(self.run_here("zsh", "-n", "_orthant").stderr, "")
        (self.folder / "broken").write_text(script.replace("esac", "", 1))
        self.assertNotEqual(self.run_here("zsh", "-n", "broken").stderr, "")


class Manual(Written):
    @unittest.skipUnless(shutil.which("groff"), "groff is not installed")
    def test_page(self):
        page = self.write("orthant.1", "manual")
        formatted = self.run_here("groff", "-man", "-ww", "-Tutf8", "-P-cbou", "orthant.1")
        self.assertEqual((formatted.returncode, formatted.stderr), (0, ""))
        for text in ("orthant train RUN_FILE [OPTIONS] [SETTINGS]", "--training.steps int", "EXIT STATUS",
                     "orthant tokenize 'books/*.txt' --output books", "model's shape"):
            self.assertIn(text, formatted.stdout)
        (self.folder / "orthant.1").write_text(page + ".undefined\n")
        self.assertIn("undefined", self.run_here("groff", "-man", "-ww", "-Tutf8", "orthant.1").stderr)


if __name__ == "__main__":
    main()
