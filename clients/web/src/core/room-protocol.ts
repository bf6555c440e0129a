/** The messages of `/v1/captions/{room}`, which viewers of a room read. Times are seconds of the room. */

import { parseMessage } from "./protocol.js";

/** What the token allows: `view` reads, `publish` also speaks and renames, `manage` does all. */
export type RoomRole = "view" | "publish" | "manage";

export interface RoomSegment {
  /** A participant's name, or a label such as `S01` from a microphone that several people share. */
  speaker: string;
  start: number;
  end: number;
  text: string;
}

export interface RoomPartialSegment extends RoomSegment {
  committed: boolean;
}

interface Utterance {
  /** Identifies the utterance. */
  entry: string;
  participant: string;
  shared: boolean;
  start: number;
  end: number;
}

/** An utterance that is settled: it never changes, but for the names of its speakers. */
export interface RoomEntry extends Utterance {
  segments: RoomSegment[];
  /** False when the text ends early. */
  complete: boolean;
}

/** An utterance that is being heard; without segments it is taken away. */
export interface RoomPartial extends Utterance {
  segments: RoomPartialSegment[];
}

interface RoomState {
  room: string;
  title: string;
  created_at: number;
  role: RoomRole;
  /** Now, in seconds of the room. */
  clock: number;
  /** Counts settled changes over the whole life of the room. */
  revision: number;
  partials: RoomPartial[];
}

/** Replaces all that is known. */
export interface RoomSnapshot extends RoomState {
  type: "room.snapshot";
  names: Record<string, string>;
  entries: RoomEntry[];
}

/** Entries and names are kept, partials replaced; what is missing follows. */
export interface RoomResumed extends RoomState {
  type: "room.resumed";
}

export interface RoomPartialEvent extends RoomPartial {
  type: "room.partial";
}

export interface RoomEntryEvent extends RoomEntry {
  type: "room.entry";
  revision: number;
}

/** One person had two labels: read `speaker` as `replaced_by` everywhere. */
export interface RoomRelabelled {
  type: "room.relabelled";
  revision: number;
  speaker: string;
  replaced_by: string;
}

export interface RoomRenamed {
  type: "room.renamed";
  revision: number;
  speaker: string;
  /** `null` takes the name away. */
  name: string | null;
}

export interface RoomWarning {
  type: "room.warning";
  code: string;
  message: string;
}

/** The last message before the socket closes. */
export interface RoomClosed {
  type: "room.closed";
  code: number;
  reason: string;
}

export type RoomEvent =
  | RoomSnapshot
  | RoomResumed
  | RoomPartialEvent
  | RoomEntryEvent
  | RoomRelabelled
  | RoomRenamed
  | RoomWarning
  | RoomClosed;

/** Read a text frame; `null` when it is not an event. */
export function parseRoomEvent(text: string): RoomEvent | null {
  return parseMessage(text) as RoomEvent | null;
}
