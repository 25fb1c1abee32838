/* The content of a new chat before its first question, with the state of the model. */

import { texts } from "../core/words";
import type { Engine } from "../edge/api";
import { h, setText } from "./dom";

export interface WelcomeParts {
  ask(question: string): void;
  engine(): Promise<Engine | null>;
}

const EVERY_MS = 2500;

export class Welcome {
  readonly element: HTMLElement;
  private readonly state = h("p", { class: "engine", role: "status" });
  private readonly detail = h("p", { class: "engine-detail" });
  private isWatched = false;
  private isPolling = false;

  constructor(private readonly parts: WelcomeParts) {
    const suggestions = texts().suggestions.map((words) => h("button", { type: "button", onclick: () => parts.ask(words) }, words));
    this.element = h(
      "div",
      { class: "welcome" },
      h("img", { src: "/icon.svg", alt: "", width: "52", height: "52" }),
      h("h2", {}, texts().welcome),
      this.state,
      this.detail,
      h("div", { class: "suggestions" }, ...suggestions),
    );
  }

  /** `isWatched`: the welcome is visible and there is a connection. */
  watch(isWatched: boolean): void {
    if (this.isWatched === isWatched) return;
    this.isWatched = isWatched;
    if (isWatched && !this.isPolling) void this.poll();
    else if (!isWatched) this.show(null);
  }

  // Polls until a model is ready.
  private async poll(): Promise<void> {
    this.isPolling = true;
    while (this.isWatched) {
      const engine = await this.parts.engine().catch(() => null);
      if (!this.isWatched) break;
      this.show(engine);
      if (engine?.state === "ready") break;
      await new Promise((done) => setTimeout(done, EVERY_MS));
    }
    this.isPolling = false;
  }

  private show(engine: Engine | null): void {
    setText(this.state, engineWords(engine));
    setText(this.detail, engine === null || engine.state === "ready" ? "" : engine.detail);
  }
}

function engineWords(engine: Engine | null): string {
  if (engine?.state === "loading") return texts().modelLoading;
  return engine?.state === "none" ? texts().modelMissing : "";
}
