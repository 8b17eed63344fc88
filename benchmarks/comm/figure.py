"""Draws the figure of benchmarks/comm as an SVG: panels of lines, time over message size, both axes logarithmic."""
import math
from dataclasses import dataclass
from xml.sax.saxutils import escape

# Colours that colour-blind readers can tell apart (Okabe and Ito), with different marks and dashes.
STYLES = {"ucx": ("#0072B2", "circle", ""), "gloo": ("#CC79A7", "square", ""), "c10d": ("#D55E00", "triangle", ""),
          "mpi": ("#009E73", "diamond", ""), "memcpy": ("#555555", "", "5 4")}
WIDTH, HEIGHT = 350, 250                       # of a panel, with its margins
LEFT, RIGHT, TOP, BOTTOM = 74, 26, 30, 46      # margins
HEAD, FOOT = 58, 34


@dataclass
class Line:
    program: str
    points: list  # of (bytes, microseconds)


@dataclass
class Panel:
    title: str
    lines: list


def text(x, y, words, size=12, anchor="middle", more=""):
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" {more}>{escape(words)}</text>'


def mark(shape, x, y, color):
    if shape == "circle":
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.6" fill="{color}"/>'
    corners = {"square": ((-3.2, -3.2), (3.2, -3.2), (3.2, 3.2), (-3.2, 3.2)), "triangle": ((0, -4.4), (4, 3), (-4, 3)),
               "diamond": ((0, -4.8), (4.8, 0), (0, 4.8), (-4.8, 0))}.get(shape)
    if not corners:
        return ""
    return f'<polygon points="{" ".join(f"{x + dx:.1f},{y + dy:.1f}" for dx, dy in corners)}" fill="{color}"/>'


def size_label(size):
    return f"{size // 2**20} MiB" if size >= 2**20 else f"{size // 2**10} KiB" if size >= 2**10 else f"{size} B"


def time_label(exponent):
    """The text of 10^exponent microseconds."""
    unit, shift = ("s", 6) if exponent >= 6 else ("ms", 3) if exponent >= 3 else ("µs", 0)
    return f"{10.0 ** (exponent - shift):g} {unit}"


def draw_panel(panel, left, top, decades, sizes):
    """Yields the SVG elements of a panel. `decades`: exponents of the powers of ten at the ends of the time axis, in
    microseconds; they are the same in all panels."""
    x0, x1, y0, y1 = left + LEFT, left + WIDTH - RIGHT, top + HEIGHT - BOTTOM, top + TOP
    span = max(1e-9, math.log(sizes[-1] / sizes[0]))

    def x(size):
        return x0 + (x1 - x0) * math.log(size / sizes[0]) / span

    def y(us):
        return y0 + (y1 - y0) * (math.log10(us) - decades[0]) / (decades[1] - decades[0])

    yield text((x0 + x1) / 2, top + 18, panel.title, 13, more='font-weight="bold"')
    for exponent in range(decades[0], decades[1] + 1):
        height = y(10.0 ** exponent)
        yield f'<line x1="{x0}" x2="{x1}" y1="{height:.1f}" y2="{height:.1f}" stroke="#ddd"/>'
        yield text(x0 - 6, height + 4, time_label(exponent), 11, "end")
    for size in sizes:
        yield f'<line x1="{x(size):.1f}" x2="{x(size):.1f}" y1="{y0}" y2="{y1}" stroke="#eee"/>'
        yield text(x(size), y0 + 15, size_label(size), 10)
    yield f'<path d="M{x0} {y1}V{y0}H{x1}" fill="none" stroke="#333"/>'
    yield text((x0 + x1) / 2, y0 + 33, "bytes a rank", 11)
    yield text(left + 18, (y0 + y1) / 2, "time of one operation", 11,
               more=f'transform="rotate(-90 {left + 18} {(y0 + y1) / 2:.1f})"')
    for line in panel.lines:
        color, shape, dash = STYLES[line.program]
        path = " ".join(f"{x(size):.1f},{y(us):.1f}" for size, us in line.points)
        yield (f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"'
               + (f' stroke-dasharray="{dash}"' if dash else "") + "/>")
        yield from (mark(shape, x(size), y(us), color) for size, us in line.points)


def draw(title, machine, panels, columns, names):
    """Returns the SVG as text. `names`: names of the programs in the legend."""
    rows = -(-len(panels) // columns)
    width, height = max(columns * WIDTH, 760), HEAD + rows * HEIGHT + FOOT
    times = [us for panel in panels for line in panel.lines for _, us in line.points]
    decades = math.floor(math.log10(min(times))), math.ceil(math.log10(max(times)))
    sizes = sorted({size for panel in panels for line in panel.lines for size, _ in line.points})
    parts = [text(width / 2, 24, title, 16, more='font-weight="bold"'),
             text(width / 2, 44, f"{machine}; both axes logarithmic, lower is better", 12, more='fill="#555"')]
    for i, panel in enumerate(panels):
        parts += draw_panel(panel, i % columns * WIDTH, HEAD + i // columns * HEIGHT, decades, sizes)
    shown = [program for program in names if any(line.program == program for line in panels[0].lines)]
    for i, program in enumerate(shown):
        color, shape, dash = STYLES[program]
        x, y = (i + 0.5) * width / len(shown) - 62, height - 14
        parts.append(f'<line x1="{x:.1f}" x2="{x + 26:.1f}" y1="{y}" y2="{y}" stroke="{color}" stroke-width="2"'
                     + (f' stroke-dasharray="{dash}"' if dash else "") + "/>")
        parts += [mark(shape, x + 13, y, color), text(x + 32, y + 4, names[program], 12, "start")]
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
            'font-family="sans-serif" fill="#222"><rect width="100%" height="100%" fill="white"/>\n'
            + "\n".join(parts) + "\n</svg>\n")
