"""A picture of `run deploy`: what was done of what was asked, and how long it took, at each rate, one line for each system."""
import math
from html import escape

# Those of the lab's figures, distinct for the colour-blind.
COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7"]
WIDTH, HEIGHT, TOP, BOTTOM = 300, 300, 30, 45


class Panel:
    """Axes from zero to the largest value of each side."""

    def __init__(self, left, x, y, xs, ys):
        self.left, self.xmax, self.ymax = left, max(xs) * 1.05, max(ys) * 1.1
        self.parts = [f'<polyline points="{left},{TOP} {left},{TOP + HEIGHT} {left + WIDTH},{TOP + HEIGHT}" fill="none" stroke="black"/>']
        self.text(left + WIDTH / 2, TOP + HEIGHT + 38, x)
        self.text(left - 48, TOP + HEIGHT / 2, y, turn=True)
        power = 10 ** math.floor(math.log10(self.ymax))
        step = next(s for s in (power / 10, power / 5, power / 2, power, power * 2) if self.ymax / s <= 8)
        for n in range(int(self.ymax / step) + 1):
            self.text(left - 6, self.y(n * step) + 4, f"{n * step:,g}", anchor="end")
        for value in sorted(set(xs)):
            self.text(self.x(value), TOP + HEIGHT + 18, f"{value:.3g}")

    def x(self, value):
        return self.left + WIDTH * value / self.xmax

    def y(self, value):
        return TOP + HEIGHT * (1 - value / self.ymax)

    def text(self, x, y, what, anchor="middle", colour="black", turn=False):
        turned = f' transform="rotate(270,{x:.0f},{y:.0f})"' if turn else ""
        self.parts.append(f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}" fill="{colour}"{turned}>{escape(what)}</text>')

    def line(self, points, colour, label, dashed=False):
        points = sorted(points)
        path = " ".join(f"{self.x(x):.1f},{self.y(y):.1f}" for x, y in points)
        dash = ' stroke-dasharray="5,4"' if dashed else ""
        self.parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>')
        if not dashed:
            self.parts += [f'<circle cx="{self.x(x):.1f}" cy="{self.y(y):.1f}" r="3.5" fill="{colour}"/>' for x, y in points]
        x, y = points[-1]
        self.text(self.x(x) + 6, self.y(y) + 4, label, anchor="start", colour=colour)


def draw(rows):
    """`rows`: (system, asked per second, done per second, p50 ms); the SVG."""
    asked = [row[1] for row in rows]
    done = Panel(65, "Deployments asked per second", "done per second", asked, asked + [row[2] for row in rows])
    took = Panel(65 + WIDTH + 150, "Deployments asked per second", "until available, ms (median)", asked, [row[3] for row in rows])
    done.line([(0, 0), (max(asked), max(asked))], "#888888", "asked", dashed=True)
    for system, colour in zip(dict.fromkeys(row[0] for row in rows), COLOURS):
        mine = [row for row in rows if row[0] == system]
        done.line([(row[1], row[2]) for row in mine], colour, system)
        took.line([(row[1], row[3]) for row in mine], colour, system)
    width, height = 2 * WIDTH + 290, TOP + HEIGHT + BOTTOM
    head = f'<svg width="{width}" height="{height}" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg" font-family="sans-serif" font-size="12">'
    return "\n".join([head, f'<rect width="{width}" height="{height}" fill="white"/>', *done.parts, *took.parts, "</svg>", ""])
