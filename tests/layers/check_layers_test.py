"""Tests of the layer checker: it accepts a small correct tree, and names each fault planted in it."""
import os
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tools"))
sys.dont_write_bytecode = True
import check_layers  # noqa: E402

HEAD = "// What it is for.\n#pragma once\n"
TREE = {
    "CMakeLists.txt": "orthant_room(base DEPENDS orthant_fmt)\northant_room(mesh DEPENDS base)\n"
                      "orthant_room(model PLAN DEPENDS base)\northant_room(model TORCH DEPENDS model/plan base)\n",
    "src/base/errors.h": HEAD,
    "src/mesh/mesh.h": HEAD + '#include "base/errors.h"\n',
    "src/model/architecture.h": HEAD + '#include "base/errors.h"\n',
    "src/model/transformer.h": HEAD + '#include <ATen/core/Tensor.h>\n#include "model/architecture.h"\n',
    "src/comm/comm.h": HEAD + "#include <torch/csrc/distributed/c10d/Work.hpp>\nc10d::Work* work();\n",
    "docs/papers.md": "| an idea | `src/mesh/mesh.h` |\n",
}


class CheckLayers(unittest.TestCase):
    def findings(self, **changes):
        """Returns the findings of the checker for TREE with some files replaced or added."""
        with tempfile.TemporaryDirectory() as root:
            for path, text in {**TREE, **changes}.items():
                os.makedirs(os.path.dirname(os.path.join(root, path)), exist_ok=True)
                with open(os.path.join(root, path), "w", encoding="utf-8") as stream:
                    stream.write(text)
            return check_layers.check(root)

    def fault(self, expected, path, text):
        found = self.findings(**{path: text})
        self.assertTrue(any(expected in finding for finding in found), f"{expected!r} is not among {found}")

    def test_a_sound_tree_has_no_findings(self):
        self.assertEqual(self.findings(), [])

    def test_arrows(self):
        self.fault("base may not include mesh", "src/base/errors.h", HEAD + '#include "mesh/mesh.h"\n')
        self.fault("model may not include mesh", "src/model/loss.cc", '#include "mesh/mesh.h"\n')
        self.fault("model/plan may not include model", "src/model/architecture.cc", '#include "model/transformer.h"\n')

        both = {"src/schedule/s.h": HEAD, "src/mesh/a.cc": '#include "schedule/s.h"\n'}
        self.assertIn("mesh may not include schedule", "".join(self.findings(**both)))

    def test_unused_arrows(self):
        mesh, errors = "src/mesh/mesh.h", "src/base/errors.h"
        files = [check_layers.File(mesh, "mesh", "", ["base/errors.h"]), check_layers.File(errors, "base", "", [])]
        self.assertEqual(list(check_layers.check_unused(files)), [])
        unused = list(check_layers.check_unused([files[0]._replace(includes=[]), files[1]]))
        self.assertEqual(len(unused), 1)
        self.assertIn("mesh may include base, but no file does", unused[0])

    def test_cycles(self):
        two = {"src/mesh/a.h": HEAD + '#include "mesh/b.h"\n', "src/mesh/b.h": HEAD + '#include "mesh/a.h"\n'}
        self.assertIn("a cycle between files: mesh/a.h -> mesh/b.h -> mesh/a.h", self.findings(**two))
        self.assertEqual(check_layers.find_cycle({"a": ["b", "c"], "b": ["c"], "c": []}), None)
        self.assertEqual(check_layers.find_cycle({"a": ["b"], "b": ["c"], "c": ["b"]}), ["b", "c", "b"])

    def test_the_torch_line(self):
        for path in ("src/mesh/a.cc", "src/model/architecture.cc", "src/model/kernels/a.cc", "src/data/a.cc",
                     "src/checkpoint/a.cc"):
            self.fault("links no torch", path, "#include <ATen/core/Tensor.h>\n")
        self.fault("torch/torch.h: take", "src/model/a.cc", "#include <torch/torch.h>\n")
        self.fault("torch/torch.h: take", "tests/model/a_test.cc", "#include <torch/torch.h>\n")

    def test_transports_are_named_in_comm_only(self):
        self.fault("names c10d::", "src/model/a.cc", "c10d::Work* work();\n")
        self.fault("names ucp_", "src/runtime/a.cc", "int f() { return ucp_init(); }\n")
        self.fault("only comm names", "src/runtime/a.cc", "#include <torch/csrc/distributed/c10d/Work.hpp>\n")
        self.assertEqual(self.findings(**{"src/runtime/a.cc": '// c10d:: in words\nchar a[] = "ucp_init c10d::";\n'}), [])

    def test_form(self):
        self.fault("more than 400", "src/mesh/a.cc", "\n" * 401)
        self.fault("more than 250", "src/mesh/a.h", HEAD + "\n" * 249)
        self.fault("begins with a comment", "src/mesh/a.h", "#pragma once\n")
        self.fault("#pragma once is missing", "src/mesh/a.h", "// What it is for.\n")
        self.fault("src/mesh/a.cc:2: 121 columns", "src/mesh/a.cc", "\n" + "x" * 121 + "\n")
        self.assertEqual(self.findings(**{"src/mesh/a.cc": "x" * 120 + "\n"}), [])
        guard = "// Read once a target.\n#if defined(A_INL_H) == defined(HWY_TARGET_TOGGLE)\n#endif\n"
        self.assertEqual(self.findings(**{"src/model/kernels/a-inl.h": guard}), [])
        self.fault("is no room", "src/attic/a.cc", "\n")
        self.assertEqual(self.findings(**{"src/mesh/a.cc": "\n" * 400, "src/mesh/a.h": HEAD + "\n" * 248}), [])

    def test_the_build(self):
        self.fault("links mesh into base", "CMakeLists.txt", "orthant_room(base DEPENDS mesh)\n")
        self.fault("links torch into mesh", "CMakeLists.txt", "orthant_room(mesh TORCH DEPENDS base)\n")
        self.fault("attic is no room", "CMakeLists.txt", "orthant_room(attic DEPENDS base)\n")

    def test_papers(self):
        self.fault("points at src/attic/a.h", "docs/papers.md", "see `src/attic/a.h`\n")

    def test_an_empty_tree_is_not_sound(self):
        with tempfile.TemporaryDirectory() as root:
            with open(os.path.join(root, "CMakeLists.txt"), "w", encoding="utf-8"):
                self.assertTrue(check_layers.check(root))

    def test_long_functions(self):
        def warnings(lines):
            body = "int f() {\n" + "  g();\n" * lines + "}\n"
            return list(check_layers.long_functions(check_layers.File("a.cc", "mesh", body, [])))
        self.assertEqual(len(warnings(61)), 1)
        self.assertEqual(len(warnings(50)), 0)

    def test_the_map_shows_real_arrows(self):
        with tempfile.TemporaryDirectory() as root:
            for path, text in TREE.items():
                os.makedirs(os.path.dirname(os.path.join(root, path)), exist_ok=True)
                with open(os.path.join(root, path), "w", encoding="utf-8") as stream:
                    stream.write(text)
            text = check_layers.print_map(root)
        self.assertIn("  model --> model_plan\n", text)
        self.assertIn("  model_plan --> base\n", text)
        self.assertNotIn("runtime", text)

    def test_plan_files_are_those_of_the_build(self):
        cmake = os.path.join(os.path.dirname(check_layers.__file__), "..", "cmake", "OrthantRooms.cmake")
        with open(cmake, encoding="utf-8") as stream:
            self.assertIn(check_layers.PLAN_FILE.pattern.replace(r"\.(cc|h)", r"\\.(cc|h)$").replace("(plan", "(^|/)(plan"),
                          stream.read())


if __name__ == "__main__":
    unittest.main()
