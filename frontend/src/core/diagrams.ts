/* Mermaid diagrams in an answer: the messages to and from the frames (public/diagram.js), and the
   order in which diagrams are drawn. One frame draws all diagrams, one after the other. Mermaid is
   3.5 MB of script, and browsers keep no cache for frames of an opaque origin: a frame for each
   diagram would fetch and compile the script again. */

/** A longer source is not drawn: the time to lay it out grows faster than its length. */
export const MOST_CHARACTERS = 20_000;
/** A higher diagram scrolls within its frame. */
const MOST_HEIGHT = 640;
/** The time limit of a frame until it runs, and until it has drawn or shown one diagram. */
export const ANSWER_MS = 10_000;
/** The time limit for loading Mermaid. The source is shown meanwhile. */
const LOAD_MS = 60_000;

export type ToFrame =
  | { readonly do: "load"; readonly script: string }
  | { readonly do: "draw"; readonly id: number; readonly source: string; readonly dark: boolean; readonly most: number }
  | { readonly do: "show"; readonly svg: string; readonly dark: boolean };

export type FromFrame =
  | { readonly did: "ready" | "loaded" | "missing" }
  | { readonly did: "drawn"; readonly id: number; readonly svg: string }
  | { readonly did: "wrong"; readonly id: number }
  | { readonly did: "shown"; readonly height: number };

/** Null: not a message of a frame. The frame handles the text of a model, so its messages are
    checked. */
export function fromFrame(data: unknown): FromFrame | null {
  if (typeof data !== "object" || data === null) return null;
  const { did, id, svg, height } = data as Record<string, unknown>;
  if (did === "ready" || did === "loaded" || did === "missing") return { did };
  if (did === "wrong" && typeof id === "number") return { did, id };
  if (did === "drawn" && typeof id === "number" && typeof svg === "string") return { did, id, svg };
  if (did === "shown" && typeof height === "number" && height > 0) return { did, height };
  return null;
}

/** The height of the frame that shows a diagram, in CSS px. */
export function frameHeight(height: number): number {
  return Math.min(MOST_HEIGHT, Math.ceil(height));
}

/** Whether the page is dark: the reader's choice, otherwise the system's. */
export function isDark(choice: string | undefined, system: boolean): boolean {
  return choice === undefined ? system : choice === "dark";
}

/** `wrong`: the source is not a valid diagram. `late`: Mermaid could not be loaded, or did not
    answer. */
export type Drawing = { readonly svg: string } | "wrong" | "late";

export interface DrawingParts {
  /** Create and remove the frame that draws. Removing it stops its work. */
  open(): void;
  close(): void;
  send(message: ToFrame): void;
  later(run: () => void, ms: number): () => void;
  /** The address of Mermaid's script. */
  script: string;
}

interface Job {
  readonly source: string;
  readonly dark: boolean;
  readonly done: (drawing: Drawing) => void;
}

/** The frame that draws:

    closed → opening (the document loads) → loading (Mermaid loads) → idle ⇄ drawing

    It goes back to closed when it does not answer in time. The current diagram is then late; before
    the first diagram, all are. A new frame draws the others. */
export class DrawingQueue {
  private state: "closed" | "opening" | "loading" | "idle" | "drawing" = "closed";
  private waiting: Job[] = [];
  /** Null unless `drawing`. */
  private current: Job | null = null;
  private id = 0;
  private stopTimer = (): void => undefined;

  constructor(private readonly parts: DrawingParts) {}

  draw(source: string, dark: boolean, done: (drawing: Drawing) => void): void {
    this.waiting.push({ source, dark, done });
    if (this.state === "closed") this.open();
    else if (this.state === "idle") this.next();
  }

  receive(message: FromFrame): void {
    if (message.did === "ready" && this.state === "opening") {
      this.enter("loading", LOAD_MS);
      this.parts.send({ do: "load", script: this.parts.script });
    } else if (message.did === "missing" && this.state === "loading") this.abandon();
    else if (message.did === "loaded" && this.state === "loading") this.next();
    else if (message.did === "drawn" && message.id === this.id) this.finish({ svg: message.svg });
    else if (message.did === "wrong" && message.id === this.id) this.finish("wrong");
  }

  private open(): void {
    this.enter("opening", ANSWER_MS);
    this.parts.open();
  }

  private next(): void {
    this.current = this.waiting.shift() ?? null;
    if (this.current === null) {
      this.enter("idle", null);
      return;
    }
    this.enter("drawing", ANSWER_MS);
    this.id += 1;
    const { source, dark } = this.current;
    this.parts.send({ do: "draw", id: this.id, source, dark, most: MOST_CHARACTERS });
  }

  private finish(drawing: Drawing): void {
    if (this.state !== "drawing" || this.current === null) return;
    const { done } = this.current;
    this.next();
    done(drawing);
  }

  private abandon(): void {
    const late = this.current === null ? this.waiting.splice(0) : [this.current];
    this.current = null;
    this.enter("closed", null);
    this.parts.close();
    if (this.waiting.length > 0) this.open();
    for (const { done } of late) done("late");
  }

  private enter(state: DrawingQueue["state"], ms: number | null): void {
    this.stopTimer();
    this.state = state;
    this.stopTimer = ms === null ? () => undefined : this.parts.later(() => this.abandon(), ms);
  }
}
