export { Connection } from "./connection";
export type { ClientEvent, ConnectionOptions, ConnectionState, EndReason, SocketLike } from "./types";
export type { Clock } from "./clock";
export { FORMATS, MEDIA_TYPES, render } from "./formats";
export type { Format } from "./formats";
export { CloseCode, PCM_RATES_HZ, parseEvent } from "./protocol";
export type * from "./protocol";
export { TranscriptStore } from "./transcript";
export type { LiveSegment, Segment } from "./transcript";
