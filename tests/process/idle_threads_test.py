"""Tests that every rank limits how long idle OpenMP threads spin, unless the user has set how they wait."""
import pathlib

from orthant_process import ProcessTest, main


class IdleThreads(ProcessTest):
    SPINNING = {}

    def variables(self, pid):
        pairs = pathlib.Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
        return dict(pair.split("=", 1) for pair in pairs if "=" in pair)

    def test_every_rank_limits_spinning(self):
        libgomp_default = 300_000
        for ranks in (1, 2):
            with self.subTest(ranks):
                self.dump = self.folder / f"run-{ranks}"
                running = self.start_training(f"run.ranks={ranks}", f"job.dump_folder={self.dump}", until_step=1)
                for pid in running.ranks().values() or [running.process.pid]:
                    self.assertIn(int(self.variables(pid)["GOMP_SPINCOUNT"]), range(1000, libgomp_default + 1))
                running.end()

    def test_setting_of_user_is_kept(self):
        for choice in ({"OMP_WAIT_POLICY": "passive"}, {"GOMP_SPINCOUNT": "77"}):
            with self.subTest(choice):
                self.dump = self.folder / "-".join(choice)
                running = self.start_training("run.ranks=1", f"job.dump_folder={self.dump}", until_step=1, env=choice)
                variables = self.variables(running.process.pid)
                self.assertEqual(variables.get("GOMP_SPINCOUNT"), choice.get("GOMP_SPINCOUNT"))
                running.end()

    def test_malformed_setting_is_replaced(self):
        running = self.start_training("run.ranks=1", until_step=1, env={"GOMP_SPINCOUNT": "many"})
        self.assertIn(int(self.variables(running.process.pid)["GOMP_SPINCOUNT"]), range(1000, 300_001))
        running.end()


if __name__ == "__main__":
    main()
