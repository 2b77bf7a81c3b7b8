"""Bar charts of speed-ups."""
from xml.sax.saxutils import escape


def bars(title, rows):
    """SVG: a bar for each (name, speed-up)."""
    most = max(value for _, value in rows)
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" width="660" height="{50 + 28 * len(rows)}" '
             'font-family="Helvetica, Arial, sans-serif" font-size="13" role="img">',
             f"<title>{escape(title)}</title>", '<rect width="100%" height="100%" fill="#ffffff"/>',
             f'<text x="8" y="22" font-weight="bold">{escape(title)}</text>']
    for i, (name, value) in enumerate(rows):
        y = 40 + 28 * i
        lines.append(f'<text x="8" y="{y + 15}">{escape(name)}</text>'
                     f'<rect x="190" y="{y}" width="{400 * value / most:.1f}" height="20" fill="#3b6fb6"/>'
                     f'<text x="{196 + 400 * value / most:.1f}" y="{y + 15}">{value:.2f}</text>')
    return "\n".join([*lines, "</svg>"]) + "\n"
