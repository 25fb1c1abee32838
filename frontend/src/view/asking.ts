/* All that a question is asked with: the composer, its attachments, and the settings of the chat on show. */

import type { Attachment } from "../core/attachments";
import { settingsWords } from "../core/messages";
import { isSame, isUsual, type Settings } from "../core/settings";
import { texts } from "../core/words";
import type { Controller } from "../controller";
import type { Config, Takes } from "../edge/api";
import type { Library } from "../library";
import { ChatSettings } from "./chatSettings";
import { Composer } from "./composer";
import { h, icon } from "./dom";
import { ModelChoice } from "./modelChoice";
import { Tray, type TrayParts } from "./tray";

/** What was written in a conversation (null: in a new one) and not sent. */
export interface Drafts {
  draft(id: string | null): string;
  keepDraft(id: string | null, words: string): void;
  attached(id: string | null): readonly Attachment[];
  keepAttached(id: string | null, attachments: readonly Attachment[]): void;
}

export interface AskingParts {
  controller: Controller;
  library: Pick<Library, "set">;
  drafts: Drafts;
  files: Pick<TrayParts, "pictures" | "prepare" | "upload" | "newId">;
  stop(): void;
  toast(words: string): void;
  /** A question was asked in this conversation. */
  asked(conversationId: string): void;
}

export class Asking {
  readonly composer: Composer;
  readonly dialog: HTMLDialogElement;
  private readonly settings: ChatSettings;
  private readonly models = new ModelChoice("model", (model) => this.set({ ...this.now, model }));
  private readonly tray: Tray;
  private readonly button: HTMLButtonElement;
  private config: Config | null = null;
  private chat: string | null = null;
  /** Of a chat in which nothing was asked yet; null: as such a chat begins. */
  private fresh: Settings | null = null;
  private drawn: Settings | null = null;

  constructor(private readonly parts: AskingParts) {
    const refused = (words: string): void => parts.toast(words);
    this.tray = new Tray({ ...parts.files, refused, changed: (chat, ready) => parts.drafts.keepAttached(chat, ready) });
    this.button = h("button", { type: "button", class: "tool chat-settings", "aria-haspopup": "dialog", onclick: () => this.openSettings() }, icon("sliders"));
    this.models.element.setAttribute("aria-label", texts().model);
    this.composer = new Composer(
      {
        send: (question) => this.ask(question),
        stop: () => parts.stop(),
        written: (words) => parts.drafts.keepDraft(this.chat, words),
        ready: () => this.isReady(),
        pasted: (files) => this.tray.add(files),
      },
      this.tray.element,
      [this.tray.button, this.models.element, this.button],
    );
    this.settings = new ChatSettings((settings) => this.set(settings));
    this.dialog = this.settings.element;
    this.takeDrops();
    this.draw();
  }

  /** Shows what was written in this chat, and is asked in it from now on. */
  open(chat: string | null): void {
    this.chat = chat;
    this.tray.open(chat, this.parts.drafts.attached(chat));
    this.composer.write(this.parts.drafts.draft(chat), false);
    this.draw();
  }

  /** What the server offers now. */
  offer(config: Config): void {
    this.config = config;
    this.parts.controller.models = config.models;
    this.models.offer(config.models, config.defaultModel);
    this.drawn = null;
    this.draw();
  }

  /** Another user of this browser sees nothing of it. */
  forget(): void {
    this.fresh = null;
    this.tray.forget();
  }

  ask(question: string): void {
    if (!this.isReady()) return;
    const { controller, drafts } = this.parts;
    drafts.keepDraft(this.chat, "");
    const id = controller.ask(this.chat, question, this.now, this.tray.take());
    if (this.chat === null) this.fresh = null;
    this.parts.asked(id);
  }

  /** A question to be asked in other words, in this chat. */
  write(question: string, attachments: readonly Attachment[]): void {
    this.tray.put(attachments);
    this.composer.write(question);
  }

  /** Another tab may have changed the settings. */
  draw(): void {
    const settings = this.now;
    if (this.drawn !== null && isSame(settings, this.drawn)) return;
    this.drawn = settings;
    this.models.show(settings.model);
    const { images, files } = this.takes(settings.model);
    this.tray.allow({ images: images !== false, files }); // who does not know yet lets it be tried
    const usual = isUsual(settings);
    const label = usual ? texts().chatSettings : texts().chatSettingsWith(settingsWords(settings));
    this.button.dataset["usual"] = String(usual);
    this.button.setAttribute("aria-label", label);
    this.button.title = label;
  }

  private get now(): Settings {
    return this.chat === null && this.fresh !== null ? this.fresh : this.parts.controller.settings(this.chat);
  }

  private set(settings: Settings): void {
    if (this.chat === null) this.fresh = settings;
    else if (!isSame(settings, this.now)) {
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
    this.settings.open(this.now, this.config?.models ?? [], this.config?.defaultModel ?? null, (model) => this.takes(model).maxOutputTokens);
  }

  private takes(model: string | null): Takes {
    return this.config?.takes[model ?? this.config.defaultModel ?? ""] ?? { images: false, files: false, maxOutputTokens: null };
  }

  // A file that is dropped elsewhere would take the place of the page.
  private takeDrops(): void {
    const over = (event: DragEvent, is: boolean): boolean => {
      if (event.dataTransfer?.types.includes("Files") !== true) return false;
      event.preventDefault();
      this.composer.element.dataset["drop"] = String(is && !this.tray.button.hidden);
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
