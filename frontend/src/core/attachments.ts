/* Images and texts that belong to a question. They are uploaded before the question is sent, so
   this browser stores only their names. */

/** A file is a text. */
export type Kind = "image" | "file";

export interface Attachment {
  readonly fileId: string;
  readonly name: string;
  readonly kind: Kind;
  readonly bytes: number;
  /** When the server deletes the upload, in ms; 0: not known. An answer keeps the images that it
      was given. */
  readonly expiresAt: number;
}

export type Part =
  | { readonly type: "input_image"; readonly file_id: string }
  | { readonly type: "input_file"; readonly file_id: string }
  | { readonly type: "input_text"; readonly text: string };

/** A question as the content of a message: the attachments come before the text. */
export function content(question: string, attachments: readonly Attachment[]): string | readonly Part[] {
  if (attachments.length === 0) return question;
  const files = attachments.map(({ kind, fileId }): Part => ({ type: kind === "image" ? "input_image" : "input_file", file_id: fileId }));
  return [...files, { type: "input_text", text: question }];
}

export function isExpired({ expiresAt }: Attachment, now: number): boolean {
  return expiresAt !== 0 && expiresAt <= now;
}

/** The record may be damaged, or from another version of this page. */
export function readAttachments(record: unknown): readonly Attachment[] {
  if (!Array.isArray(record)) return [];
  return record.flatMap((each: Partial<Attachment> | null) => {
    const { fileId, name, kind, bytes, expiresAt } = each ?? {};
    if (typeof fileId !== "string" || (kind !== "image" && kind !== "file")) return [];
    return [{ fileId, name: typeof name === "string" ? name : "", kind, bytes: finite(bytes), expiresAt: finite(expiresAt) }];
  });
}

const KEY = "file.";
const NAME_CHARACTERS = 100;

/** The attachments as metadata of the response. Its input has the words of texts, and images
    without names, so other devices read names, sizes and ids here. A value has at most 512
    characters. */
export function toMetadata(attachments: readonly Attachment[]): Record<string, string> {
  const entries = attachments.slice(0, MAX_ATTACHMENTS).map((each) => ({ ...each, name: Array.from(each.name.replace(/\p{C}/gu, "")).slice(0, NAME_CHARACTERS).join("") }));
  return Object.fromEntries(entries.map((each, place) => [KEY + place, JSON.stringify(each)]));
}

export function fromMetadata(metadata: Readonly<Record<string, unknown>>): readonly Attachment[] {
  const records: unknown[] = [];
  for (let place = 0; place < MAX_ATTACHMENTS; place += 1) {
    const entry = metadata[KEY + place];
    try {
      if (typeof entry === "string") records.push(JSON.parse(entry));
    } catch {
      // This page did not write it.
    }
  }
  return readAttachments(records);
}

// ---- limits

export const MAX_ATTACHMENTS = 10;
/** The server's limit for a text. */
export const MAX_TEXT_BYTES = 262_144;
/** The largest image that the browser decodes. It is scaled down before the upload. */
export const MAX_IMAGE_BYTES = 50_000_000;
/** With this limit, MAX_ATTACHMENTS images fit into one request. */
export const MAX_UPLOADED_IMAGE_BYTES = 600_000;
const MAX_SIDE = 1792;
/** Images that are uploaded unchanged. A JPEG is always encoded again: its metadata may rotate it,
    and may say where it was taken. */
const UNCHANGED_TYPES = ["image/png", "image/webp", "image/gif"];

/** Why a file cannot be attached. */
export type Refusal = "empty" | "tooLarge" | "notDecoded" | "notText" | "noImages" | "noFiles";

export interface Size {
  readonly width: number;
  readonly height: number;
}

/** The largest size of the same shape with sides up to `side`. */
export function fitWithin({ width, height }: Size, side = MAX_SIDE): Size {
  const factor = Math.min(1, side / Math.max(width, height));
  return { width: Math.max(1, Math.round(width * factor)), height: Math.max(1, Math.round(height * factor)) };
}

/** Whether an image is uploaded without encoding it again. */
export function canUploadUnchanged(type: string, bytes: number, size: Size): boolean {
  return UNCHANGED_TYPES.includes(type) && bytes <= MAX_UPLOADED_IMAGE_BYTES && Math.max(size.width, size.height) <= MAX_SIDE;
}

/** `type`: the media type that the system reports. An SVG drawing is a text. */
export function kindOf(type: string): Kind {
  return type.startsWith("image/") && type !== "image/svg+xml" ? "image" : "file";
}

/** Why a file is refused without reading it; null: it must be read first. `takes`: the inputs that
    the model accepts. */
export function refusalBeforeReading(type: string, bytes: number, takes: { images: boolean; files: boolean }): Refusal | null {
  const image = kindOf(type) === "image";
  if (image && !takes.images) return "noImages";
  if (!image && !takes.files) return "noFiles";
  if (bytes === 0) return "empty";
  return bytes > (image ? MAX_IMAGE_BYTES : MAX_TEXT_BYTES) ? "tooLarge" : null;
}

/** Whether the server accepts the bytes as a text. */
export function isText(bytes: Uint8Array): boolean {
  if (bytes.includes(0) || String.fromCharCode(...bytes.subarray(0, 5)) === "%PDF-") return false;
  try {
    new TextDecoder("utf-8", { fatal: true }).decode(bytes);
    return true;
  } catch {
    return false;
  }
}

function finite(value: unknown): number {
  return typeof value === "number" && Number.isFinite(value) ? value : 0;
}
