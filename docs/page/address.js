// The program in the address of the page, behind `#`: whoever gets the address sees the same.

const LONGEST = 30_000; // characters; servers and messengers cut longer addresses

async function through(bytes, stream) {
  return new Uint8Array(await new Response(new Blob([bytes]).stream().pipeThrough(stream)).arrayBuffer());
}

// "" for a program that is too long for an address.
export async function packed(program) {
  const bytes = await through(new TextEncoder().encode(JSON.stringify(program)), new CompressionStream("deflate-raw"));
  let text = "";
  for (const byte of bytes) text += String.fromCharCode(byte);
  const found = btoa(text).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
  return found.length > LONGEST ? "" : `#${found}`;
}

// null for what is no program.
export async function unpacked(hash) {
  try {
    const text = atob(hash.slice(1).replaceAll("-", "+").replaceAll("_", "/"));
    const bytes = Uint8Array.from(text, sign => sign.charCodeAt(0));
    const found = JSON.parse(new TextDecoder().decode(await through(bytes, new DecompressionStream("deflate-raw"))));
    return typeof found.text === "string" ? complete(found) : null;
  } catch {
    return null;
  }
}

export function complete({ text, files, strategy, ranks, overrides }) {
  return { text, files: files ?? {}, strategy: strategy ?? null, ranks: ranks ?? null, overrides: overrides ?? {} };
}
