export { audioApiMicrophone } from "./audio-api";
export { LiveCaptions } from "./captions";
export type { LiveCaptionsOptions, Phase, Problem, Target } from "./captions";
export { useCaptions } from "./hook";
export { toPcm } from "./native";
export type { MicrophoneListener, NativeMicrophone } from "./native";
