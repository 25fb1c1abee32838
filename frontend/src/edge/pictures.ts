/* Files of the reader, made ready for an upload. Images are decoded, scaled and written by the browser. */

import { isKept, isText, kindOf, refusedUnread, within, UPLOADED_IMAGE_BYTES, type Kind, type Refusal } from "../core/attachments";

export interface Prepared {
  readonly kind: Kind;
  readonly blob: Blob;
  /** What is shown of an image. */
  readonly picture: ImageBitmap | null;
}

const SHOWN_SIDE = 640;
const QUALITIES = [0.88, 0.75, 0.6, 0.45];

export async function prepare(file: File, takes: { images: boolean; files: boolean }): Promise<Prepared | Refusal> {
  const refused = refusedUnread(file.type, file.size, takes);
  if (refused !== null) return refused;
  if (kindOf(file.type) === "image") return preparedImage(file);
  const bytes = await file.arrayBuffer().catch(() => null); // it may have been moved meanwhile
  return bytes !== null && isText(new Uint8Array(bytes)) ? { kind: "file", blob: new Blob([bytes]), picture: null } : "notText";
}

/** An image as it is shown; null: it cannot be decoded. */
export async function shownPicture(blob: Blob): Promise<ImageBitmap | null> {
  const whole = await createImageBitmap(blob).catch(() => null);
  if (whole === null) return null;
  const picture = await smaller(whole);
  whole.close();
  return picture;
}

/** The bytes of a data URL in base64. No policy needs to allow an address for them. */
export function blobOf(dataUrl: string): Blob {
  const [head = "", data = ""] = dataUrl.split(",", 2);
  const text = atob(data);
  return new Blob([Uint8Array.from(text, (character) => character.charCodeAt(0))], { type: head.slice("data:".length).split(";")[0] ?? "" });
}

async function preparedImage(file: File): Promise<Prepared | Refusal> {
  const whole = await createImageBitmap(file).catch(() => null);
  if (whole === null) return "notDecoded";
  try {
    const blob = isKept(file.type, file.size, whole) ? file : await scaled(whole);
    return blob === null ? "notDecoded" : { kind: "image", blob, picture: await smaller(whole) };
  } finally {
    whole.close();
  }
}

async function scaled(whole: ImageBitmap): Promise<Blob | null> {
  const canvas = document.createElement("canvas");
  Object.assign(canvas, within(whole));
  const drawing = canvas.getContext("2d");
  if (drawing === null) return null;
  drawing.fillStyle = "#fff"; // a JPEG has no transparency
  drawing.fillRect(0, 0, canvas.width, canvas.height);
  drawing.imageSmoothingQuality = "high";
  drawing.drawImage(whole, 0, 0, canvas.width, canvas.height);
  let written: Blob | null = null;
  for (const quality of QUALITIES) {
    written = await new Promise<Blob | null>((done) => canvas.toBlob(done, "image/jpeg", quality));
    if (written === null || written.size <= UPLOADED_IMAGE_BYTES) break;
  }
  return written;
}

async function smaller(whole: ImageBitmap): Promise<ImageBitmap> {
  const { width, height } = within(whole, SHOWN_SIDE);
  return createImageBitmap(whole, { resizeWidth: width, resizeHeight: height, resizeQuality: "high" });
}
