import { describe, expect, test } from "vitest";
import { answers, rig, steady } from "./rig";

describe("speakers that are one", () => {
  test("are told to the server at once", () => {
    const { clock, server, events, connection } = rig(steady, () => 0.5);
    connection.start();
    clock.run(200);
    connection.mergeSpeakers("S02", "S01");
    clock.run(240);
    expect(answers(events)).toEqual(["S02 is S01"]);
    expect(server.sessions[0]?.merges).toEqual(["S02 S01"]);
  });

  test("are told in order once the network is back, before the end", async () => {
    const network = { isDown: false };
    const { clock, server, events, sockets, connection } = rig({ ...steady, cut: () => network.isDown }, () => 0.5);
    connection.start();
    clock.run(200);
    network.isDown = true;
    sockets[0]?.end(1006);
    clock.run(1000);
    connection.mergeSpeakers("S03", "S02");
    connection.mergeSpeakers("S02", "S01");
    const ended = connection.finish();
    clock.run(5000);
    network.isDown = false;
    clock.run(20_000);
    expect(await ended).toBe("finished");
    expect(server.sessions.map(({ merges }) => merges)).toEqual([["S03 S02", "S02 S01"]]);
    expect(answers(events)).toEqual(["S03 is S02", "S02 is S01"]);
  });

  test("are not told twice when the answer was lost", () => {
    const { clock, server, events, sockets, connection } = rig(steady, () => 0.5);
    connection.start();
    clock.run(200);
    connection.mergeSpeakers("S02", "S01");
    clock.run(220); // The server has it, and its answer is on the way.
    expect(server.sessions[0]?.merges).toEqual(["S02 S01"]);
    connection.networkChanged();
    connection.mergeSpeakers("S03", "S01");
    clock.run(5000);
    expect(sockets).toHaveLength(2);
    expect(server.sessions[0]?.merges).toEqual(["S02 S01", "S03 S01"]);
    expect(answers(events)).toEqual(["S02 is S01", "S03 is S01"]);
  });

  test("do not keep the end waiting when the answer comes in the replay", async () => {
    const { clock, server, sockets, connection } = rig(steady, () => 0.5);
    connection.start();
    clock.run(200);
    connection.mergeSpeakers("S02", "S01");
    const ended = connection.finish();
    sockets[0]?.push({ type: "moss.warning", code: "later", message: "", moss: { seq: 99 } });
    clock.run(20_000);
    expect(await ended).toBe("finished");
    expect(server.sessions[0]?.merges).toEqual(["S02 S01"]);
  });

  test.each([
    ["S09", "S01", true, "speaker"],
    ["S01", "S01", true, "into"],
    ["S02", "S01", false, "type"],
  ])("are not told again when the server refuses %s as %s", (speaker, into, knowsMerges, param) => {
    const { clock, server, events, sockets, connection } = rig(steady, () => 0.5);
    server.knowsMerges = knowsMerges;
    connection.start();
    clock.run(200);
    connection.mergeSpeakers(speaker, into);
    clock.run(400);
    expect(answers(events)).toEqual([`error in ${param}`]);
    connection.networkChanged();
    clock.run(1000);
    expect(sockets).toHaveLength(2);
    expect(connection.state).toBe("live");
    expect(server.sessions[0]?.merges).toHaveLength(1);
  });

  test("are forgotten with the session whose labels they have", () => {
    const { clock, server, events, sockets, connection } = rig(steady, () => 0.5);
    connection.start();
    clock.run(200);
    server.expired.add("token-0");
    sockets[0]?.end(1006);
    clock.run(221);
    connection.mergeSpeakers("S02", "S01");
    clock.run(10_000);
    expect(server.sessions.map(({ merges }) => merges)).toEqual([[], []]);
    expect(answers(events)).toEqual(["error in undefined"]); // that there is no such session
  });
});
