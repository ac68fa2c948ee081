"""Tables in notebooks."""

from trainyard.report.render.html_tables import tables_html
from trainyard.report.view.view import Column, Table


def test_names_are_escaped_and_numbers_rounded() -> None:
    columns = (Column(title=""), Column(title="GB", digits=1), Column(title="note"))
    table = Table(title="<b>", notes=("a & b",), columns=columns, rows=(("<script>", 1234.56, None),))
    text = tables_html("x < y", (table,))
    assert "<script>" not in text
    assert "<b>" not in text
    assert "<td>&lt;script&gt;</td><td>1,234.6</td><td></td>" in text
    assert "a &amp; b" in text
    assert "x &lt; y" in text
