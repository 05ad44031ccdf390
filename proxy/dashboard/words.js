// Figures, times and outcomes as people say them.

const whole = new Intl.NumberFormat("en");
const day = new Intl.DateTimeFormat("en", { month: "short", day: "numeric", hour: "2-digit", minute: "2-digit", hour12: false });
const clock = new Intl.DateTimeFormat("en", { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });

/** 1234567 as "1,234,567". */
export const full = (number) => whole.format(number);

/** 1234567 as "1.23M": short enough for a chart. */
export function short(number) {
  const size = Math.abs(number);
  if (size < 1000) return String(Math.round(number));
  const [unit, by] = size < 999_500 ? ["k", 1000] : ["M", 1_000_000];
  const value = number / by;
  return `${Number(value.toFixed(Math.abs(value) < 9.95 ? 1 : 0))}${unit}`;
}

/** "1 message", "2 messages". */
export const count = (number, noun) => `${full(number)} ${noun}${number === 1 ? "" : "s"}`;

export function ago(seconds) {
  const past = Math.max(0, Date.now() / 1000 - seconds);
  if (past < 45) return "just now";
  if (past < 3570) return `${Math.round(past / 60)} min ago`;
  if (past < 84600) return `${Math.round(past / 3600)} h ago`;
  if (past < 7 * 86400) return `${Math.round(past / 86400)} d ago`;
  return day.format(seconds * 1000);
}

export const dateAndTime = (seconds) => day.format(seconds * 1000);
export const timeOfDay = (seconds) => clock.format(seconds * 1000);

/** Positions count from 0 in the interface, messages from 1 for people. */
export function messagesOf(start, end) {
  return end - start === 1 ? `message ${full(start + 1)}` : `messages ${full(start + 1)}–${full(end)}`;
}

export const KIND = {
  summary: "Summary",
  digest: "Digest",
  prune: "Shortened tool result",
  offload: "Images taken out",
  revoke: "Revocation",
};

export const CAUSE = {
  pressure: "the window was filling up",
  overflow: "the provider said it was full",
  manual: "somebody asked for it",
};

/** What a compaction by hand came to, as a toast. */
export function compactWords(result) {
  if (result.compacted) {
    return (
      `Compacted. ${count(result.removed_message_count, "message")} became a summary: ` +
      `${full(result.tokens_before)} tokens are now ${full(result.total_tokens)}.`
    );
  }
  return (
    {
      not_enough_messages: "Nothing to compact yet: there is too little that is new since the last summary.",
      below_threshold: "Nothing was compacted: the conversation is below its trigger.",
      scheduled:
        "Scheduled. Tidegate has no key of its own to pay for the summary, so it is made with this conversation's next chat.",
    }[result.reason] ?? `Nothing was compacted (${result.reason}).`
  );
}

const CODES = {
  conversation_busy: "The conversation is busy: a request or a compaction of it is running. Try again in a moment.",
  compaction_disabled: "Compaction is switched off (compaction.enabled).",
  history_changed: "The history changed meanwhile. Nothing was replaced.",
  conversation_not_found: "This conversation is not in the log any more.",
  summary_failed: "No summariser gave a usable summary. Nothing was replaced.",
  generation_not_found: "That replacement does not exist any more.",
  offline: "Tidegate does not answer.",
};

/** Why something did not work. The server's own sentence stands where it knows more than we do. */
export function errorWords(error) {
  const known = CODES[error.code];
  const said = error.message ?? "";
  if (!known) return said || "That did not work.";
  return error.code === "summary_failed" && said ? `${said} Nothing was replaced.` : known;
}

const SOURCE = {
  configured: "your settings",
  learned: "a refusal of the provider",
  listed: "the provider's listing",
  catalogued: "the bundled catalogue",
  unknown: "nobody",
};

export const sourceWords = (source) => SOURCE[source] ?? source;
