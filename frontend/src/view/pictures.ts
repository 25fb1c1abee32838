/* The images that go with questions, as they are shown. They are read from the server, once in a load of the page. */

import type { Attachment } from "../core/attachments";
import { h } from "./dom";

export interface PictureParts {
  content(fileId: string): Promise<Blob | null>;
  /** The images that a response was asked with, as data URLs. */
  inputImages(responseId: string): Promise<string[] | null>;
  decode(blob: Blob): Promise<ImageBitmap | null>;
  blobOf(dataUrl: string): Blob;
}

/** Where else an image is: what a response was shown stays with it when the upload has expired. */
export interface Elsewhere {
  readonly responseId: string;
  /** The place among its images. */
  readonly place: number;
}

const MAX_PICTURES = 60;

export class Pictures {
  private readonly cache = new Map<string, Promise<ImageBitmap | null>>();

  constructor(private readonly parts: PictureParts) {}

  /** It need not be read from the server. */
  remember(fileId: string, picture: ImageBitmap): void {
    this.store(fileId, Promise.resolve(picture));
  }

  /** null: the server does not have it, or cannot be reached now. */
  get({ fileId }: Attachment, elsewhere: Elsewhere | null): Promise<ImageBitmap | null> {
    const entry = this.cache.get(fileId);
    if (entry !== undefined) return entry;
    const promise = this.load(fileId, elsewhere);
    this.store(fileId, promise);
    void promise.then((picture) => {
      if (picture === null && this.cache.get(fileId) === promise) this.cache.delete(fileId);
    });
    return promise;
  }

  /** Another user of this browser sees none of them. */
  forget(): void {
    this.cache.clear();
  }

  private store(fileId: string, picture: Promise<ImageBitmap | null>): void {
    this.cache.set(fileId, picture);
    for (const oldest of this.cache.keys()) {
      if (this.cache.size <= MAX_PICTURES) break;
      this.cache.delete(oldest);
    }
  }

  private async load(fileId: string, elsewhere: Elsewhere | null): Promise<ImageBitmap | null> {
    const upload = await this.parts.content(fileId);
    if (upload !== null) return this.parts.decode(upload);
    const url = elsewhere === null ? undefined : (await this.parts.inputImages(elsewhere.responseId))?.[elsewhere.place];
    return url === undefined ? null : this.parts.decode(this.parts.blobOf(url));
  }
}

/** An image without an address, so that no policy has to allow one. */
export function canvasOf(picture: ImageBitmap, name: string): HTMLCanvasElement {
  const canvas = h("canvas", { role: "img", "aria-label": name, title: name, width: String(picture.width), height: String(picture.height) });
  canvas.getContext("2d")?.drawImage(picture, 0, 0);
  return canvas;
}
