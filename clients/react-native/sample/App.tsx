/** One screen: an address, a button, and the captions. */

import NetInfo from "@react-native-community/netinfo";
import { useEffect, useRef, useState, type ComponentRef } from "react";
import { AppState, Pressable, ScrollView, StyleSheet, Text, TextInput, View } from "react-native";
import { audioApiMicrophone, LiveCaptions, useCaptions, type Phase, type Problem } from "../src";

const captions = new LiveCaptions({ microphone: audioApiMicrophone() });

const PHASES: Record<Phase, string> = {
  off: "Ready",
  starting: "Starting",
  listening: "Listening",
  interrupted: "Not hearing: the microphone is taken",
  stopping: "Finishing",
};

const PROBLEMS: Record<Problem, string> = {
  denied: "The microphone is not allowed. Allow it in the settings of the system.",
  incomplete: "The server did not confirm the last words.",
  unreachable: "The server cannot be reached.",
  refused: "The server ended the session.",
  taken_over: "This session goes on elsewhere.",
};

export default function App() {
  const { phase, problem, link, backlog_s, store } = useCaptions(captions);
  const [url, setUrl] = useState("wss://captions.example/v1/realtime");
  const scroller = useRef<ComponentRef<typeof ScrollView>>(null);
  const isAway = phase !== "off" && (link === "waiting" || link === "connecting");

  useEffect(() => {
    const app = AppState.addEventListener("change", (state) => void (state === "active" && captions.wake()));
    const leaveNetwork = onNetworkChange(() => captions.networkChanged());
    return () => {
      app.remove();
      leaveNetwork();
    };
  }, []);

  return (
    <View style={styles.screen}>
      <TextInput style={styles.address} value={url} onChangeText={setUrl} editable={phase === "off"} autoCapitalize="none" />
      <Text style={styles.status} accessibilityLiveRegion="polite">
        {problem ? PROBLEMS[problem] : isAway ? `Reconnecting, ${backlog_s.toFixed(0)} s kept` : PHASES[phase]}
      </Text>
      <ScrollView ref={scroller} style={styles.captions} onContentSizeChange={() => scroller.current?.scrollToEnd()}>
        {store.segments.map(({ speaker, text }, index) => (
          <Text key={index} style={styles.line}>
            <Text style={styles.speaker}>{speaker} </Text>
            {text}
          </Text>
        ))}
        {store.live.map(({ text, committed }, index) => (
          <Text key={`live ${index}`} style={[styles.line, !committed && styles.partial]}>
            {text}
          </Text>
        ))}
      </ScrollView>
      <View>
        <Pressable
          style={styles.button}
          accessibilityRole="button"
          disabled={phase === "starting"}
          onPress={() => void (phase === "off" ? captions.start({ url }) : captions.stop())}
        >
          <Text style={styles.label}>{phase === "off" ? "Start" : "Stop"}</Text>
        </Pressable>
      </View>
    </View>
  );
}

/** Tells when the phone leaves one network for another, and not of what it says of the same one. */
function onNetworkChange(tell: () => void): () => void {
  let before: string | null = null;
  return NetInfo.addEventListener(({ type, isConnected }) => {
    const network = `${type} ${isConnected}`;
    if (before !== null && network !== before) tell();
    before = network;
  });
}

const styles = StyleSheet.create({
  screen: { flex: 1, padding: 16, paddingVertical: 56, gap: 12, backgroundColor: "#0d1015" },
  address: { color: "#9da7b5", borderColor: "#2a313b", borderWidth: 1, borderRadius: 10, padding: 12 },
  status: { color: "#9da7b5", fontSize: 14 },
  captions: { flex: 1 },
  line: { color: "#eef1f5", fontSize: 22, lineHeight: 32, marginBottom: 8 },
  speaker: { color: "#7cb7ff", fontWeight: "600" },
  partial: { color: "#9da7b5" },
  button: { backgroundColor: "#5ca5ff", borderRadius: 10, padding: 16, alignItems: "center" },
  label: { color: "#06162b", fontSize: 17, fontWeight: "600" },
});
