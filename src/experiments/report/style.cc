#include "experiments/report/style.h"

#include "experiments/report/series_look.h"

namespace tensorcache::experiments::report {
namespace {

constexpr char kLight[] =
    "--surface:#fff;--page:#f6f7f9;--ink:#16191d;--soft:#414852;--muted:#5f6875;--grid:#e6e9ed;--line:#d5dae1;"
    "--shade:#0002;--raised:#f1f3f6;--accent:#b83f05;--good:#0b7a4b;--bad:#b3261e;"
    "--warn:#7a4b00;--warn-bg:#fff1d1;--tc-bg:#fff6f0;"
    "--m-full:#3a3f45;--m-window:#1d62e8;--m-streaming_llm:#1f9e80;--m-infini:#9350ab;--m-tensor_cache:#ea560d;"
    "--x-0:#4c1b9a;--x-1:#0b93ad;--x-2:#5c4a00;--x-3:#b4235a";
constexpr char kDark[] =
    "--surface:#15181d;--page:#0e1014;--ink:#eef0f3;--soft:#c3c9d2;--muted:#97a0ad;--grid:#282d35;--line:#343a44;"
    "--shade:#000a;--raised:#1d2128;--accent:#ff8a55;--good:#5fd39b;--bad:#ff8f86;"
    "--warn:#f5c665;--warn-bg:#3a2c0c;--tc-bg:#241a14;"
    "--m-full:#9aa1af;--m-window:#a5d6ff;--m-streaming_llm:#22d492;--m-infini:#cf66e8;--m-tensor_cache:#ff6325;"
    "--x-0:#b7a0f0;--x-1:#1597b0;--x-2:#f8d56d;--x-3:#ff9fc0";

// Sizes are kChartFont and kHeadingFont of chart_layout.h.
constexpr char kChart[] =
    R"(.chart{font:12.5px system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif}
.chart text{fill:var(--muted);dominant-baseline:central;font-variant-numeric:tabular-nums}
.chart .heading{fill:var(--ink);font-size:15px;font-weight:650;dominant-baseline:auto}
.chart .surface{fill:var(--surface)}
.chart .grid{stroke:var(--grid)}
.chart .base,.chart .tick{stroke:var(--muted)}
.chart .ytick{text-anchor:end}
.chart .xtick,.chart .xtitle{text-anchor:middle}
.chart .gname.end{text-anchor:end}
.chart .xtitle,.chart .ytitle{fill:var(--soft)}
.chart .guide{stroke:var(--muted);stroke-width:1.25;stroke-dasharray:1 4;stroke-linecap:round}
.chart .curve{fill:none;stroke:var(--c);stroke-width:1.9;stroke-linejoin:round;stroke-linecap:round}
.chart .strong .curve{stroke-width:3.4}
.chart .mark{fill:var(--surface);stroke:var(--c);stroke-width:1.75;stroke-linejoin:round}
.chart .strong .mark{fill:var(--c);stroke:var(--surface);stroke-width:1}
.chart .bar{fill:none;stroke:var(--c);stroke-width:1.1;opacity:.5}
.chart .plain{--c:var(--muted)}
.chart .paper .curve{stroke-width:1.3;stroke-dasharray:4 3.5;stroke-linecap:butt}
.chart .paper .mark{fill:var(--c);stroke:none}
.chart .leader{fill:none;stroke:var(--c);opacity:.75}
.chart .name{fill:var(--soft)}
.chart .strong .name{fill:var(--ink);font-weight:700}
)";
// Published figures are a darker (on dark: lighter) shade of their method's colour. After the colours' own rules.
constexpr char kPaperShade[] =
    ".chart .paper .curve{stroke:color-mix(in srgb,var(--c) 62%,var(--ink))}\n"
    ".chart .paper .mark{fill:color-mix(in srgb,var(--c) 62%,var(--ink))}\n";

constexpr char kPage[] = R"(*{box-sizing:border-box}
html{scroll-behavior:smooth;scroll-padding-top:1rem;-webkit-text-size-adjust:100%}
body{margin:0;background:var(--page);color:var(--ink);font:16px/1.6 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif}
a{color:inherit;text-decoration-color:var(--line);text-underline-offset:.2em}
a:hover{text-decoration-color:var(--accent)}
:focus-visible{outline:2px solid var(--accent);outline-offset:2px;border-radius:3px}
h1,h2,h3{line-height:1.25;text-wrap:balance;margin:0}
p{margin:.6em 0}
code{font:.88em/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;background:var(--raised);border-radius:4px;padding:.1em .3em;overflow-wrap:anywhere}
.frame{max-width:1280px;margin:0 auto;padding:0 1.5rem 4rem;display:grid;grid-template-columns:9.5rem minmax(0,1fr);gap:0 2rem}
header{grid-column:1/-1;padding:3rem 0 1.5rem}
.eyebrow{color:var(--accent);font-size:.8rem;font-weight:650;letter-spacing:.07em;text-transform:uppercase;margin:0 0 .4rem}
h1{font-size:clamp(1.8rem,4.5vw,2.7rem);letter-spacing:-.02em}
.lead,.findings li,.setup,.note{text-wrap:pretty}
.lead{font-size:1.12rem;color:var(--soft);max-width:46em;margin:.8rem 0 0}
.facts{display:flex;flex-wrap:wrap;gap:.75rem;margin:1.6rem 0 0;padding:0;list-style:none}
.facts li{background:var(--surface);border:1px solid var(--line);border-radius:10px;padding:.6rem 1rem;min-width:7.2rem;flex:0 1 auto}
.facts b{display:block;font-size:1.45rem;line-height:1.2;font-weight:650;font-variant-numeric:tabular-nums;letter-spacing:-.01em}
.facts span{color:var(--muted);font-size:.85rem}
.facts .good b{color:var(--good)}.facts .bad b{color:var(--bad)}
nav{font-size:.9rem}
nav .inner{position:sticky;top:0;max-height:100vh;overflow:auto;padding:1.2rem 0}
nav p{margin:1rem 0 .25rem;color:var(--muted);font-size:.74rem;font-weight:650;letter-spacing:.06em;text-transform:uppercase}
nav p:first-child{margin-top:0}
nav ul{list-style:none;margin:0;padding:0}
nav a{display:block;padding:.2rem .6rem;margin-left:-.6rem;border-radius:6px;text-decoration:none;color:var(--soft)}
nav a:hover{background:var(--raised);color:var(--ink)}
main{min-width:0}
.card{background:var(--surface);border:1px solid var(--line);border-radius:14px;padding:1.6rem 1.75rem;margin:0 0 1.5rem}
h2{font-size:1.42rem;letter-spacing:-.01em}
h3{font-size:1.02rem;font-weight:650;margin:0 0 .15rem}
.where{color:var(--muted);font-size:.9rem;margin:.25rem 0 0}
.setup{color:var(--soft);max-width:50em}
.findings{margin:.9rem 0 1.2rem;padding:.15rem 0 .15rem 1.1rem;border-left:3px solid var(--accent);list-style:none;max-width:50em}
.findings li{margin:.35rem 0}
.summary{max-width:none;border-left:0;padding:0}
.summary li{display:grid;grid-template-columns:7.5rem minmax(0,1fr);gap:1rem;padding:.5rem 0;margin:0;border-top:1px solid var(--grid)}
.summary li:first-child{border-top:0}
.summary a{color:var(--accent);font-weight:600;text-decoration:none}
.summary a:hover{text-decoration:underline}
.badge{display:inline-block;vertical-align:middle;background:var(--warn-bg);color:var(--warn);font-size:.74rem;font-weight:650;letter-spacing:.02em;border-radius:99px;padding:.12rem .6rem;white-space:nowrap;margin-left:.5rem}
h2 .badge{position:relative;top:-.1em}
nav .badge{padding:0 .4rem;font-size:.68rem;margin-left:.3rem}
.figures{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,24rem),1fr));gap:1.8rem 2rem;margin:1.2rem 0}
.figures.single{grid-template-columns:minmax(0,50rem)}
figure{margin:0;min-width:0;max-width:35rem}
.single figure{max-width:50rem}
figure svg{display:block;width:calc(100% + 6px);margin-left:-6px;height:auto;overflow:visible}
figure .narrow{display:none}
figcaption{margin:0 0 .7rem}
figcaption a{text-decoration:none}
figcaption a:hover{text-decoration:underline;text-decoration-color:var(--accent)}
.note{color:var(--muted);font-size:.88rem;margin:.5rem 0 0;max-width:52em}
.table{margin:1.6rem 0 0}
.scroll{position:relative;overflow-x:auto;margin:.6rem 0 0;border:1px solid var(--line);border-radius:10px;background:linear-gradient(to left,var(--surface) 40%,transparent) right/48px 100% no-repeat local,linear-gradient(to left,var(--shade),transparent) right/18px 100% no-repeat scroll,var(--surface)}
table{border-collapse:separate;border-spacing:0;width:100%;font-size:.89rem;line-height:1.4;font-variant-numeric:tabular-nums}
th,td{padding:.5rem .65rem;text-align:right;vertical-align:top;border-bottom:1px solid var(--grid)}
tbody tr:last-child>*{border-bottom:0}
thead th,thead th:first-child{background:var(--raised)}
thead th{font-weight:600;color:var(--soft);vertical-align:bottom;font-size:.84rem}
thead tr:last-child th{border-bottom-color:var(--line)}
thead .group{text-align:center;border-bottom:0;color:var(--ink);padding-bottom:.1rem}
thead .group span{display:block;border-bottom:1px solid var(--line);padding-bottom:.3rem}
thead .group b{font-weight:600}
th:first-child{text-align:left;position:sticky;left:0;z-index:1;background:var(--surface);border-right:1px solid var(--line)}
tbody th{font-weight:500}
tbody th.short{white-space:nowrap}
.unit{display:block;font-weight:400;color:var(--muted);white-space:nowrap}
td .ours{white-space:nowrap;color:var(--ink)}
td .dev{color:var(--muted);font-size:.86em}
td .beside{display:flex;flex-wrap:wrap;justify-content:flex-end;gap:0 .5em;font-size:.84em;color:var(--muted);white-space:nowrap}
td .beside i{font-style:italic}
.diff.good{color:var(--good)}.diff.bad{color:var(--bad)}
.none{color:var(--muted)}
.text{white-space:normal}
td.left,th.left{text-align:left}
.swatch{display:inline-block;width:.68em;height:.68em;border-radius:50%;background:var(--c);margin-right:.45em}
.word{white-space:nowrap}
tbody .curve-name{display:inline-block;padding-left:1.13em;text-indent:-1.13em}
.m-full .swatch{border-radius:1px}
tbody tr.tc>*,tbody td.tc{background:var(--tc-bg)}
tr.tc th{font-weight:700}
.key{display:flex;flex-wrap:wrap;gap:.1rem 1.1rem;font-size:.82rem;color:var(--muted);margin:.5rem 0 0;padding:0;list-style:none}
.key b{color:var(--ink);font-weight:600}
details{margin:1.5rem 0 0;border-top:1px solid var(--grid);padding-top:.9rem;font-size:.92rem}
summary{cursor:pointer;color:var(--muted);font-weight:550;width:fit-content}
summary:hover{color:var(--ink)}
dl{display:grid;grid-template-columns:max-content minmax(0,1fr);gap:.35rem 1.2rem;margin:.9rem 0 1rem}
dt{color:var(--muted)}
dd{margin:0;overflow-wrap:anywhere}
.runs td,.runs th{white-space:nowrap}
.runs .changes{white-space:normal;min-width:16rem;text-align:left}
.vh{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%);white-space:nowrap}
footer{grid-column:1/-1;color:var(--muted);font-size:.88rem;border-top:1px solid var(--line);padding-top:1rem;margin-top:1rem}
@media (max-width:960px){
.frame{display:block;padding:0 1rem 3rem}
header{padding:2rem 0 1rem}
nav{position:sticky;top:0;z-index:5;margin:0 -1rem 1rem;background:var(--page);border-bottom:1px solid var(--line)}
nav .inner{display:flex;align-items:center;gap:.2rem;position:static;padding:.45rem 1rem;overflow-x:auto;scrollbar-width:none}
nav p{display:none}
nav ul{display:flex;gap:.2rem}
nav a{margin:0;white-space:nowrap;padding:.35rem .6rem}
html{scroll-padding-top:4rem}
}
@media (max-width:600px){
.card{padding:1.1rem 1rem;border-radius:12px;margin-left:-.5rem;margin-right:-.5rem}
figure .wide{display:none}
figure .narrow{display:block}
.summary li{display:block}
.summary a{display:block;font-size:.9rem}
.facts{display:grid;grid-template-columns:1fr 1fr;gap:.5rem}
.facts li{min-width:0;padding:.5rem .8rem}
th,td{padding:.5rem .6rem}
th:first-child{max-width:9.2rem;overflow-wrap:break-word}
.runs th:first-child{white-space:normal;overflow-wrap:anywhere;min-width:8rem}
.pin{position:sticky;right:0;border-left:1px solid var(--line)}
thead th.pin{background:var(--raised)}
thead .group{text-align:left}
thead .group b{position:sticky;left:9.6rem}
tbody th.short{white-space:normal}
dl{grid-template-columns:1fr;gap:0}
dd{margin:0 0 .5rem}
}
@media print{body{background:none}nav{display:none}.frame{display:block}.card{border:0;padding:0;break-inside:avoid-page}}
)";

}  // namespace

std::string ColourCss(const std::string& selector) {
  return selector + "{color-scheme:light dark;" + kLight + "}\n@media (prefers-color-scheme:dark){" + selector + "{" +
         kDark + "}}\n";
}

std::string ChartCss() { return std::string(kChart) + LookCss() + kPaperShade; }

std::string PageCss() { return ColourCss(":root") + kPage + ChartCss(); }

}  // namespace tensorcache::experiments::report
