import { texts } from "../core/words";
import type { WatchSocketState } from "../edge/watchSocket";
import { h, setText } from "./dom";

export type Connection = WatchSocketState | { kind: "offline" } | { kind: "starting" } | { kind: "behind" } | { kind: "signedOut"; words: string };

/** The state of the watch socket in a few words. A click connects at once. */
export class Status {
  readonly element: HTMLButtonElement;
  private readonly words = h("span", { class: "words" });
  private state: Connection = { kind: "starting" };
  /** The timer of the countdown while waiting; 0: none. */
  private timer = 0;

  constructor(connectNow: () => void) {
    this.element = h("button", { type: "button", class: "status", onclick: connectNow }, h("span", { class: "dot", "aria-hidden": "true" }), this.words);
    this.draw();
  }

  set(state: Connection): void {
    this.state = state;
    window.clearInterval(this.timer);
    this.timer = state.kind === "waiting" ? window.setInterval(() => this.draw(), 1000) : 0;
    this.draw();
  }

  private draw(): void {
    const words = statusWords(this.state, Date.now());
    setText(this.words, words);
    this.element.dataset["state"] = this.state.kind;
    this.element.title = this.state.kind === "open" ? texts().connectedHint : this.state.kind === "behind" ? texts().catchingUpHint : this.state.kind === "signedOut" ? texts().signIn : texts().tryNowHint(words);
    this.element.disabled = this.state.kind === "open" || this.state.kind === "behind";
  }
}

export function statusWords(state: Connection, now: number): string {
  switch (state.kind) {
    case "open":
      return texts().connected;
    case "behind":
      return texts().catchingUp;
    case "starting":
    case "connecting":
      return texts().connecting;
    case "waiting": {
      const remaining = Math.ceil((state.until - now) / 1000);
      return remaining > 1 ? texts().reconnectingIn(remaining) : texts().reconnecting;
    }
    case "offline":
      return texts().offline;
    case "refused":
      return texts().notConnected;
    case "signedOut":
      return texts().notSignedIn;
  }
}
