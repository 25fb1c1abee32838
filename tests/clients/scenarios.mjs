// What every Node client's script shares; lines for the harness as in scenarios.py.
import { existsSync, readFileSync } from "node:fs";

export const BASE = process.env.TAILRACE_CLIENT_BASE; // ends in /v1
export const KEY = process.env.TAILRACE_CLIENT_KEY;
export const MODEL = process.env.TAILRACE_CLIENT_MODEL;

export const WEATHER = 'call get_weather {"city": "Paris"}';
export const LONG_CALL = "call get_weather 150"; // so many tokens, about two seconds

const say = (line) => process.stdout.write(`${JSON.stringify(line)}\n`);

export const killWorker = () => say({ kill: "worker" });

const done = () => {
  const file = process.env.TAILRACE_CLIENT_DONE;
  return existsSync(file) ? readFileSync(file, "utf8").split("\n").length : 0;
};

// Says it, and waits until the harness has done it.
async function ask(line) {
  const before = done();
  say(line);
  for (let waited = 0; done() === before; waited += 50) {
    check(waited < 60_000, line, "was not done");
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}

export const restartGateway = () => ask({ restart: "gateway" });
export const emptyRedis = () => ask({ empty: "redis" });

export function check(condition, ...seen) {
  if (!condition) throw new Error(seen.map((each) => JSON.stringify(each)).join(" | ") || "not so");
}

export const same = (a, b) => check(JSON.stringify(a) === JSON.stringify(b), a, b);

// `scenarios`: names to functions; what they return is shown.
export async function main(scenarios) {
  let failed = 0;
  const named = process.argv.slice(2);
  for (const [name, run] of Object.entries(scenarios)) {
    if (named.length && !named.includes(name)) continue;
    try {
      say({ scenario: name, ok: true, saw: String(await run()).slice(0, 300) });
    } catch (error) {
      failed += 1;
      console.error(error);
      say({ scenario: name, ok: false, saw: `${error.name}: ${error.message}`.slice(0, 2000) });
    }
  }
  process.exit(failed ? 1 : 0);
}
