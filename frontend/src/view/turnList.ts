/* The turns on show. When a chat is opened its last turns are drawn at once, and the others when the browser has nothing else
   to do, or when they come into sight. Until then an empty place is held for each. A turn that is as it was drawn is left
   alone, however often is drawn. */

import type { Turn } from "../core/conversation";
import { drawOrder } from "../core/drawOrder";
import { h } from "./dom";
import { markdown } from "./lazyMarkdown";
import type { TurnContext, TurnView } from "./turn";

/** When a chat is opened; as many more as can be drawn in the time of a slice. */
const AT_ONCE = 2;
/** So long turns that wait may be drawn without a pause; one of them in any case. */
const SLICE_MS = 8;
/** Those so near count as in sight. */
const NEAR = "100% 0px";

export interface TurnListParts {
  /** What scrolls, and in it what holds the turns. */
  scroller: HTMLElement;
  box: HTMLElement;
  view(turn: Turn): TurnView;
  /** This turn was drawn, because it changed or for the first time. */
  onDraw(turn: Turn, contextFor: TurnContext): void;
  /** There is more to draw, though nothing of the chat changed. */
  redraw(): void;
}

type ContextFor = (turn: Turn, place: number) => TurnContext;

export class TurnList {
  private readonly views = new Map<string, TurnView>();
  /** What holds the place of a turn that waits to be drawn. */
  private readonly placeholders = new Map<string, HTMLElement>();
  private readonly inSight = new Set<Element>();
  private readonly observer: IntersectionObserver;
  /** The turn that is drawn next, wherever it is. */
  private nextTurn: string | null = null;
  /** Draws what waits, when there is time. */
  private idle: (() => void) | null = null;

  constructor(private readonly parts: TurnListParts) {
    this.observer = new IntersectionObserver((entries) => this.onIntersection(entries), { root: parts.scroller, rootMargin: NEAR });
  }

  clear(): void {
    this.keepOnly(new Set());
    this.nextTurn = null;
    this.idle = null;
  }

  /** Null where it is not drawn yet. */
  get(turnId: string): TurnView | null {
    return this.views.get(turnId) ?? null;
  }

  prioritize(turnId: string): void {
    this.nextTurn = turnId;
  }

  /** Returns true when more is to be drawn with the next frame. */
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

  /** Turns are left that wait. */
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

// Safari has no idle time to give.
function whenIdle(run: () => void): void {
  if (typeof requestIdleCallback === "function") requestIdleCallback(run);
  else setTimeout(run, 1);
}
