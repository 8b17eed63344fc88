#!/usr/bin/env python3
"""Checks the layers of src/: which folder ("room") may include which, which may include torch, and how long a file may
be. ctest runs it as `layers`. The table below states the allowed includes ("arrows"). A new arrow changes the design,
and is reviewed as such a change.

  tools/check_layers.py [ROOT]          checks the tree; prints one line per finding and exits with 1 if there are any
  tools/check_layers.py --map [ROOT]    prints docs/map.md
"""
import os
import re
import sys
from typing import NamedTuple


class Room(NamedTuple):
    sentence: str     # contents of the room, for docs/map.md
    torch: bool       # may it include torch headers?
    arrows: str = ""  # rooms it may include, separated by spaces


# The rooms above the torch line come first, in order of dependency, and then those below it. `X/plan` is the half of
# folder X without torch (see PLAN_FILE).
ROOMS = {
    "base": Room("Errors, checks, text for people, strict JSON, hashes, random bits by number, mapped files.", False),
    "mesh": Room("Who holds which part of what: meshes, layouts, the collectives between two layouts.", False, "base"),
    "schedule": Room("Who does what when: actions, schedules, timelines, drawings.", False, "base"),
    "hardware": Room("Machines as values, read from TOML profiles: times of kernels, collectives and messages.", False, "mesh base"),
    "model/plan": Room("The model's parameters, shapes, bytes and operations, computed without building it.", False, "base"),
    "parallel/data/plan": Room("Data parallelism as values: buckets, shards of a batch, when sharded states are gathered and reduced.", False, "mesh schedule base"),
    "parallel/sequence/plan": Room("Sequence parallelism as values: who holds which tokens and heads.", False, "model/plan mesh base"),
    "parallel/tensor/plan": Room("Tensor parallelism as values: who holds which part of a weight, elements received.", False, "model/plan mesh base"),
    "parallel/pipeline/plan": Room("Pipeline schedules as values: gpipe, 1f1b, interleaved, zero bubble, V shapes.", False, "schedule base"),
    "parallel/vocabulary/plan": Room("Vocabulary layers sharded over pipeline ranks, as values: orders of the passes, and other ways to balance.", False, "parallel/pipeline/plan mesh schedule base"),
    "config": Room("The run file: its keys, their laws, and the model, mesh and sharding that it asks for.", False,
                   "parallel/data/plan parallel/pipeline/plan parallel/sequence/plan parallel/tensor/plan model/plan mesh base"),
    "plan": Room("The Plan made from a run file: schedule, parameters, memory, messages and times.", False,
                 "config hardware parallel/data/plan parallel/pipeline/plan parallel/vocabulary/plan parallel/sequence/plan parallel/tensor/plan model/plan mesh schedule base"),
    "advice": Room("Other plans for the same run: alternatives, choices, and the nearest legal settings.", False,
                   "plan config hardware parallel/pipeline/plan parallel/sequence/plan parallel/tensor/plan schedule base"),
    "report": Room("Progress lines, metrics files, the HTML pages of runs and their charts.", False,
                   "plan config schedule base"),
    "launch": Room("Processes, their rendezvous over a store, heartbeats and failure reports.", True, "base"),
    "comm": Room("Process groups bound to mesh axes, and counted collectives. The only room that names transports.", True,
                 "launch mesh base"),
    "model/kernels": Room("Fused kernels on raw pointers: for CPUs, and in cuda/ for CUDA devices.", False, "base"),
    "model": Room("The transformer, its loss and its optimizer, on one device.", True, "model/plan model/kernels base"),
    "data": Room("Text to tokens to microbatches, in an order that no layout changes.", False, "base"),
    "checkpoint": Room("Weights and training state on disk, written whole or not at all.", False, "config base"),
    "library": Room("Planning as a library: a run before its data are opened, and the C interface of the Python package.", False,
                    "data report advice plan config parallel/pipeline/plan schedule base"),
    "parallel/data": Room("Data parallelism carried out: gradients reduced while backward runs, sharded weights gathered.", True,
                          "parallel/data/plan comm model base"),
    "parallel/sequence": Room("Attention over sequences that no rank holds in full: rings, all-to-alls.", True,
                              "parallel/sequence/plan comm model base"),
    "parallel/tensor": Room("Products of matrices, and the layers around them, that no rank holds in full.", True,
                            "parallel/tensor/plan comm model mesh base"),
    "parallel/vocabulary": Room("The embedding and the output layer with its loss, sharded by rows of the vocabulary.", True,
                                "parallel/vocabulary/plan parallel/tensor comm model base"),
    "runtime": Room("Carries out one rank's row of a Plan; metrics.", True,
                    "parallel/data parallel/sequence parallel/tensor parallel/vocabulary report plan config comm launch model data checkpoint schedule base"),
    "calibrate": Room("Measures kernels and messages of this machine, and messages between hosts.", True, "hardware comm model base"),
    "app": Room("The commands.", True, "calibrate runtime library advice report plan config hardware schedule comm launch model data checkpoint base"),
}
PLAN_FOLDERS = re.compile(r"parallel/.*|model")
PLAN_FILE = re.compile(r"(plan|[a-z0-9_]+_plan|architecture)\.(cc|h)")
TORCH_HEADER = re.compile(r"(torch|ATen|c10|caffe2)/")
WHOLE_TORCH = {"torch/torch.h", "torch/all.h", "torch/extension.h"}  # each takes 17-25 s and more than 1 GB per file
ONLY_COMM = re.compile(r"\bc10d::|\bProcessGroup(Gloo|NCCL)?\b|\buc[pst]_\w+")
ONLY_COMM_HEADER = re.compile(r"torch/csrc/distributed/|uc[pst]/")
STORE_FILES = {"src/launch/c10d_store.h", "src/launch/c10d_store.cc",  # c10d's key-value store, outside comm
               "src/launch/authenticated_store.cc"}
FILE_LINES, HEADER_LINES, FUNCTION_LINES, LINE_COLUMNS = 400, 250, 60, 120


class File(NamedTuple):
    path: str       # relative to the root: src/mesh/mesh.h
    room: str       # "" outside src/
    text: str
    includes: list  # paths as written in the #include lines


def room_of(path):
    """Returns the room of a path relative to src/: the longest folder that is in the table. A file that matches
    PLAN_FILE belongs to the folder's half without torch. Returns None if no folder is in the table."""
    folder, name = os.path.split(path)
    while folder and folder not in ROOMS and folder + "/plan" not in ROOMS:
        folder = os.path.dirname(folder)
    if PLAN_FOLDERS.fullmatch(folder) and PLAN_FILE.fullmatch(name):
        folder += "/plan"
    return folder if folder in ROOMS else None


def read_tree(root):
    files = []
    for top in ("src", "tests", "benchmarks"):
        for folder, _, names in os.walk(os.path.join(root, top)):
            for name in sorted(names):
                if name.endswith((".cc", ".h", ".cu")):
                    path = os.path.relpath(os.path.join(folder, name), root)
                    with open(os.path.join(root, path), encoding="utf-8") as stream:
                        text = stream.read()
                    includes = re.findall(r'^\s*#\s*include\s*[<"]([^>"]+)', text, re.M)
                    files.append(File(path, room_of(path[4:]) if top == "src" else "", text, includes))
    return sorted(files)


def arrows_of(files):
    """Returns the includes between rooms that the code has: (room, other room) -> the first file with such an
    include."""
    known = {f.path[4:]: f.room for f in files if f.room}
    arrows = {}
    for f in files:
        for include in f.includes:
            other = known.get(include)
            if f.room and other and other != f.room:
                arrows.setdefault((f.room, other), f"{f.path} includes {include}")
    return arrows


def find_cycle(graph):
    """Returns a cycle of the graph as a list whose first and last nodes are equal, or None. graph: node -> nodes."""
    done, path = set(), []

    def visit(node):
        if node in path:
            return path[path.index(node):] + [node]
        if node not in done:
            path.append(node)
            for other in sorted(graph.get(node, ())):
                if cycle := visit(other):
                    return cycle
            path.pop()
            done.add(node)
        return None

    return next((cycle for node in sorted(graph) if (cycle := visit(node))), None)


def check_arrows(files):
    for (room, other), where in sorted(arrows_of(files).items()):
        if other not in ROOMS[room].arrows.split():
            yield f"{where}: {room} may not include {other} (it may include: {ROOMS[room].arrows or 'nothing'})"
    paths = {f.path[4:] for f in files if f.path.startswith("src/")}
    graphs = {"rooms of the table": {name: room.arrows.split() for name, room in ROOMS.items()},
              "files": {f.path[4:]: [i for i in f.includes if i in paths] for f in files if f.path.startswith("src/")}}
    for what, graph in graphs.items():
        if cycle := find_cycle(graph):
            yield f"a cycle between {what}: {' -> '.join(cycle)}"


def check_unused(files):
    """Yields the arrows of the table that no include uses."""
    real = arrows_of(files)
    for room in sorted({f.room for f in files if f.room}):
        for other in ROOMS[room].arrows.split():
            if (room, other) not in real:
                yield f"tools/check_layers.py: {room} may include {other}, but no file does; remove the arrow"


def check_torch(f):
    """Yields violations of the torch line, and names of transports outside comm."""
    for include in f.includes:
        if include in WHOLE_TORCH:
            yield f"{f.path} includes {include}: take ATen/core/Tensor.h or per-operator headers"
        elif f.room and not ROOMS[f.room].torch and TORCH_HEADER.match(include):
            yield f"{f.path} includes {include}: {f.room} links no torch"
        if f.room and f.room != "comm" and f.path not in STORE_FILES and ONLY_COMM_HEADER.match(include):
            yield f"{f.path} includes {include}: only comm names its transports"
    code = re.sub(r'//[^\n]*|/\*.*?\*/|"(\\.|[^"\\\n])*"', "", f.text, flags=re.S)
    if f.room and f.room != "comm" and f.path not in STORE_FILES and (name := ONLY_COMM.search(code)):
        yield f"{f.path} names {name.group()}: only comm names its transports"


def check_form(f):
    header, lines = f.path.endswith(".h"), f.text.count("\n")
    limit = HEADER_LINES if header and f.path.startswith("src/") else FILE_LINES
    if f.room is None:
        yield f"{f.path}: its folder is no room of the table in tools/check_layers.py"
    if lines > limit:
        yield f"{f.path} has {lines} lines, more than {limit}: split it along an idea"
    for number, line in enumerate(f.text.split("\n"), 1):
        if len(line) > LINE_COLUMNS:
            yield f"{f.path}:{number}: {len(line)} columns, more than {LINE_COLUMNS}"
    if header and not f.text.startswith("//"):
        yield f"{f.path}: a header begins with a comment that says what it is for"
    # Highway's -inl.h files are included once for each instruction set, so they toggle a guard instead.
    if header and not re.search(r"^#pragma once$|== defined\(HWY_TARGET_TOGGLE\)$", f.text, re.M):
        yield f"{f.path}: #pragma once is missing"


def long_functions(f):
    """Yields a warning for each function that starts in the first column and has more than FUNCTION_LINES lines."""
    start = None
    for number, line in enumerate(f.text.split("\n"), 1):
        if line.endswith("{") and re.match(r"\w", line) and not re.match(r"(namespace|struct|class|enum|union|extern)\b", line):
            start = number
        elif line.startswith("}") and start:
            if number - start > FUNCTION_LINES:
                yield f"{f.path}:{start}: a function of {number - start} lines"
            start = None


def check_build(root):
    """Yields a finding where CMakeLists.txt links a room to one that it may not include, or a room above the torch line
    to torch."""
    with open(os.path.join(root, "CMakeLists.txt"), encoding="utf-8") as stream:
        calls = re.findall(r"^orthant_room\(([\w/]+)([^)]*)\)", stream.read(), re.M)
    for folder, words in calls:
        words = words.split()
        room = folder + "/plan" if "PLAN" in words else folder
        if room not in ROOMS:
            yield f"CMakeLists.txt: {room} is no room of the table in tools/check_layers.py"
            continue
        if "TORCH" in words and not ROOMS[room].torch:
            yield f"CMakeLists.txt links torch into {room}, which must not link it"
        for other in words:
            if other in ROOMS and other not in ROOMS[room].arrows.split():
                yield f"CMakeLists.txt links {other} into {room}, which may not include it"


def check_papers(root, path="docs/papers.md"):
    """Yields the paths in docs/papers.md that do not exist."""
    if os.path.exists(os.path.join(root, path)):
        with open(os.path.join(root, path), encoding="utf-8") as stream:
            for target in re.findall(r"`(src/[^`]+)`", stream.read()):
                if not os.path.exists(os.path.join(root, target)):
                    yield f"{path} points at {target}, which does not exist"


def check(root):
    files = read_tree(root)
    found = [] if files else [f"{root} holds no source file"]
    for f in files:
        found += [*check_torch(f), *check_form(f)]
    return found + [*check_arrows(files), *check_build(root), *check_papers(root)]


def print_map(root):
    """Returns docs/map.md: the rooms that have files, in the table's order, and the includes between them."""
    files = read_tree(root)
    rooms = [room for room in ROOMS if any(f.room == room for f in files)]
    real = {room: [other for other in ROOMS if (room, other) in arrows_of(files)] for room in rooms}
    out = ["# Map", "", "The rooms of `src/` and what each includes. Printed by `tools/check_layers.py --map > docs/map.md`; the",
           "test `layers` fails when the page and the code differ. `X/plan` is the half of folder X that links no torch.", "",
           "| room | contents | includes | torch |", "|---|---|---|---|"]
    for room in rooms:
        out.append(f"| {room} | {ROOMS[room].sentence} | {', '.join(real[room])} | {'yes' if ROOMS[room].torch else ''} |")
    out += ["", "The same as a drawing, without the arrows that follow from others:", "", "```mermaid", "flowchart TB"]
    for title, torch in (("links no torch", False), ("links torch", True)):
        out.append(f'  subgraph "{title}"')
        out += [f'    {node(room)}["{room}"]' for room in rooms if ROOMS[room].torch == torch]
        out.append("  end")
    for room in rooms:
        out += [f"  {node(room)} --> {node(other)}" for other in real[room]
                if not any(other in reachable(real, third) for third in real[room] if third != other)]
    return "\n".join(out + ["```", ""])


def node(room):
    return room.replace("/", "_")


def reachable(graph, start):
    seen, todo = set(), list(graph.get(start, ()))
    while todo:
        if (other := todo.pop()) not in seen:
            seen.add(other)
            todo += graph.get(other, ())
    return seen


def main(arguments):
    root = next((a for a in arguments if not a.startswith("-")), os.path.join(os.path.dirname(__file__), ".."))
    if "--map" in arguments:
        print(print_map(root), end="")
        return 0
    found = [*check(root), *check_unused(read_tree(root))]
    with_map = os.path.join(root, "docs/map.md")
    if not os.path.exists(with_map) or open(with_map, encoding="utf-8").read() != print_map(root):
        found.append("docs/map.md is not what the code is: tools/check_layers.py --map > docs/map.md")
    for f in read_tree(root):
        for warning in long_functions(f):
            print("warning:", warning)
    for finding in found:
        print("error:", finding)
    print(f"{len(found)} findings" if found else "all walls stand")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
