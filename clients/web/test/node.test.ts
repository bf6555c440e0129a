/** The package as others get it: imported by its name into a Node of its own, over a real socket. */

import { spawn } from "node:child_process";
import { once } from "node:events";
import { readFileSync } from "node:fs";
import type { AddressInfo } from "node:net";
import { afterAll, beforeAll, expect, test } from "vitest";
import { WebSocketServer, type WebSocket } from "ws";
import { Server, type Peer } from "./network";

const listener = new WebSocketServer({ port: 0, host: "127.0.0.1", handleProtocols: () => "realtime" });
const server = new Server();
const sockets: WebSocket[] = [];

listener.on("connection", (socket, request) => {
  sockets.push(socket);
  const peer: Peer = {
    url: new URL(request.url ?? "", "ws://127.0.0.1").href,
    push: (event) => socket.send(JSON.stringify(event)),
    end: (code) => socket.close(code),
  };
  socket.on("message", (data: Buffer, isBinary) => {
    const samples = () => Int16Array.from({ length: data.length / 2 }, (_, index) => data.readInt16LE(2 * index));
    server.onMessage(peer, isBinary ? samples() : data.toString());
    // The network fails in the middle.
    if (isBinary && sockets.length === 1) socket.terminate();
  });
  socket.on("close", (code) => server.onGone(peer, code));
  server.onOpen(peer);
});

beforeAll(async () => {
  if (listener.address() === null) await once(listener, "listening");
});

afterAll(() => {
  listener.close();
});

/** Versions before 22 have the WebSocket, but want to be asked. */
const FLAGS = Number(process.versions.node.split(".")[0]) < 22 ? ["--experimental-websocket", "--no-warnings"] : [];

const PROGRAM = `
  import { Connection, TranscriptStore, render } from "@moss-stream/client";
  const transcript = new TranscriptStore();
  const connection = new Connection({
    url: process.argv[1],
    rate_hz: 16000,
    key: "secret",
    onEvent: (event) => {
      if (event.kind === "server") transcript.apply(event.event, event.offset_s);
    },
  });
  for (let block = 0; block < 14; block++) {
    connection.send(new Int16Array(500).fill(block));
    await connection.drained(0.05);
  }
  const reason = await connection.finish();
  console.log(JSON.stringify({ reason, srt: render(transcript.segments, "srt") }));
`;

/** Run a program in a Node of its own; what it prints. */
async function run(program: string, ...args: string[]): Promise<string> {
  const child = spawn(process.execPath, [...FLAGS, "--input-type=module", "--eval", program, ...args], {
    stdio: ["ignore", "pipe", "inherit"],
  });
  const output: Buffer[] = [];
  child.stdout.on("data", (data: Buffer) => output.push(data));
  const [code] = (await once(child, "close")) as [number];
  expect(code).toBe(0);
  return Buffer.concat(output).toString();
}

const address = () => `127.0.0.1:${(listener.address() as AddressInfo).port}`;

test("a program in Node gets its captions, across a socket that is cut", async () => {
  const output = await run(PROGRAM, `ws://${address()}/v1/realtime`);
  const { reason, srt } = JSON.parse(output) as { reason: string; srt: string };
  expect(reason).toBe("finished");
  expect(sockets).toHaveLength(2);
  expect(server.sessions.map(({ samples }) => samples.length)).toEqual([7000]);
  expect(srt.match(/-->/g)).toHaveLength(10);
});

test("the example of the project's README gets its segments", async () => {
  const readme = readFileSync(new URL("../../../README.md", import.meta.url), "utf-8");
  const [example, ...others] = [...readme.matchAll(/^```ts\n(.*?)^```$/gms)].map(([, code]) => code ?? "");
  expect(others).toEqual([]);
  const output = await run(`const samples = new Int16Array(7000);\n${example?.replace("127.0.0.1:8000", address())}`);
  expect(output.match(/speaker: /g)?.length).toBeGreaterThan(3);
});
