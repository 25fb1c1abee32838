/* One question and its answer. */

import { isRunning } from "../core/answer";
import { chain, cutShort, isBusy, type Turn } from "../core/conversation";
import { pace, paceWords } from "../core/pace";
import { endNote, placeWords, servedWords, TOO_LONG } from "../core/messages";
import { reading, said, type ReadPart } from "../core/reading";
import type { Place } from "../core/protocol";
import type { Engine } from "../edge/api";
import { block, wave, type Block } from "./blocks";
import { Question } from "./question";
import { copyText, h, icon, setText } from "./dom";

export interface Surroundings {
  engine: Engine | null;
  place: Place | null;
  /** Why the question waits to be sent again. */
  refusal: string | null;
  connected: boolean;
  last: boolean;
  /** The turns beside this one, itself among them, the oldest first. */
  versions: readonly Turn[];
}

export interface TurnActions {
  retry(turnId: string): void;
  /** A question that was not sent goes back into the composer. */
  takeBack(turnId: string): void;
  /** Asks in other words. */
  edit(turnId: string, question: string): void;
  more(turnId: string): void;
  /** Asks once more without the oldest messages. */
  trim(turnId: string): void;
  /** Asks in a new chat. */
  fresh(question: string): void;
  /** Shows another version; `button` is the one that was pressed. */
  choose(turnId: string, button: string): void;
}

export class TurnView {
  readonly element: HTMLElement;
  private readonly question = new Question();
  private readonly served = h("p", { class: "served", hidden: true });
  private readonly body = h("div", { class: "body" });
  private readonly more = h("p", { class: "rest", hidden: true });
  private readonly sources = h("p", { class: "rest", hidden: true });
  private readonly note = h("p", { class: "note" });
  private readonly noteWords = h("span");
  private readonly pace = h("span", { class: "pace" });
  private readonly continue: HTMLButtonElement;
  private readonly copy: HTMLButtonElement;
  private readonly retry: HTMLButtonElement;
  private readonly takeBack: HTMLButtonElement;
  private readonly edit: HTMLButtonElement;
  private readonly trim: HTMLButtonElement;
  private readonly fresh: HTMLButtonElement;
  private readonly versions: Versions;
  private readonly foot: HTMLElement;
  private readonly asked = h("div", { class: "asked" });
  /** What `body` shows now. */
  private readonly blocks: Block[] = [];
  private turn: Turn;

  constructor(
    turn: Turn,
    private readonly actions: TurnActions,
  ) {
    this.turn = turn;
    this.copy = h("button", { type: "button", class: "action", "aria-label": "Copy answer", title: "Copy answer", onclick: () => void this.copied() }, icon("copy"));
    this.retry = h("button", { type: "button", class: "action", "aria-label": "Try again", title: "Try again", onclick: () => actions.retry(this.turn.id) }, icon("retry"), h("span", {}, "Try again"));
    this.takeBack = h("button", { type: "button", class: "action", "aria-label": "Edit", title: "Take it back and edit it", onclick: () => actions.takeBack(this.turn.id) }, icon("edit"), h("span", {}, "Edit"));
    this.edit = h("button", { type: "button", class: "action edit", "aria-label": "Change question", title: "Change question", onclick: () => this.editing() }, icon("edit"));
    this.trim = h("button", { type: "button", class: "continue", hidden: true, onclick: () => actions.trim(this.turn.id) }, "Leave out older messages");
    this.fresh = h("button", { type: "button", class: "continue", hidden: true, onclick: () => actions.fresh(this.turn.question) }, "New chat with this question");
    this.versions = new Versions((turnId, button) => actions.choose(turnId, button));
    this.foot = h("div", { class: "foot" }, this.versions.element, this.copy, this.retry, this.takeBack, this.pace);
    this.note.append(wave(), this.noteWords);
    const more = (): void => {
      // The button goes; who uses the keyboard stays at the answer.
      answer.focus({ preventScroll: true });
      actions.more(this.turn.id);
    };
    this.continue = h("button", { type: "button", class: "continue", hidden: true, onclick: more }, "Continue");
    const answer = h("div", { class: "answer", tabindex: "-1" }, h("h2", { class: "sr-only" }, "Answer"), this.served, this.body, this.more, this.sources, h("div", { class: "ending" }, this.note, this.continue, this.trim, this.fresh), this.foot);
    this.asked.append(this.edit, this.question.element);
    this.element = h("article", { class: "turn", "data-turn": turn.id }, h("h2", { class: "sr-only" }, "You asked"), this.asked, answer);
  }

  /** Gives the focus to the button of this name, or to the answer where it cannot be pressed. */
  focus(button: string): void {
    const found = [...this.element.querySelectorAll<HTMLButtonElement>("button")].find((each) => each.getAttribute("aria-label") === button);
    (found === undefined || found.disabled ? this.element.querySelector<HTMLElement>(".answer") : found)?.focus({ preventScroll: true });
  }

  private editing(): void {
    const done = (question: string | null): void => {
      form.replaceWith(this.edit, this.question.element);
      if (question === null) this.edit.focus();
      else this.actions.edit(this.turn.id, question);
    };
    const form = questionForm(this.turn.question, done);
    this.asked.replaceChildren(form);
    form.querySelector("textarea")?.focus();
  }

  /** Returns true when more is to be drawn later than now. */
  update(turn: Turn, around: Surroundings, now: number): boolean {
    this.turn = turn;
    const { answer } = turn;
    const running = answer !== null && isRunning(answer);
    const status = answer?.status ?? turn.phase;
    this.question.show(turn.question);
    this.element.dataset["status"] = status;
    this.element.dataset["busy"] = String(isBusy(turn));
    this.element.dataset["seq"] = String(answer?.lastSeq ?? -1);
    this.element.setAttribute("aria-busy", String(isBusy(turn)));
    const answers = chain(turn);
    const served = answers[0] === undefined ? null : servedWords(answers[0]);
    this.served.hidden = served === null;
    setText(this.served, served ?? "");
    const later = this.drawBlocks(reading(answers), running, around.last, now);
    const more = answer?.more ?? 0;
    this.more.hidden = more === 0;
    setText(this.more, more === 0 ? "" : `${more} more items are not kept here.`);
    const sources = [...new Set(answers.flatMap((each) => each.sources))];
    this.sources.hidden = sources.length === 0;
    setText(this.sources, sources.length === 0 ? "" : `Sources: ${sources.join(", ")}`);
    this.drawNote(around);
    this.drawFoot(around);
    return later;
  }

  private drawBlocks(found: readonly ReadPart[], running: boolean, last: boolean, now: number): boolean {
    const shown = found.length === 0 ? [NOTHING] : found;
    let later = false;
    shown.forEach((part, place) => {
      const drawn = this.blocks[place];
      const fits = drawn?.kind === part.kind ? drawn : block(part.kind);
      if (drawn === undefined) this.body.append(fits.element);
      else if (drawn !== fits) drawn.element.replaceWith(fits.element);
      this.blocks[place] = fits;
      const followed = place < shown.length - 1;
      later = fits.update(part, { writing: running && !followed, followed, last }, now) || later;
    });
    for (const gone of this.blocks.splice(shown.length)) gone.element.remove();
    this.body.dataset["empty"] = String(found.every(({ kind, text }) => kind === "message" && text === ""));
    return later;
  }

  private drawNote(around: Surroundings): void {
    const waiting = waitingWords(this.turn, around);
    const end = this.turn.answer === null ? null : endNote(this.turn.answer);
    const problem = this.turn.phase === "unsent" ? (this.turn.problem?.words ?? "The question was not sent.") : null;
    const words = problem ?? waiting ?? end?.words ?? "";
    const tone = problem !== null || end?.tone === "problem" ? "problem" : waiting !== null ? "waiting" : "quiet";
    this.note.hidden = words === "";
    this.note.className = `note ${tone}`;
    setText(this.noteWords, words);
    this.continue.hidden = !around.last || isBusy(this.turn) || cutShort(this.turn).length === 0;
    const tooLong = !isBusy(this.turn) && (this.turn.problem?.code ?? this.turn.answer?.fault?.code) === TOO_LONG;
    this.trim.hidden = !tooLong || this.turn.trimmed;
    this.fresh.hidden = !tooLong;
  }

  private drawFoot(around: Surroundings): void {
    const { answer, phase } = this.turn;
    const busy = isBusy(this.turn);
    this.copy.hidden = busy || said(chain(this.turn)) === "";
    const unsent = phase === "unsent";
    this.retry.hidden = busy || phase === "next" || (unsent && this.turn.problem?.again === false);
    this.takeBack.hidden = !(unsent || phase === "next") || this.turn.before.length > 0;
    this.edit.hidden = phase !== "accepted";
    this.versions.draw(this.turn, around.versions);
    const words = answer === null ? [] : paceWords(pace(answer, this.turn.sentAt, this.turn.before));
    setText(this.pace, words.join(" · "));
    this.foot.dataset["empty"] = String([this.versions.element, this.copy, this.retry, this.takeBack].every(({ hidden }) => hidden) && words.length === 0);
  }

  private async copied(): Promise<void> {
    if (!(await copyText(said(chain(this.turn))))) return;
    this.copy.replaceChildren(icon("check"));
    this.copy.setAttribute("aria-label", "Copied");
    setTimeout(() => {
      this.copy.replaceChildren(icon("copy"));
      this.copy.setAttribute("aria-label", "Copy answer");
    }, 1500);
  }
}

/** Leafs through the versions of a turn. */
class Versions {
  readonly element = h("div", { class: "versions", role: "group", "aria-label": "Versions", hidden: true });
  private readonly place = h("span", { class: "place" });
  private readonly buttons: readonly { button: HTMLButtonElement; step: -1 | 1 }[];
  private turn = "";
  private turns: readonly Turn[] = [];

  constructor(choose: (turnId: string, button: string) => void) {
    const button = (label: string, name: "chevron" | "back", step: -1 | 1): HTMLButtonElement => {
      const press = (): void => {
        const next = this.turns[this.at + step];
        if (next !== undefined) choose(next.id, label);
      };
      return h("button", { type: "button", class: "action", "aria-label": label, title: label, onclick: press }, icon(name));
    };
    const [back, on] = [button("Previous version", "back", -1), button("Next version", "chevron", 1)];
    this.buttons = [{ button: back, step: -1 }, { button: on, step: 1 }];
    this.element.append(back, this.place, on);
  }

  draw(turn: Turn, turns: readonly Turn[]): void {
    this.turn = turn.id;
    this.turns = turns;
    this.element.hidden = turns.length < 2;
    setText(this.place, `${this.at + 1} / ${turns.length}`);
    for (const { button, step } of this.buttons) button.disabled = turns[this.at + step] === undefined;
  }

  private get at(): number {
    return this.turns.findIndex(({ id }) => id === this.turn);
  }
}

/** A question in other words; `done` is given null where it stays as it was. */
function questionForm(question: string, done: (question: string | null) => void): HTMLFormElement {
  const field = h("textarea", { class: "edit-question", "aria-label": "Your question", dir: "auto", rows: String(Math.min(12, question.split("\n").length + 1)) });
  field.value = question;
  const send = (event: Event): void => {
    event.preventDefault();
    const words = field.value.trim();
    if (words !== "") done(words === question.trim() ? null : words);
  };
  field.addEventListener("keydown", (event) => {
    if (event.key === "Escape") {
      event.preventDefault();
      done(null);
    } else if (event.key === "Enter" && !event.shiftKey && !event.isComposing) send(event);
  });
  const leave = h("button", { type: "button", class: "secondary", onclick: () => done(null) }, "Cancel");
  return h("form", { class: "question-form", onsubmit: send }, field, h("div", { class: "question-form-bar" }, leave, h("button", { type: "submit", class: "primary" }, "Ask")));
}

/** Shown before anything has come. */
const NOTHING: ReadPart = { kind: "message", at: 0, name: "", state: "open", left: 0, text: "", seams: [] };

/** Why there is nothing to read yet, as far as it is known. */
export function waitingWords(turn: Turn, around: Surroundings): string | null {
  const { answer } = turn;
  if (turn.phase === "next") return "Sent when the answer above is complete.";
  if (!isBusy(turn)) return null;
  if (turn.stopWanted) return "Stopping…";
  if (answer === null) return around.refusal ?? "Sending…";
  if (!around.connected) return "Connection lost. The answer goes on without this page and is caught up when it is back.";
  if (answer.text !== "" || answer.items.length > 0) return null;
  if (answer.status === "in_progress") return turn.before.length > 0 ? "Continuing…" : "Reading your question…";
  if (around.place !== null) return placeWords(around.place);
  if (around.engine?.state === "loading") return "The engine is still warming up. Your question is safe in the queue and is answered as soon as it is ready.";
  if (around.engine?.state === "none") return "No worker is there yet. Your question is safe in the queue and is answered as soon as one is.";
  return "In the queue…";
}
