/* Reads the turns of the server's conversations into this browser's copies, and sets their visible
   version. It reads a page of turns at a time. A turn may be listed before its request is in the
   log: the next read starts at the first such turn. */

import { chain, withPathTo, type Conversation } from "./core/conversation";
import { withRows, turnOf, type Row } from "./core/serverTurns";
import type { Conversations } from "./edge/conversations";

export interface TurnReaderParts {
  api: Pick<Conversations, "turns">;
  /** This browser's copy, by the server's id. */
  copy(remote: string): Conversation | null;
  /** Merges the turns that were read. */
  absorb(conversation: Conversation): void;
  /** A turn was not in the log yet: read again. */
  onIncomplete(remote: string): void;
  /** The value of `state` may have changed. */
  onChange(): void;
  now(): number;
  later(run: () => void, ms: number): () => void;
  warn(error: unknown): void;
}

/** A turn is listed before its request is in the log. After this time it counts as empty. */
const WRITE_DELAY_MS = 15_000;
export const POLL_AGAIN_MS = 300;

interface Tree {
  readonly parents: Map<string, string | null>;
  /** All nodes up to this one are here. */
  last: string | null;
  head: string | null;
  /** The last read had a turn that was not in the log yet. It may be the head, so the next read
      shows the head. */
  headPending: boolean;
}

function newTree(): Tree {
  return { parents: new Map(), last: null, head: null, headPending: false };
}

/** Ids are the server's. */
export class TurnReader {
  private readonly trees = new Map<string, Tree>();
  private readonly reads = new Map<string, Promise<void>>();
  private readonly staleIds = new Set<string>();
  /** The conversations whose read failed. */
  private readonly failedIds = new Set<string>();
  /** Counts users: a reply to a request for another user is dropped. */
  private user = 0;

  constructor(private readonly parts: TurnReaderParts) {}

  /** Called for another user: drops everything. */
  reset(): void {
    this.user += 1;
    for (const collection of [this.trees, this.reads, this.staleIds, this.failedIds]) collection.clear();
  }

  /** Drops the tree of a conversation, or all trees: they may be wrong. */
  forget(remote?: string): void {
    if (remote === undefined) this.trees.clear();
    else this.trees.delete(remote);
  }

  /** A new conversation without turns. */
  begin(remote: string): void {
    if (!this.trees.has(remote)) this.trees.set(remote, newTree());
  }

  /** The conversation must be read when it is opened. */
  markStale(remote: string): void {
    this.staleIds.add(remote);
  }

  hasRead(remote: string): boolean {
    return this.trees.has(remote);
  }

  hasTurn(remote: string, response: string): boolean {
    return this.parts.copy(remote)?.turns.some((turn) => chain(turn).some(({ responseId }) => responseId === response)) ?? false;
  }

  /** The feed reported a turn. */
  onTurn(remote: string, response: string, parent: string | null): void {
    const tree = this.trees.get(remote);
    if (tree === undefined) return;
    tree.parents.set(response, parent);
    if (this.hasTurn(remote, response)) tree.head = response;
  }

  /** This browser shows another version. */
  setHead(remote: string, head: string): void {
    const tree = this.trees.get(remote);
    if (tree !== undefined) [tree.head, tree.headPending] = [head, false];
  }

  /** Another device shows another version. */
  onHeadMove(remote: string, head: string | null): void {
    const tree = this.trees.get(remote);
    if (tree === undefined || tree.head === head) return;
    tree.head = head;
    this.showHead(remote);
  }

  /** Reads the failed conversations again. */
  retry(): void {
    for (const remote of [...this.failedIds]) void this.read(remote);
  }

  /** Reads the turns that this browser does not have. */
  async load(remote: string): Promise<void> {
    if (!this.trees.has(remote) || this.staleIds.has(remote) || this.failedIds.has(remote)) await this.read(remote);
  }

  state(remote: string): "here" | "coming" | "away" {
    if (this.failedIds.has(remote)) return "away";
    return this.trees.has(remote) && !this.reads.has(remote) ? "here" : "coming";
  }

  read(remote: string): Promise<void> {
    const running = this.reads.get(remote);
    if (running !== undefined) {
      this.staleIds.add(remote);
      return running;
    }
    const user = this.user;
    const promise = this.readPages(remote)
      .then(
        () => this.failedIds.delete(remote),
        (error: unknown) => {
          if (user !== this.user) return;
          this.failedIds.add(remote);
          this.parts.warn(error);
        },
      )
      .then(() => {
        if (user !== this.user) return;
        this.reads.delete(remote);
        this.parts.onChange();
        if (this.staleIds.has(remote) && !this.failedIds.has(remote)) void this.read(remote);
      });
    this.reads.set(remote, promise);
    this.parts.onChange();
    return promise;
  }

  private async readPages(remote: string): Promise<void> {
    const user = this.user;
    this.staleIds.delete(remote);
    const tree: Tree = this.trees.get(remote) ?? newTree();
    let more = true;
    for (let after = tree.last, whole = true; more; ) {
      const page = await this.parts.api.turns(remote, after);
      const copy = this.parts.copy(remote);
      if (user !== this.user || copy === null) return;
      for (const row of page.rows) tree.parents.set(row.id, row.parent);
      const newest = page.rows.reduce((latest, { createdAt }) => Math.max(latest, createdAt), copy.usedAt);
      this.parts.absorb({ ...withRows(copy, page.rows, tree.parents), usedAt: newest });
      for (const row of page.rows) {
        whole &&= !this.isUnwritten(row);
        if (whole) tree.last = row.id;
      }
      if (!whole) this.parts.later(() => this.parts.onIncomplete(remote), POLL_AGAIN_MS);
      after = page.rows.at(-1)?.id ?? after;
      more = page.next !== null;
      const isNew = !this.trees.has(remote) || tree.head !== page.head || tree.headPending;
      tree.head = page.head;
      this.trees.set(remote, tree);
      if (more) continue;
      tree.headPending = !whole;
      if (isNew) this.showHead(remote);
    }
  }

  private isUnwritten({ input, response, createdAt }: Row): boolean {
    return response === null && input.length === 0 && this.parts.now() - createdAt < WRITE_DELAY_MS;
  }

  private showHead(remote: string): void {
    const [tree, copy] = [this.trees.get(remote), this.parts.copy(remote)];
    if (tree === undefined || copy === null) return;
    const turn = turnOf(copy, tree.head, tree.parents);
    if (turn !== undefined) this.parts.absorb(withPathTo(copy, turn, this.parts.now()));
  }
}
