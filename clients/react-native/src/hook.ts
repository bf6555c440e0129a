import { useSyncExternalStore } from "react";
import type { LiveCaptions } from "./captions";

/** Draw a component again whenever the captions change. */
export function useCaptions(captions: LiveCaptions): LiveCaptions {
  useSyncExternalStore(captions.subscribe, captions.version);
  return captions;
}
