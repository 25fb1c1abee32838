/* Scales of a plot. */

/** 0 and a few round numbers; the last is at least `most`. `whole`: whole numbers only. `target`:
    the wanted number of steps. */
export function ticks(most: number, whole = false, target = 4): number[] {
  if (!(most > 0)) return [0, 1];
  const raw = whole ? Math.max(1, most / target) : most / target;
  const power = 10 ** Math.floor(Math.log10(raw));
  const rounds = whole && power < 10 ? [1, 2, 5, 10] : [1, 2, 2.5, 5, 10];
  const step = (rounds.find((each) => each * power >= raw * 0.999999) ?? 10) * power;
  return Array.from({ length: Math.ceil(most / step - 1e-9) + 1 }, (_, at) => Number((at * step).toPrecision(12)));
}

const MINUTE = 60_000;
const STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 180, 360, 720, 1440, 2880, 7200, 14400].map((minutes) => minutes * MINUTE);

/** Round local times within a range, at most `target`. `offset`: minutes from local time to UTC. */
export function timeTicks(from: number, to: number, target: number, offset = new Date(from).getTimezoneOffset()): number[] {
  const step = STEPS.find((each) => (to - from) / each <= target) ?? to - from;
  const shift = offset * MINUTE;
  const times: number[] = [];
  for (let time = Math.ceil((from - shift) / step) * step + shift; time < to; time += step) times.push(time);
  return times;
}

/** The lower and the upper end of each bar, for stacked bars. */
export function stacked(series: readonly (number | null)[][]): { from: number; to: number }[][] {
  const height: number[] = [];
  return series.map((values) =>
    values.map((value, at) => {
      const from = height[at] ?? 0;
      const to = from + (value ?? 0);
      height[at] = to;
      return { from, to };
    }),
  );
}
