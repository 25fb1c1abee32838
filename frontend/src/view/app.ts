/* The page: connects the parts, shows one conversation at a time, and draws at most once per frame. */

import { answerVersions, busyTurn, isBusy, questionVersions, visibleTurns, title, type Conversation, type Turn } from "../core/conversation";
import { texts } from "../core/words";
import type { Controller } from "../controller";
import type { Config, Engine } from "../edge/api";
import type { Library } from "../library";
import { QuestionInput, type QuestionInputParts, type Drafts } from "./questionInput";
import type { ChatDialogPart } from "./chatDialog";
import { Chats } from "./chats";
import type { Composer } from "./composer";
import { enableCopying } from "./copyCode";
import { h, icon, setText } from "./dom";
import { Drawer } from "./drawer";
import type { LanguageChoice } from "./language";
import { Follow } from "./scroll";
import { Shortcuts } from "./shortcuts";
import { addressOf } from "./side";
import { Speaker } from "./speaker";
import { Status, type Connection } from "./status";
import { Theme } from "./theme";
import { TurnView, type TurnContext } from "./turn";
import { TurnList } from "./turnList";
import { Welcome } from "./welcome";

const CURRENT = "tailrace.current";

export class App {
  private readonly messages = h("div", { class: "column", id: "messages" });
  private readonly scroller = h("div", { class: "scroll", tabindex: "-1" }, this.messages);
  private readonly heading = h("h1", { class: "heading" });
  private readonly speaker = new Speaker();
  private readonly toasts = h("div", { class: "toasts", role: "status", "aria-live": "polite" });
  private readonly bannerWords = h("span");
  private readonly signIn: HTMLButtonElement;
  private readonly banner: HTMLElement;
  private readonly welcome: Welcome;
  private readonly latest: HTMLButtonElement;
  private readonly questionInput: QuestionInput;
  private readonly drawer: Drawer;
  private readonly composer: Composer;
  private readonly chats: Chats;
  /** The text in place of turns that cannot be shown yet. */
  private readonly note = h("p", { class: "away", role: "status" });
  private readonly follow: Follow;
  private readonly status: Status;
  private readonly turns: TurnList;
  /** The open conversation; null: a new one without a question. */
  private current: string | null = null;
  /** The name of a chat in the address that this browser does not have; null: none. */
  private pendingName: string | null = null;
  private connection: Connection = { kind: "starting" };
  private frame = 0;
  /** Draws again when the displayed seconds of a refused question change; 0 while there are none. */
  private countdownTimer = 0;

  constructor(
    root: HTMLElement,
    private readonly controller: Controller,
    private readonly library: Library,
    private readonly drafts: Drafts,
    private readonly files: QuestionInputParts["files"],
    private readonly storage: Storage | null,
    connectNow: () => void,
    account: HTMLElement,
    private readonly language: LanguageChoice,
    sections: readonly ChatDialogPart[],
    engine: () => Promise<Engine | null>,
  ) {
    this.status = new Status(connectNow);
    this.signIn = h("button", { type: "button", onclick: connectNow }, texts().signIn);
    this.banner = h("div", { class: "banner", role: "alert", hidden: true }, this.bannerWords, this.signIn);
    this.questionInput = new QuestionInput({ controller, library, drafts, files, stop: () => this.stop(), toast: (words) => this.toast(words), onQuestion: (id) => this.onQuestion(id) });
    this.composer = this.questionInput.composer;
    const shortcuts = new Shortcuts({ onEscape: () => this.onEscape(), newChat: () => this.open(null), focusQuestion: () => this.composer.field.focus() });
    this.chats = new Chats(
      { controller, library, open: (id) => this.open(id), onRemove: (conversation) => this.onRemove(conversation), onChange: () => this.drawSoon() },
      h("div", { class: "side-foot" }, account, new Theme(storage).element, language.element, shortcuts.button),
      sections,
    );
    this.welcome = new Welcome({ ask: (words) => this.questionInput.ask(words), engine });
    this.latest = h("button", { type: "button", class: "latest", "aria-label": texts().jumpToLatest, title: texts().jumpToLatest, hidden: true, onclick: () => this.follow.toEnd(true) }, icon("down"));
    this.drawer = this.build(root);
    root.append(this.questionInput.dialog, ...this.chats.elements, shortcuts.element);
    this.turns = new TurnList({ scroller: this.scroller, box: this.messages, view: (turn) => this.turnView(turn), onDraw: (turn, { refusal }) => this.speaker.say(turn, refusal), redraw: () => this.drawSoon() });
    this.follow = new Follow(this.scroller, this.messages, (following) => (this.latest.hidden = following));
    this.listen();
    controller.onChange = () => this.drawSoon();
    library.onChange = () => this.drawSoon();
  }

  /** Shows the data of the current user, and nothing of another one. Without a user, the chat in
      the address stays for the next user. `recipient`: the user to whom belongs what is typed now;
      null: the next one. `hidden`: what is shown belongs to another user than the one who signs in. */
  start(signedIn: boolean, recipient: string | null, hidden = false): void {
    this.toasts.replaceChildren();
    this.questionInput.setOwner(signedIn, recipient);
    this.files.pictures.forget();
    this.chats.reset();
    if (hidden) {
      this.open(null, false);
      this.toast(texts().keptForFormerUser);
      return;
    }
    const name = idInAddress();
    if (name !== null && this.localId(name) === null && signedIn) this.waitFor(name);
    else if (name !== null && this.localId(name) === null) this.open(null, false, location.hash);
    else this.open(this.localId(name ?? this.storage?.getItem(CURRENT) ?? ""), false);
    if (matchMedia("(hover: hover)").matches) this.composer.field.focus();
  }

  /** Called when there is a connection. */
  onSocketOpen(): void {
    if (this.pendingName !== null) void this.resolve(this.pendingName);
    this.questionInput.onSocketOpen();
  }

  /** Whether the composer has words or files. */
  get hasInput(): boolean {
    return this.composer.field.value !== "" || this.questionInput.isUploading;
  }

  /** Whether a reload would lose a file. */
  get isUploading(): boolean {
    return this.questionInput.isUploading;
  }

  /** Focuses the choice of the language after a change. */
  toLanguage(): void {
    if (getComputedStyle(this.chats.side.element).visibility === "hidden") this.drawer.open();
    this.language.field.focus();
  }

  offer(config: Config): void {
    this.questionInput.offer(config);
  }

  setConnection(state: Connection): void {
    this.connection = state;
    const words = state.kind === "refused" || state.kind === "signedOut" ? state.words : "";
    this.banner.hidden = words === "";
    setText(this.bannerWords, words);
    this.signIn.hidden = state.kind !== "signedOut";
    this.drawSoon();
  }

  toast(words: string, action?: { words: string; run(): void }): void {
    const toast = h("div", { class: "toast" }, h("span", {}, words));
    const timer = setTimeout(() => toast.remove(), 7000);
    if (action !== undefined) {
      const run = (): void => {
        clearTimeout(timer);
        toast.remove();
        action.run();
      };
      toast.append(h("button", { type: "button", onclick: run }, action.words));
    }
    this.toasts.replaceChildren(toast);
  }

  private build(root: HTMLElement): Drawer {
    const focusQuestion = (event: Event): void => {
      event.preventDefault();
      this.composer.field.focus();
    };
    const menu = h("button", { type: "button", class: "icon-button menu", "aria-label": texts().conversations, "aria-controls": "side", onclick: () => this.drawer.open() }, icon("menu"));
    const newChatButton = h("button", { type: "button", class: "icon-button fresh-small", "aria-label": texts().newChat, onclick: () => this.open(null) }, icon("plus"));
    const skip = h("a", { class: "skip", href: "#question", onclick: focusQuestion }, texts().skipToQuestion);
    const top = h("header", { class: "top" }, menu, this.heading, this.status.element, newChatButton);
    const hint = h("p", { class: "hint" }, texts().canBeWrong);
    const dock = h("div", { class: "dock" }, h("div", { class: "dock-inner" }, this.latest, this.toasts, this.banner, this.composer.element), hint);
    const side = this.chats.side.element;
    const shade = h("div", { class: "shade", onclick: () => this.drawer.close() });
    const shell = h("div", { class: "shell" }, skip, side, shade, h("main", { class: "main" }, top, this.scroller, dock, this.speaker.element));
    root.replaceChildren(shell);
    const covered = [skip, top, this.scroller, this.latest, this.banner, this.composer.element, hint];
    return new Drawer({ shell, inside: [side, this.toasts], covered, menu });
  }

  private listen(): void {
    enableCopying(this.messages);
    window.addEventListener("hashchange", () => {
      const name = idInAddress();
      const id = name === null ? null : this.localId(name);
      if (name !== null && id === null) {
        this.waitFor(name);
        void this.resolve(name);
      } else if (id !== this.current) this.open(id, false);
    });
    // A hidden tab draws no frames. When it is visible again, it draws at once.
    document.addEventListener("visibilitychange", () => this.drawSoon());
  }

  private onEscape(): void {
    if (this.drawer.isOpen) this.drawer.close();
    else this.stop();
  }

  private onQuestion(id: string): void {
    if (id !== this.current) this.open(id);
    this.watchLastTurn();
    this.follow.toEnd();
    this.composer.field.focus();
  }

  /** Reads changes of the last turn aloud from the first one on, even if it comes before the turn
      is drawn. */
  private watchLastTurn(): void {
    const conversation = this.conversation();
    const turn = conversation === null ? undefined : visibleTurns(conversation).at(-1);
    if (turn !== undefined) this.speaker.watch(turn);
  }

  private stop(): void {
    const conversation = this.conversation();
    const busy = conversation === null ? null : busyTurn(conversation);
    if (conversation !== null && busy !== null) this.controller.stop(conversation.id, busy.id);
  }

  private onRemove(conversation: Conversation): void {
    const inDrawer = this.drawer.isOpen;
    if (conversation.id === this.current) this.open(null);
    if (inDrawer) this.drawer.open();
    this.toast(texts().chatDeleted, { words: texts().undo, run: () => this.library.restore(conversation) });
  }

  /** The local id of a conversation in an address. */
  private localId(name: string): string | null {
    const conversation = this.controller.get(name) ?? this.controller.all().find(({ remote }) => remote === name);
    return conversation?.id ?? null;
  }

  /** Waits for a chat that only the server may have. */
  private waitFor(name: string): void {
    this.open(null, false, `#c=${encodeURIComponent(name)}`);
    this.pendingName = name;
    this.drawSoon();
  }

  private async resolve(name: string): Promise<void> {
    try {
      const id = await this.library.resolve(name);
      if (this.pendingName !== name) return;
      this.open(id, false);
      if (id === null) this.toast(texts().chatUnknown);
    } catch {
      this.drawSoon(); // it is requested again when there is a connection
    }
  }

  private open(id: string | null, record = true, address = this.address(id)): void {
    this.current = id;
    this.pendingName = null;
    this.library.open(id);
    this.turns.clear();
    this.speaker.forget();
    this.messages.replaceChildren();
    if (record) history.pushState(null, "", address);
    else history.replaceState(null, "", address);
    try {
      if (id === null) this.storage?.removeItem(CURRENT);
      else this.storage?.setItem(CURRENT, id);
    } catch {
      // The storage is full: the next visit starts with a new chat.
    }
    this.drawer.close();
    this.questionInput.open(id);
    this.draw();
    this.follow.toEnd();
    if (record && matchMedia("(hover: hover)").matches) this.composer.field.focus();
  }

  private address(id: string | null): string {
    const conversation = id === null ? null : this.controller.get(id);
    return conversation === null ? location.pathname + location.search : addressOf(conversation);
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
    const turns = conversation === null ? [] : visibleTurns(conversation);
    this.status.set(this.connection.kind === "open" && this.controller.catchingUp ? { kind: "behind" } : this.connection);
    this.drawTurns(turns, conversation);
    this.welcome.watch(this.welcome.element.isConnected && this.connection.kind === "open");
    this.chats.draw(this.current);
    // When the server has the conversation, its address works on all devices.
    if (conversation !== null && conversation.remote !== null && idInAddress() === conversation.id) history.replaceState(null, "", addressOf(conversation));
    this.composer.setBusy(turns.some(isBusy));
    this.questionInput.draw();
    const words = conversation === null ? texts().newChat : title(conversation);
    setText(this.heading, words);
    document.title = conversation === null ? "Tailrace" : texts().pageTitle(words);
    if (this.controller.popStorageFull()) this.toast(texts().noRoom);
  }

  private drawTurns(turns: readonly Turn[], conversation: Conversation | null): void {
    if (turns.length === 0) {
      const words = this.absenceWords(conversation);
      setText(this.note, words ?? "");
      const instead = words === null ? this.welcome.element : this.note;
      if (instead.parentElement === null) this.messages.replaceChildren(instead);
      this.turns.clear();
      return;
    }
    this.welcome.element.remove();
    this.note.remove();
    const contextFor = (turn: Turn, place: number): TurnContext => ({
      engine: this.controller.engine,
      place: turn.answer === null ? null : this.controller.placeInQueue(turn.answer.responseId),
      refusal: this.controller.refusal(turn.id),
      connected: this.connection.kind === "open",
      last: place === turns.length - 1,
      questions: conversation === null ? [turn] : questionVersions(conversation, turn),
      answers: conversation === null ? [turn] : answerVersions(conversation, turn),
      clock: Date.now(),
    });
    if (this.turns.draw(turns, contextFor)) this.drawSoon();
    this.scheduleCountdown(turns);
  }

  private scheduleCountdown(turns: readonly Turn[]): void {
    window.clearTimeout(this.countdownTimer);
    const now = Date.now();
    const untils = turns.map((turn) => (this.controller.refusal(turn.id) ?? turn.problem?.refused)?.until ?? 0).filter((until) => until > now);
    this.countdownTimer = untils.length === 0 ? 0 : window.setTimeout(() => this.draw(), Math.min(...untils.map((until) => (until - now) % 1000 || 1000)));
  }

  /** Why the open chat has no turns to show; null: it is a new chat. */
  private absenceWords(conversation: Conversation | null): string | null {
    if (this.pendingName !== null) return this.connection.kind === "open" ? texts().chatLoading : texts().chatAway;
    const state = conversation === null ? "here" : this.library.state(conversation);
    return state === "here" ? null : state === "coming" && this.connection.kind === "open" ? texts().chatLoading : texts().chatAway;
  }

  private turnView(turn: Turn): TurnView {
    const actions = {
      retry: (turnId: string) => {
        if (this.current !== null) this.controller.retry(this.current, turnId);
        this.watchLastTurn();
        this.follow.toEnd();
      },
      takeBack: (turnId: string) => {
        const attachments = this.conversation()?.turns.find(({ id }) => id === turnId)?.attachments ?? [];
        if (this.current !== null) this.questionInput.write(this.controller.withdraw(this.current, turnId), attachments);
      },
      edit: (turnId: string, question: string) => {
        if (this.current !== null) this.controller.edit(this.current, turnId, question);
        this.watchLastTurn();
        this.composer.field.focus();
      },
      editDraft: (turnId: string) => this.drafts.draft(turnId),
      storeEditDraft: (turnId: string, words: string) => this.drafts.storeDraft(turnId, words),
      trim: (turnId: string) => {
        if (this.current !== null) this.controller.trim(this.current, turnId);
        this.watchLastTurn();
        this.follow.toEnd();
      },
      askInNewChat: ({ question, attachments }: Turn) => {
        this.open(null);
        this.questionInput.write(question, attachments);
      },
      choose: (turnId: string, button: string) => {
        if (this.current === null) return;
        this.controller.choose(this.current, turnId);
        this.library.publishHead(this.current);
        this.turns.prioritize(turnId);
        this.draw();
        // Keeps the focus at the button for readers who use the keyboard.
        this.turns.get(turnId)?.focus(button);
      },
      more: (turnId: string) => {
        if (this.current !== null) this.controller.more(this.current, turnId);
      },
    };
    return new TurnView(turn, actions, this.files.pictures);
  }
}

function idInAddress(): string | null {
  return new URLSearchParams(location.hash.slice(1)).get("c");
}
