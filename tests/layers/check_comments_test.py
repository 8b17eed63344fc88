"""Tests of the checker of comments: it accepts whole sentences, and finds each fault that is planted."""
import os
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tools"))
sys.dont_write_bytecode = True
import check_comments  # noqa: E402


class CheckComments(unittest.TestCase):
    def findings(self, text, path="src/mesh/mesh.h"):
        return check_comments.check_file(path, text)

    def test_sentences_pass(self):
        self.assertEqual(self.findings("// Returns the shard of a rank.\n// Of all ranks, the first is the largest.\nint a;\n"), [])
        self.assertEqual(self.findings("# Offsets are in bytes.\na = 1\n", "tools/a.py"), [])
        self.assertEqual(self.findings('const char* text = "// What is this?";\n'), [])

    def test_a_fragment_is_found_in_its_line(self):
        for path, mark in (("src/mesh/mesh.h", "///"), ("src/mesh/mesh.cc", "//"), ("cmake/a.cmake", "#")):
            for word in ("Of", "What", "Whose", "As many"):
                found = self.findings(f"\n{mark} {word} the rank has.\n", path)
                self.assertEqual(len(found), 1, (path, word))
                self.assertTrue(found[0].startswith(f"{path}:2: "), found)

    def test_a_quantity_without_a_name_is_found_on_any_line(self):
        found = self.findings("// The rank sends bytes,\n// as there are so many tokens.\n")
        self.assertEqual(len(found), 1)
        self.assertIn('"so many"', found[0])

    def test_a_replaced_word_is_found_in_src_only(self):
        for word in ("knows", "heard", "put away", "Settles"):
            text = f"// The rank\n// {word} the norm.\n"
            found = self.findings(text)
            self.assertEqual(len(found), 1, word)
            self.assertIn(f'"{word}"', found[0])
            self.assertEqual(self.findings(text, "tests/mesh/mesh_test.cc"), [])
        self.assertEqual(self.findings("// `beside`: work; SETTLE, unknown and settlement are other words.\n"), [])


if __name__ == "__main__":
    unittest.main()
