/* What is attached to the question that is being written. Each file is uploaded at once, and each chat has its own. */

import { isExpired, kindOf, MAX_ATTACHMENTS, type Attachment, type Kind, type Refusal } from "../core/attachments";
import { refusalWords, sizeWords } from "../core/messages";
import { texts } from "../core/words";
import type { Prepared } from "../edge/pictures";
import { h, icon, setText } from "./dom";
import { canvasOf, type Pictures } from "./pictures";

export interface TrayParts {
  pictures: Pictures;
  prepare(file: File, takes: { images: boolean; files: boolean }): Promise<Prepared | Refusal>;
  /** Rejects with the words that say why not. */
  upload(blob: Blob, name: string, kind: Kind, key: string): Promise<Attachment>;
  newId(): string;
  /** Something cannot be attached. */
  refused(words: string): void;
  /** Called at each change, with what is uploaded for this chat. */
  changed(chat: string | null, ready: readonly Attachment[]): void;
}

export class Tray {
  readonly element = h("ul", { class: "tray", "aria-label": texts().attachments, hidden: true });
  readonly button: HTMLButtonElement;
  private readonly picker: HTMLInputElement;
  private chat: string | null = null;
  private takes = { images: false, files: false };
  /** By chat (null: a new one). */
  private readonly items = new Map<string | null, readonly Item[]>();

  constructor(private readonly parts: TrayParts) {
    const picked = (): void => {
      this.add([...(this.picker.files ?? [])]);
      this.picker.value = ""; // so that the same file can be chosen again
    };
    this.picker = h("input", { type: "file", multiple: true, hidden: true, onchange: picked });
    this.button = h("button", { type: "button", class: "tool", hidden: true, onclick: () => this.picker.click() }, icon("clip"));
    this.button.append(this.picker);
  }

  /** What the model of the chat takes. */
  allow(takes: { images: boolean; files: boolean }): void {
    this.takes = takes;
    this.button.hidden = !takes.images && !takes.files;
    const label = takes.images ? texts().attach : texts().attachFiles;
    this.button.setAttribute("aria-label", label);
    this.button.title = label;
  }

  /** Shows what is attached in this chat; `kept`: what was before a reload. */
  open(chat: string | null, kept: readonly Attachment[]): void {
    this.chat = chat;
    if (!this.items.has(chat)) this.put(kept);
    this.draw();
  }

  add(files: readonly File[]): void {
    const room = MAX_ATTACHMENTS - this.here.length;
    if (files.length > room) this.parts.refused(texts().tooManyFiles(MAX_ATTACHMENTS));
    for (const file of files.slice(0, Math.max(0, room))) this.begin(file);
  }

  /** Back from a question that was not sent, or for the same question in another chat. */
  put(attachments: readonly Attachment[]): void {
    const known = new Set(this.here.map(({ attachment }) => attachment?.fileId));
    const others = attachments.filter((each) => !known.has(each.fileId) && !isExpired(each, Date.now()));
    this.items.set(this.chat, [...this.here, ...others.map((each) => this.item(this.chat, each))]);
    this.changed(this.chat);
  }

  /** What is attached, which goes with the question. */
  take(): readonly Attachment[] {
    const taken = this.ready(this.chat);
    this.items.set(this.chat, []);
    this.changed(this.chat);
    return taken;
  }

  /** Why the question cannot be sent with what is attached; null: it can. */
  get obstacle(): string | null {
    if (this.here.some(({ state }) => state === "failed")) return texts().notUploaded;
    if (this.here.some(({ state }) => state === "uploading")) return texts().stillUploading;
    if (!this.takes.images && this.here.some(({ kind }) => kind === "image")) return texts().modelTakesNoImages;
    return !this.takes.files && this.here.some(({ kind }) => kind === "file") ? texts().modelTakesNoFiles : null;
  }

  /** Another user of this browser sees none of them. */
  forget(): void {
    this.items.clear();
  }

  private get here(): readonly Item[] {
    return this.items.get(this.chat) ?? [];
  }

  // In the order in which they were chosen, whichever of them is ready first.
  private begin(file: File): void {
    const [chat, key] = [this.chat, this.parts.newId()];
    const item = new Item(file.name, kindOf(file.type), file.size, { remove: () => this.remove(chat, item), upload: () => void this.upload(chat, item, file, key) });
    this.items.set(chat, [...this.here, item]);
    void this.upload(chat, item, file, key);
  }

  private async upload(chat: string | null, item: Item, file: File, key: string): Promise<void> {
    item.set("uploading", "");
    this.changed(chat);
    const takes = this.takes;
    item.made ??= await this.parts.prepare(file, takes);
    const { made } = item;
    if (typeof made === "string") {
      this.parts.refused(refusalWords(made, item.name, item.kind, takes.images));
      this.leave(chat, item);
      return;
    }
    if (made.picture !== null) item.show(made.picture);
    try {
      const attachment = await this.parts.upload(made.blob, item.name, made.kind, key);
      if (made.picture !== null) this.parts.pictures.remember(attachment.fileId, made.picture);
      item.uploaded(attachment);
    } catch (error) {
      item.set("failed", error instanceof Error ? error.message : String(error));
    }
    this.changed(chat);
  }

  private item(chat: string | null, attachment: Attachment): Item {
    const { name, kind, bytes } = attachment;
    const item = new Item(name, kind, bytes, { remove: () => this.remove(chat, item), upload: () => undefined });
    item.uploaded(attachment);
    if (kind === "image") void this.parts.pictures.of(attachment, null).then((picture) => picture !== null && item.show(picture));
    return item;
  }

  private remove(chat: string | null, item: Item): void {
    this.leave(chat, item);
    this.button.focus();
  }

  private leave(chat: string | null, item: Item): void {
    this.items.set(chat, (this.items.get(chat) ?? []).filter((other) => other !== item));
    this.changed(chat);
  }

  private ready(chat: string | null): readonly Attachment[] {
    return (this.items.get(chat) ?? []).flatMap(({ attachment }) => attachment ?? []);
  }

  private changed(chat: string | null): void {
    if (chat === this.chat) this.draw();
    this.parts.changed(chat, this.ready(chat));
  }

  private draw(): void {
    const wanted = this.here.map(({ element }) => element);
    if (wanted.length !== this.element.children.length || wanted.some((each, place) => each !== this.element.children[place])) this.element.replaceChildren(...wanted);
    this.element.hidden = wanted.length === 0;
  }
}

type State = "uploading" | "ready" | "failed";

class Item {
  readonly element: HTMLElement;
  state: State = "uploading";
  /** null until it is uploaded. */
  attachment: Attachment | null = null;
  /** What is uploaded, or why it is not; null until the file was read. */
  made: Prepared | Refusal | null = null;
  private readonly picture = h("span", { class: "picture" }, icon("file"));
  private readonly words = h("span", { class: "size", role: "status" });
  private readonly again: HTMLButtonElement;

  constructor(
    readonly name: string,
    readonly kind: Kind,
    private bytes: number,
    actions: { remove(): void; upload(): void },
  ) {
    const [again, remove] = [texts().uploadAgain(name), texts().removeFile(name)];
    this.again = h("button", { type: "button", class: "tool", "aria-label": again, title: again, hidden: true, onclick: () => actions.upload() }, icon("retry"));
    const gone = h("button", { type: "button", class: "tool", "aria-label": remove, title: remove, onclick: () => actions.remove() }, icon("close"));
    this.element = h("li", { class: "attached" }, this.picture, h("span", { class: "about" }, h("span", { class: "name", title: name }, name), this.words), this.again, gone);
  }

  show(picture: ImageBitmap): void {
    const canvas = canvasOf(picture, "");
    canvas.setAttribute("aria-hidden", "true"); // its name stands beside it
    canvas.removeAttribute("role");
    this.picture.replaceChildren(canvas);
  }

  uploaded(attachment: Attachment): void {
    this.attachment = attachment;
    this.bytes = attachment.bytes;
    this.set("ready", "");
  }

  set(state: State, words: string): void {
    this.state = state;
    this.element.dataset["state"] = state;
    this.again.hidden = state !== "failed";
    setText(this.words, state === "uploading" ? texts().uploading : state === "failed" ? words : sizeWords(this.bytes));
  }
}
