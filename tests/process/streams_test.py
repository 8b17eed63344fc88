"""Tests of the program with unusual standard streams and limits of a shell: closed streams, a pipe that ends early, a
full disk, `nohup`, and limits of file size and of open files. Also tests `tools/setup.sh quietly`."""
import os
import signal
import subprocess

from orthant_process import ORTHANT, SOURCE, ProcessTest, main


class Streams(ProcessTest):
    def shell(self, line, *arguments, shell="bash", **options):
        """Starts a line of shell in which "$@" is the program with its arguments."""
        return self.start([shell, "-c", line, shell, ORTHANT, *arguments], **options)

    def assert_whole(self):
        self.assertEqual([step for step, _ in self.losses()], list(range(1, 11)))
        self.assertEqual(self.latest().name, "step-000010")

    def test_closed_streams_do_not_write_to_other_files(self):
        for ranks in (1, 2):
            for closed in ("0<&- 1>&- 2>&-", "1>&-", "0<&- 1>&-"):
                with self.subTest(ranks=ranks, closed=closed):
                    subprocess.run(["rm", "-rf", self.dump], check=True)
                    result = self.shell(f'exec "$@" {closed}', "train", "run.toml", f"run.ranks={ranks}").result()
                    self.assertEqual((result.code, result.out), (0, ""), result)
                    self.assert_whole()
                    for path in self.dump.rglob("*"):
                        if path.is_file() and path.name not in ("report.html",):
                            self.assertNotIn(b"tok/s", path.read_bytes(), path)
                            self.assertNotIn(b"Sample: ", path.read_bytes(), path)

    def test_closed_pipe_does_not_end_run(self):
        for ranks in (1, 2):
            with self.subTest(ranks=ranks):
                subprocess.run(["rm", "-rf", self.dump], check=True)
                result = self.shell('set -o pipefail; "$@" | head -n 1', "train", "run.toml",
                                    f"run.ranks={ranks}").result()
                self.assertEqual((result.code, result.errors(), len(result.out.splitlines())), (0, [], 1), result)
                self.assert_whole()

    def test_full_disk_of_stdout_is_reported(self):
        for arguments in (["plan", "run.toml"], ["doctor"], ["reference"], ["train", "run.toml", "--print-config"],
                          ["train", "run.toml", "run.ranks=1"], ["train", "run.toml", "run.ranks=2"]):
            with self.subTest(arguments):
                result = self.shell('exec "$@" >/dev/full', *arguments).result()
                self.assert_says(result, 1, "standard output cannot be written", "disk full")
        self.assert_whole()  # the run has trained and saved all steps

    def test_file_size_limit_names_file(self):
        result = self.shell('ulimit -f 64; exec "$@"', "train", "run.toml", "run.ranks=1", "model.hidden_size=128").result()
        self.assert_says(result, 1, "run/", "File too large")

    def test_nohup_is_respected(self):
        for ranks in (1, 2):
            with self.subTest(ranks=ranks):
                subprocess.run(["rm", "-rf", self.dump], check=True)
                running = self.start_training(f"run.ranks={ranks}", "checkpoint.interval=0", command=["nohup"])
                os.kill(running.process.pid, signal.SIGHUP)
                for pid in running.ranks().values():
                    os.kill(pid, signal.SIGHUP)
                seen = len(self.steps())
                running.until(lambda: len(self.steps()) > seen + 20, "further steps")
                os.kill(running.process.pid, signal.SIGTERM)
                self.assertEqual(running.result().code, 0)

    def test_limit_of_open_files_is_reported(self):
        result = self.shell('ulimit -n 16; exec "$@"', "train", "run.toml").result()
        self.assert_says(result, 1, "limit of open files", "this process may set is 16", "ulimit -Hn")


class QuietSetup(ProcessTest):
    """The output of `tools/setup.sh quietly`, with which `make train` runs the build."""

    def quietly(self, *command):
        return self.start([SOURCE / "tools/setup.sh", "quietly", "Building", *command],
                          env={"ORTHANT_SETUP_LOG": str(self.folder / "log")}).result()

    def test_fast_command_prints_nothing(self):
        result = self.quietly("echo", "Re-checking globbed directories...")
        self.assertEqual((result.code, result.out, result.err), (0, "", ""), result)

    def test_slow_command_prints_progress(self):
        result = self.quietly("sleep", "3")
        self.assertEqual(result.code, 0, result)
        self.assertRegex(result.out, r"^Building \.\.\.\nBuilding: done, [345]s\n$")

    def test_output_of_failed_command_is_shown(self):
        result = self.quietly("sh", "-c", "echo no such compiler; exit 3")
        self.assertEqual(result.code, 3, result)
        self.assertIn("no such compiler", result.err)


if __name__ == "__main__":
    main()
