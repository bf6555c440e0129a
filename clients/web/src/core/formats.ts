/** Transcripts as files, written as the server and the command line write theirs. */

import type { Segment } from "./transcript.js";

export const FORMATS = ["txt", "srt", "vtt", "json"] as const;
export type Format = (typeof FORMATS)[number];

export const MEDIA_TYPES: Record<Format, string> = {
  txt: "text/plain",
  srt: "application/x-subrip",
  vtt: "text/vtt",
  json: "application/json",
};

/** Write segments as a file; subtitles are sorted by start and have no empty cue. */
export function render(segments: readonly Segment[], format: Format): string {
  return WRITERS[format](segments);
}

const WRITERS: Record<Format, (segments: readonly Segment[]) => string> = {
  txt: (segments) => segments.map(textLine).join(""),
  srt: (segments) =>
    cues(segments)
      .map(({ speaker, text, start_ms, end_ms }, index) => {
        const times = `${clock(start_ms, ",")} --> ${clock(end_ms, ",")}`;
        // SRT has no escapes; readers look for the arrow to find the times.
        const words = text.replaceAll("-->", "->");
        return `${index + 1}\n${times}\n${speaker ? `${speaker}: ` : ""}${words}\n\n`;
      })
      .join(""),
  vtt: (segments) => {
    const blocks = cues(segments).map(({ speaker, text, start_ms, end_ms }) => {
      const times = `${clock(start_ms, ".")} --> ${clock(end_ms, ".")}`;
      return `${times}\n${speaker ? `<v ${escaped(speaker)}>` : ""}${escaped(text)}\n\n`;
    });
    return `WEBVTT\n\n${blocks.join("")}`;
  },
  json: (segments) => `${JSON.stringify({ text: segments.map(({ text }) => oneLine(text)).join(" "), segments }, null, 1)}\n`,
};

function textLine({ speaker, start_s, end_s, text }: Segment): string {
  const times = `[${start_s.toFixed(2)}-${end_s.toFixed(2)}]`;
  return `${speaker ? `${speaker} ` : ""}${times} ${oneLine(text)}\n`;
}

interface Cue {
  speaker: string;
  text: string;
  start_ms: number;
  end_ms: number;
}

function cues(segments: readonly Segment[]): Cue[] {
  return [...segments]
    .sort((a, b) => a.start_s - b.start_s)
    .map(({ speaker, text, start_s, end_s }) => {
      const start_ms = Math.max(0, Math.round(start_s * 1000));
      const end_ms = Math.max(start_ms + 1, Math.round(end_s * 1000));
      return { speaker, text: oneLine(text), start_ms, end_ms };
    })
    .filter(({ text }) => text);
}

function oneLine(text: string): string {
  return text.split(/\s+/).filter(Boolean).join(" ");
}

function escaped(text: string): string {
  return text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
}

function clock(ms: number, point: string): string {
  const digits = (value: number, width: number) => String(value).padStart(width, "0");
  const hours = Math.floor(ms / 3_600_000);
  const minutes = Math.floor(ms / 60_000) % 60;
  const seconds = Math.floor(ms / 1000) % 60;
  return `${digits(hours, 2)}:${digits(minutes, 2)}:${digits(seconds, 2)}${point}${digits(ms % 1000, 3)}`;
}
