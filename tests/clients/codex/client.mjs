// Codex CLI: `codex exec` with its own tools; the scripted model answers with a shell call.
import { spawnSync } from "node:child_process";
import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { BASE, KEY, MODEL, check, main } from "./scenarios.mjs";

const home = mkdtempSync(join(tmpdir(), "codex-"));
const work = join(home, "work");
process.on("exit", () => rmSync(home, { recursive: true, force: true }));

function configured(socket) {
  mkdirSync(work, { recursive: true });
  writeFileSync(
    join(home, "config.toml"),
    `model = "${MODEL}"
model_provider = "tailrace"
check_for_update_on_startup = false
[analytics]
enabled = false
[model_providers.tailrace]
name = "Tailrace"
base_url = "${BASE}"
env_key = "TAILRACE_CLIENT_KEY"
wire_api = "responses"
supports_websockets = ${socket}
request_max_retries = 0
stream_max_retries = 0
`,
  );
}

function exec(prompt, { socket = false, more = [] } = {}) {
  configured(socket);
  const done = spawnSync(
    "node_modules/.bin/codex",
    [
      "exec", "--json", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox",
      "-C", work, ...more, prompt,
    ],
    {
      env: { PATH: process.env.PATH, HOME: home, CODEX_HOME: home, TAILRACE_CLIENT_KEY: KEY },
      encoding: "utf8",
      timeout: 60_000,
      input: "",
    },
  );
  const events = done.stdout.split("\n").filter((line) => line.startsWith("{")).map((line) => JSON.parse(line));
  const items = events.filter((event) => event.type === "item.completed").map((event) => event.item);
  const said = items.filter((item) => item.type === "agent_message").map((item) => item.text);
  check(done.status === 0, done.status, done.stdout.slice(-1200), done.stderr.slice(-600));
  return { items, said, events };
}

const shell = (command) => `call exec_command ${JSON.stringify({ cmd: command })}`;

await main({
  "a shell call": () => {
    const { items, said } = exec(`${shell("echo made-$((6*7)) > made.txt; cat made.txt")}\nthen\nsay Done.`);
    check(readFileSync(join(work, "made.txt"), "utf8").trim() === "made-42", items);
    check(said.at(-1) === "Done.", items);
    return said.at(-1);
  },
  "its output is in the next request": () => {
    const { items, said } = exec(shell("echo 4711"));
    check(said.at(-1)?.includes("4711"), items);
    return said.at(-1);
  },
  "an output schema": () => {
    const file = join(home, "schema.json");
    writeFileSync(
      file,
      JSON.stringify({
        type: "object",
        properties: { answer: { type: "string" } },
        required: ["answer"],
        additionalProperties: false,
      }),
    );
    const { said } = exec('json {"answer": "42"}', { more: ["--output-schema", file] });
    check(JSON.parse(said.at(-1)).answer === "42", said);
    return said.at(-1);
  },
  "a shell call over the socket": () => {
    rmSync(join(work, "made.txt"), { force: true });
    const { items, said } = exec(`${shell("echo x > made.txt")}\nthen\nsay Done.`, { socket: true });
    check(existsSync(join(work, "made.txt")), items);
    check(said.at(-1) === "Done.", items);
    return said.at(-1);
  },
});
