// Cloudflare's emulator, with schedd's Worker on each queue: node miniflare.mjs '{"place": …, "worker": …, "queues": {…}}'
//
// Each queue NAME has a dead-letter queue NAME-dead, whose messages are kept. One more Worker answers: POST /NAME sends a
// list of messages, GET /NAME gives the dead ones. It ends when its standard input does. A queue that has no consumer in
// the same instance drops what it gets.
import { createRequire } from "node:module";
import { readFileSync } from "node:fs";
import { join } from "node:path";

const { place, worker, queues } = JSON.parse(process.argv[2]);
const { Miniflare } = createRequire(join(place, "package.json"))("miniflare");

const BENCH = `
const bytes = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
const made = { bytes: (text) => bytes(text), v8: (text) => new Map([["body", text]]) };
export default {
  async fetch(request, env) {
    const queue = new URL(request.url).pathname.slice(1);
    if (request.method === "GET") return env.KEPT.fetch("http://kept/" + queue);
    const messages = await request.json();
    await env[queue].sendBatch(messages.map(({ body, contentType, delaySeconds }) =>
      ({ body: (made[contentType] ?? ((one) => one))(body), contentType, delaySeconds })));
    return new Response("sent");
  },
  async queue(batch, env) {
    const bodies = batch.messages.map(({ body }) => body instanceof ArrayBuffer ? { bytes: [...new Uint8Array(body)] }
      : body instanceof Map ? { map: [...body] } : { body });
    await env.KEPT.fetch("http://kept/" + batch.queue.slice(0, -5), { method: "POST", body: JSON.stringify(bodies) });
  },
};`;

const kept = new Map(Object.keys(queues).map((name) => [name, []]));
const keep = async (request) => {
  const bodies = kept.get(new URL(request.url).pathname.slice(1));
  if (request.method === "POST") bodies.push(...(await request.json()));
  return Response.json(bodies);
};
const batches = { maxBatchSize: 10, maxBatchTimeout: 0.05 };
const names = Object.keys(queues);
const miniflare = new Miniflare({
  host: "127.0.0.1",
  port: 0,
  compatibilityDate: "2026-07-01",
  workers: [
    {
      name: "bench",
      modules: [{ type: "ESModule", path: "bench.js", contents: BENCH }],
      queueProducers: Object.fromEntries(names.map((name) => [name, name])),
      queueConsumers: Object.fromEntries(names.map((name) => [`${name}-dead`, batches])),
      serviceBindings: { KEPT: keep },
    },
    ...names.map((name) => ({
      name: `schedd-${name}`,
      modules: [{ type: "ESModule", path: "worker.js", contents: readFileSync(worker, "utf8") }],
      bindings: queues[name].bindings,
      queueProducers: queues[name].buries ? { DEAD_LETTERS: `${name}-dead` } : {},
      queueConsumers: {
        [name]: { ...batches, maxRetries: queues[name].maxRetries, deadLetterQueue: `${name}-dead` },
      },
    })),
  ],
});
console.log(`at ${await miniflare.ready}`);
process.stdin.resume().on("end", () => miniflare.dispose().then(() => process.exit(0)));
