/* One question and its answer. */

import { isRunning } from "../core/answer";
import { chain, cutShort, isBusy, type Refusal, type Turn } from "../core/conversation";
import { pace, paceWords } from "../core/pace";
import { againWords, endNote, placeWords, problemWords, servedWords, TOO_LONG } from "../core/messages";
import { reading, said, type ReadPart } from "../core/reading";
import type { Place } from "../core/protocol";
import { texts } from "../core/words";
import type { Engine } from "../edge/api";
import { block, wave, type Block } from "./blocks";
import { Files } from "./files";
import type { Pictures } from "./pictures";
import { Question } from "./question";
import { copyText, h, icon, setText } from "./dom";

export interface Surroundings {
  engine: Engine | null;
  place: Place | null;
  /** Why the question waits to be sent again. */
  refusal: Refusal | null;
  connected: boolean;
  last: boolean;
  /** For each question that was asked in this place, the turn that is shown for it; this one is among them. */
  questions: readonly Turn[];
  /** The answers to this question, this one among them, the oldest first. */
  answers: readonly Turn[];
  /** Now, in ms since the epoch. */
  clock: number;
}

function isSame(a: Surroundings, b: Surroundings): boolean {
  const versions = areSame(a.questions, b.questions) && areSame(a.answers, b.answers);
  return versions && a.engine === b.engine && a.place === b.place && a.refusal === b.refusal && a.connected === b.connected && a.last === b.last;
}

function areSame(a: readonly Turn[], b: readonly Turn[]): boolean {
  return a.length === b.length && a.every(({ id }, place) => id === b[place]?.id);
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
  fresh(turn: Turn): void;
  /** Shows another version; `button` is the one that was pressed. */
  choose(turnId: string, button: string): void;
}

export class TurnView {
  readonly element: HTMLElement;
  private readonly question = new Question();
  private readonly files: Files;
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
  /** Leads to what else was asked in this place. */
  private readonly questions: Versions;
  /** Leads to other answers to this question. */
  private readonly answers: Versions;
  private readonly foot: HTMLElement;
  private readonly asked = h("div", { class: "asked" });
  /** What `body` shows now. */
  private readonly blocks: Block[] = [];
  private turn: Turn;
  /** As it was drawn last; null where that was not all of it. */
  private drawn: { readonly turn: Turn; readonly around: Surroundings } | null = null;

  constructor(
    turn: Turn,
    private readonly actions: TurnActions,
    pictures: Pictures,
  ) {
    this.files = new Files(pictures);
    this.turn = turn;
    this.copy = h("button", { type: "button", class: "action", "aria-label": texts().copyAnswer, title: texts().copyAnswer, onclick: () => void this.copied() }, icon("copy"));
    this.retry = h("button", { type: "button", class: "action", "aria-label": texts().tryAgain, title: texts().tryAgain, onclick: () => actions.retry(this.turn.id) }, icon("retry"), h("span", {}, texts().tryAgain));
    this.takeBack = h("button", { type: "button", class: "action", "aria-label": texts().edit, title: texts().takeBack, onclick: () => actions.takeBack(this.turn.id) }, icon("edit"), h("span", {}, texts().edit));
    this.edit = h("button", { type: "button", class: "action edit", "aria-label": texts().changeQuestion, title: texts().changeQuestion, onclick: () => this.editing() }, icon("edit"));
    this.trim = h("button", { type: "button", class: "continue", hidden: true, onclick: () => actions.trim(this.turn.id) }, texts().leaveOutOlder);
    this.fresh = h("button", { type: "button", class: "continue", hidden: true, onclick: () => actions.fresh(this.turn) }, texts().newChatWithQuestion);
    const choose = (turnId: string, button: string): void => actions.choose(turnId, button);
    this.questions = new Versions({ all: texts().questionVersions, back: texts().previousQuestion, on: texts().nextQuestion }, choose);
    this.answers = new Versions({ all: texts().answerVersions, back: texts().previousAnswer, on: texts().nextAnswer }, choose);
    this.foot = h("div", { class: "foot" }, this.answers.element, this.copy, this.retry, this.takeBack, this.pace);
    this.note.append(wave(), this.noteWords);
    const more = (): void => {
      // The button goes; who uses the keyboard stays at the answer.
      answer.focus({ preventScroll: true });
      actions.more(this.turn.id);
    };
    this.continue = h("button", { type: "button", class: "continue", hidden: true, onclick: more }, texts().continue);
    const answer = h("div", { class: "answer", tabindex: "-1" }, h("h3", { class: "sr-only" }, texts().answer), this.served, this.body, this.more, this.sources, h("div", { class: "ending" }, this.note, this.continue, this.trim, this.fresh), this.foot);
    this.asked.append(this.question.element, this.edit);
    this.element = h("article", { class: "turn", "data-turn": turn.id }, h("h2", { class: "sr-only" }, texts().youAsked), this.files.element, this.asked, this.questions.element, answer);
  }

  /** Gives the focus to the button of this name, or to the answer where it cannot be pressed. */
  focus(button: string): void {
    const found = [...this.element.querySelectorAll<HTMLButtonElement>("button")].find((each) => each.getAttribute("aria-label") === button);
    (found === undefined || found.disabled ? this.element.querySelector<HTMLElement>(".answer") : found)?.focus({ preventScroll: true });
  }

  private editing(): void {
    const done = (question: string | null): void => {
      form.replaceWith(this.question.element, this.edit);
      if (question === null) this.edit.focus();
      else this.actions.edit(this.turn.id, question);
    };
    const form = questionForm(this.turn.question, done);
    this.asked.replaceChildren(form);
    form.querySelector("textarea")?.focus();
  }

  /** Whether it is drawn like this already. */
  shows(turn: Turn, around: Surroundings): boolean {
    const counts = turn.problem !== null || around.refusal !== null; // the seconds until it may be asked again
    return !counts && this.drawn?.turn === turn && isSame(this.drawn.around, around);
  }

  /** Returns true when more is to be drawn later than now. */
  update(turn: Turn, around: Surroundings, now: number): boolean {
    this.turn = turn;
    const { answer } = turn;
    const running = answer !== null && isRunning(answer);
    const status = answer?.status ?? turn.phase;
    this.question.show(turn.question);
    this.files.show(turn.attachments, chain(turn)[0]?.responseId ?? null, around.connected);
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
    setText(this.more, more === 0 ? "" : texts().moreItems(more));
    const sources = [...new Set(answers.flatMap((each) => each.sources))];
    this.sources.hidden = sources.length === 0;
    setText(this.sources, sources.length === 0 ? "" : texts().sources(sources));
    this.drawNote(around);
    this.questions.draw(turn, around.questions);
    this.drawFoot(around);
    this.drawn = later ? null : { turn, around };
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
    const problem = this.turn.phase === "unsent" ? (this.turn.problem === null ? texts().notSent : problemWords(this.turn.problem, around.clock)) : null;
    const words = problem ?? waiting ?? end?.words ?? "";
    const keeps = this.turn.phase === "unsent" && this.turn.problem?.waits === true; // it is sent by itself
    const wrong = (problem !== null && !keeps) || end?.tone === "problem";
    const tone = wrong ? "problem" : waiting !== null ? "waiting" : keeps ? "kept" : "quiet";
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
    this.answers.draw(this.turn, around.answers);
    const words = answer === null ? [] : paceWords(pace(answer, this.turn.sentAt, this.turn.before));
    setText(this.pace, words.join(" · "));
    this.foot.dataset["empty"] = String([this.answers.element, this.copy, this.retry, this.takeBack].every(({ hidden }) => hidden) && words.length === 0);
  }

  private async copied(): Promise<void> {
    if (!(await copyText(said(chain(this.turn))))) return;
    this.copy.replaceChildren(icon("check"));
    this.copy.setAttribute("aria-label", texts().copied);
    setTimeout(() => {
      this.copy.replaceChildren(icon("copy"));
      this.copy.setAttribute("aria-label", texts().copyAnswer);
    }, 1500);
  }
}

/** What the counter and its buttons are called. */
interface VersionWords {
  all: string;
  back: string;
  on: string;
}

/** Leafs through versions of one kind: questions in one place, or answers to one question. */
class Versions {
  readonly element: HTMLElement;
  private readonly place = h("span", { class: "place" });
  private readonly buttons: readonly { button: HTMLButtonElement; step: -1 | 1 }[];
  private turn = "";
  private turns: readonly Turn[] = [];

  constructor(words: VersionWords, choose: (turnId: string, button: string) => void) {
    const button = (label: string, name: "chevron" | "back", step: -1 | 1): HTMLButtonElement => {
      const press = (): void => {
        const next = this.turns[this.at + step];
        if (next !== undefined) choose(next.id, label);
      };
      return h("button", { type: "button", class: "action", "aria-label": label, title: label, onclick: press }, icon(name));
    };
    const [back, on] = [button(words.back, "back", -1), button(words.on, "chevron", 1)];
    this.buttons = [{ button: back, step: -1 }, { button: on, step: 1 }];
    this.element = h("div", { class: "versions", role: "group", "aria-label": words.all, hidden: true }, back, this.place, on);
  }

  draw(turn: Turn, turns: readonly Turn[]): void {
    this.turn = turn.id;
    this.turns = turns;
    this.element.hidden = turns.length < 2;
    setText(this.place, texts().versionOf(this.at + 1, turns.length));
    for (const { button, step } of this.buttons) button.disabled = turns[this.at + step] === undefined;
  }

  private get at(): number {
    return this.turns.findIndex(({ id }) => id === this.turn);
  }
}

/** A question in other words; `done` is given null where it stays as it was. */
function questionForm(question: string, done: (question: string | null) => void): HTMLFormElement {
  const field = h("textarea", { class: "edit-question", "aria-label": texts().yourQuestion, dir: "auto", rows: String(Math.min(12, question.split("\n").length + 1)) });
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
  const leave = h("button", { type: "button", class: "secondary", onclick: () => done(null) }, texts().cancel);
  return h("form", { class: "question-form", onsubmit: send }, field, h("div", { class: "question-form-bar" }, leave, h("button", { type: "submit", class: "primary" }, texts().ask)));
}

/** Shown before anything has come. */
const NOTHING: ReadPart = { kind: "message", at: 0, name: "", state: "open", left: 0, text: "", seams: [] };

/** Why there is nothing to read yet, as far as it is known. */
export function waitingWords(turn: Turn, around: Surroundings): string | null {
  const { answer } = turn;
  if (turn.phase === "next") return texts().sentNext;
  if (!isBusy(turn)) return null;
  if (turn.stopWanted) return texts().stopping;
  if (answer === null) return around.refusal === null ? texts().sending : againWords(around.refusal, around.clock);
  if (!around.connected) return texts().connectionLost;
  if (answer.text !== "" || answer.items.length > 0) return null;
  if (answer.status === "in_progress") return turn.before.length > 0 ? texts().continuing : texts().reading;
  if (around.place !== null) return placeWords(around.place);
  if (around.engine?.state === "loading") return texts().engineLoading;
  if (around.engine?.state === "none") return texts().noWorker;
  return texts().inQueue;
}
