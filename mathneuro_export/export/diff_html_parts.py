"""Style, script and frame of the page that `diff --html` writes."""

STYLE = """
:root { color-scheme: light; }
body { font: 15px/1.45 system-ui, sans-serif; color: #111; background: #fff; margin: 2rem auto; max-width: 76rem; padding: 0 1rem; }
h1 { font-size: 1.5rem; overflow-wrap: anywhere; } h2 { margin-top: 2.5rem; border-top: 1px solid #bbb; padding-top: 1rem; }
h3 { font-size: 1.05rem; margin-bottom: .4rem; }
dl { display: grid; grid-template-columns: auto 1fr; gap: .2rem .8rem; } dt { font-weight: bold; } dd { margin: 0; overflow-wrap: anywhere; }
.verdict { font-weight: bold; } .warnings { padding-left: 0; list-style: none; } .warnings li { margin: .2rem 0; overflow-wrap: anywhere; }
.warnings b { display: inline-block; min-width: 4.6rem; text-align: center; border: 1px solid #111; border-radius: 3px; margin-right: .5rem; font-size: .85em; }
b.high { background: #111; color: #fff; } b.medium { background: #ffdf8a; } b.low { background: #fff; }
.facts { display: flex; flex-wrap: wrap; gap: .6rem; margin: 1rem 0; }
.facts div { border: 1px solid #999; border-radius: 4px; padding: .4rem .8rem; } .facts b { display: block; font-size: 1.25rem; font-variant-numeric: tabular-nums; }
.facts span, .note { color: #444; font-size: .88rem; }
.wide { overflow-x: auto; } .heatmap { max-width: none; font-size: 12px; } .heatmap text { fill: #111; } .heatmap .in { font-size: 11px; }
details { margin: 1.2rem 0; } summary { font-weight: bold; cursor: pointer; margin-bottom: .4rem; }
table { border-collapse: collapse; font-size: .88rem; font-variant-numeric: tabular-nums; }
td, th { padding: .15rem .55rem; text-align: right; white-space: nowrap; border-bottom: 1px solid #ddd; }
th[scope=row], thead th:first-child { text-align: left; font-weight: normal; } thead th { border-bottom: 2px solid #444; }
th button { font: inherit; font-weight: bold; color: inherit; background: none; border: 0; padding: 0; cursor: pointer; }
th[aria-sort=ascending] button::after { content: " \\25B2"; } th[aria-sort=descending] button::after { content: " \\25BC"; }
@media print { body { max-width: none; margin: 0; font-size: 11px; } .wide { overflow: visible; } .heatmap { max-width: 100%; height: auto; } rect, b { print-color-adjust: exact; -webkit-print-color-adjust: exact; } }
"""  # noqa: E501

SCRIPT = """
'use strict';
function key(row, column) {
  const cell = row.cells[column];
  if (column === 0) return cell.textContent;
  return 'v' in cell.dataset ? Number(cell.dataset.v) : null;
}
function sort(head) {
  const table = head.closest('table'), column = head.cellIndex;
  const old = head.getAttribute('aria-sort');
  const down = old === 'none' ? column > 0 : old === 'ascending';
  const names = new Intl.Collator('en', {numeric: true});
  const rows = Array.from(table.tBodies[0].rows, row => [key(row, column), row]);
  rows.sort(([a], [b]) => {
    if (a === null || b === null) return (a === null) - (b === null);
    const order = column === 0 ? names.compare(a, b) : a - b;
    return down ? -order : order;
  });
  table.tBodies[0].append(...rows.map(([, row]) => row));
  for (const other of table.tHead.rows[0].cells) other.setAttribute('aria-sort', 'none');
  head.setAttribute('aria-sort', down ? 'descending' : 'ascending');
}
for (const button of document.querySelectorAll('th button'))
  button.addEventListener('click', () => sort(button.parentElement));
"""

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{hash}'; base-uri 'none'; form-action 'none'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
{body}
<script>{script}</script>
</body>
</html>
"""  # noqa: E501
