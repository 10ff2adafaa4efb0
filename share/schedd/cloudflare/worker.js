// The consumer of a queue: posts its batches to schedd's door, and settles each message as schedd says.
//
// SCHEDD_URL      where the door is, without a path: https://schedd.example.com
// SCHEDD_SOURCE   the name in [sources.NAME]; the queue's name if it is not set
// SCHEDD_TOKEN    a secret: the source's token; or
// SCHEDD_SECRET   a secret: the source's secret, for signatures of Standard Webhooks
// SCHEDD_RETRY    seconds until the first retry after an HTTP failure, 10; each later one waits twice as long
// DEAD_LETTERS    a producer of the dead-letter queue: messages that schedd can never take go there at once
//
// It never throws, since that would bring back messages whose verdict is not known yet; nor does it work on after the
// verdicts. A message without a verdict is tried again.

const MAX_POST = 1_000_000; // bytes of the bodies of one request; [door] max_body is more
const TIMEOUT_MS = 60_000; // with ack = "end" the door answers within 20 s
const MAX_DELAY = 3_600; // seconds between two tries
const LONGEST = 43_200; // Cloudflare delays for 12 hours at most

export default {
  async queue(batch, env) {
    for (const part of split(batch.messages.map(encode))) {
      let verdicts = new Map();
      let after = 0;
      try {
        const answer = await post(batch.queue, part, env);
        if (answer.ok) {
          verdicts = new Map((await answer.json()).verdicts.map((one) => [one.id, one]));
        } else {
          after = Number(answer.headers.get("retry-after")) || 0;
          console.error(`schedd answered ${answer.status}: ${(await answer.text()).slice(0, 200)}`);
        }
      } catch (error) {
        console.error(`schedd cannot be reached: ${error}`);
      }
      for (const one of part) {
        await settle(one, verdicts.get(one.message.id), after, env);
      }
    }
  },
};

async function settle({ message, content, fields }, said, after, env) {
  const pause = Math.max(after, Math.min((Number(env.SCHEDD_RETRY) || 10) * 2 ** (message.attempts - 1), MAX_DELAY));
  const again = { delaySeconds: Math.min(Math.ceil(pause), LONGEST) };
  if (said?.verdict === "ack") {
    message.ack();
  } else if (said?.verdict === "retry") {
    message.retry({ delaySeconds: said.delay_seconds });
  } else if (said?.verdict === "dead" && env.DEAD_LETTERS) {
    console.error(`message ${fields.id} is dead: ${said.reason}`);
    try {
      await env.DEAD_LETTERS.send(sendable(message.body), { contentType: content });
      message.ack();
    } catch (error) {
      console.error(`the dead-letter queue did not take message ${fields.id}: ${error}`);
      message.retry(again);
    }
  } else {
    message.retry(again); // a dead one, too: max_retries moves it
  }
}

// A message, and what schedd gets of it: its body as text, JSON, or base64.
function encode(message) {
  const body = message.body;
  let content = "json";
  let text;
  if (typeof body === "string") {
    content = "text";
    text = body;
  } else if (isBytes(body)) {
    content = "bytes";
    text = base64(sendable(body));
  } else {
    try {
      text = isPlain(body) ? JSON.stringify(body) : undefined;
    } catch {
      text = undefined; // a BigInt, or a circle
    }
    if (text === undefined) {
      content = "v8";
    }
  }
  const { id, attempts, timestamp } = message;
  const fields = { id, attempts, timestamp_ms: timestamp.getTime(), content_type: content, body: text ?? "" };
  return { message, content, fields };
}

function isBytes(body) {
  return body instanceof ArrayBuffer || body instanceof Uint8Array;
}

// Bytes arrive as an ArrayBuffer, and are sent as a view of one.
function sendable(body) {
  return body instanceof ArrayBuffer ? new Uint8Array(body) : body;
}

// A Map or a Date becomes JSON, too, but not the one that was meant.
function isPlain(body) {
  return body === null || typeof body !== "object" || Array.isArray(body) || Object.getPrototypeOf(body) === Object.prototype;
}

function* split(all) {
  let part = [];
  let size = 0;
  for (const one of all) {
    const more = one.fields.body.length;
    if (part.length > 0 && size + more > MAX_POST) {
      yield part;
      part = [];
      size = 0;
    }
    part.push(one);
    size += more;
  }
  if (part.length > 0) {
    yield part;
  }
}

async function post(queue, part, env) {
  const body = JSON.stringify({ queue, messages: part.map((one) => one.fields) });
  const headers = { "content-type": "application/json" };
  if (env.SCHEDD_TOKEN) {
    headers.authorization = `Bearer ${env.SCHEDD_TOKEN}`;
  }
  if (env.SCHEDD_SECRET) {
    Object.assign(headers, await sign(env.SCHEDD_SECRET, body));
  }
  const url = `${env.SCHEDD_URL.replace(/\/+$/, "")}/v1/sources/${encodeURIComponent(env.SCHEDD_SOURCE || queue)}`;
  return fetch(url, { method: "POST", headers, body, signal: AbortSignal.timeout(TIMEOUT_MS) });
}

// https://www.standardwebhooks.com
async function sign(secret, body) {
  const utf8 = new TextEncoder();
  const bytes = secret.startsWith("whsec_")
    ? Uint8Array.from(atob(secret.slice(6)), (letter) => letter.charCodeAt(0))
    : utf8.encode(secret);
  const key = await crypto.subtle.importKey("raw", bytes, { name: "HMAC", hash: "SHA-256" }, false, ["sign"]);
  const id = crypto.randomUUID();
  const at = String(Math.floor(Date.now() / 1000));
  const made = await crypto.subtle.sign("HMAC", key, utf8.encode(`${id}.${at}.${body}`));
  return {
    "webhook-id": id,
    "webhook-timestamp": at,
    "webhook-signature": `v1,${base64(new Uint8Array(made))}`,
  };
}

function base64(bytes) {
  let text = "";
  for (let start = 0; start < bytes.length; start += 8192) {
    text += String.fromCharCode(...bytes.subarray(start, start + 8192));
  }
  return btoa(text);
}
