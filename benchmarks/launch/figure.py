"""Draws the figure of benchmarks/launch as an SVG: two panels over the number of ranks, whose axis is logarithmic."""
import math
from xml.sax.saxutils import escape

COLOR = "#0072B2"
WIDTH, HEIGHT = 370, 280                      # of a panel, with its margins
LEFT, RIGHT, TOP, BOTTOM = 66, 22, 34, 50     # margins
HEAD, FOOT = 58, 8


def text(x, y, words, size=12, anchor="middle", more=""):
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" {more}>{escape(words)}</text>'


def round_up(value):
    """The next of 1, 2, 5, 10, 20, ... that is at least `value`."""
    power = 10.0 ** math.floor(math.log10(value))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= value)


def panel(title, unit, points, left, top):
    """Yields the SVG elements of a panel with the points (ranks, value)."""
    x0, x1, y0, y1 = left + LEFT, left + WIDTH - RIGHT, top + HEIGHT - BOTTOM, top + TOP
    highest = round_up(max(value for _, value in points))
    first, last = points[0][0], points[-1][0]

    def x(ranks):
        return x0 + (x1 - x0) * math.log(ranks / first) / max(1e-9, math.log(last / first))

    def y(value):
        return y0 + (y1 - y0) * value / highest

    yield text((x0 + x1) / 2, top + 18, title, 13, more='font-weight="bold"')
    for part in range(6):
        value = highest * part / 5
        yield f'<line x1="{x0}" x2="{x1}" y1="{y(value):.1f}" y2="{y(value):.1f}" stroke="#ddd"/>'
        yield text(x0 - 6, y(value) + 4, f"{value:g}", 11, "end")
    for ranks, _ in points:
        yield text(x(ranks), y0 + 16, f"{ranks:,}", 11)
    yield f'<path d="M{x0} {y1}V{y0}H{x1}" fill="none" stroke="#333"/>'
    yield text((x0 + x1) / 2, y0 + 36, "ranks", 11)
    middle = (y0 + y1) / 2
    yield text(left + 18, middle, unit, 11, more=f'transform="rotate(-90 {left + 18} {middle:.1f})"')
    path = " ".join(f"{x(ranks):.1f},{y(value):.1f}" for ranks, value in points)
    yield f'<polyline points="{path}" fill="none" stroke="{COLOR}" stroke-width="2"/>'
    yield from (f'<circle cx="{x(ranks):.1f}" cy="{y(value):.1f}" r="3.6" fill="{COLOR}"/>' for ranks, value in points)


def draw(found, machine):
    """Returns the SVG as text. `found`: ranks -> figures of a row of the table."""
    width, height = 2 * WIDTH, HEAD + HEIGHT + FOOT
    parts = [text(width / 2, 24, "The control plane of one host over the number of ranks", 16, more='font-weight="bold"'),
             text(width / 2, 44, f"{machine}; lower is better", 12, more='fill="#555"')]
    for i, (title, unit, field) in enumerate([("Requests at the store, start to end", "requests per rank", "requests_per_rank"),
                                              ("Time until all ranks have met", "seconds", "start_s")]):
        points = [(ranks, found[ranks][field]) for ranks in sorted(found)]
        parts += panel(title, unit, points, i * WIDTH, HEAD)
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
            'font-family="sans-serif" fill="#222"><rect width="100%" height="100%" fill="white"/>\n'
            + "\n".join(parts) + "\n</svg>\n")
