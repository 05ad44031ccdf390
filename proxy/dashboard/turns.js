// A conversation's story from its events: one turn for each request, and what was replaced between.

const SAVING = new Set(["replacement", "prune", "offload"]);

/** Turns, oldest first, and marks that stand before the turn at `turn`. */
export function storyOf(events) {
  const turns = [];
  const marks = [];
  for (const event of events) {
    if (event.kind === "request") {
      const forwarded = event.tokens_exact ? event.tokens : (event.reported_tokens ?? event.tokens ?? 0);
      turns.push({
        time: event.time,
        forwarded,
        client: Math.max(event.tokens_before ?? forwarded, 0),
        bound: !event.tokens_exact && event.reported_tokens === null,
        window: event.window_tokens,
        trigger: event.trigger_tokens,
        status: event.status,
        failed: event.status >= 400 || event.broke,
        generation: event.generation,
        actions: event.actions,
        reason: event.reason,
      });
    } else if (SAVING.has(event.kind)) {
      merge(marks, {
        turn: turns.length,
        kind: event.replacement,
        time: event.time,
        saved: Math.max(0, event.tokens_before - event.tokens_after),
        checkpoints: [event.checkpoint_id],
      });
    } else if (event.kind === "revoke" || event.kind === "overflow") {
      marks.push({ turn: turns.length, kind: event.kind, time: event.time, saved: 0, checkpoints: [] });
    } else if (event.kind === "compaction_end" && event.error) {
      marks.push({ turn: turns.length, kind: "failed", time: event.time, saved: 0, error: event.error, checkpoints: [] });
    }
  }
  return { turns, marks };
}

// Several prunes of one walk state the saving of all of them together: they are one mark.
function merge(marks, mark) {
  const last = marks.at(-1);
  if (last && last.turn === mark.turn && last.kind === mark.kind && mark.kind !== "summary") {
    last.saved = Math.max(last.saved, mark.saved);
    last.checkpoints.push(...mark.checkpoints);
  } else marks.push(mark);
}

/** What all of it came to. */
export function totalsOf({ turns, marks }) {
  const client = turns.reduce((sum, turn) => sum + turn.client, 0);
  const forwarded = turns.reduce((sum, turn) => sum + turn.forwarded, 0);
  const compactions = marks.filter((mark) => mark.kind === "summary" || mark.kind === "digest").length;
  return { client, forwarded, saved: Math.max(0, client - forwarded), compactions };
}

/** What each replacement saved, by checkpoint id. */
export function savingsOf({ marks }) {
  const found = new Map();
  for (const mark of marks) for (const id of mark.checkpoints) found.set(id, mark);
  return found;
}
