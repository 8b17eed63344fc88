"""Tests of the shards of sequences in the Python package. They equal those of the engine: both sides read
tests/golden/sequence_shards.txt, and placement_test.cc compares the engine with it."""
import sys
import unittest.mock

from orthant_process import main
from python_package import SOURCE, PythonTest, orthant
from orthant._sequence import head_shard

GOLDEN = SOURCE / "tests/golden/sequence_shards.txt"


def line_of(kind, first, second, third, shards):
    return f"{kind} {first} {second} {third} : " + " | ".join(" ".join(map(str, numbers)) for numbers in shards)


class Shards(PythonTest):
    def test_shards_are_those_of_the_engine(self):
        lines = [line for line in GOLDEN.read_text().splitlines() if not line.startswith("#")]
        for line in lines:
            kind, *numbers = line.split(" : ")[0].split()
            first, second, third = map(int, numbers)
            if kind == "heads":
                parts = [head_shard(first, second, third, rank) for rank in range(third)]
                shards = [(query.start, query.stop, key.start, key.stop) for query, key in parts]
            else:
                ranks = second * third
                shards = [orthant.held_positions(rank, ranks, first, ulysses=second, placement=kind)
                          for rank in range(ranks)]
            self.assertEqual(line_of(kind, first, second, third, shards), line)
        self.assertGreater(len(lines), 40)
        # The control: the other order of axes, ring inside ulysses, gives other shards.
        swapped = [orthant.held_positions(rank % 2 * 2 + rank // 2, 4, 13, ulysses=2) for rank in range(4)]
        self.assertNotIn(line_of("zigzag", 13, 2, 2, swapped), lines)

    def test_messages_are_those_of_the_program(self):
        with self.assertRaises(orthant.ConfigError) as raised:
            orthant.held_positions(0, 4, 16, placement="zigzg")
        said = self.orthant("plan", "run.toml", "parallelism.context_parallel_placement=zigzg").err
        law = 'must be "contiguous", "zigzag" or "stripe"; did you mean "zigzag"?'
        self.assertIn(law, str(raised.exception))
        self.assertIn(law, said)
        with self.assertRaises(orthant.ConfigError) as raised:
            orthant.held_positions(0, 4, 6, placement="zigzag")
        said = self.orthant("plan", "run.toml", "training.seq_len=6", "parallelism.context_parallel_ring=4",
                            "run.ranks=4").err
        for message in (str(raised.exception), said):
            self.assertIn("must be at least 8, the pieces of a sequence for", message)
        for arguments, law in (((0, 4, 16, "ulysses", 3), "ulysses = 3 must divide the 4 ranks of the group"),
                               ((0, 4, 16, "ulysses", 0), "ulysses = 0 must divide"),
                               ((4, 4, 16, "ulysses", 1), "rank = 4 must be from 0 to 3")):
            *numbers, key, value = arguments
            with self.assertRaisesRegex(orthant.ConfigError, law):
                orthant.held_positions(*numbers, **{key: value})

    def test_without_torch_the_message_names_it(self):
        with unittest.mock.patch.dict(sys.modules, {"torch": None}):  # an import of torch fails
            with self.assertRaisesRegex(orthant.Error, "require PyTorch.*pip install torch"):
                orthant.ring_attention(None, None, None)


if __name__ == "__main__":
    main()
