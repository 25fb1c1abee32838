/* The attachments of the question in the composer. Each file is uploaded at once. Each chat has its
   own attachments. */

import { isExpired, kindOf, MAX_ATTACHMENTS, type Attachment, type Kind, type Refusal } from "../core/attachments";
import { fileRefusalWords, sizeWords } from "../core/messages";
import { texts } from "../core/words";
import type { PreparedFile } from "../edge/pictures";
import { h, icon, setText } from "./dom";
import { canvasOf, type Pictures } from "./pictures";

/** Why a file was not uploaded. */
export class UploadError extends Error {
  /** `waits`: it is uploaded when the user signs in. */
  constructor(
    message: string,
    readonly waits: boolean,
  ) {
    super(message);
  }
}

export interface TrayParts {
  pictures: Pictures;
  prepare(file: File, takes: { images: boolean; files: boolean }): Promise<PreparedFile | Refusal>;
  /** Rejects with an UploadError, or an error whose message is for the reader. */
  upload(blob: Blob, name: string, kind: Kind, key: string): Promise<Attachment>;
  newId(): string;
  /** A file cannot be attached. */
  onRefuse(words: string): void;
  /** Called at each change with the complete uploads of this chat. */
  onChange(chat: string | null, ready: readonly Attachment[]): void;
}

export class Tray {
  readonly element = h("ul", { class: "tray", "aria-label": texts().attachments, hidden: true });
  readonly button: HTMLButtonElement;
  private readonly picker: HTMLInputElement;
  private chat: string | null = null;
  private takes = { images: false, files: false };
  /** The attachments of the user; those of other users stay in this tab, hidden, because this
      browser stores no bytes of files. */
  private items: Items = new Map();
  private readonly others = new Map<string, Items>();
  private signedIn = false;
  private recipient: string | null = null;

  constructor(private readonly parts: TrayParts) {
    const onPick = (): void => {
      this.add([...(this.picker.files ?? [])]);
      this.picker.value = ""; // so that the same file can be chosen again
    };
    this.picker = h("input", { type: "file", multiple: true, hidden: true, onchange: onPick });
    this.button = h("button", { type: "button", class: "tool", hidden: true, onclick: () => this.picker.click() }, icon("clip"));
    this.button.append(this.picker);
  }

  /** Sets the kinds of files that the chat's model accepts. */
  allow(takes: { images: boolean; files: boolean }): void {
    this.takes = takes;
    this.button.hidden = !takes.images && !takes.files;
    const label = takes.images ? texts().attach : texts().attachFiles;
    this.button.setAttribute("aria-label", label);
    this.button.title = label;
  }

  /** Shows the attachments of this chat; `attachments`: those from before a reload. */
  open(chat: string | null, attachments: readonly Attachment[]): void {
    this.chat = chat;
    if (!this.items.has(chat)) this.restore(attachments);
    this.draw();
  }

  add(files: readonly File[]): void {
    const room = MAX_ATTACHMENTS - this.current.length;
    if (files.length > room) this.parts.onRefuse(texts().tooManyFiles(MAX_ATTACHMENTS));
    for (const file of files.slice(0, Math.max(0, room))) this.start(file);
  }

  /** Adds the attachments of a question that goes back into the composer. */
  restore(attachments: readonly Attachment[]): void {
    const ids = new Set(this.current.map(({ attachment }) => attachment?.fileId));
    const others = attachments.filter((each) => !ids.has(each.fileId) && !isExpired(each, Date.now()));
    this.items.set(this.chat, [...this.current, ...others.map((each) => this.item(this.chat, each))]);
    this.onItemsChange(this.chat);
  }

  /** Removes the attachments from the tray and returns them, for the question. */
  popAttachments(): readonly Attachment[] {
    const attachments = this.ready(this.chat);
    this.items.set(this.chat, []);
    this.onItemsChange(this.chat);
    return attachments;
  }

  /** Why the question cannot be sent with these attachments; null: it can. */
  get obstacle(): string | null {
    if (this.current.some(({ state }) => state === "failed")) return texts().notUploaded;
    if (this.current.some(({ state }) => state === "waiting")) return texts().uploadWaits;
    if (this.current.some(({ state }) => state === "uploading")) return texts().stillUploading;
    if (!this.takes.images && this.current.some(({ kind }) => kind === "image")) return texts().modelTakesNoImages;
    return !this.takes.files && this.current.some(({ kind }) => kind === "file") ? texts().modelTakesNoFiles : null;
  }

  /** Hides the attachments of the former user. `recipient`: the user to whom belongs what is
      attached now; null: the next one who signs in. Returns whether the new user gets what was
      attached before. */
  setOwner(signedIn: boolean, recipient: string | null): boolean {
    const isTheirs = !this.signedIn && (this.recipient === null || this.recipient === recipient);
    if (!isTheirs) this.others.set(this.recipient ?? "", joinItems(this.others.get(this.recipient ?? ""), this.items));
    const own = signedIn ? this.others.get(recipient ?? "") : undefined;
    if (signedIn) this.others.delete(recipient ?? "");
    this.items = joinItems(own, isTheirs ? this.items : new Map());
    [this.signedIn, this.recipient] = [signedIn, recipient];
    for (const chat of this.items.keys()) this.parts.onChange(chat, this.ready(chat));
    return isTheirs;
  }

  /** Uploads the files that waited for a sign-in. */
  uploadWaiting(): void {
    for (const item of [...this.items.values()].flat()) if (item.state === "waiting") item.upload();
  }

  /** Whether a file is not uploaded yet. */
  get isUploading(): boolean {
    return this.all.some((items) => [...items.values()].flat().some(({ attachment }) => attachment === null));
  }

  private get all(): readonly Items[] {
    return [this.items, ...this.others.values()];
  }

  private get current(): readonly Item[] {
    return this.items.get(this.chat) ?? [];
  }

  // Keeps the order in which the files were chosen.
  private start(file: File): void {
    const [chat, key] = [this.chat, this.parts.newId()];
    const item = new Item(file.name, kindOf(file.type), file.size, { remove: () => this.remove(chat, item), upload: () => void this.upload(chat, item, file, key) });
    this.items.set(chat, [...this.current, item]);
    void this.upload(chat, item, file, key);
  }

  private async upload(chat: string | null, item: Item, file: File, key: string): Promise<void> {
    item.set("uploading", "");
    this.onItemsChange(chat);
    const takes = this.takes;
    item.content ??= await this.parts.prepare(file, takes);
    const { content } = item;
    // The session belongs to another user now.
    if (!this.isHere(chat, item)) return item.set("waiting", "");
    if (typeof content === "string") {
      this.parts.onRefuse(fileRefusalWords(content, item.name, item.kind, takes.images));
      this.drop(chat, item);
      return;
    }
    if (content.picture !== null) item.show(content.picture);
    try {
      const attachment = await this.parts.upload(content.blob, item.name, content.kind, key);
      if (content.picture !== null) this.parts.pictures.remember(attachment.fileId, content.picture);
      item.setUploaded(attachment);
    } catch (error) {
      item.set(error instanceof UploadError && error.waits ? "waiting" : "failed", error instanceof Error ? error.message : String(error));
    }
    this.onItemsChange(chat);
  }

  private item(chat: string | null, attachment: Attachment): Item {
    const { name, kind, bytes } = attachment;
    const item = new Item(name, kind, bytes, { remove: () => this.remove(chat, item), upload: () => undefined });
    item.setUploaded(attachment);
    if (kind === "image") void this.parts.pictures.get(attachment, null).then((picture) => picture !== null && item.show(picture));
    return item;
  }

  private remove(chat: string | null, item: Item): void {
    this.drop(chat, item);
    this.button.focus();
  }

  private drop(chat: string | null, item: Item): void {
    for (const items of this.all) if (items.get(chat)?.includes(item) === true) items.set(chat, (items.get(chat) ?? []).filter((other) => other !== item));
    this.onItemsChange(chat);
  }

  private isHere(chat: string | null, item: Item): boolean {
    return this.items.get(chat)?.includes(item) === true;
  }

  private ready(chat: string | null): readonly Attachment[] {
    return (this.items.get(chat) ?? []).flatMap(({ attachment }) => attachment ?? []);
  }

  private onItemsChange(chat: string | null): void {
    if (chat === this.chat) this.draw();
    this.parts.onChange(chat, this.ready(chat));
  }

  private draw(): void {
    const elements = this.current.map(({ element }) => element);
    if (elements.length !== this.element.children.length || elements.some((each, place) => each !== this.element.children[place])) this.element.replaceChildren(...elements);
    this.element.hidden = elements.length === 0;
  }
}

/** By chat; null: a new one. */
type Items = Map<string | null, readonly Item[]>;

function joinItems(a: Items | undefined, b: Items): Items {
  const items: Items = new Map(a);
  for (const [chat, each] of b) items.set(chat, [...(items.get(chat) ?? []), ...each]);
  return items;
}

/** waiting: it is uploaded when its user is signed in */
type State = "uploading" | "ready" | "waiting" | "failed";

class Item {
  readonly element: HTMLElement;
  state: State = "uploading";
  /** null until it is uploaded. */
  attachment: Attachment | null = null;
  /** The prepared file, or why it is refused; null until the file was read. */
  content: PreparedFile | Refusal | null = null;
  private readonly picture = h("span", { class: "picture" }, icon("file"));
  private readonly words = h("span", { class: "size", role: "status" });
  private readonly again: HTMLButtonElement;

  constructor(
    readonly name: string,
    readonly kind: Kind,
    private bytes: number,
    private readonly actions: { remove(): void; upload(): void },
  ) {
    const [again, remove] = [texts().uploadAgain(name), texts().removeFile(name)];
    this.again = h("button", { type: "button", class: "tool", "aria-label": again, title: again, hidden: true, onclick: () => actions.upload() }, icon("retry"));
    const removeButton = h("button", { type: "button", class: "tool", "aria-label": remove, title: remove, onclick: () => actions.remove() }, icon("close"));
    this.element = h("li", { class: "attached" }, this.picture, h("span", { class: "about" }, h("span", { class: "name", title: name }, name), this.words), this.again, removeButton);
  }

  show(picture: ImageBitmap): void {
    const canvas = canvasOf(picture, "");
    canvas.setAttribute("aria-hidden", "true"); // its name is next to it
    canvas.removeAttribute("role");
    this.picture.replaceChildren(canvas);
  }

  setUploaded(attachment: Attachment): void {
    this.attachment = attachment;
    this.bytes = attachment.bytes;
    this.set("ready", "");
  }

  upload(): void {
    this.actions.upload();
  }

  set(state: State, words: string): void {
    this.state = state;
    this.element.dataset["state"] = state;
    this.again.hidden = state !== "failed" && state !== "waiting";
    setText(this.words, state === "uploading" ? texts().uploading : state === "ready" ? sizeWords(this.bytes) : words);
  }
}
