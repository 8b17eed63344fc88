"""Installs Orthant, moves the installed folder, and builds and runs the programs of tests/consumer with it."""
import functools
import json
import re
import subprocess

from orthant_process import BUILD, SOURCE, ProcessTest, main

CONSUMERS = SOURCE / "tests/consumer"


@functools.cache
def cached(name):
    """The value of a variable in the build's CMakeCache.txt; empty if it has none."""
    found = re.search(rf"^{name}:\w+=(.*)$", (BUILD / "CMakeCache.txt").read_text(), re.M)
    return found.group(1) if found else ""


class InstalledTest(ProcessTest):
    NO_TORCH = "-DORTHANT_TORCH_DIR=/no/torch"

    def setUp(self):
        super().setUp()
        if cached("ORTHANT_CUDA") == "ON":
            self.skipTest("a build with CUDA installs no library")
        built, self.prefix = self.folder / "P", self.folder / "Q"
        self.succeed("cmake", "--install", BUILD, "--prefix", built)
        built.rename(self.prefix)
        self.write_run_file(global_batch_size="8")

    def succeed(self, *command):
        result = self.start(command).result(600)
        self.assertEqual(result.code, 0, f"{command}: {result}")
        return result

    def configure(self, consumer, *options):
        sanitize = cached("ORTHANT_SANITIZE")
        return self.start(["cmake", "-G", "Ninja", "-S", CONSUMERS / consumer, "-B", f"{consumer}-build",
                           f"-DCMAKE_PREFIX_PATH={self.prefix}", *options,
                           *([f"-DCMAKE_CXX_FLAGS=-fsanitize={sanitize}"] if sanitize else [])]).result(600)

    def build(self, consumer, program, *options):
        """Builds a program of tests/consumer, and returns its path."""
        configured = self.configure(consumer, *options)
        self.assertEqual(configured.code, 0, configured)
        self.succeed("cmake", "--build", f"{consumer}-build")
        return self.folder / f"{consumer}-build" / program

    def needed_libraries(self, program):
        dynamic = subprocess.run(["readelf", "-d", program], check=True, capture_output=True, text=True).stdout
        return re.findall(r"NEEDED.*\[(.*)\]", dynamic)


class Library(InstalledTest):
    def test_installed_files_name_no_folder_of_the_build(self):
        torch = f"{cached('ORTHANT_TORCH_DIR')}/lib".encode()  # where the program finds libtorch
        files = [path for path in self.prefix.rglob("*") if path.is_file()]
        names = {str(path.relative_to(self.prefix)) for path in files}
        self.assertLessEqual({"bin/orthant", "lib/liborthant_plan.a", "lib/cmake/Orthant/OrthantConfigVersion.cmake",
                              "include/orthant/plan/plan.h", "share/man/man1/orthant.1"}, names)
        self.assertFalse([name for name in names if "/app/" in name or "gloo_stubs" in name])
        for path in files:
            content = path.read_bytes().replace(torch, b"")
            for folder in (BUILD, SOURCE):
                at = content.find(str(folder).encode())
                self.assertEqual(at, -1, f"{path}: {content[max(0, at - 100):at + 200]}")
        self.assertIn(str(SOURCE), (BUILD / "CMakeCache.txt").read_text())  # the search finds what is there
        self.assertIn("orthant", self.succeed(self.prefix / "bin/orthant", "--version").out)

    def test_a_program_plans_without_torch(self):
        program = self.build("plan", "plan_run", self.NO_TORCH)
        self.assertFalse([name for name in self.needed_libraries(program) if "torch" in name or "c10" in name])
        self.assertIn("libtorch_cpu.so", self.needed_libraries(BUILD / "orthant"))
        settings = ["run.ranks=4", "run.device=cuda", "run.hardware=h100-8x", "training.dtype=bfloat16",
                    "model.vocab_size=512", "parallelism.pipeline_parallel_degree=2"]
        lines = self.succeed(program, "run.toml", *settings).out.splitlines(keepends=True)
        plan = json.loads(self.orthant("plan", "run.toml", "--json", *settings).out)
        self.assertEqual([tuple(map(int, re.findall(r"\d+", line))) for line in lines[:4]],
                         [(rank["rank"], rank["memory_bytes"]["total"], rank["communication_bytes"])
                          for rank in plan["per_rank"]])
        self.assertEqual(lines[4], f"step: {plan['step_seconds']:.9f} s\n")
        self.assertEqual("".join(lines[5:]), plan["schedule"]["csv"])
        other = {"model_type": "llama", "hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 2,
                 "num_attention_heads": 4, "vocab_size": 259, "max_position_embeddings": 64}
        (self.folder / "model").mkdir()
        (self.folder / "model/config.json").write_text(json.dumps(other))
        refused = self.start([program, "run.toml", "model.from=model"]).result()
        self.assert_says(refused, 1, "model.hidden_size = 48 (model/config.json)", "make the two equal")
        refused = self.start([program, "run.toml", *settings, "run.ranks=3"]).result()
        self.assert_says(refused, 1, "parallelism.pipeline_parallel_degree = 2", "must divide the 3 ranks of the run")

    def test_what_is_not_found_is_explained(self):
        refused = self.configure("train", self.NO_TORCH)
        self.assertNotEqual(refused.code, 0, refused)
        for part in ("ORTHANT_TORCH_DIR", "/no/torch", "Reason given by package"):
            self.assertIn(part, refused.err)
        (self.folder / "CMakeLists.txt").write_text(
            "cmake_minimum_required(VERSION 3.25)\nproject(p LANGUAGES CXX)\n"
            "find_package(Orthant ${VERSION} REQUIRED COMPONENTS plan ${MORE})\n")
        configure = ["cmake", "-S", ".", "-B", "more", f"-DCMAKE_PREFIX_PATH={self.prefix}"]
        self.assertIn("other", self.start([*configure, "-DMORE=other"]).result().err)
        self.assertIn("99.0", self.start([*configure, "-DVERSION=99.0"]).result().err)
        self.succeed(*configure, "-DMORE=", "-DVERSION=0.1")


class LongLibrary(InstalledTest):
    def test_a_program_trains_like_orthant_train(self):
        program = self.build("train", "train_ranks", f"-DORTHANT_TORCH_DIR={cached('ORTHANT_TORCH_DIR')}")
        trained = self.succeed(program, "run.toml", "job.dump_folder=other")
        losses = [(int(step), float(loss)) for step, loss in re.findall(r"step (\d+) loss (\S+)", trained.out)]
        self.train_well()
        self.assertEqual(losses, self.losses())
        # Both continue the trained model, and take its tokenizer and sizes.
        model = [f"model.from={(self.dump / 'checkpoints/latest').resolve()}", "training.seed_weights=false"]
        self.orthant("train", "run.toml", "job.dump_folder=next", "training.steps=3", *model)
        again = self.start([program, "run.toml", "job.dump_folder=next", "training.steps=3", *model]).result(600)
        continued = re.findall(r"step \d+ loss (\S+)", again.out)
        self.assertEqual([float(loss) for loss in continued], [loss for _, loss in self.losses(self.folder / "next")])
        self.assertLess(float(continued[0]), losses[0][1] - 1)
        # With a learning rate that lets the loss grow, the program says so.
        failed = self.start([program, "run.toml", "optimizer.lr=3", "training.max_norm=0"]).result()
        self.assert_says(failed, 1, "the loss does not fall")


if __name__ == "__main__":
    main()
