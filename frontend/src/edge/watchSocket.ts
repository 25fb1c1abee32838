/* The watch socket. Each connection uses a new ticket. When a server drains, a new socket opens
   before the old one closes. After every close code that allows it, the socket is opened again. The
   watchlist decides which messages are sent. */

import type { Watches } from "../core/compactEvents";
import { readMessage, type Incoming } from "../core/protocol";
import { closePolicy, reconnectDelay, drainDelay } from "../core/reconnect";
import { texts } from "../core/words";

export type WatchSocketState =
  | { kind: "connecting" }
  | { kind: "open" }
  | { kind: "waiting"; until: number }
  | { kind: "refused"; words: string };

/** The server refused to issue a ticket: a new credential is needed first. The message is for the
    reader. */
export class TicketRefused extends Error {}

/** The used part of a browser's WebSocket. */
export interface Socket {
  onopen: ((this: never, event: never) => void) | null;
  onmessage: ((this: never, event: never) => void) | null;
  onclose: ((this: never, event: never) => void) | null;
  send(text: string): void;
  close(code?: number): void;
}

export interface WatchSocketParts {
  urls(): Promise<readonly string[]>;
  ticket(): Promise<string>;
  /** Gets a new credential after the old one expired or was refused; false: the reader must sign
      in. */
  renew(): Promise<boolean>;
  /** Tries to get a newer credential without the reader. */
  refresh(): Promise<void>;
  connect(url: string, protocols: string[]): Socket;
  later(run: () => void, ms: number): () => void;
  now(): number;
  chance(): number;
  onState(state: WatchSocketState): void;
  onOpen(): void;
  /** Null: the message is invalid. */
  onMessage(message: Incoming | null): void;
}

/** The preferred protocol first. The form of the messages differs; both are parsed. */
const PROTOCOLS = ["tailrace.v2", "tailrace.v1"];
const HANDSHAKE_MS = 10_000;
/** After a socket was open for this time, the reconnect delays start from the shortest again. */
const STABLE_MS = 5000;

export class WatchSocket {
  /** The socket that carries messages; null while there is none. */
  private current: Socket | null = null;
  /** Counts openings; an opening ends when a newer one has started. */
  private opening = 0;
  /** Cancel the pending reconnect or handshake timeout, and the stability timer. No-ops when
      nothing is pending. */
  private cancelRetry: () => void = () => undefined;
  private cancelStable: () => void = () => undefined;
  private attempt = 0;
  private addressIndex = 0;
  private renewals = 0;

  constructor(private readonly parts: WatchSocketParts) {}

  get isOpen(): boolean {
    return this.current !== null;
  }

  send(message: object): void {
    this.current?.send(JSON.stringify(message));
  }

  /** Connects now instead of at the planned time: at the start, when the network is back, or when
      the tab is visible again. */
  connectNow(): void {
    if (this.current === null) void this.open();
  }

  /** Replaces the connection. The old one is used until the new one is open. */
  replace(): void {
    this.addressIndex += 1;
    void this.open();
  }

  /** Drops a dead connection and connects again. */
  drop(): void {
    const old = this.current;
    this.opening += 1;
    this.current = null;
    this.cancelStable();
    this.tryNextAddress();
    old?.close(1000);
  }

  draining(afterMs: number): void {
    const old = this.current;
    this.later(() => {
      if (this.current === old) this.replace();
    }, drainDelay(afterMs, this.parts.chance()));
  }

  /** The server closes this socket when its credential expires. A ticket of a newer credential
      keeps it open. */
  async expiring(): Promise<void> {
    const socket = this.current;
    try {
      await this.parts.refresh();
      const ticket = await this.parts.ticket();
      if (this.current === socket) this.send({ type: "auth", ticket });
    } catch {
      // Without a ticket the server closes the socket, and a new credential is requested then.
    }
  }

  /** Closes all sockets, for example at sign-out. */
  stop(): void {
    this.opening += 1;
    this.cancelRetry();
    const old = this.current;
    this.current = null;
    old?.close(1000);
  }

  private later(run: () => void, ms: number): void {
    this.cancelRetry();
    this.cancelRetry = this.parts.later(run, ms);
  }

  private async open(): Promise<void> {
    this.cancelRetry();
    const openingId = ++this.opening;
    if (this.current === null) this.parts.onState({ kind: "connecting" });
    let urls: readonly string[];
    let ticket: string;
    try {
      urls = await this.parts.urls();
      ticket = await this.parts.ticket();
    } catch (error) {
      if (openingId !== this.opening) return;
      if (error instanceof TicketRefused) await this.renewCredential(error.message);
      else this.retry();
      return;
    }
    if (openingId !== this.opening) return;
    this.dial(openingId, urls[this.addressIndex % urls.length] ?? "", ticket);
  }

  private dial(openingId: number, url: string, ticket: string): void {
    let socket: Socket;
    try {
      socket = this.parts.connect(url, [...PROTOCOLS, `ticket.${ticket}`]);
    } catch {
      // Only an invalid address throws here; the next one may be valid.
      this.tryNextAddress();
      return;
    }
    this.later(() => socket.close(), HANDSHAKE_MS);
    socket.onopen = () => {
      if (openingId !== this.opening) socket.close(1000);
      else this.activate(socket);
    };
    socket.onclose = () => {
      if (openingId === this.opening) this.tryNextAddress();
    };
  }

  private activate(socket: Socket): void {
    this.cancelRetry();
    const old = this.current;
    this.current = socket;
    const watches: Watches = new Map();
    socket.onmessage = ({ data }: { data: unknown }) => {
      if (typeof data === "string") this.parts.onMessage(readMessage(data, watches));
    };
    socket.onclose = ({ code }: { code: number }) => {
      if (this.current === socket) void this.onClose(code);
    };
    this.cancelStable();
    this.cancelStable = this.parts.later(() => {
      this.attempt = 0;
      this.renewals = 0;
    }, STABLE_MS);
    this.parts.onState({ kind: "open" });
    this.parts.onOpen();
    old?.close(1000);
  }

  // The handshake failed: the server is unreachable or refuses. The ticket is used up; the next
  // address is tried.
  private tryNextAddress(): void {
    this.addressIndex += 1;
    this.retry();
  }

  private async onClose(code: number): Promise<void> {
    this.current = null;
    this.cancelStable();
    const { reconnect, words } = closePolicy(code);
    if (reconnect === "renew") await this.renewCredential(words);
    else if (reconnect === "again") this.tryNextAddress();
    else {
      this.opening += 1;
      this.cancelRetry();
      this.parts.onState({ kind: "refused", words: words ?? texts().ended });
    }
  }

  private async renewCredential(words: string | null): Promise<void> {
    const openingId = ++this.opening;
    this.cancelRetry();
    this.renewals += 1;
    // After three refused renewals, a fourth one would not help.
    if (this.renewals <= 3 && (await this.parts.renew())) {
      if (openingId === this.opening) this.retry();
    } else if (openingId === this.opening) {
      this.renewals = 0;
      this.parts.onState({ kind: "refused", words: words ?? texts().credentialExpired });
    }
  }

  private retry(): void {
    const wait = reconnectDelay(this.attempt, this.parts.chance());
    this.attempt += 1;
    if (this.current === null) this.parts.onState({ kind: "waiting", until: this.parts.now() + wait });
    this.later(() => void this.open(), wait);
  }
}
