/* Which turns of a long chat are drawn first. */

/** The places that are left, in the order in which they are drawn: what is in sight from its top, then the newest first. */
export function drawOrder(places: readonly number[], isInSight: (place: number) => boolean): readonly number[] {
  return [...places.filter(isInSight), ...places.filter((place) => !isInSight(place)).reverse()];
}
