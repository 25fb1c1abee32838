/* The page: puts the parts together, shows one conversation at a time, and draws at most once per frame. */

import { isRunning, parts, type Answer } from "../core/answer";
import { busyTurn, chain, isBusy, shown, title, versions, type Conversation, type Turn } from "../core/conversation";
import { endNote, seamWords, servedWords } from "../core/messages";
import type { ItemKind } from "../core/protocol";
import { reading, said, type Seam } from "../core/reading";
import type { Controller } from "../controller";
import { Composer } from "./composer";
import { copyText, h, icon, setText } from "./dom";
import { Follow } from "./scroll";
import { Side } from "./side";
import { Status, type Connection } from "./status";
import { Theme } from "./theme";
import { TurnView } from "./turn";

const SUGGESTIONS = [
  "Explain quantum entanglement.",
  "Write a short poem about a mountain river.",
  "What should I pack for a weekend of hiking?",
  "Show me a Python function that reverses a list.",
];
const CURRENT = "tailrace.current";

export class App {
  private readonly messages = h("div", { class: "column", id: "messages" });
  private readonly scroller = h("div", { class: "scroll", tabindex: "-1" }, this.messages);
  private readonly heading = h("h1", { class: "heading" });
  private readonly live = h("div", { class: "sr-only", role: "status", "aria-live": "polite" });
  private readonly toasts = h("div", { class: "toasts", role: "status", "aria-live": "polite" });
  private readonly banner = h("div", { class: "banner", role: "alert", hidden: true });
  private readonly welcome: HTMLElement;
  private readonly latest: HTMLButtonElement;
  private readonly shell: HTMLElement;
  private readonly composer: Composer;
  private readonly side: Side;
  private readonly follow: Follow;
  private readonly status: Status;
  private readonly turns = new Map<string, TurnView>();
  /** The conversation on show; null is a new one, not yet asked in. */
  private current: string | null = null;
  private connection: Connection = { kind: "starting" };
  private frame = 0;
  /** What was last said aloud about each turn, and how many models had gone on with it by then. */
  private readonly said = new Map<string, { stage: string; seams: number }>();

  constructor(
    root: HTMLElement,
    private readonly controller: Controller,
    private readonly drafts: { draft(id: string | null): string; keepDraft(id: string | null, words: string): void },
    private readonly storage: Storage | null,
    hurry: () => void,
    account: HTMLElement,
  ) {
    this.status = new Status(hurry);
    this.composer = new Composer({
      send: (question, model) => this.send(question, model),
      stop: () => this.stop(),
      written: (words) => this.drafts.keepDraft(this.current, words),
    });
    this.side = new Side(
      { fresh: () => this.open(null), open: (id) => this.open(id), remove: (id) => this.remove(id) },
      h("div", { class: "side-foot" }, account, new Theme(storage).element),
    );
    this.welcome = h(
      "div",
      { class: "welcome" },
      h("img", { src: "/icon.svg", alt: "", width: "52", height: "52" }),
      h("h2", {}, "What would you like to know?"),
      h("div", { class: "suggestions" }, ...SUGGESTIONS.map((words) => h("button", { type: "button", onclick: () => this.send(words, this.composer.model) }, words))),
    );
    this.latest = h("button", { type: "button", class: "latest", "aria-label": "Jump to the latest text", title: "Jump to the latest text", hidden: true, onclick: () => this.follow.toEnd(true) }, icon("down"));
    this.shell = this.build();
    root.replaceChildren(this.shell);
    this.follow = new Follow(this.scroller, this.messages, (following) => (this.latest.hidden = following));
    this.listen();
    controller.onChange = () => this.drawSoon();
  }

  /** Shows what is kept for the user of now, and nothing of another one. */
  start(): void {
    this.toasts.replaceChildren();
    const wanted = idInAddress() ?? this.storage?.getItem(CURRENT) ?? null;
    this.open(wanted !== null && this.controller.get(wanted) !== null ? wanted : null, false);
    if (matchMedia("(hover: hover)").matches) this.composer.field.focus();
  }

  setModels(models: readonly string[], chosen: string | null): void {
    this.composer.setModels(models, chosen);
  }

  setConnection(state: Connection): void {
    this.connection = state;
    this.banner.hidden = state.kind !== "refused";
    setText(this.banner, state.kind === "refused" ? state.words : "");
    this.drawSoon();
  }

  toast(words: string, action?: { words: string; run(): void }): void {
    const toast = h("div", { class: "toast" }, h("span", {}, words));
    const gone = setTimeout(() => toast.remove(), 7000);
    if (action !== undefined) {
      const run = (): void => {
        clearTimeout(gone);
        toast.remove();
        action.run();
      };
      toast.append(h("button", { type: "button", onclick: run }, action.words));
    }
    this.toasts.replaceChildren(toast);
  }

  private build(): HTMLElement {
    const toQuestion = (event: Event): void => {
      event.preventDefault();
      this.composer.field.focus();
    };
    const menu = h("button", { type: "button", class: "icon-button menu", "aria-label": "Conversations", "aria-controls": "side", onclick: () => this.drawer(true) }, icon("menu"));
    const fresh = h("button", { type: "button", class: "icon-button fresh-small", "aria-label": "New chat", onclick: () => this.open(null) }, icon("plus"));
    return h(
      "div",
      { class: "shell" },
      h("a", { class: "skip", href: "#question", onclick: toQuestion }, "Skip to the question"),
      this.side.element,
      h("div", { class: "shade", onclick: () => this.drawer(false) }),
      h(
        "main",
        { class: "main" },
        h("header", { class: "top" }, menu, this.heading, this.status.element, fresh),
        this.scroller,
        h(
          "div",
          { class: "dock" },
          h("div", { class: "dock-inner" }, this.latest, this.toasts, this.banner, this.composer.element),
          h("p", { class: "hint" }, "Answers come from a language model and can be wrong."),
        ),
        this.live,
      ),
    );
  }

  private listen(): void {
    this.messages.addEventListener("click", (event) => {
      const button = (event.target as Element).closest<HTMLElement>("button.copy-code");
      if (button !== null) void this.copyCode(button);
    });
    window.addEventListener("hashchange", () => {
      const wanted = idInAddress();
      if (wanted !== this.current && (wanted === null || this.controller.get(wanted) !== null)) this.open(wanted, false);
    });
    document.addEventListener("keydown", (event) => this.pressed(event));
    // Frames are not drawn in a hidden tab; what arrived in between is drawn at once.
    document.addEventListener("visibilitychange", () => this.drawSoon());
  }

  private pressed(event: KeyboardEvent): void {
    if (event.defaultPrevented || event.isComposing || document.querySelector("dialog[open]") !== null) return;
    if (event.key === "Escape") {
      if (this.shell.classList.contains("drawer")) this.drawer(false);
      else this.stop();
    } else if (event.key.toLowerCase() === "o" && event.shiftKey && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      this.open(null);
    } else if (event.key === "/" && !(event.target as Element).matches("input, textarea, select")) {
      event.preventDefault();
      this.composer.field.focus();
    }
  }

  private send(question: string, model: string | null): void {
    this.drafts.keepDraft(this.current, "");
    const id = this.controller.ask(this.current, question, model);
    if (id !== this.current) this.open(id);
    this.follow.toEnd();
    this.composer.field.focus();
  }

  private stop(): void {
    const conversation = this.conversation();
    const busy = conversation === null ? null : busyTurn(conversation);
    if (conversation !== null && busy !== null) this.controller.stop(conversation.id, busy.id);
  }

  private remove(id: string): void {
    const removed = this.controller.remove(id);
    if (id === this.current) this.open(null);
    if (removed !== null) this.toast("Chat deleted", { words: "Undo", run: () => this.controller.restore(removed) });
  }

  private open(id: string | null, record = true): void {
    this.current = id;
    this.turns.clear();
    this.said.clear();
    this.live.textContent = "";
    this.messages.replaceChildren();
    const address = id === null ? location.pathname + location.search : `#c=${encodeURIComponent(id)}`;
    if (record) history.pushState(null, "", address);
    else history.replaceState(null, "", address);
    try {
      if (id === null) this.storage?.removeItem(CURRENT);
      else this.storage?.setItem(CURRENT, id);
    } catch {
      // A full storage: the next visit starts with a new chat.
    }
    this.drawer(false);
    this.composer.write(this.drafts.draft(id), false);
    this.draw();
    this.follow.toEnd();
    if (record && matchMedia("(hover: hover)").matches) this.composer.field.focus();
  }

  private drawer(open: boolean): void {
    this.shell.classList.toggle("drawer", open);
    if (open) this.side.element.querySelector<HTMLElement>("button")?.focus();
  }

  private conversation(): Conversation | null {
    return this.current === null ? null : this.controller.get(this.current);
  }

  private drawSoon(): void {
    if (this.frame === 0) this.frame = requestAnimationFrame(() => this.draw());
  }

  private draw(): void {
    cancelAnimationFrame(this.frame);
    this.frame = 0;
    if (this.current !== null && this.controller.get(this.current) === null) {
      // Another tab deleted it.
      this.open(null, false);
      return;
    }
    const conversation = this.conversation();
    const turns = conversation === null ? [] : shown(conversation);
    this.status.set(this.connection.kind === "open" && this.controller.catchingUp ? { kind: "behind" } : this.connection);
    this.drawTurns(turns, conversation);
    this.side.draw(this.controller.list(), this.current);
    this.composer.setBusy(turns.some(isBusy));
    const words = conversation === null ? "New chat" : title(conversation);
    setText(this.heading, words);
    document.title = conversation === null ? "Tailrace" : `${words} – Tailrace`;
    if (this.controller.storageFull) {
      this.controller.storageFull = false;
      this.toast("This browser has no room left to keep chats. Delete some, or this one is gone after a reload.");
    }
  }

  private drawTurns(turns: readonly Turn[], conversation: Conversation | null): void {
    if (turns.length === 0) {
      if (this.welcome.parentElement === null) this.messages.replaceChildren(this.welcome);
      this.turns.clear();
      return;
    }
    this.welcome.remove();
    const kept = new Set(turns.map((turn) => turn.id));
    for (const [id, view] of this.turns) {
      if (kept.has(id)) continue;
      view.element.remove();
      this.turns.delete(id);
    }
    let later = false;
    turns.forEach((turn, place) => {
      const view = this.turns.get(turn.id) ?? this.addTurn(turn);
      if (this.messages.children[place] !== view.element) this.messages.insertBefore(view.element, this.messages.children[place] ?? null);
      const around = {
        engine: this.controller.engine,
        place: turn.answer === null ? null : this.controller.placeInQueue(turn.answer.responseId),
        refusal: this.controller.refusal(turn.id),
        connected: this.connection.kind === "open",
        last: place === turns.length - 1,
        versions: conversation === null ? [turn] : versions(conversation, turn),
      };
      later = view.update(turn, around, performance.now()) || later;
      this.say(turn);
    });
    if (later) this.drawSoon();
  }

  private addTurn(turn: Turn): TurnView {
    const actions = {
      retry: (turnId: string) => {
        if (this.current !== null) this.controller.retry(this.current, turnId);
        this.follow.toEnd();
      },
      takeBack: (turnId: string) => {
        if (this.current !== null) this.composer.write(this.controller.withdraw(this.current, turnId));
      },
      edit: (turnId: string, question: string) => {
        if (this.current !== null) this.controller.edit(this.current, turnId, question);
        this.composer.field.focus();
      },
      trim: (turnId: string) => {
        if (this.current !== null) this.controller.trim(this.current, turnId);
        this.follow.toEnd();
      },
      fresh: (question: string) => {
        this.open(null);
        this.composer.write(question);
      },
      choose: (turnId: string, button: string) => {
        if (this.current === null) return;
        this.controller.choose(this.current, turnId);
        this.draw();
        // Who leafs through the versions with the keyboard stays at the button.
        this.turns.get(turnId)?.focus(button);
      },
      more: (turnId: string) => {
        if (this.current !== null) this.controller.more(this.current, turnId);
      },
    };
    const view = new TurnView(turn, actions);
    this.turns.set(turn.id, view);
    return view;
  }

  // Read aloud is what changed while the reader was here: not every word as it comes, but the whole once it stands. Of an
  // answer that was continued it is what is new.
  private say(turn: Turn): void {
    const { answer } = turn;
    const seams = reading(chain(turn)).flatMap((part) => part.seams);
    const stage = answer === null ? (this.controller.refusal(turn.id) ?? turn.phase) : isRunning(answer) ? stageOf(answer) : answer.status;
    const before = this.said.get(turn.id);
    this.said.set(turn.id, { stage, seams: seams.length });
    if (before === undefined || (before.stage === stage && before.seams >= seams.length)) return;
    const words = this.stageWords(turn, before.seams < seams.length ? seams.at(-1) : undefined);
    if (words !== null) this.live.textContent = words;
  }

  private stageWords(turn: Turn, seam: Seam | undefined): string | null {
    const { answer } = turn;
    if (answer === null) return turn.phase === "unsent" ? (turn.problem?.words ?? "The question was not sent.") : this.controller.refusal(turn.id);
    if (!isRunning(answer)) {
      const calls = parts(answer).flatMap(({ kind, state, name }) => (isCall(kind) && state === "whole" ? [name] : []));
      const waits = calls.length === 0 ? "" : `Waiting for the output of ${calls.join(", ")}. `;
      return `${endNote(answer)?.words ?? "The answer is complete."} ${waits}${said([answer])}`;
    }
    const stage = stageOf(answer);
    if (stage === "thinking") return "The model is thinking.";
    if (stage === "calling") return "The model calls a tool.";
    if (seam !== undefined) return `${seamWords(seam)}.`;
    if (stage !== "answering") return null;
    if (turn.before.length > 0) return "The answer goes on.";
    const served = servedWords(answer);
    return served === null ? "The answer begins." : `The answer begins. ${served}`;
  }

  private async copyCode(button: HTMLElement): Promise<void> {
    const code = button.closest(".code")?.querySelector("pre")?.cloneNode(true) as Element | undefined;
    for (const notice of code?.querySelectorAll(".seam") ?? []) notice.remove();
    if (!(await copyText(code?.textContent ?? ""))) return;
    button.textContent = "Copied";
    setTimeout(() => (button.textContent = "Copy"), 1500);
  }
}

function isCall(kind: ItemKind): boolean {
  return kind === "function" || kind === "custom";
}

/** What a running answer goes on with. */
function stageOf(answer: Answer): string {
  const kind = answer.items.at(-1)?.kind;
  if (kind === undefined) return answer.text === "" ? "waiting" : "answering";
  return kind === "reasoning" ? "thinking" : isCall(kind) ? "calling" : "answering";
}

function idInAddress(): string | null {
  return new URLSearchParams(location.hash.slice(1)).get("c");
}
