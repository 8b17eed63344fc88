"""Draws the figure of choices.py as an SVG: a layer's time over the ratio of link rates, one panel per length."""
import math
import os
import sys

sys.path.append(os.path.join(os.path.dirname(__file__), "..", "comm"))
from figure import mark, text

STYLES = {"4x1": ("#0072B2", "circle"), "2x2": ("#D55E00", "square"), "1x4": ("#009E73", "triangle")}
WIDTH, HEIGHT = 390, 290                       # of a panel, with its margins
LEFT, RIGHT, TOP, BOTTOM = 66, 24, 34, 62      # margins
HEAD, FOOT = 58, 34


def ticks(low, high):
    """The values 1, 2 and 5 of each decade that lie in [low, high]."""
    return [digit * 10.0 ** e for e in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
            for digit in (1, 2, 5) if low <= digit * 10.0 ** e <= high]


class Scale:
    """A logarithmic axis, with a margin of 15 % of the value at each end."""

    def __init__(self, values, start, end):
        self.low, self.high = min(values) / 1.15, max(values) * 1.15
        self.start, self.end = start, end

    def __call__(self, value):
        return self.start + (self.end - self.start) * math.log(value / self.low) / math.log(self.high / self.low)


def draw_panel(tokens, points, left, top):
    """Yields the SVG elements of a panel. points: (ratio, milliseconds by layout, the layout that the plan names)."""
    x0, x1, y0, y1 = left + LEFT, left + WIDTH - RIGHT, top + HEIGHT - BOTTOM, top + TOP
    x = Scale([ratio for ratio, _, _ in points], x0, x1)
    y = Scale([ms for _, cuts, _ in points for ms in cuts.values()], y0, y1)
    yield text((x0 + x1) / 2, top + 20, f"{tokens:,} tokens a rank", 13, more='font-weight="bold"')
    for value in ticks(y.low, y.high):
        yield f'<line x1="{x0}" x2="{x1}" y1="{y(value):.1f}" y2="{y(value):.1f}" stroke="#ddd"/>'
        yield text(x0 - 6, y(value) + 4, f"{value:g}", 11, "end")
    for value in ticks(x.low, x.high):
        yield f'<line x1="{x(value):.1f}" x2="{x(value):.1f}" y1="{y0}" y2="{y1}" stroke="#eee"/>'
        yield text(x(value), y0 + 15, f"{value:g}", 11)
    yield f'<path d="M{x0} {y1}V{y0}H{x1}" fill="none" stroke="#333"/>'
    yield text((x0 + x1) / 2, y0 + 34, "rate within a host / between hosts", 11)
    yield text((x0 + x1) / 2, y0 + 50, "circled: the layout that orthant plan recommends for these rates", 11,
               more='fill="#555"')
    yield text(left + 16, (y0 + y1) / 2, "forward and backward, ms", 11,
               more=f'transform="rotate(-90 {left + 16} {(y0 + y1) / 2:.1f})"')
    for cut, (color, shape) in STYLES.items():
        line = sorted((x(ratio), y(cuts[cut])) for ratio, cuts, _ in points)
        path = " ".join(f"{px:.1f},{py:.1f}" for px, py in line)
        yield f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"/>'
        yield from (mark(shape, px, py, color) for px, py in line)
    for ratio, cuts, named in points:
        yield (f'<circle cx="{x(ratio):.1f}" cy="{y(cuts[named]):.1f}" r="8" fill="none" '
               f'stroke="{STYLES[named][0]}" stroke-width="1.5"/>')


def draw(machine, panels, names):
    """Returns the SVG as text. panels: tokens -> points."""
    width, height = max(len(panels) * WIDTH, 640), HEAD + HEIGHT + FOOT
    parts = [text(width / 2, 24, "Attention of a layer on 2 hosts of 2 ranks", 16, more='font-weight="bold"'),
             text(width / 2, 44, f"{machine}; axes logarithmic, lower is better", 12, more='fill="#555"')]
    for i, (tokens, points) in enumerate(panels.items()):
        parts += draw_panel(tokens, points, i * WIDTH, HEAD)
    for i, (cut, (color, shape)) in enumerate(STYLES.items()):
        x, y = (i + 0.5) * width / len(STYLES) - 80, height - 14
        parts.append(f'<line x1="{x:.1f}" x2="{x + 26:.1f}" y1="{y}" y2="{y}" stroke="{color}" stroke-width="2"/>')
        parts += [mark(shape, x + 13, y, color), text(x + 32, y + 4, names[cut], 12, "start")]
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
            'font-family="sans-serif" fill="#222"><rect width="100%" height="100%" fill="white"/>\n'
            + "\n".join(parts) + "\n</svg>\n")
