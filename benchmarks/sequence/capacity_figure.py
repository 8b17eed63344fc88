"""Draws the figure of capacity.py as an SVG: two panels, the longest sequence and the largest batch over the number of
ranks."""
import os
import sys

from choices_figure import BOTTOM, FOOT, HEAD, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Scale, ticks

sys.path.append(os.path.join(os.path.dirname(__file__), "..", "comm"))
from figure import mark, text

# Colours that colour-blind readers can tell apart (Okabe and Ito), each with a mark.
STYLES = {"none": ("#555555", "diamond", "each rank sequences of its own"),
          "ring_attention": ("#0072B2", "circle", "ring attention"),
          "ring_self_attention": ("#56B4E9", "square", "ring self-attention"),
          "tensor": ("#D55E00", "triangle", "1-D tensor parallelism"),
          "tensor_sequence": ("#CC79A7", "diamond", "the same, tokens sharded")}


def draw_panel(title, unit, points, left):
    """Yields the SVG elements of a panel. points: (kind, ranks, value)."""
    points = [point for point in points if point[2]]
    x0, x1, y0, y1 = left + LEFT, left + WIDTH - RIGHT, HEAD + HEIGHT - BOTTOM, HEAD + TOP
    x, y = Scale([ranks for _, ranks, _ in points], x0, x1), Scale([value for _, _, value in points], y0, y1)
    yield text((x0 + x1) / 2, HEAD + 20, title, 13, more='font-weight="bold"')
    for value in ticks(y.low, y.high):
        yield f'<line x1="{x0}" x2="{x1}" y1="{y(value):.1f}" y2="{y(value):.1f}" stroke="#ddd"/>'
        yield text(x0 - 6, y(value) + 4, f"{value:,.0f}", 11, "end")
    for ranks in sorted({ranks for _, ranks, _ in points}):
        yield f'<line x1="{x(ranks):.1f}" x2="{x(ranks):.1f}" y1="{y0}" y2="{y1}" stroke="#eee"/>'
        yield text(x(ranks), y0 + 15, str(ranks), 11)
    yield f'<path d="M{x0} {y1}V{y0}H{x1}" fill="none" stroke="#333"/>'
    yield text((x0 + x1) / 2, y0 + 34, "ranks", 11)
    yield text(left + 14, (y0 + y1) / 2, unit, 11, more=f'transform="rotate(-90 {left + 14} {(y0 + y1) / 2:.1f})"')
    for kind, (color, shape, _) in STYLES.items():
        line = sorted((x(ranks), y(value)) for at, ranks, value in points if at == kind)
        path = " ".join(f"{px:.1f},{py:.1f}" for px, py in line)
        yield f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"/>'
        yield from (mark(shape, px, py, color) for px, py in line)


def draw(a, found):
    """Returns the SVG as text. found: (kind, ranks, longest sequence, largest batch)."""
    width, height = 2 * WIDTH, HEAD + HEIGHT + FOOT + 18
    shape = f"{a.model}, {a.memory_mib / 1024:g} GiB of tensors a rank, {'planned' if a.plan_only else 'measured'}"
    parts = [text(width / 2, 24, "Largest length and batch: sharded sequences or sharded matrices", 16,
                  more='font-weight="bold"'),
             text(width / 2, 44, f"{shape}; axes logarithmic, higher is better", 12, more='fill="#555"')]
    parts += draw_panel(f"Longest of {a.sequences} sequences at once", "tokens",
                        [(kind, ranks, longest) for kind, ranks, longest, _ in found], 0)
    parts += draw_panel(f"Most sequences of {a.batch_seq_len:,} tokens", "sequences",
                        [(kind, ranks, batch) for kind, ranks, _, batch in found], WIDTH)
    drawn = [kind for kind in STYLES if any(at == kind for at, *_ in found)]
    for i, kind in enumerate(drawn):
        color, form, name = STYLES[kind]
        x, y = LEFT + (i % 2) * WIDTH, height - 32 + 20 * (i // 2)
        parts.append(f'<line x1="{x:.1f}" x2="{x + 26:.1f}" y1="{y}" y2="{y}" stroke="{color}" stroke-width="2"/>')
        parts += [mark(form, x + 13, y, color), text(x + 32, y + 4, name, 12, "start")]
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
            'font-family="sans-serif" fill="#222"><rect width="100%" height="100%" fill="white"/>\n'
            + "\n".join(parts) + "\n</svg>\n")
