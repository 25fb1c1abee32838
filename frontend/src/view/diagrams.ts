/* Blocks of code that are drawn as diagrams. The text of a model becomes markup in frames without an origin alone (`sandbox`),
   whose document has a policy of its own. Until a diagram is drawn, and where it cannot be, its source is shown. */

import script from "mermaid/dist/mermaid.min.js?url";
import { ANSWER_MS, DrawingQueue, frameHeight, fromFrame, isDark, MOST_CHARACTERS, type Drawing, type FromFrame, type ToFrame } from "../core/diagrams";
import { texts } from "../core/words";
import { h, setText } from "./dom";

const DOCUMENT = "/diagram.html";
/** Those so near to what is in sight are drawn. */
const NEAR = "100% 0px";
const DARK = matchMedia("(prefers-color-scheme: dark)");

function later(run: () => void, ms: number): () => void {
  const timer = setTimeout(run, ms);
  return () => clearTimeout(timer);
}

function frame(attributes: Record<string, string>): HTMLIFrameElement {
  return h("iframe", { sandbox: "allow-scripts", src: DOCUMENT, ...attributes });
}

// A frame without an origin can only be addressed as "*". The page's policy lets no other server's document into it.
function send(to: HTMLIFrameElement | null, message: ToFrame): void {
  to?.contentWindow?.postMessage(message, "*");
}

class Diagrams {
  /** By their blocks of code, which a turn that is gone takes along. */
  private readonly known = new WeakMap<Element, Diagram>();
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
  // What is near in a box that scrolls is known to browsers with `scrollMargin`; in others a diagram is drawn when it is in sight.
  private readonly observer = new IntersectionObserver((seen) => this.moved(seen), { rootMargin: NEAR, scrollMargin: NEAR } as IntersectionObserverInit);
  private dark = this.isDark;

  constructor() {
    addEventListener("message", (event) => this.heard(event));
    DARK.addEventListener("change", () => this.themed());
    new MutationObserver(() => this.themed()).observe(document.documentElement, { attributeFilter: ["data-theme"] });
  }

  /** Looks after the diagrams in this part of the document, which has just been drawn. */
  watch(part: ChildNode | undefined): void {
    if (!(part instanceof HTMLElement)) return;
    for (const block of part.matches(".code") ? [part] : part.querySelectorAll<HTMLElement>(".code")) {
      const diagram = this.known.get(block);
      if (!block.matches("[data-diagram]")) {
        if (diagram === undefined) continue;
        diagram.clear();
        this.known.delete(block);
        this.observer.unobserve(block);
      } else if (diagram === undefined) {
        this.known.set(block, new Diagram(block, this.queue));
        this.observer.observe(block);
      } else if (diagram.changed()) this.lookAgain(block);
    }
  }

  private get isDark(): boolean {
    return isDark(document.documentElement.dataset["theme"], DARK.matches);
  }

  private moved(seen: readonly IntersectionObserverEntry[]): void {
    for (const { target, isIntersecting } of seen) if (isIntersecting) this.known.get(target)?.near(this.dark);
  }

  // An observer tells of what is in sight once more when it begins anew.
  private lookAgain(block: Element): void {
    this.observer.unobserve(block);
    this.observer.observe(block);
  }

  private themed(): void {
    if (this.dark === this.isDark) return;
    this.dark = this.isDark;
    for (const block of document.querySelectorAll(".code[data-diagram]")) if (this.known.has(block)) this.lookAgain(block);
  }

  private heard({ source, data }: MessageEvent): void {
    if (source === null || source === window) return;
    const message = fromFrame(data);
    if (message === null) return;
    if (source === this.drawer?.contentWindow) this.queue.heard(message);
    else {
      const shown = [...document.querySelectorAll<HTMLIFrameElement>("iframe.diagram-frame")].find((each) => each.contentWindow === source);
      const block = shown?.closest(".code");
      if (block) this.known.get(block)?.heard(message);
    }
  }
}

/** One block of code. The elements in it that belong to the view are emptied by the view alone (`own` in core/nodes.ts). */
class Diagram {
  private source: string;
  /** The newest drawing that was asked for: what comes of an older one is left out. */
  private asked = 0;
  /** How it was asked for last; null before, and where that may be tried again. */
  private dark: boolean | null = null;
  /** As it was drawn last; empty before. */
  private svg = "";
  private svgDark = false;
  /** Where it is shown; null until it was drawn, and where it cannot be. */
  private frame: HTMLIFrameElement | null = null;
  private stopTimer = (): void => undefined;
  private readonly button = h("button", { type: "button", class: "diagram-switch", onclick: () => this.toggle() });
  /** Where another model goes on within the source, that is to be seen first. */
  private showsSource: boolean;

  constructor(
    private readonly block: HTMLElement,
    private readonly queue: DrawingQueue,
  ) {
    this.source = this.read();
    this.showsSource = block.querySelector("pre .seam") !== null;
  }

  /** Whether it is another diagram than before. */
  changed(): boolean {
    const source = this.read();
    if (source === this.source) return false;
    this.clear();
    this.source = source;
    return true;
  }

  clear(): void {
    this.asked += 1;
    this.dark = null;
    this.leave();
    this.place?.replaceChildren();
  }

  near(dark: boolean): void {
    if (dark === this.dark) return;
    if (this.source.length > MOST_CHARACTERS) {
      this.say(texts().diagramTooLong);
      return;
    }
    this.dark = dark;
    const asked = (this.asked += 1);
    this.queue.draw(this.source, dark, (drawing) => {
      if (asked === this.asked && this.block.isConnected) this.drawn(drawing, dark);
    });
  }

  heard(message: FromFrame): void {
    // Also when the frame was moved in the document, which makes it begin anew.
    if (message.did === "ready") send(this.frame, { do: "show", svg: this.svg, dark: this.svgDark });
    else if (message.did === "shown" && this.frame !== null) {
      this.stopTimer();
      this.frame.style.height = `${frameHeight(message.height)}px`;
      this.isShown = true;
    }
  }

  private drawn(drawing: Drawing, dark: boolean): void {
    if (drawing === "wrong") this.fail(texts().diagramWrong);
    else if (drawing === "late") this.late();
    else {
      this.svg = drawing.svg;
      this.svgDark = dark;
      if (this.frame !== null) send(this.frame, { do: "show", svg: this.svg, dark });
      else this.open();
    }
  }

  private open(): void {
    this.frame = frame({ class: "diagram-frame", title: texts().diagram });
    this.stopTimer = later(() => this.late(), ANSWER_MS);
    this.place?.replaceChildren(this.frame);
  }

  private late(): void {
    this.fail(texts().diagramLate);
    this.dark = null; // tried again when it comes into sight once more
  }

  private fail(words: string): void {
    this.leave();
    this.say(words);
  }

  private leave(): void {
    this.stopTimer();
    this.frame = null;
    this.isShown = false;
  }

  private say(words: string): void {
    this.place?.replaceChildren(h("p", { class: "diagram-note" }, words));
  }

  private toggle(): void {
    this.showsSource = !this.showsSource;
    this.isShown = true;
  }

  private set isShown(shown: boolean) {
    const [place, tools] = [this.place, this.block.querySelector(".diagram-tools")];
    if (place === null || tools === null) return;
    place.toggleAttribute("data-shown", shown && !this.showsSource);
    place.toggleAttribute("data-hidden", shown && this.showsSource);
    setText(this.button, this.showsSource ? texts().showDiagram : texts().showSource);
    if (!shown) this.button.remove();
    else if (!this.button.isConnected) tools.append(this.button);
  }

  private get place(): HTMLElement | null {
    return this.block.querySelector<HTMLElement>(":scope > .diagram");
  }

  private read(): string {
    const source = this.block.querySelector("pre")?.cloneNode(true) as Element | undefined;
    for (const notice of source?.querySelectorAll(".seam") ?? []) notice.remove();
    return source?.textContent ?? "";
  }
}

export const diagrams = new Diagrams();
