/* Loads the images of questions from the server, each once per load of the page. */

import type { Attachment } from "../core/attachments";
import { h } from "./dom";

export interface PictureParts {
  content(fileId: string): Promise<Blob | null>;
  /** The input images of a response, as data URLs. */
  inputImages(responseId: string): Promise<string[] | null>;
  decode(blob: Blob): Promise<ImageBitmap | null>;
  blobOf(dataUrl: string): Blob;
}

/** The second source of an image: a response keeps its input images when the upload has expired. */
export interface Elsewhere {
  readonly responseId: string;
  /** The index among the input images. */
  readonly place: number;
}

const MAX_PICTURES = 60;

export class Pictures {
  private readonly cache = new Map<string, Promise<ImageBitmap | null>>();

  constructor(private readonly parts: PictureParts) {}

  /** Stores an image of this browser, so that it is not read from the server. */
  remember(fileId: string, picture: ImageBitmap): void {
    this.store(fileId, Promise.resolve(picture));
  }

  /** null: the server does not have the image, or was not reached. */
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

  /** Drops all images, for another user of this browser. */
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

/** Draws an image into a canvas: it has no address, so the content security policy need not allow
    one. */
export function canvasOf(picture: ImageBitmap, name: string): HTMLCanvasElement {
  const canvas = h("canvas", { role: "img", "aria-label": name, title: name, width: String(picture.width), height: String(picture.height) });
  canvas.getContext("2d")?.drawImage(picture, 0, 0);
  return canvas;
}
