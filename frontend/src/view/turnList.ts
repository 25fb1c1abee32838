/* The turns of the open chat. The last turns are drawn at once, the others when the browser is idle
   or when they become visible. Until then each has an empty placeholder. An unchanged turn is not
   drawn again. */

import type { Turn } from "../core/conversation";
import { drawOrder } from "../core/drawOrder";
import { h } from "./dom";
import { markdown } from "./lazyMarkdown";
import type { TurnContext, TurnView } from "./turn";

/** The number of turns that are drawn when a chat is opened; more are drawn if the time of a slice
    allows. */
const AT_ONCE = 2;
/** The time limit for drawing waiting turns without a pause; at least one is drawn. */
const SLICE_MS = 8;
/** Turns within this distance count as visible. */
const NEAR = "100% 0px";

export interface TurnListParts {
  /** The scrolling element, and the element in it that holds the turns. */
  scroller: HTMLElement;
  box: HTMLElement;
  view(turn: Turn): TurnView;
  /** A turn was drawn: it changed, or was drawn for the first time. */
  onDraw(turn: Turn, contextFor: TurnContext): void;
  /** More must be drawn, although the chat did not change. */
  redraw(): void;
}

type ContextFor = (turn: Turn, place: number) => TurnContext;

export class TurnList {
  private readonly views = new Map<string, TurnView>();
  /** By turn that is not drawn yet. */
  private readonly placeholders = new Map<string, HTMLElement>();
  private readonly inSight = new Set<Element>();
  private readonly observer: IntersectionObserver;
  /** The turn that is drawn next, at any position; null: none. */
  private nextTurn: string | null = null;
  /** Draws waiting turns when the browser is idle; null: not planned. */
  private idle: (() => void) | null = null;

  constructor(private readonly parts: TurnListParts) {
    this.observer = new IntersectionObserver((entries) => this.onIntersection(entries), { root: parts.scroller, rootMargin: NEAR });
  }

  clear(): void {
    this.keepOnly(new Set());
    this.nextTurn = null;
    this.idle = null;
  }

  /** Null: the turn is not drawn yet. */
  get(turnId: string): TurnView | null {
    return this.views.get(turnId) ?? null;
  }

  prioritize(turnId: string): void {
    this.nextTurn = turnId;
  }

  /** Returns true when more must be drawn with the next frame. */
  draw(turns: readonly Turn[], contextFor: ContextFor): boolean {
    const least = this.views.size === 0 ? AT_ONCE : 1;
    this.keepOnly(new Set(turns.map(({ id }) => id)));
    const { box } = this.parts;
    let later = false;
    turns.forEach((turn, place) => {
      const view = this.views.get(turn.id);
      const element = view?.element ?? this.placeholder(turn.id);
      if (box.children[place] !== element) box.insertBefore(element, box.children[place] ?? null);
      if (view !== undefined) later = this.update(view, turn, contextFor(turn, place)) || later;
    });
    return this.drawWaiting(turns, contextFor, least) || later;
  }

  private drawWaiting(turns: readonly Turn[], contextFor: ContextFor, least: number): boolean {
    const waiting = turns.flatMap(({ id }, place) => (this.views.has(id) ? [] : [place]));
    const until = performance.now() + SLICE_MS;
    let later = false;
    for (const [count, place] of drawOrder(waiting, (each) => this.isInSight(turns[each]?.id)).entries()) {
      if (count >= least && (markdown.isLoading || performance.now() > until)) return this.drawLater(turns, contextFor) || later;
      const turn = turns[place] as Turn;
      later = this.update(this.add(turn), turn, contextFor(turn, place)) || later;
    }
    this.nextTurn = null;
    this.idle = null;
    return later;
  }

  /** Plans the drawing of the remaining turns. */
  private drawLater(turns: readonly Turn[], contextFor: ContextFor): boolean {
    if (markdown.isLoading) {
      markdown.load(this.parts.redraw);
      return false;
    }
    if (this.inSight.size > 0) return true;
    if (this.idle === null) whenIdle(() => this.idle?.());
    this.idle = () => {
      this.idle = null;
      if (this.drawWaiting(turns, contextFor, 1)) this.parts.redraw();
    };
    return false;
  }

  private onIntersection(entries: readonly IntersectionObserverEntry[]): void {
    for (const { target, isIntersecting } of entries) {
      if (isIntersecting) this.inSight.add(target);
      else this.inSight.delete(target);
    }
    if (this.inSight.size > 0) this.parts.redraw();
  }

  private update(view: TurnView, turn: Turn, contextFor: TurnContext): boolean {
    if (view.shows(turn, contextFor)) return false;
    const later = view.update(turn, contextFor, performance.now());
    this.parts.onDraw(turn, contextFor);
    return later;
  }

  private isInSight(turnId: string | undefined): boolean {
    return turnId !== undefined && (turnId === this.nextTurn || this.inSight.has(this.placeholder(turnId)));
  }

  private add(turn: Turn): TurnView {
    const view = this.parts.view(turn);
    this.views.set(turn.id, view);
    this.placeholder(turn.id).replaceWith(view.element);
    this.removePlaceholder(turn.id);
    return view;
  }

  private placeholder(turnId: string): HTMLElement {
    let element = this.placeholders.get(turnId);
    if (element === undefined) {
      element = h("article", { class: "turn", "aria-busy": "true" });
      this.placeholders.set(turnId, element);
      this.observer.observe(element);
    }
    return element;
  }

  private removePlaceholder(turnId: string): void {
    const place = this.placeholders.get(turnId);
    if (place === undefined) return;
    place.remove();
    this.observer.unobserve(place);
    this.inSight.delete(place);
    this.placeholders.delete(turnId);
  }

  private keepOnly(ids: ReadonlySet<string>): void {
    for (const [id, { element }] of this.views) {
      if (ids.has(id)) continue;
      element.remove();
      this.views.delete(id);
    }
    for (const id of this.placeholders.keys()) if (!ids.has(id)) this.removePlaceholder(id);
  }
}

// Safari has no requestIdleCallback.
function whenIdle(run: () => void): void {
  if (typeof requestIdleCallback === "function") requestIdleCallback(run);
  else setTimeout(run, 1);
}
