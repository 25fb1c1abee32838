/* The turns on show. When a chat is opened its last turns are drawn at once, and the others when the browser has nothing else
   to do, or when they come into sight. Until then an empty place is held for each. A turn that is as it was drawn is left
   alone, however often is drawn. */

import type { Turn } from "../core/conversation";
import { drawOrder } from "../core/drawOrder";
import { h } from "./dom";
import { markdown } from "./lazyMarkdown";
import type { Surroundings, TurnView } from "./turn";

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
  drawn(turn: Turn, around: Surroundings): void;
  /** There is more to draw, though nothing of the chat changed. */
  again(): void;
}

type Around = (turn: Turn, place: number) => Surroundings;

export class TurnList {
  private readonly views = new Map<string, TurnView>();
  /** What holds the place of a turn that waits to be drawn. */
  private readonly places = new Map<string, HTMLElement>();
  private readonly inSight = new Set<Element>();
  private readonly observer: IntersectionObserver;
  /** The turn that is drawn next, wherever it is. */
  private wanted: string | null = null;
  /** Draws what waits, when there is time. */
  private idle: (() => void) | null = null;

  constructor(private readonly parts: TurnListParts) {
    this.observer = new IntersectionObserver((seen) => this.moved(seen), { root: parts.scroller, rootMargin: NEAR });
  }

  clear(): void {
    this.keepOnly(new Set());
    this.wanted = null;
    this.idle = null;
  }

  /** Null where it is not drawn yet. */
  get(turnId: string): TurnView | null {
    return this.views.get(turnId) ?? null;
  }

  want(turnId: string): void {
    this.wanted = turnId;
  }

  /** Returns true when more is to be drawn with the next frame. */
  draw(turns: readonly Turn[], around: Around): boolean {
    const least = this.views.size === 0 ? AT_ONCE : 1;
    this.keepOnly(new Set(turns.map(({ id }) => id)));
    const { box } = this.parts;
    let later = false;
    turns.forEach((turn, place) => {
      const view = this.views.get(turn.id);
      const element = view?.element ?? this.place(turn.id);
      if (box.children[place] !== element) box.insertBefore(element, box.children[place] ?? null);
      if (view !== undefined) later = this.update(view, turn, around(turn, place)) || later;
    });
    return this.drawWaiting(turns, around, least) || later;
  }

  private drawWaiting(turns: readonly Turn[], around: Around, least: number): boolean {
    const left = turns.flatMap(({ id }, place) => (this.views.has(id) ? [] : [place]));
    const until = performance.now() + SLICE_MS;
    let later = false;
    for (const [count, place] of drawOrder(left, (each) => this.isInSight(turns[each]?.id)).entries()) {
      if (count >= least && (markdown.isComing || performance.now() > until)) return this.goOn(turns, around) || later;
      const turn = turns[place] as Turn;
      later = this.update(this.add(turn), turn, around(turn, place)) || later;
    }
    this.wanted = null;
    this.idle = null;
    return later;
  }

  /** Turns are left that wait. */
  private goOn(turns: readonly Turn[], around: Around): boolean {
    if (markdown.isComing) {
      markdown.bring(this.parts.again);
      return false;
    }
    if (this.inSight.size > 0) return true;
    if (this.idle === null) whenIdle(() => this.idle?.());
    this.idle = () => {
      this.idle = null;
      if (this.drawWaiting(turns, around, 1)) this.parts.again();
    };
    return false;
  }

  private moved(seen: readonly IntersectionObserverEntry[]): void {
    for (const { target, isIntersecting } of seen) {
      if (isIntersecting) this.inSight.add(target);
      else this.inSight.delete(target);
    }
    if (this.inSight.size > 0) this.parts.again();
  }

  private update(view: TurnView, turn: Turn, around: Surroundings): boolean {
    if (view.shows(turn, around)) return false;
    const later = view.update(turn, around, performance.now());
    this.parts.drawn(turn, around);
    return later;
  }

  private isInSight(turnId: string | undefined): boolean {
    return turnId !== undefined && (turnId === this.wanted || this.inSight.has(this.place(turnId)));
  }

  private add(turn: Turn): TurnView {
    const view = this.parts.view(turn);
    this.views.set(turn.id, view);
    this.place(turn.id).replaceWith(view.element);
    this.leave(turn.id);
    return view;
  }

  private place(turnId: string): HTMLElement {
    let found = this.places.get(turnId);
    if (found === undefined) {
      found = h("article", { class: "turn", "aria-busy": "true" });
      this.places.set(turnId, found);
      this.observer.observe(found);
    }
    return found;
  }

  private leave(turnId: string): void {
    const place = this.places.get(turnId);
    if (place === undefined) return;
    place.remove();
    this.observer.unobserve(place);
    this.inSight.delete(place);
    this.places.delete(turnId);
  }

  private keepOnly(kept: ReadonlySet<string>): void {
    for (const [id, { element }] of this.views) {
      if (kept.has(id)) continue;
      element.remove();
      this.views.delete(id);
    }
    for (const id of this.places.keys()) if (!kept.has(id)) this.leave(id);
  }
}

// Safari has no idle time to give.
function whenIdle(run: () => void): void {
  if (typeof requestIdleCallback === "function") requestIdleCallback(run);
  else setTimeout(run, 1);
}
