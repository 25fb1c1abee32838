// The script of diagram.html, which the page puts into frames without an origin (src/view/diagrams.ts): one
// that draws, and one for each diagram that is shown. Text of a model becomes markup here and nowhere else. The policy of
// the document lets nothing in but this server's scripts, and only pages of this server can hold it.

const FONT = 'ui-sans-serif, system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", "Noto Sans", sans-serif';
/** A diagram is not made smaller than this to fit into the width: then it scrolls. */
const LEAST_SCALE = 0.5;
/** The padding of the body on both sides. */
const PADDING = 24;
/** What a bar to scroll with may take. It is left free at all times: else a bar would make the diagram smaller, which would
    take the bar away, and so on. */
const BAR = 16;

const tell = (message) => parent.postMessage(message, "*");

function load(script) {
  const element = document.createElement("script");
  element.src = script;
  element.onload = () => tell({ did: "loaded" });
  element.onerror = () => tell({ did: "missing" });
  document.head.append(element);
}

async function draw({ id, source, dark, most }) {
  mermaid.initialize({
    startOnLoad: false,
    securityLevel: "strict",
    htmlLabels: false,
    flowchart: { htmlLabels: false },
    suppressErrorRendering: true,
    maxTextSize: most,
    logLevel: "fatal",
    theme: dark ? "dark" : "default",
    fontFamily: FONT,
    // What a directive in the source cannot change.
    secure: ["secure", "securityLevel", "startOnLoad", "maxTextSize", "suppressErrorRendering", "maxEdges", "htmlLabels", "dompurifyConfig", "themeCSS", "fontFamily", "logLevel"],
  });
  try {
    const { svg } = await mermaid.render(`diagram-${id}`, source);
    tell({ did: "drawn", id, svg });
  } catch {
    tell({ did: "wrong", id });
  }
  document.body.replaceChildren();
}

let natural = null;
let fitted = 0;

function show({ svg, dark }) {
  // The frame is only transparent while it is as dark as the page.
  document.documentElement.style.colorScheme = dark ? "dark" : "light";
  document.body.innerHTML = svg;
  const drawn = document.querySelector("svg");
  if (drawn === null) return;
  for (const link of drawn.querySelectorAll("a")) {
    for (const { name } of [...link.attributes]) if (/(?:^|:)href$/i.test(name)) link.removeAttribute(name);
  }
  const { width, height } = drawn.viewBox.baseVal ?? drawn.getBoundingClientRect();
  fitted = 0;
  natural = { drawn, width: Math.max(1, width), height: Math.max(1, height) };
  fit();
}

function fit() {
  // A frame that is not shown has no width.
  if (natural === null || innerWidth === 0) return;
  fitted = innerWidth;
  const { drawn, width, height } = natural;
  const room = Math.max(1, innerWidth - PADDING - BAR);
  const scale = Math.min(1, Math.max(LEAST_SCALE, room / width));
  Object.assign(drawn.style, { maxWidth: "none", width: `${width * scale}px`, height: `${height * scale}px` });
  tell({ did: "shown", height: height * scale + PADDING + (width * scale > room ? BAR : 0) });
}

addEventListener("resize", () => {
  if (innerWidth !== fitted) fit();
});
addEventListener("message", ({ source, data }) => {
  if (source !== parent || typeof data !== "object" || data === null) return;
  if (data.do === "load") load(data.script);
  else if (data.do === "draw") void draw(data);
  else if (data.do === "show") show(data);
});
tell({ did: "ready" });
