"""Tables as Markdown and HTML, and two kinds of chart as SVG: bars, and lines over a logarithmic axis."""
import html
import math

COLOURS = ("#4e79a7", "#f28e2b", "#59a14f", "#e15759", "#76b7b2", "#edc948", "#b07aa1", "#9c755f")
STYLE = ("body{font:14px sans-serif;margin:2em;max-width:80em}table{border-collapse:collapse}td,th{border:1px solid #ccc;padding:2px 7px;"
         "text-align:left}svg{display:block;margin:.7em 0}")


def number(value, digits=3, missing="-"):
    if value is None:
        return missing
    return f"{value:.{digits}g}" if abs(value) < 10**digits else f"{value:.0f}"


def bytes_text(count):
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            return f"{count:.3g} {unit}"
        count /= 1024


def markdown_table(columns, rows):
    return ["| " + " | ".join(columns) + " |", "| " + " | ".join("---" for _ in columns) + " |"] + ["| " + " | ".join(row) + " |" for row in rows]


def html_table(columns, rows):
    def cells(tag, texts):
        return "<tr>" + "".join(f"<{tag}>{html.escape(text)}</{tag}>" for text in texts) + "</tr>"
    return "<table>" + cells("th", columns) + "".join(cells("td", row) for row in rows) + "</table>"


def html_page(title, parts):
    return (f"<!DOCTYPE html><html lang='en'><head><meta charset='utf-8'><title>{html.escape(title)}</title><style>{STYLE}</style></head><body>"
            f"<h1>{html.escape(title)}</h1>" + "".join(parts) + "</body></html>\n")


def svg(width, height, parts):
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" role="img" font-family="sans-serif" font-size="12">'
            f'<rect width="100%" height="100%" fill="white"/>' + "".join(parts) + "</svg>\n")


def bars(title, groups, names):
    """`groups`: (label, [a value or None for each of `names`])."""
    left, width, row = 210, 420, 13
    widest = max((value for _, values in groups for value in values if value), default=1)
    parts, y = [f'<text x="8" y="18" font-size="14">{html.escape(title)}</text>'], 30
    for i, name in enumerate(names):
        parts.append(f'<rect x="{left + 160 * i}" y="{y - 2}" width="11" height="11" fill="{COLOURS[i]}"/><text x="{left + 160 * i + 16}" y="{y + 8}">{html.escape(name)}</text>')
    y += 20
    for label, values in groups:
        parts.append(f'<text x="{left - 8}" y="{y + row * len(values) / 2 + 4:.0f}" text-anchor="end">{html.escape(label)}</text>')
        for i, value in enumerate(values):
            length = width * (value or 0) / widest
            parts.append(f'<rect x="{left}" y="{y}" width="{length:.1f}" height="{row - 2}" fill="{COLOURS[i]}"/>'
                         f'<text x="{left + length + 5:.1f}" y="{y + row - 3}" font-size="11">{number(value)}</text>')
            y += row
        y += 8
    return svg(left + width + 70, y + 4, parts)


def curves(title, x_label, y_label, series, dashed=(), level=None, logarithmic=False):
    """`series`: name -> [(x, y)], x above 0, on a logarithmic axis; y from 0 on, or `logarithmic` too. The names in `dashed` are drawn so, in the colour of the name they begin with; `level`: a line across."""
    left, top, width, height = 60, 34, 520, 280
    xs = sorted({x for points in series.values() for x, _ in points})
    most = max((y for points in series.values() for _, y in points), default=1) or 1
    low, high = math.log(xs[0]), math.log(xs[-1] if xs[-1] > xs[0] else 2 * xs[0])

    values = [y for points in series.values() for _, y in points] + ([level] if level else [])
    least, most = (min(values), max(values)) if logarithmic else (0, most)

    def place(x, y):
        part = math.log(y / least) / math.log(most / least) if logarithmic and most > least else y / most
        return left + width * (math.log(x) - low) / (high - low), top + height * (1 - part)

    parts = [f'<text x="8" y="18" font-size="14">{html.escape(title)}</text>']
    for x in xs:
        at = place(x, most)[0]
        parts.append(f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{top}" y2="{top + height}" stroke="#eee"/><text x="{at:.1f}" y="{top + height + 16}" text-anchor="middle">{number(x)}</text>')
    for i in range(6):
        y = least * (most / least) ** (i / 5) if logarithmic else most * i / 5
        at = place(xs[0], y)[1]
        parts.append(f'<line x1="{left}" x2="{left + width}" y1="{at:.1f}" y2="{at:.1f}" stroke="#ddd"/><text x="{left - 6}" y="{at + 4:.1f}" text-anchor="end">{number(y)}</text>')
    parts.append(f'<text x="{left + width / 2}" y="{top + height + 34}" text-anchor="middle">{html.escape(x_label)}</text>'
                 f'<text x="14" y="{top + height / 2}" text-anchor="middle" transform="rotate(-90 14 {top + height / 2})">{html.escape(y_label)}</text>')
    if level is not None:
        at = place(xs[0], level)[1]
        parts.append(f'<line x1="{left}" x2="{left + width}" y1="{at:.1f}" y2="{at:.1f}" stroke="#555" stroke-width="1.5"/>')
    colours = {}
    for name, points in series.items():
        owner = next((other for other in colours if name.startswith(other)), name) if name in dashed else name
        colour = colours.setdefault(owner, COLOURS[len(colours) % len(COLOURS)])
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(*point) for point in points))
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"{" stroke-dasharray=" + chr(34) + "5 4" + chr(34) if name in dashed else ""}/>')
    for i, (name, colour) in enumerate(colours.items()):
        parts.append(f'<rect x="{left + width + 14}" y="{top + 18 * i}" width="11" height="11" fill="{colour}"/><text x="{left + width + 30}" y="{top + 18 * i + 10}">{html.escape(name)}</text>')
    return svg(left + width + 190, top + height + 44, parts)
