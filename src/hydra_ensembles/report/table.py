"""A table that can be read as Markdown, LaTeX or HTML: best in bold, second best underlined."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby

from hydra_ensembles.report.cells import Column, Row, Shown, seeds_notes, shown_rows

_IN_MARKDOWN = str.maketrans({**{sign: f"\\{sign}" for sign in "\\|*`"}, "<": "&lt;", "\n": " "})
_IN_LATEX = str.maketrans(
    {
        **{sign: f"\\{sign}" for sign in "%_&#${}"},
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "\n": " ",
        "↑": r"$\uparrow$",
        "↓": r"$\downarrow$",
        "±": r"$\pm$",
        "×": r"$\times$",
        "✓": r"\checkmark{}",
        "†": r"$\dagger$",
        "‡": r"$\ddagger$",
        "§": r"\S{}",
        "¶": r"\P{}",
        "–": "--",
    }
)


@dataclass(frozen=True)
class Table:
    """Columns and rows with a title; every rendering says the same."""

    columns: Sequence[Column]
    rows: Sequence[Row]
    title: str = ""
    caption: str = ""
    row_heading: str = "Method"
    block_heading: str = ""
    across: bool = False
    """Whether the best is sought in each row, where columns are methods, in place of each column."""

    @property
    def notes(self) -> list[str]:
        """What ± and the signs beside rows mean."""
        return seeds_notes(self.rows)[1]

    def markdown(self) -> str:
        """Title and caption, where there are any, the table, its notes."""
        heads = [f"{column.group}: {column.title}" if column.group else column.title for column in self.columns]
        lines = [
            _line([_in_markdown(head) for head in [*self._left, *heads]]),
            "|" + "---|" * len(self._left) + "".join("---|" if c.is_text else "--:|" for c in self.columns),
        ]
        for left, cells in self._body():
            lines.append(_line([*(_in_markdown(name) for name in left), *(_markdown_cell(cell) for cell in cells)]))
        title = f"**{_in_markdown(self.title)}.**" if self.title else ""
        above = " ".join(part for part in (title, _in_markdown(self.caption)) if part)
        parts = [above, "\n".join(lines), _in_markdown("; ".join(self.notes))]
        return "\n\n".join(part for part in parts if part)

    def latex(self) -> str:
        r"""A `table` for the packages booktabs and amssymb (for \checkmark)."""
        aligned = "l" * len(self._left) + "".join("l" if column.is_text else "r" for column in self.columns)
        title = rf"\textbf{{{_in_latex(self.title)}.}}" if self.title else ""
        above = " ".join(part for part in (title, _in_latex(self.caption)) if part)
        lines = [r"\begin{table}", r"\centering", *([rf"\caption{{{above}}}"] if above else [])]
        lines += [rf"\begin{{tabular}}{{{aligned}}}", r"\toprule"]
        groups, rules, place = [""] * len(self._left), [], len(self._left)
        for group, width in self._groups():
            groups.append(rf"\multicolumn{{{width}}}{{c}}{{{_in_latex(group)}}}" if width > 1 else _in_latex(group))
            rules += [rf"\cmidrule(lr){{{place + 1}-{place + width}}}"] if group else []
            place += width
        if rules:
            lines += [" & ".join(groups) + r" \\", " ".join(rules)]
        heads = [*self._left, *(column.title for column in self.columns)]
        lines += [" & ".join(_in_latex(head) for head in heads) + r" \\", r"\midrule"]
        for place, (left, cells) in enumerate(self._body()):
            if place and self.rows[place].block != self.rows[place - 1].block:
                lines.append(r"\midrule")
            shown = [*(_in_latex(name) for name in left), *(_latex_cell(cell) for cell in cells)]
            lines.append(" & ".join(shown) + r" \\")
        lines += [r"\bottomrule", r"\end{tabular}"]
        lines += [rf"\par\footnotesize {_in_latex('; '.join(self.notes))}"] if self.notes else []
        return "\n".join([*lines, r"\end{table}"])

    def html(self) -> str:
        """A `table` with caption, head, a body for each block, and notes in the foot; looks are left to classes."""
        title = f"<strong>{escape(self.title)}.</strong>" if self.title else ""
        above = " ".join(part for part in (title, escape(self.caption)) if part)
        lines = ['<table class="figures">', *([f"<caption>{above}</caption>"] if above else []), "<thead>"]
        if any(column.group for column in self.columns):
            groups = "".join(
                f'<th scope="colgroup" colspan="{width}">{escape(group)}</th>'
                if group
                else f'<td colspan="{width}"></td>'
                for group, width in self._groups()
            )
            lines.append(f'<tr><td colspan="{len(self._left)}"></td>{groups}</tr>')
        heads = [f'<th scope="col" class="text">{escape(head)}</th>' for head in self._left]
        heads += [f'<th scope="col" class="{_kind(c)}">{escape(c.title)}</th>' for c in self.columns]
        lines += [f"<tr>{''.join(heads)}</tr>", "</thead>"]
        body = zip(self.rows, self._body(), strict=True)
        for block, found in groupby(body, key=lambda row: row[0].block):
            rows = list(found)
            lines.append("<tbody>")
            for place, (_, (left, cells)) in enumerate(rows):
                line = f'<th scope="row">{escape(left[-1])}</th>'
                if len(left) > 1 and not place:
                    line = f'<th scope="rowgroup" rowspan="{len(rows)}">{escape(block)}</th>{line}'
                line += "".join(_html_cell(cell, _kind(c)) for cell, c in zip(cells, self.columns, strict=True))
                lines.append(f"<tr>{line}</tr>")
            lines.append("</tbody>")
        if self.notes:
            width = len(self._left) + len(self.columns)
            lines.append(f'<tfoot><tr><td colspan="{width}">{escape("; ".join(self.notes))}</td></tr></tfoot>')
        return "\n".join([*lines, "</table>"])

    @property
    def _left(self) -> list[str]:
        """The headings of what names rows: their block, where there are blocks, and their name."""
        return [*([self.block_heading] if any(row.block for row in self.rows) else []), self.row_heading]

    def _groups(self) -> Iterator[tuple[str, int]]:
        """Group headings, "" where there is none, and how many columns each stands over."""
        yield from ((group, len(list(columns))) for group, columns in groupby(self.columns, key=lambda c: c.group))

    def _body(self) -> Iterator[tuple[list[str], list[Shown]]]:
        """What names each row, its block only where that begins, and its cells."""
        signs, _ = seeds_notes(self.rows)
        shown = shown_rows(self.columns, self.rows, self.across)
        for place, (row, sign, cells) in enumerate(zip(self.rows, signs, shown, strict=True)):
            begins = not place or row.block != self.rows[place - 1].block
            block = [row.block if begins else ""] if len(self._left) > 1 else []
            yield [*block, f"{row.name} {sign}".strip()], cells


def _line(cells: Sequence[str]) -> str:
    return "|" + "".join(f" {cell} |" if cell else " |" for cell in cells)


def _in_markdown(text: str) -> str:
    return text.translate(_IN_MARKDOWN)


def _in_latex(text: str) -> str:
    return text.translate(_IN_LATEX)


def _markdown_cell(cell: Shown) -> str:
    before, after = {"best": ("**", "**"), "second": ("<u>", "</u>"), "": ("", "")}[cell.mark]
    return before + _in_markdown(cell.value) + after + _in_markdown(cell.rest)


def _latex_cell(cell: Shown) -> str:
    before, after = {"best": (r"\textbf{", "}"), "second": (r"\underline{", "}"), "": ("", "")}[cell.mark]
    return before + _in_latex(cell.value) + after + _in_latex(cell.rest)


def _html_cell(cell: Shown, kind: str) -> str:
    before, after = {"best": ("<strong>", "</strong>"), "second": ("<u>", "</u>"), "": ("", "")}[cell.mark]
    kinds = f"{kind} missing" if cell.is_missing else kind
    return f'<td class="{kinds}">{before}{escape(cell.value)}{after}{escape(cell.rest)}</td>'


def _kind(column: Column) -> str:
    return "text" if column.is_text else "number"
