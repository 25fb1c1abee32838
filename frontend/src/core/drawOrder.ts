/* Which turns of a long chat are drawn first. */

/** The places in drawing order: first those in sight from the top, then the others from the newest. */
export function drawOrder(places: readonly number[], isInSight: (place: number) => boolean): readonly number[] {
  return [...places.filter(isInSight), ...places.filter((place) => !isInSight(place)).reverse()];
}
