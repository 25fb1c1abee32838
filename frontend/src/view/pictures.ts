/* The images that go with questions, as they are shown. They are read from the server, once in a load of the page. */

import type { Attachment } from "../core/attachments";
import { h } from "./dom";

export interface PictureParts {
  content(fileId: string): Promise<Blob | null>;
  /** The images that a response was asked with, as data URLs. */
  shownImages(responseId: string): Promise<string[] | null>;
  decode(blob: Blob): Promise<ImageBitmap | null>;
  blobOf(dataUrl: string): Blob;
}

/** Where else an image is: what a response was shown stays with it when the upload has expired. */
export interface Elsewhere {
  readonly responseId: string;
  /** The place among its images. */
  readonly place: number;
}

const MOST = 60;

export class Pictures {
  private readonly found = new Map<string, Promise<ImageBitmap | null>>();

  constructor(private readonly parts: PictureParts) {}

  /** It need not be read from the server. */
  remember(fileId: string, picture: ImageBitmap): void {
    this.keep(fileId, Promise.resolve(picture));
  }

  /** null: the server does not have it, or cannot be reached now. */
  of({ fileId }: Attachment, elsewhere: Elsewhere | null): Promise<ImageBitmap | null> {
    const known = this.found.get(fileId);
    if (known !== undefined) return known;
    const looked = this.read(fileId, elsewhere);
    this.keep(fileId, looked);
    void looked.then((picture) => {
      if (picture === null && this.found.get(fileId) === looked) this.found.delete(fileId);
    });
    return looked;
  }

  /** Another user of this browser sees none of them. */
  forget(): void {
    this.found.clear();
  }

  private keep(fileId: string, picture: Promise<ImageBitmap | null>): void {
    this.found.set(fileId, picture);
    for (const oldest of this.found.keys()) {
      if (this.found.size <= MOST) break;
      this.found.delete(oldest);
    }
  }

  private async read(fileId: string, elsewhere: Elsewhere | null): Promise<ImageBitmap | null> {
    const upload = await this.parts.content(fileId);
    if (upload !== null) return this.parts.decode(upload);
    const url = elsewhere === null ? undefined : (await this.parts.shownImages(elsewhere.responseId))?.[elsewhere.place];
    return url === undefined ? null : this.parts.decode(this.parts.blobOf(url));
  }
}

/** An image without an address, so that no policy has to allow one. */
export function canvasOf(picture: ImageBitmap, name: string): HTMLCanvasElement {
  const canvas = h("canvas", { role: "img", "aria-label": name, title: name, width: String(picture.width), height: String(picture.height) });
  canvas.getContext("2d")?.drawImage(picture, 0, 0);
  return canvas;
}
