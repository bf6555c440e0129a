/**
 * The messages of `/v1/realtime`: OpenAI Realtime transcription, and what moss-stream adds to it.
 *
 * Only the fields that this client reads are typed. An event of an unknown type is passed on
 * untouched, so a newer server does not break an older client.
 */

/** Rates at which the server takes `audio/pcm`, in Hz. */
export const PCM_RATES_HZ = [8000, 16000, 24000, 48000] as const;
export type PcmRate = (typeof PCM_RATES_HZ)[number];

/** Close codes: what the server's mean for the client, and the client's own. */
export const CloseCode = {
  normal: 1000,
  unsupportedData: 1003,
  badPayload: 1007,
  policy: 1008,
  tooBig: 1009,
  restarting: 1012,
  atCapacity: 1013,
  resumeUnknown: 4404,
  idleTimeout: 4408,
  takenOver: 4409,
  deleted: 4410,
  /** The client's: unlike `normal` it leaves the session waiting. */
  comingBack: 4000,
} as const;

/** Present in each event of moss-stream; a plain OpenAI server sends none. */
interface Sequenced {
  event_id?: string;
  moss?: { seq?: number };
}

export interface SessionInfo {
  id: string;
  moss?: {
    resume_token: string;
    grace_s: number;
    model: string;
    preset: string;
    limits: Record<string, unknown>;
    snapshots: boolean;
    acks: boolean;
  };
}

export interface SessionEvent extends Sequenced {
  type: "session.created" | "session.updated";
  session: SessionInfo;
}

export interface SpeechStarted extends Sequenced {
  type: "input_audio_buffer.speech_started";
  item_id: string;
  audio_start_ms: number;
}

export interface SpeechStopped extends Sequenced {
  type: "input_audio_buffer.speech_stopped";
  item_id: string;
  audio_end_ms: number;
}

export interface Committed extends Sequenced {
  type: "input_audio_buffer.committed";
  item_id: string;
  previous_item_id: string | null;
}

/** Committed words without tags; the deltas of an item only ever append. */
export interface Delta extends Sequenced {
  type: "conversation.item.input_audio_transcription.delta";
  item_id: string;
  delta?: string;
}

/** A final segment; `start` and `end` are seconds since the start of the session. */
export interface FinalSegment extends Sequenced {
  type: "conversation.item.input_audio_transcription.segment";
  item_id: string;
  id: string;
  speaker: string;
  start: number;
  end: number;
  text: string;
}

export interface Completed extends Sequenced {
  type: "conversation.item.input_audio_transcription.completed";
  item_id: string;
  transcript: string;
}

export interface Failed extends Sequenced {
  type: "conversation.item.input_audio_transcription.failed";
  item_id: string;
  error: { type: string; code?: string; message: string };
}

export interface ServerError extends Sequenced {
  type: "error";
  error: { type: string; code?: string; message: string; param?: string; event_id?: string };
}

export interface HypothesisSegment {
  speaker: string;
  start: number;
  end: number;
  text: string;
  committed: boolean;
}

/** All of an utterance as it is heard now; replaces the hypothesis before it. */
export interface Hypothesis extends Sequenced {
  type: "moss.hypothesis";
  item_id: string;
  revision: number;
  committed_text: string;
  partial_text: string;
  segments: HypothesisSegment[];
  lag_ms: number;
}

/** Positions in samples since the start of the session, at the declared rate. */
export interface Ack extends Sequenced {
  type: "moss.ack";
  received_samples: number;
  decoded_samples: number;
  lag_ms: number;
  degraded: boolean;
}

/** One person had two labels: read `speaker` as `replaced_by` everywhere. */
export interface Relabel extends Sequenced {
  type: "moss.relabel";
  speaker: string;
  replaced_by: string;
}

export interface Warning extends Sequenced {
  type: "moss.warning";
  code: string;
  message: string;
  item_id?: string;
}

export interface Gap extends Sequenced {
  type: "moss.gap";
  start_samples: number;
  end_samples: number;
  reason: string;
}

/** First event of a resumed connection; the only one without a sequence number. */
export interface Resumed extends Sequenced {
  type: "moss.resumed";
  received_samples: number;
  replayed: number;
}

export interface Finished extends Sequenced {
  type: "moss.finished";
  received_samples: number;
}

/** To the server: `speaker` is the same person as `into`. */
export interface MergeSpeakers {
  type: "moss.merge_speakers";
  speaker: string;
  into: string;
}

export type ServerEvent =
  | SessionEvent
  | SpeechStarted
  | SpeechStopped
  | Committed
  | Delta
  | FinalSegment
  | Completed
  | Failed
  | ServerError
  | Hypothesis
  | Ack
  | Relabel
  | Warning
  | Gap
  | Resumed
  | Finished;

/** Read a text frame; `null` when it is not an event. */
export function parseEvent(text: string): ServerEvent | null {
  return parseMessage(text) as ServerEvent | null;
}

/** Read JSON that says its `type`. */
export function parseMessage(text: string): { type: string } | null {
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch {
    return null;
  }
  const isMessage =
    typeof value === "object" && value !== null && "type" in value && typeof value.type === "string";
  return isMessage ? (value as { type: string }) : null;
}
