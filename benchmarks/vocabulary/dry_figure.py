"""Draws the figure of dry.py as an SVG: idle fraction, imbalance of computation and peak memory over the vocabulary
size, with one column per model."""
import os
import sys

sys.path.append(os.path.join(os.path.dirname(__file__), "..", "comm"))
from figure import mark, text

# Colours that colour-blind readers can tell apart (Okabe and Ito). Lines of the same colour differ in marks or dashes.
STYLES = {"1f1b": ("#555555", "diamond", ""), "redistribution": ("#E69F00", "triangle", ""),
          "interlaced": ("#CC79A7", "square", ""), "naive": ("#56B4E9", "diamond", "6 3"),
          "algorithm_1": ("#56B4E9", "triangle", ""), "algorithm_2": ("#0072B2", "circle", ""),
          "v_half": ("#D55E00", "square", "6 3"), "v_half + algorithm_1": ("#009E73", "triangle", "6 3"),
          "v_half + algorithm_2": ("#009E73", "circle", "")}
ROWS = {
    "ranks idle, % of the step": lambda one: 100 * (1 - one["balanced_s"] / one["step_s"]),
    "compute, largest / smallest": lambda one: one["compute_spread"],
    "peak of a rank by plan, GiB": lambda one: one["memory_bytes"] / 2**30,
}
WIDTH, HEIGHT = 390, 220                   # of a panel, with its margins
LEFT, RIGHT, TOP, BOTTOM = 66, 20, 14, 34  # margins
HEAD, FOOT = 84, 80


def steps(most):
    """Returns up to six round numbers from 0 to `most`, at equal distances."""
    step = next(digit * 10.0 ** e for e in range(-3, 6) for digit in (1, 2, 5) if most / (digit * 10.0 ** e) <= 5)
    return [step * i for i in range(int(most / step) + 1)]


def draw_panel(points, unit, most, left, top):
    """Yields the SVG elements of a panel. points: placement -> list of (vocabulary size, value)."""
    x0, x1, y0, y1 = left + LEFT, left + WIDTH - RIGHT, top + HEIGHT - BOTTOM, top + TOP
    sizes = sorted({size for line in points.values() for size, _ in line})

    def x(size):
        return x0 + (x1 - x0) * (sizes.index(size) + 0.3) / (len(sizes) - 0.4)

    def y(value):
        return y0 + (y1 - y0) * value / (1.05 * most)

    for value in steps(most):
        yield f'<line x1="{x0}" x2="{x1}" y1="{y(value):.1f}" y2="{y(value):.1f}" stroke="#ddd"/>'
        yield text(x0 - 6, y(value) + 4, f"{value:g}", 11, "end")
    for size in sizes:
        yield text(x(size), y0 + 16, f"{size // 1024}k", 11)
    yield f'<path d="M{x0} {y1}V{y0}H{x1}" fill="none" stroke="#333"/>'
    yield text(left + 20, (y0 + y1) / 2, unit, 11, more=f'transform="rotate(-90 {left + 20} {(y0 + y1) / 2:.1f})"')
    for placement, line in points.items():
        color, shape, dash = STYLES[placement]
        path = " ".join(f"{x(size):.1f},{y(value):.1f}" for size, value in line)
        yield (f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"'
               + (f' stroke-dasharray="{dash}"' if dash else "") + "/>")
        yield from (mark(shape, x(size), y(value), color) for size, value in line)


def legend(drawn, top):
    for i, placement in enumerate(drawn):
        color, shape, dash = STYLES[placement]
        x, y = LEFT + (i % 4) * 172, top + 20 * (i // 4)
        yield (f'<line x1="{x}" x2="{x + 26}" y1="{y}" y2="{y}" stroke="{color}" stroke-width="2"'
               + (f' stroke-dasharray="{dash}"' if dash else "") + "/>")
        yield from (mark(shape, x + 13, y, color), text(x + 32, y + 4, placement, 12, "start"))


def draw(measured):
    """Returns the SVG as text."""
    found = measured["found"]
    columns = sorted({one["ranks"] for one in found})
    drawn = [placement for placement in STYLES if any(one["placement"] == placement for one in found)]
    width, height = max(2, len(columns)) * WIDTH, HEAD + len(ROWS) * HEIGHT + FOOT
    parts = [text(width / 2, 24, "Cost of the placement of a vocabulary in a pipeline", 16,
                  more='font-weight="bold"'),
             text(width / 2, 44, f"steps of {measured['microbatches']} microbatches, emulated with sleeps in proportion to "
                  "FLOPs; over the size of the vocabulary, lower is better", 12, more='fill="#555"')]
    for row, (unit, value_of) in enumerate(ROWS.items()):
        most = max(value_of(one) for one in found)
        for column, ranks in enumerate(columns):
            here = [one for one in found if one["ranks"] == ranks]
            points = {placement: sorted((one["vocabulary"], value_of(one)) for one in here
                                        if one["placement"] == placement) for placement in drawn}
            parts += draw_panel(points, unit, most, column * WIDTH, HEAD + row * HEIGHT)
            if row == 0:
                parts.append(text(column * WIDTH + (LEFT + WIDTH - RIGHT) / 2, HEAD - 8, f"{ranks} ranks", 13,
                                  more='font-weight="bold"'))
    parts += legend(drawn, height - FOOT + 24)
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
            'font-family="sans-serif" fill="#222"><rect width="100%" height="100%" fill="white"/>\n'
            + "\n".join(parts) + "\n</svg>\n")
