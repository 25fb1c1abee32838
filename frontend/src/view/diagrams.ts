/* Draws blocks of code as diagrams. The text of a model becomes markup only in frames without an
   origin (`sandbox`), whose document has its own content security policy. Until a diagram is drawn,
   and where it cannot be drawn, its source is shown. */

import script from "mermaid/dist/mermaid.min.js?url";
import { ANSWER_MS, DrawingQueue, frameHeight, fromFrame, isDark, MOST_CHARACTERS, type Drawing, type FromFrame, type ToFrame } from "../core/diagrams";
import { texts } from "../core/words";
import { h, setText } from "./dom";

const DOCUMENT = "/diagram.html";
/** Diagrams within this distance of the visible area are drawn. */
const NEAR = "100% 0px";
const DARK = matchMedia("(prefers-color-scheme: dark)");

function later(run: () => void, ms: number): () => void {
  const timer = setTimeout(run, ms);
  return () => clearTimeout(timer);
}

function frame(attributes: Record<string, string>): HTMLIFrameElement {
  return h("iframe", { sandbox: "allow-scripts", src: DOCUMENT, ...attributes });
}

// The target of a frame without an origin can only be "*". The page's policy allows no document of
// another server in it.
function send(to: HTMLIFrameElement | null, message: ToFrame): void {
  to?.contentWindow?.postMessage(message, "*");
}

class Diagrams {
  /** By block of code. A removed turn drops its blocks. */
  private readonly byBlock = new WeakMap<Element, Diagram>();
  /** The frame that draws; null while there is none. */
  private drawer: HTMLIFrameElement | null = null;
  private readonly queue = new DrawingQueue({
    open: () => {
      this.drawer = frame({ class: "diagram-drawer", "aria-hidden": "true", tabindex: "-1" });
      document.body.append(this.drawer);
    },
    close: () => {
      this.drawer?.remove();
      this.drawer = null;
    },
    send: (message) => send(this.drawer, message),
    later,
    script: new URL(script, location.href).href,
  });
  // Only browsers with `scrollMargin` detect near blocks in a scrolling box. In others a diagram is
  // drawn when it is visible.
  private readonly observer = new IntersectionObserver((entries) => this.onIntersection(entries), { rootMargin: NEAR, scrollMargin: NEAR } as IntersectionObserverInit);
  private dark = this.isDark;

  constructor() {
    addEventListener("message", (event) => this.onMessage(event));
    DARK.addEventListener("change", () => this.onTheme());
    new MutationObserver(() => this.onTheme()).observe(document.documentElement, { attributeFilter: ["data-theme"] });
  }

  /** Observes the diagrams in this part of the document, which has just been drawn. */
  watch(part: ChildNode | undefined): void {
    if (!(part instanceof HTMLElement)) return;
    for (const block of part.matches(".code") ? [part] : part.querySelectorAll<HTMLElement>(".code")) {
      const diagram = this.byBlock.get(block);
      if (!block.matches("[data-diagram]")) {
        if (diagram === undefined) continue;
        diagram.clear();
        this.byBlock.delete(block);
        this.observer.unobserve(block);
      } else if (diagram === undefined) {
        this.byBlock.set(block, new Diagram(block, this.queue));
        this.observer.observe(block);
      } else if (diagram.refresh()) this.observeAgain(block);
    }
  }

  private get isDark(): boolean {
    return isDark(document.documentElement.dataset["theme"], DARK.matches);
  }

  private onIntersection(entries: readonly IntersectionObserverEntry[]): void {
    for (const { target, isIntersecting } of entries) if (isIntersecting) this.byBlock.get(target)?.draw(this.dark);
  }

  // A new observation reports visible blocks again.
  private observeAgain(block: Element): void {
    this.observer.unobserve(block);
    this.observer.observe(block);
  }

  private onTheme(): void {
    if (this.dark === this.isDark) return;
    this.dark = this.isDark;
    for (const block of document.querySelectorAll(".code[data-diagram]")) if (this.byBlock.has(block)) this.observeAgain(block);
  }

  private onMessage({ source, data }: MessageEvent): void {
    if (source === null || source === window) return;
    const message = fromFrame(data);
    if (message === null) return;
    if (source === this.drawer?.contentWindow) this.queue.receive(message);
    else {
      const diagramFrame = [...document.querySelectorAll<HTMLIFrameElement>("iframe.diagram-frame")].find((each) => each.contentWindow === source);
      const block = diagramFrame?.closest(".code");
      if (block) this.byBlock.get(block)?.receive(message);
    }
  }
}

/** One block of code. Only this view changes the elements that it owns (`own` in core/nodes.ts). */
class Diagram {
  private source: string;
  /** The number of the newest request. Drawings of older requests are ignored. */
  private requestId = 0;
  /** The theme of the last request; null: no request, or it may be repeated. */
  private dark: boolean | null = null;
  /** The last drawing; empty before the first. */
  private svg = "";
  private svgDark = false;
  /** The frame with the drawing; null: not drawn. */
  private frame: HTMLIFrameElement | null = null;
  private stopTimer = (): void => undefined;
  private readonly button = h("button", { type: "button", class: "diagram-switch", onclick: () => this.toggle() });
  /** Whether the source is shown instead: at first, where the source has a notice of a change of
      models. */
  private showsSource: boolean;

  constructor(
    private readonly block: HTMLElement,
    private readonly queue: DrawingQueue,
  ) {
    this.source = this.readSource();
    this.showsSource = block.querySelector("pre .seam") !== null;
  }

  /** Reads the source again. Returns true where it changed; the drawing is then removed. */
  refresh(): boolean {
    const source = this.readSource();
    if (source === this.source) return false;
    this.clear();
    this.source = source;
    return true;
  }

  clear(): void {
    this.requestId += 1;
    this.dark = null;
    this.removeFrame();
    this.place?.replaceChildren();
  }

  draw(dark: boolean): void {
    if (dark === this.dark) return;
    if (this.source.length > MOST_CHARACTERS) {
      this.showNote(texts().diagramTooLong);
      return;
    }
    this.dark = dark;
    const id = (this.requestId += 1);
    this.queue.draw(this.source, dark, (drawing) => {
      if (id === this.requestId && this.block.isConnected) this.onDrawing(drawing, dark);
    });
  }

  receive(message: FromFrame): void {
    // A frame also loads again when it was moved in the document.
    if (message.did === "ready") send(this.frame, { do: "show", svg: this.svg, dark: this.svgDark });
    else if (message.did === "shown" && this.frame !== null) {
      this.stopTimer();
      this.frame.style.height = `${frameHeight(message.height)}px`;
      this.isShown = true;
    }
  }

  private onDrawing(drawing: Drawing, dark: boolean): void {
    if (drawing === "wrong") this.fail(texts().diagramWrong);
    else if (drawing === "late") this.failLate();
    else {
      this.svg = drawing.svg;
      this.svgDark = dark;
      if (this.frame !== null) send(this.frame, { do: "show", svg: this.svg, dark });
      else this.open();
    }
  }

  private open(): void {
    this.frame = frame({ class: "diagram-frame", title: texts().diagram });
    this.stopTimer = later(() => this.failLate(), ANSWER_MS);
    this.place?.replaceChildren(this.frame);
  }

  private failLate(): void {
    this.fail(texts().diagramLate);
    this.dark = null; // tried again when it is visible again
  }

  private fail(words: string): void {
    this.removeFrame();
    this.showNote(words);
  }

  private removeFrame(): void {
    this.stopTimer();
    this.frame = null;
    this.isShown = false;
  }

  private showNote(words: string): void {
    this.place?.replaceChildren(h("p", { class: "diagram-note" }, words));
  }

  private toggle(): void {
    this.showsSource = !this.showsSource;
    this.isShown = true;
  }

  private set isShown(isVisible: boolean) {
    const [place, tools] = [this.place, this.block.querySelector(".diagram-tools")];
    if (place === null || tools === null) return;
    place.toggleAttribute("data-shown", isVisible && !this.showsSource);
    place.toggleAttribute("data-hidden", isVisible && this.showsSource);
    setText(this.button, this.showsSource ? texts().showDiagram : texts().showSource);
    if (!isVisible) this.button.remove();
    else if (!this.button.isConnected) tools.append(this.button);
  }

  private get place(): HTMLElement | null {
    return this.block.querySelector<HTMLElement>(":scope > .diagram");
  }

  private readSource(): string {
    const source = this.block.querySelector("pre")?.cloneNode(true) as Element | undefined;
    for (const notice of source?.querySelectorAll(".seam") ?? []) notice.remove();
    return source?.textContent ?? "";
  }
}

export const diagrams = new Diagrams();
