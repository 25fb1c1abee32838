/* Prepares the reader's files for upload. The browser decodes, scales and encodes images. */

import { canUploadUnchanged, isText, kindOf, refusalBeforeReading, fitWithin, MAX_UPLOADED_IMAGE_BYTES, type Kind, type Refusal } from "../core/attachments";

export interface PreparedFile {
  readonly kind: Kind;
  readonly blob: Blob;
  /** The preview of an image; null for a text. */
  readonly picture: ImageBitmap | null;
}

const PREVIEW_SIDE = 640;
const QUALITIES = [0.88, 0.75, 0.6, 0.45];

export async function prepare(file: File, takes: { images: boolean; files: boolean }): Promise<PreparedFile | Refusal> {
  const refusal = refusalBeforeReading(file.type, file.size, takes);
  if (refusal !== null) return refusal;
  if (kindOf(file.type) === "image") return prepareImage(file);
  const bytes = await file.arrayBuffer().catch(() => null); // the file may have been moved meanwhile
  return bytes !== null && isText(new Uint8Array(bytes)) ? { kind: "file", blob: new Blob([bytes]), picture: null } : "notText";
}

/** The preview of an image; null: it cannot be decoded. */
export async function decodePreview(blob: Blob): Promise<ImageBitmap | null> {
  const whole = await createImageBitmap(blob).catch(() => null);
  if (whole === null) return null;
  const picture = await preview(whole);
  whole.close();
  return picture;
}

/** Decodes a base64 data URL without fetching it, so that the content security policy need not
    allow it. */
export function blobOf(dataUrl: string): Blob {
  const [head = "", data = ""] = dataUrl.split(",", 2);
  const text = atob(data);
  return new Blob([Uint8Array.from(text, (character) => character.charCodeAt(0))], { type: head.slice("data:".length).split(";")[0] ?? "" });
}

async function prepareImage(file: File): Promise<PreparedFile | Refusal> {
  const whole = await createImageBitmap(file).catch(() => null);
  if (whole === null) return "notDecoded";
  try {
    const blob = canUploadUnchanged(file.type, file.size, whole) ? file : await toJpeg(whole);
    return blob === null ? "notDecoded" : { kind: "image", blob, picture: await preview(whole) };
  } finally {
    whole.close();
  }
}

async function toJpeg(whole: ImageBitmap): Promise<Blob | null> {
  const canvas = document.createElement("canvas");
  Object.assign(canvas, fitWithin(whole));
  const drawing = canvas.getContext("2d");
  if (drawing === null) return null;
  drawing.fillStyle = "#fff"; // a JPEG has no transparency
  drawing.fillRect(0, 0, canvas.width, canvas.height);
  drawing.imageSmoothingQuality = "high";
  drawing.drawImage(whole, 0, 0, canvas.width, canvas.height);
  let blob: Blob | null = null;
  for (const quality of QUALITIES) {
    blob = await new Promise<Blob | null>((done) => canvas.toBlob(done, "image/jpeg", quality));
    if (blob === null || blob.size <= MAX_UPLOADED_IMAGE_BYTES) break;
  }
  return blob;
}

async function preview(whole: ImageBitmap): Promise<ImageBitmap> {
  const { width, height } = fitWithin(whole, PREVIEW_SIDE);
  return createImageBitmap(whole, { resizeWidth: width, resizeHeight: height, resizeQuality: "high" });
}
