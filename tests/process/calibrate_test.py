"""Tests of `orthant calibrate`: the profile of a short calibration is complete, and plan reads it."""
import os

from orthant_process import ORTHANT, ProcessTest, main


class LongCalibrate(ProcessTest):
    def test_profile_is_measured_and_plan_reads_it(self):
        result = self.start([ORTHANT, "calibrate", "--seconds", "1", "--write", "machine.toml"]).result(600)
        self.assertEqual(result.code, 0, result)
        profile = (self.folder / "machine.toml").read_text()
        self.assertIn(f"shared_cores = {len(os.sched_getaffinity(0))}\n", profile)
        for table in ("products", "attention", "memory", "same_host", "same_host.message", "process_memory"):
            self.assertIn(f'[{table}]\norigin = "measured: ', profile)
        plan = self.orthant("plan", "run.toml", "--hardware", "machine.toml")
        self.assertEqual(plan.code, 0, plan)
        self.assertRegex(plan.out, r"(?m)^step +[0-9.e-]+ s: ")


class Calibrate(ProcessTest):
    def test_launcher_is_refused(self):
        result = self.orthant("calibrate", env={"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1",
                                                "MASTER_PORT": "1"})
        self.assert_says(result, 1, "orthant calibrate starts its own ranks", "without a launcher")

    def test_file_that_cannot_be_written(self):
        result = self.orthant("calibrate", "--seconds", "1", "--write", "no/such/folder.toml")
        self.assert_says(result, 1, "no/such/folder.toml: cannot be written: No such file or directory")


if __name__ == "__main__":
    main()
