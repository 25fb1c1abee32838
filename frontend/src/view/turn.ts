/* One question and its answer. */

import { isRunning } from "../core/answer";
import { chain, continuableChain, isBusy, type Refusal, type Turn } from "../core/conversation";
import { pace, paceWords } from "../core/pace";
import { resendWords, endNote, placeWords, problemWords, modelNote, TOO_LONG } from "../core/messages";
import { readableParts, messageText, type ReadablePart } from "../core/reading";
import type { Place } from "../core/protocol";
import { texts } from "../core/words";
import type { Engine } from "../edge/api";
import { block, wave, type Block } from "./blocks";
import { Files } from "./files";
import type { Pictures } from "./pictures";
import { Question } from "./question";
import { copyText, h, icon, setText } from "./dom";

export interface TurnContext {
  engine: Engine | null;
  place: Place | null;
  /** The refusal after which the question waits to be sent again; null: none. */
  refusal: Refusal | null;
  connected: boolean;
  last: boolean;
  /** One turn for each question at this place, with this turn for its own question. */
  questions: readonly Turn[];
  /** All answers to this question, the oldest first. */
  answers: readonly Turn[];
  /** Now, in ms since the epoch. */
  clock: number;
}

function sameContext(a: TurnContext, b: TurnContext): boolean {
  const versions = sameTurns(a.questions, b.questions) && sameTurns(a.answers, b.answers);
  return versions && a.engine === b.engine && a.place === b.place && a.refusal === b.refusal && a.connected === b.connected && a.last === b.last;
}

function sameTurns(a: readonly Turn[], b: readonly Turn[]): boolean {
  return a.length === b.length && a.every(({ id }, place) => id === b[place]?.id);
}

export interface TurnActions {
  retry(turnId: string): void;
  /** Moves a question that was not sent back into the composer. */
  takeBack(turnId: string): void;
  /** Asks an edited question. */
  edit(turnId: string, question: string): void;
  /** The text of an edit that has not been asked yet; empty: none. */
  editDraft(turnId: string): string;
  storeEditDraft(turnId: string, words: string): void;
  more(turnId: string): void;
  /** Asks again without the oldest messages. */
  trim(turnId: string): void;
  /** Asks in a new chat. */
  askInNewChat(turn: Turn): void;
  /** Shows another version; `button` is the one that was pressed. */
  choose(turnId: string, button: string): void;
}

export class TurnView {
  readonly element: HTMLElement;
  private readonly question = new Question();
  private readonly files: Files;
  private readonly modelNote = h("p", { class: "served", hidden: true });
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
  private readonly newChat: HTMLButtonElement;
  /** Leads to other questions at this place. */
  private readonly questions: Versions;
  /** Leads to other answers to this question. */
  private readonly answers: Versions;
  private readonly foot: HTMLElement;
  private readonly questionRow = h("div", { class: "asked" });
  /** The blocks in `body`. */
  private readonly blocks: Block[] = [];
  private turn: Turn;
  /** The last complete drawing; null: none. */
  private lastDrawing: { readonly turn: Turn; readonly context: TurnContext } | null = null;

  constructor(
    turn: Turn,
    private readonly actions: TurnActions,
    pictures: Pictures,
  ) {
    this.files = new Files(pictures);
    this.turn = turn;
    this.copy = h("button", { type: "button", class: "action", "aria-label": texts().copyAnswer, title: texts().copyAnswer, onclick: () => void this.copyAnswer() }, icon("copy"));
    this.retry = h("button", { type: "button", class: "action", "aria-label": texts().tryAgain, title: texts().tryAgain, onclick: () => actions.retry(this.turn.id) }, icon("retry"), h("span", {}, texts().tryAgain));
    this.takeBack = h("button", { type: "button", class: "action", "aria-label": texts().edit, title: texts().withdraw, onclick: () => actions.takeBack(this.turn.id) }, icon("edit"), h("span", {}, texts().edit));
    this.edit = h("button", { type: "button", class: "action edit", "aria-label": texts().changeQuestion, title: texts().changeQuestion, onclick: () => this.startEdit() }, icon("edit"));
    this.trim = h("button", { type: "button", class: "continue", hidden: true, onclick: () => actions.trim(this.turn.id) }, texts().leaveOutOlder);
    this.newChat = h("button", { type: "button", class: "continue", hidden: true, onclick: () => actions.askInNewChat(this.turn) }, texts().newChatWithQuestion);
    const choose = (turnId: string, button: string): void => actions.choose(turnId, button);
    this.questions = new Versions({ all: texts().questionVersions, back: texts().previousQuestion, on: texts().nextQuestion }, choose);
    this.answers = new Versions({ all: texts().answerVersions, back: texts().previousAnswer, on: texts().nextAnswer }, choose);
    this.foot = h("div", { class: "foot" }, this.answers.element, this.copy, this.retry, this.takeBack, this.pace);
    this.note.append(wave(), this.noteWords);
    const more = (): void => {
      // The button disappears. Keyboard users stay at the answer.
      answer.focus({ preventScroll: true });
      actions.more(this.turn.id);
    };
    this.continue = h("button", { type: "button", class: "continue", hidden: true, onclick: more }, texts().continue);
    const answer = h("div", { class: "answer", tabindex: "-1" }, h("h3", { class: "sr-only" }, texts().answer), this.modelNote, this.body, this.more, this.sources, h("div", { class: "ending" }, this.note, this.continue, this.trim, this.newChat), this.foot);
    this.questionRow.append(this.question.element, this.edit);
    this.element = h("article", { class: "turn", "data-turn": turn.id }, h("h2", { class: "sr-only" }, texts().youAsked), this.files.element, this.questionRow, this.questions.element, answer);
  }

  /** Focuses the button with this name, or the answer where the button is missing or disabled. */
  focus(button: string): void {
    const target = [...this.element.querySelectorAll<HTMLButtonElement>("button")].find((each) => each.getAttribute("aria-label") === button);
    (target === undefined || target.disabled ? this.element.querySelector<HTMLElement>(".answer") : target)?.focus({ preventScroll: true });
  }

  private startEdit(): void {
    const done = (question: string | null): void => {
      form.replaceWith(this.question.element, this.edit);
      this.actions.storeEditDraft(this.turn.id, "");
      if (question === null) this.edit.focus();
      else this.actions.edit(this.turn.id, question);
    };
    const form = questionForm(this.turn.question, this.actions.editDraft(this.turn.id), (words) => this.actions.storeEditDraft(this.turn.id, words), done);
    this.questionRow.replaceChildren(form);
    form.querySelector("textarea")?.focus();
  }

  /** Whether the turn is already drawn like this. */
  shows(turn: Turn, context: TurnContext): boolean {
    const counts = turn.problem !== null || context.refusal !== null; // the text counts the seconds
    return !counts && this.lastDrawing?.turn === turn && sameContext(this.lastDrawing.context, context);
  }

  /** Returns true when it must be drawn again later. */
  update(turn: Turn, context: TurnContext, now: number): boolean {
    this.turn = turn;
    const { answer } = turn;
    const running = answer !== null && isRunning(answer);
    const status = answer?.status ?? turn.phase;
    this.question.show(turn.question);
    this.files.show(turn.attachments, chain(turn)[0]?.responseId ?? null, context.connected);
    this.element.dataset["status"] = status;
    this.element.dataset["busy"] = String(isBusy(turn));
    this.element.dataset["seq"] = String(answer?.lastSeq ?? -1);
    this.element.setAttribute("aria-busy", String(isBusy(turn)));
    const answers = chain(turn);
    const note = answers[0] === undefined ? null : modelNote(answers[0]);
    this.modelNote.hidden = note === null;
    setText(this.modelNote, note ?? "");
    const later = this.drawBlocks(readableParts(answers), running, context.last, now);
    const more = answer?.more ?? 0;
    this.more.hidden = more === 0;
    setText(this.more, more === 0 ? "" : texts().moreItems(more));
    const sources = [...new Set(answers.flatMap((each) => each.sources))];
    this.sources.hidden = sources.length === 0;
    setText(this.sources, sources.length === 0 ? "" : texts().sources(sources));
    this.drawNote(context);
    this.questions.draw(turn, context.questions);
    this.drawFoot(context);
    this.lastDrawing = later ? null : { turn, context };
    return later;
  }

  private drawBlocks(parts: readonly ReadablePart[], running: boolean, last: boolean, now: number): boolean {
    const visible = parts.length === 0 ? [NOTHING] : parts;
    let later = false;
    visible.forEach((part, place) => {
      const current = this.blocks[place];
      const view = current?.kind === part.kind ? current : block(part.kind);
      if (current === undefined) this.body.append(view.element);
      else if (current !== view) current.element.replaceWith(view.element);
      this.blocks[place] = view;
      const followed = place < visible.length - 1;
      later = view.update(part, { writing: running && !followed, followed, last }, now) || later;
    });
    for (const extra of this.blocks.splice(visible.length)) extra.element.remove();
    this.body.dataset["empty"] = String(parts.every(({ kind, text }) => kind === "message" && text === ""));
    return later;
  }

  private drawNote(context: TurnContext): void {
    const waiting = waitingWords(this.turn, context);
    const end = this.turn.answer === null ? null : endNote(this.turn.answer);
    const problem = this.turn.phase === "unsent" ? (this.turn.problem === null ? texts().notSent : problemWords(this.turn.problem, context.clock)) : null;
    const words = problem ?? waiting ?? end?.words ?? "";
    const keeps = this.turn.phase === "unsent" && this.turn.problem?.waits === true; // it is sent automatically
    const wrong = (problem !== null && !keeps) || end?.tone === "problem";
    const tone = wrong ? "problem" : waiting !== null ? "waiting" : keeps ? "kept" : "quiet";
    this.note.hidden = words === "";
    this.note.className = `note ${tone}`;
    setText(this.noteWords, words);
    this.continue.hidden = !context.last || isBusy(this.turn) || continuableChain(this.turn).length === 0;
    const tooLong = !isBusy(this.turn) && (this.turn.problem?.code ?? this.turn.answer?.fault?.code) === TOO_LONG;
    this.trim.hidden = !tooLong || this.turn.trimmed;
    this.newChat.hidden = !tooLong;
  }

  private drawFoot(context: TurnContext): void {
    const { answer, phase } = this.turn;
    const busy = isBusy(this.turn);
    this.copy.hidden = busy || messageText(chain(this.turn)) === "";
    const unsent = phase === "unsent";
    this.retry.hidden = busy || phase === "next" || (unsent && this.turn.problem?.again === false);
    this.takeBack.hidden = !(unsent || phase === "next") || this.turn.before.length > 0;
    this.edit.hidden = phase !== "accepted";
    this.answers.draw(this.turn, context.answers);
    const words = answer === null ? [] : paceWords(pace(answer, this.turn.sentAt, this.turn.before));
    setText(this.pace, words.join(" · "));
    this.foot.dataset["empty"] = String([this.answers.element, this.copy, this.retry, this.takeBack].every(({ hidden }) => hidden) && words.length === 0);
  }

  private async copyAnswer(): Promise<void> {
    if (!(await copyText(messageText(chain(this.turn))))) return;
    this.copy.replaceChildren(icon("check"));
    this.copy.setAttribute("aria-label", texts().copied);
    setTimeout(() => {
      this.copy.replaceChildren(icon("copy"));
      this.copy.setAttribute("aria-label", texts().copyAnswer);
    }, 1500);
  }
}

/** The names of the counter and its buttons. */
interface VersionWords {
  all: string;
  back: string;
  on: string;
}

/** Switches between versions of one kind: questions at one place, or answers to one question. */
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

/** The form to edit a question, with the text of a former edit (empty: none). It calls `done` with
    the new question; null: unchanged. */
function questionForm(question: string, draft: string, onInput: (words: string) => void, done: (question: string | null) => void): HTMLFormElement {
  const field = h("textarea", { class: "edit-question", "aria-label": texts().yourQuestion, dir: "auto", rows: String(Math.min(12, question.split("\n").length + 1)) });
  field.value = draft === "" ? question : draft;
  field.addEventListener("input", () => onInput(field.value));
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

/** The part of an answer that is still empty. */
const NOTHING: ReadablePart = { kind: "message", at: 0, name: "", state: "open", left: 0, text: "", seams: [] };

/** Why there is no text yet; null: no reason to show. */
export function waitingWords(turn: Turn, context: TurnContext): string | null {
  const { answer } = turn;
  if (turn.phase === "next") return texts().sentNext;
  if (!isBusy(turn)) return null;
  if (turn.stopWanted) return texts().stopping;
  if (answer === null) return context.refusal === null ? texts().sending : resendWords(context.refusal, context.clock);
  if (!context.connected) return texts().connectionLost;
  if (answer.text !== "" || answer.items.length > 0) return null;
  if (answer.status === "in_progress") return turn.before.length > 0 ? texts().continuing : texts().reading;
  if (context.place !== null) return placeWords(context.place);
  if (context.engine?.state === "loading") return texts().engineLoading;
  if (context.engine?.state === "none") return texts().noWorker;
  return texts().inQueue;
}
