"""How a page looks: light or dark as the reader's machine is set, from a telephone's width to a wide screen's."""

CSS = """
:root{color-scheme:light dark;--ink:#1b1d22;--quiet:#666b75;--paper:#fff;--soft:#f3f4f6;--line:#dcdfe4;--good:#1d8a4f;
--bad:#c0392b;--warm:#d9822b;--cool:#5470a8;--accent:#2f62d9}
@media(prefers-color-scheme:dark){:root{--ink:#e6e8ec;--quiet:#9aa1ad;--paper:#14161a;--soft:#1f2228;--line:#343943;
--good:#4cc07f;--bad:#ef7b6d;--warm:#eda24f;--cool:#8aa4da;--accent:#86a8ff}}
*{box-sizing:border-box}
body{font:15px/1.5 system-ui,-apple-system,"Segoe UI",sans-serif;margin:0 auto;max-width:1240px;padding:1.2rem 1rem 4rem;
color:var(--ink);background:var(--paper)}
h1{font-size:1.6rem;line-height:1.2;margin:.6rem 0 .2rem}h2{font-size:1.2rem;margin:2.4rem 0 .5rem;border-top:1px solid var(--line);
padding-top:1.1rem}h3{font-size:.95rem;margin:0 0 .5rem}h4{font-size:.85rem;margin:1rem 0 .4rem;color:var(--quiet)}
p{margin:.4rem 0 .8rem}.quiet,small{color:var(--quiet);font-size:.87em}code{font-size:.9em}
.short{list-style:none;padding:0;margin:.8rem 0}.short li{display:flex;gap:.8rem;padding:.45rem .7rem;margin:.3rem 0;
background:var(--soft);border-left:3px solid var(--accent);border-radius:3px}.short b{flex:0 0 4.2em}
.panels{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,340px),1fr));gap:1.2rem 1.8rem}
.panel{max-width:560px}.bar{display:grid;grid-template-columns:6.6em 1fr 2.6em;align-items:center;gap:.5rem;font-size:13px;line-height:1.65}
.bar>span:first-child{overflow:hidden;text-overflow:ellipsis;white-space:nowrap}.number{font-variant-numeric:tabular-nums;
text-align:right}.bar em{color:var(--bad);font-size:.8em}
.track{position:relative;height:15px;background:linear-gradient(var(--line),var(--line)) 0 50%/100% 1px no-repeat}
.track i{position:absolute}.span{height:5px;top:5px;background:var(--accent);opacity:.4;border-radius:3px}
.dot{width:9px;height:9px;top:3px;margin-left:-4.5px;border-radius:50%;background:var(--accent)}
.behind .dot,.behind .span{opacity:.35}.behind .span{opacity:.18}.axis div{display:flex;justify-content:space-between;color:var(--quiet);
font-size:11px;line-height:1}.axis div span{width:0;display:flex;justify-content:center}
.hollow .dot{background:var(--paper);border:2px solid var(--quiet)}.hollow .span{background:var(--quiet)}
.track .dense{width:0;border-left:1.5px dashed var(--quiet);top:-3px;bottom:-3px}
.stack{display:flex;height:13px;background:var(--soft);border-radius:2px;overflow:hidden}
.key{display:flex;flex-wrap:wrap;gap:.2rem 1rem;font-size:13px}.key span{display:inline-flex;align-items:center;gap:.35rem;
cursor:default}.key i{width:11px;height:11px;border-radius:2px}
i.right{background:var(--good)}i.lost{background:var(--bad)}i.misread{background:var(--warm)}i.unknown{background:var(--quiet)}
i.dense-too{background:var(--cool)}
.plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,420px),1fr));gap:1rem}.plots svg{width:100%;
height:auto;max-width:640px}.axes text{fill:var(--quiet);font-size:12px}.tick{stroke:var(--line)}.plots polyline{fill:none;
stroke:var(--tone);stroke-width:1.8}.plots circle{fill:var(--tone)}.whisker{stroke:var(--tone);stroke-width:1.2;opacity:.4}
line.dense{stroke:var(--quiet);stroke-dasharray:3 4}.plots g{transition:opacity .15s}
.scroll{overflow-x:auto}table{border-collapse:separate;border-spacing:0;font-size:13px;font-variant-numeric:tabular-nums}
th,td{padding:3px 9px;text-align:right;border-bottom:1px solid var(--line);white-space:nowrap}th{background:var(--soft);
font-weight:600;vertical-align:bottom;white-space:normal;min-width:4em}
th:first-child,td:first-child{text-align:left;position:sticky;left:0;background:var(--paper);z-index:1}
th:first-child{background:var(--soft)}tr.first td{border-top:2px solid var(--line)}tr.lead td{font-weight:650}
tr.out td{color:var(--quiet);text-decoration:line-through}.kinds td[style]{background:color-mix(in srgb,var(--good) calc(var(--v)*.55),transparent)}
details{border:1px solid var(--line);border-radius:6px;margin:.6rem 0;padding:.2rem .9rem}summary{cursor:pointer;
padding:.45rem 0}details[open]{padding-bottom:1rem}
.cases{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,270px),1fr));gap:1.1rem}
.case{margin:0;font-size:13px;line-height:1.4}.case label{cursor:zoom-in}.panes{display:grid;grid-auto-flow:column;
grid-auto-columns:minmax(0,1fr);gap:4px}.film .panes{grid-auto-flow:row;grid-template-columns:repeat(3,1fr)}.film{grid-column:span 2}
@media(max-width:640px){.film{grid-column:auto}}.panes:has(>:only-child){max-width:60%}.case:has(:checked){grid-column:1/-1}.case:has(:checked) label{cursor:zoom-out}
.case:has(:checked) .panes{max-width:1100px}figcaption{margin-top:.4rem;overflow-wrap:anywhere}
.pane{position:relative;width:100%;background-size:100% 100%;border-radius:3px;overflow:hidden;print-color-adjust:exact}
.pane img,.pane svg{position:absolute;inset:0;width:100%;height:100%}.pane img{image-rendering:pixelated}
.pane rect{fill:none;stroke:#ff3b30;stroke-width:2px;vector-effect:non-scaling-stroke}
span.right{color:var(--good);font-weight:600}span.wrong{color:var(--bad);font-weight:600}.wanted::before{content:"expected ";
color:var(--quiet)}
.matrix td{text-align:center}.matrix td:first-child{text-align:left}.matrix .p{color:var(--good)}.matrix .f{color:var(--bad)}
.matrix .n{color:var(--quiet)}.matrix td.all-p{background:color-mix(in srgb,var(--good) 16%,transparent)}
.matrix td.all-f{background:color-mix(in srgb,var(--bad) 14%,transparent)}
.gallery{display:grid;grid-template-columns:repeat(auto-fill,minmax(118px,1fr));gap:.7rem}.gallery figure{margin:0;
font-size:12px}.gallery figcaption{margin-top:.2rem}
"""
