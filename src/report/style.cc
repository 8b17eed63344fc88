#include "report/page.h"

namespace orthant {
namespace {

// The colors follow Okabe and Ito, whose palette color-blind readers can distinguish. Dark mode has lighter shades of
// the same hues.
constexpr const char* kStyle = R"css(
:root { --page: #f5f6f8; --card: #fff; --ink: #1a2230; --soft: #5d6878; --rule: #e3e7ec; --axis: #a6b0bd;
  --blue: #0072b2; --orange: #c04e06; --green: #00845f; --purple: #a8487f; --gray: #7b8794; }
@media (prefers-color-scheme: dark) {
  :root { --page: #0f141b; --card: #171e28; --ink: #e5eaf1; --soft: #98a5b6; --rule: #283241; --axis: #566274;
    --blue: #58b1ec; --orange: #f5985a; --green: #3fc79a; --purple: #dd93bd; --gray: #8b98a8; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", "Noto Sans", sans-serif; }
main { max-width: 1120px; margin: 0 auto; padding: 40px 20px 60px; }
header { margin: 0 4px 28px; }
h1 { font-size: 32px; line-height: 1.2; letter-spacing: -0.02em; margin: 0 0 8px; overflow-wrap: anywhere; }
.brand { margin: 0 0 4px; color: var(--blue); font-weight: 600; }
.lead { margin: 0 0 12px; font-size: 17px; color: var(--soft); overflow-wrap: anywhere; }
dl + .lead { margin-top: 14px; }
dl { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(420px, 100%), 1fr)); gap: 3px 32px;
  margin: 14px 0 0; }
dl div { display: flex; gap: 14px; } dl .long, dl .run { grid-column: 1 / -1; }
dl .run { display: block; } .run dt, .run dd { display: inline; } .run dt { color: var(--ink); font-weight: 600; }
.run dd { margin-left: 8px; }
dt { color: var(--soft); flex: 0 0 92px; } dd { margin: 0; overflow-wrap: anywhere; min-width: 0; }
code, pre { font: 13px/1.55 ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(158px, 1fr)); gap: 12px; margin-bottom: 16px; }
.tile, .card { background: var(--card); border: 1px solid var(--rule); border-radius: 12px; }
.tile { display: flex; flex-direction: column; padding: 14px 16px; }
.tile .label, .tile .below { color: var(--soft); font-size: 13px; }
.tile .value { font-size: 23px; font-weight: 650; letter-spacing: -0.01em; font-variant-numeric: tabular-nums;
  white-space: nowrap; }
.tile small { font-size: 14px; font-weight: 500; color: var(--soft); }
.card { padding: 20px 22px 18px; margin-bottom: 16px; min-width: 0; }
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(440px, 100%), 1fr)); gap: 0 16px; }
h2 { font-size: 18px; margin: 0; letter-spacing: -0.01em; }
h3 { font-size: 14px; font-weight: 400; color: var(--soft); margin: 14px 0 6px; } h3 b { color: var(--ink); }
.note { margin: 2px 0 14px; color: var(--soft); font-size: 14px; }
.missing { color: var(--soft); font-style: italic; margin: 6px 4px; overflow-wrap: anywhere; }
.wide { overflow-x: auto; } .wide > svg { min-width: 680px; } .wide > img { max-width: 100%; min-width: 480px; }
.narrow { display: none; } .narrow .names { margin: 4px 0 0; }
svg.chart { display: block; width: 100%; height: auto; }
svg text { font-size: 13px; fill: var(--soft); font-variant-numeric: tabular-nums; }
svg text.end { font-weight: 600; }
.grid { stroke: var(--rule); } .axis { stroke: var(--axis); }
path { fill: none; stroke-linejoin: round; stroke-linecap: round; }
path.thin { stroke-width: 1; opacity: 0.4; } path.line { stroke-width: 1.6; } path.thick { stroke-width: 2.6; }
path.dashed { stroke-width: 1.6; stroke-dasharray: 6 5; } path.dotted { stroke-width: 2; stroke-dasharray: 0.1 5; }
path.area { opacity: 0.85; } .dots circle { stroke: var(--card); stroke-width: 1.5; }
.stroke-blue { stroke: var(--blue); } .stroke-orange { stroke: var(--orange); } .stroke-green { stroke: var(--green); }
.stroke-purple { stroke: var(--purple); } .stroke-gray { stroke: var(--gray); }
.fill-blue, svg .text-blue { fill: var(--blue); } .fill-orange, svg .text-orange { fill: var(--orange); }
.fill-green, svg .text-green { fill: var(--green); } .fill-purple, svg .text-purple { fill: var(--purple); }
.fill-gray, svg .text-gray { fill: var(--gray); }
.back-blue { background: var(--blue); } .back-orange { background: var(--orange); }
.back-green { background: var(--green); } .back-purple { background: var(--purple); }
.back-gray { background: var(--gray); }
.strip { display: flex; gap: 2px; height: 22px; border-radius: 6px; overflow: hidden; background: var(--rule); }
.strip span { min-width: 2px; }
.names { display: flex; flex-wrap: wrap; gap: 4px 22px; list-style: none; margin: 10px 0 18px; padding: 0;
  color: var(--soft); font-size: 14px; }
.names li, dt { overflow-wrap: anywhere; min-width: 0; }
.names b { color: var(--ink); font-weight: 600; font-variant-numeric: tabular-nums; }
.names i { display: inline-block; width: 10px; height: 10px; border-radius: 3px; margin-right: 7px; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; min-width: 380px; }
th, td { text-align: right; padding: 5px 0 5px 36px; border-bottom: 1px solid var(--rule); }
th { color: var(--soft); font-weight: 500; font-size: 13px; } th:first-child, td:first-child { padding-left: 4px; }
table.runs { width: max-content; }
table.runs th, table.runs td { padding-left: 24px; vertical-align: top; white-space: nowrap; }
table.runs th:first-child, table.runs td:first-child { text-align: left; padding-left: 4px; position: sticky; left: 0;
  background: var(--card); }
table.runs th div { max-width: 200px; } table.runs td div { max-width: 340px; }
table.runs div { white-space: normal; overflow-wrap: anywhere; } small { color: var(--soft); }
svg.sample { width: 26px; height: 10px; margin-right: 7px; vertical-align: baseline; }
tr.best td { font-weight: 700; }
pre { margin: 10px 0 0; overflow-x: auto; color: var(--ink); }
pre.sample { white-space: pre-wrap; overflow-wrap: anywhere; border-left: 3px solid var(--blue); padding-left: 16px; }
summary { cursor: pointer; color: var(--blue); }
@media (max-width: 560px) { .broad { display: none; } .narrow { display: block; }
  main { padding: 24px 12px 40px; } .card { padding: 16px 14px; }
  .wide > img { min-width: 860px; } table { min-width: 0; } th, td { padding-left: 18px; }
  table.runs td:first-child div { max-width: 130px; } }
#hover { position: fixed; z-index: 2; pointer-events: none; background: var(--card); color: var(--ink);
  padding: 8px 11px; border: 1px solid var(--axis); border-radius: 8px; font-size: 13px;
  font-variant-numeric: tabular-nums;
  box-shadow: 0 4px 16px rgba(0, 0, 0, 0.16);
  white-space: pre-wrap; overflow-wrap: anywhere; max-width: min(90vw, 520px); }
.cursor { stroke: var(--soft); stroke-dasharray: 3 3; }
@media print { body { background: #fff; } .card, .tile { break-inside: avoid; } }
)css";

constexpr const char* kScript = R"js(
const box = document.getElementById("hover");
for (const svg of document.querySelectorAll("svg.chart")) {
  const [left, right, top, bottom, low, high] = svg.dataset.frame.split(" ").map(Number);
  const series = [...svg.querySelectorAll("[data-values]")].filter(e => e.dataset.values).map(e => ({
    name: e.dataset.name,
    points: e.dataset.values.split(" ").map(p => p.split(",").map(Number)) }));
  const cursor = document.createElementNS("http://www.w3.org/2000/svg", "line");
  cursor.setAttribute("class", "cursor");
  cursor.setAttribute("y1", top);
  cursor.setAttribute("y2", bottom);
  const hide = () => { cursor.remove(); box.hidden = true; };
  svg.addEventListener("pointerleave", hide);
  svg.addEventListener("pointermove", event => {
    const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
    if (at.x < left || at.x > right) return hide();
    const wanted = low + (at.x - left) / (right - left) * (high - low);
    const near = points => points.reduce((a, b) => Math.abs(b[0] - wanted) < Math.abs(a[0] - wanted) ? b : a);
    const found = series.map(s => [s.name, near(s.points)]);
    const x = near(found.map(f => f[1]))[0];
    cursor.setAttribute("x1", left + (x - low) / (high - low) * (right - left));
    cursor.setAttribute("x2", cursor.getAttribute("x1"));
    svg.append(cursor);
    box.textContent = [`${svg.dataset.xLabel} ${x}`].concat(found.map(([name, p]) =>
      `${name}  ${p[1]}` + (p[0] === x ? "" : ` (${svg.dataset.xLabel} ${p[0]})`))).join("\n");
    box.hidden = false;
    const beside = event.clientX + 16 + box.offsetWidth > innerWidth ? -16 - box.offsetWidth : 16;
    box.style.left = event.clientX + beside + "px";
    box.style.top = event.clientY + 16 + "px";
  });
}
)js";

}  // namespace

const char* report_style() { return kStyle; }
const char* report_script() { return kScript; }

}  // namespace orthant
