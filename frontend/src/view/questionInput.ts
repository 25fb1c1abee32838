/* The input for a question: the composer, its attachments, and the settings of the open chat. */

import type { Attachment } from "../core/attachments";
import { settingsWords } from "../core/messages";
import { isSame, isDefault, type Settings } from "../core/settings";
import { texts } from "../core/words";
import type { Controller } from "../controller";
import type { Config, Takes } from "../edge/api";
import type { Library } from "../library";
import { ChatSettings } from "./chatSettings";
import { Composer } from "./composer";
import { h, icon } from "./dom";
import { ModelChoice } from "./modelChoice";
import { Tray, type TrayParts } from "./tray";

/** The unsent question of a conversation (null: of a new one). */
export interface Drafts {
  draft(id: string | null): string;
  storeDraft(id: string | null, words: string): void;
  draftAttachments(id: string | null): readonly Attachment[];
  storeDraftAttachments(id: string | null, attachments: readonly Attachment[]): void;
}

export interface QuestionInputParts {
  controller: Controller;
  library: Pick<Library, "set">;
  drafts: Drafts;
  files: Pick<TrayParts, "pictures" | "prepare" | "upload" | "newId">;
  stop(): void;
  toast(words: string): void;
  /** A question was asked in this conversation. */
  onQuestion(conversationId: string): void;
}

export class QuestionInput {
  readonly composer: Composer;
  readonly dialog: HTMLDialogElement;
  private readonly settings: ChatSettings;
  private readonly models = new ModelChoice("model", (model) => this.set({ ...this.current, model }));
  private readonly tray: Tray;
  private readonly button: HTMLButtonElement;
  private config: Config | null = null;
  private chat: string | null = null;
  /** The settings of a new chat; null: not changed yet. */
  private newChatSettings: Settings | null = null;
  private drawnSettings: Settings | null = null;

  constructor(private readonly parts: QuestionInputParts) {
    const onRefuse = (words: string): void => parts.toast(words);
    this.tray = new Tray({ ...parts.files, onRefuse, onChange: (chat, ready) => parts.drafts.storeDraftAttachments(chat, ready) });
    this.button = h("button", { type: "button", class: "tool chat-settings", "aria-haspopup": "dialog", onclick: () => this.openSettings() }, icon("sliders"));
    this.models.element.setAttribute("aria-label", texts().model);
    this.composer = new Composer(
      {
        send: (question) => this.ask(question),
        stop: () => parts.stop(),
        onInput: (words) => parts.drafts.storeDraft(this.chat, words),
        canSend: () => this.isReady(),
        onPasteFiles: (files) => this.tray.add(files),
      },
      this.tray.element,
      [this.tray.button, this.models.element, this.button],
    );
    this.settings = new ChatSettings((settings) => this.set(settings));
    this.dialog = this.settings.element;
    this.listenForDrops();
    this.draw();
  }

  /** Shows the draft of this chat. The next question belongs to it. */
  open(chat: string | null): void {
    this.chat = chat;
    this.tray.open(chat, this.parts.drafts.draftAttachments(chat));
    this.composer.write(this.parts.drafts.draft(chat), false);
    this.draw();
  }

  /** Applies the server's current configuration. */
  offer(config: Config): void {
    this.config = config;
    this.parts.controller.models = config.models;
    this.models.offer(config.models, config.defaultModel);
    this.drawnSettings = null;
    this.draw();
  }

  /** Hides the input of the former user. `recipient`: the user to whom belongs what is typed now;
      null: the next one who signs in. */
  setOwner(signedIn: boolean, recipient: string | null): void {
    if (!this.tray.setOwner(signedIn, recipient)) this.newChatSettings = null;
  }

  /** Called when there is a connection. */
  onSocketOpen(): void {
    this.tray.uploadWaiting();
  }

  /** Whether a file is not uploaded yet. A reload would lose it. */
  get isUploading(): boolean {
    return this.tray.isUploading;
  }

  ask(question: string): void {
    if (!this.isReady()) return;
    const { controller, drafts } = this.parts;
    drafts.storeDraft(this.chat, "");
    const id = controller.ask(this.chat, question, this.current, this.tray.popAttachments());
    if (this.chat === null) this.newChatSettings = null;
    this.parts.onQuestion(id);
  }

  /** Puts a question into the composer of this chat, to be edited. */
  write(question: string, attachments: readonly Attachment[]): void {
    this.tray.restore(attachments);
    this.composer.write(question);
  }

  /** Draws the settings, which another tab may have changed. */
  draw(): void {
    const settings = this.current;
    if (this.drawnSettings !== null && isSame(settings, this.drawnSettings)) return;
    this.drawnSettings = settings;
    this.models.show(settings.model);
    const { images, files } = this.takes(settings.model);
    this.tray.allow({ images: images !== false, files }); // not known yet: the reader may try
    const usual = isDefault(settings);
    const label = usual ? texts().chatSettings : texts().chatSettingsWith(settingsWords(settings));
    this.button.dataset["usual"] = String(usual);
    this.button.setAttribute("aria-label", label);
    this.button.title = label;
  }

  private get current(): Settings {
    return this.chat === null && this.newChatSettings !== null ? this.newChatSettings : this.parts.controller.settings(this.chat);
  }

  private set(settings: Settings): void {
    if (this.chat === null) this.newChatSettings = settings;
    else if (!isSame(settings, this.current)) {
      this.parts.controller.set(this.chat, settings);
      this.parts.library.set(this.chat);
    }
    this.draw();
  }

  private isReady(): boolean {
    const obstacle = this.tray.obstacle;
    if (obstacle !== null) this.parts.toast(obstacle);
    return obstacle === null;
  }

  private openSettings(): void {
    this.settings.open(this.current, this.config?.models ?? [], this.config?.defaultModel ?? null, (model) => this.takes(model).maxOutputTokens);
  }

  private takes(model: string | null): Takes {
    return this.config?.takes[model ?? this.config.defaultModel ?? ""] ?? { images: false, files: false, maxOutputTokens: null };
  }

  // The browser would open a file that is dropped elsewhere instead of the page.
  private listenForDrops(): void {
    const over = (event: DragEvent, isOver: boolean): boolean => {
      if (event.dataTransfer?.types.includes("Files") !== true) return false;
      event.preventDefault();
      this.composer.element.dataset["drop"] = String(isOver && !this.tray.button.hidden);
      return true;
    };
    document.addEventListener("dragover", (event) => over(event, true));
    document.addEventListener("dragleave", (event) => event.relatedTarget === null && over(event, false));
    document.addEventListener("drop", (event) => {
      if (!over(event, false)) return;
      if (this.tray.button.hidden) this.parts.toast(texts().modelTakesNoFiles);
      else this.tray.add([...(event.dataTransfer?.files ?? [])]);
    });
  }
}
