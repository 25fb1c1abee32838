// The script of diagram.html, which the page shows in frames without an origin
// (src/view/diagrams.ts): one frame draws, and each drawn diagram has a frame. Only here the text
// of a model becomes markup. The policy of the document allows only this server's scripts, and only
// pages of this server can embed it.

const FONT = 'ui-sans-serif, system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", "Noto Sans", sans-serif';
/** A diagram is scaled down to the width, but not below this factor: then it scrolls. */
const LEAST_SCALE = 0.5;
/** The padding of the body on both sides. */
const PADDING = 24;
/** The height of a scroll bar. This space is always free: otherwise a scroll bar would make the
    diagram smaller, which would remove the scroll bar, and so on. */
const BAR = 16;

const send = (message) => parent.postMessage(message, "*");

function load(script) {
  const element = document.createElement("script");
  element.src = script;
  element.onload = () => send({ did: "loaded" });
  element.onerror = () => send({ did: "missing" });
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
    // A directive in the source cannot change these.
    secure: ["secure", "securityLevel", "startOnLoad", "maxTextSize", "suppressErrorRendering", "maxEdges", "htmlLabels", "dompurifyConfig", "themeCSS", "fontFamily", "logLevel"],
  });
  try {
    const { svg } = await mermaid.render(`diagram-${id}`, source);
    send({ did: "drawn", id, svg });
  } catch {
    send({ did: "wrong", id });
  }
  document.body.replaceChildren();
}

let natural = null;
let fitted = 0;

function show({ svg, dark }) {
  // The frame is transparent only if it has the colour scheme of the page.
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
  // A hidden frame has no width.
  if (natural === null || innerWidth === 0) return;
  fitted = innerWidth;
  const { drawn, width, height } = natural;
  const room = Math.max(1, innerWidth - PADDING - BAR);
  const scale = Math.min(1, Math.max(LEAST_SCALE, room / width));
  Object.assign(drawn.style, { maxWidth: "none", width: `${width * scale}px`, height: `${height * scale}px` });
  send({ did: "shown", height: height * scale + PADDING + (width * scale > room ? BAR : 0) });
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
send({ did: "ready" });
