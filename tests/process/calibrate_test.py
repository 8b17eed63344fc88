"""Tests of `orthant calibrate`: the profile of a short calibration is complete, and plan reads it."""
import os
import tomllib

from orthant_process import ORTHANT, ProcessTest, free_port, main


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


    def test_links_between_hosts_are_measured(self):
        hosts = {"WORLD_SIZE": "4", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1",
                 "MASTER_PORT": str(free_port())}
        ranks = [self.start([ORTHANT, "calibrate", "--seconds", "2", "--hardware", "this-cpu", "--write", "cluster.toml"],
                            env={**hosts, "RANK": str(rank)}) for rank in range(4)]
        for rank in ranks:
            self.assertEqual(rank.result(120).code, 0)
        with open(self.folder / "cluster.toml", "rb") as stream:
            profile = tomllib.load(stream)
        self.assertEqual(profile["device"]["per_host"], 1)
        between = profile["between_hosts"]
        for table in (between, between["message"], *between["all_reduce"], *between["all_to_all"]):
            self.assertRegex(table["origin"], "^measured: 4 hosts with 1 rank each, ")
        # Groups of 2 and of all 4 hosts; the last entry holds for larger groups, too.
        self.assertEqual([entry.get("ranks") for entry in between["reduce_scatter"]], [2, None])
        self.assertTrue(profile["same_host"]["origin"].startswith("assumed"), "links of a host are not measured again")
        plan = self.orthant("plan", "run.toml", "--hardware", "cluster.toml")
        self.assertEqual(plan.code, 0, plan)


class Calibrate(ProcessTest):
    LAUNCHED = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": "1"}

    def test_launched_ranks_need_the_profile_of_a_host(self):
        result = self.orthant("calibrate", env=self.LAUNCHED)
        self.assert_says(result, 1, "--hardware must name the profile of one host", "without a launcher")

    def test_launched_ranks_need_several_hosts(self):
        result = self.orthant("calibrate", "--hardware", "this-cpu", env=self.LAUNCHED)
        self.assert_says(result, 1, "all 2 ranks are on one", "run it without a launcher")

    def test_links_of_gpus_are_not_measured(self):
        result = self.orthant("calibrate", "--hardware", "h100-8x", env=self.LAUNCHED)
        self.assert_says(result, 1, "--hardware h100-8x describes GPUs", "[between_hosts]")

    def test_hosts_with_different_numbers_of_ranks(self):
        result = self.orthant("calibrate", "--hardware", "this-cpu", env={**self.LAUNCHED, "WORLD_SIZE": "3"})
        self.assert_says(result, 1, "the same number of ranks on every host")

    def test_hardware_is_for_launched_ranks(self):
        result = self.orthant("calibrate", "--hardware", "this-cpu")
        self.assert_says(result, 2, "--hardware is for orthant calibrate under a launcher")

    def test_file_that_cannot_be_written(self):
        result = self.orthant("calibrate", "--seconds", "1", "--write", "no/such/folder.toml")
        self.assert_says(result, 1, "no/such/folder.toml: cannot be written: No such file or directory")


if __name__ == "__main__":
    main()
