// Calls below /tidegate/. The key, if one is needed, lives in this tab's session and nowhere else.

const KEY = "tidegate-key";

/** What went wrong: `code` as in the error envelope, or "offline". */
export class ApiError extends Error {
  constructor(status, code, message) {
    super(message);
    this.status = status;
    this.code = code;
  }

  get wantsKey() {
    return this.status === 401;
  }
}

export const key = {
  get: () => sessionStorage.getItem(KEY) ?? "",
  set: (value) => (value ? sessionStorage.setItem(KEY, value) : sessionStorage.removeItem(KEY)),
};

/** Headers of every call. */
export function credentials() {
  return key.get() ? { authorization: `Bearer ${key.get()}` } : {};
}

async function call(method, path, { query = {}, body, signal } = {}) {
  const asked = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    if (value !== undefined && value !== null && value !== "") asked.set(name, value);
  }
  const headers = credentials();
  if (body !== undefined) headers["content-type"] = "application/json";
  let response;
  try {
    response = await fetch(asked.size ? `${path}?${asked}` : path, {
      method,
      headers,
      signal,
      body: body === undefined ? undefined : JSON.stringify(body),
      cache: "no-store",
      credentials: "same-origin",
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "offline", "Tidegate does not answer.");
  }
  let value = null;
  try {
    value = await response.json();
  } catch {
    if (response.ok) throw new ApiError(response.status, "unreadable", "The answer cannot be read.");
  }
  if (response.ok) return value;
  const error = value?.error ?? {};
  throw new ApiError(response.status, error.code ?? null, error.message ?? `The answer was ${response.status}.`);
}

const of = (conversation, rest = "") => `conversations/${encodeURIComponent(conversation.id)}${rest}`;
// An address may name an id alone: "-" in place of the tenant.
const whose = (conversation) => ({ tenant: conversation.tenant === "-" ? null : conversation.tenant });

export const conversations = (before, limit) => call("GET", "conversations", { query: { before, limit } });
export const conversation = (one) => call("GET", of(one), { query: whose(one) });
export const events = (one, query) => call("GET", of(one, "/events"), { query: { ...whose(one), ...query } });
export const surface = (one, query) => call("GET", of(one, "/surface"), { query: { ...whose(one), ...query } });
export const log = (one, query) => call("GET", of(one, "/log"), { query: { ...whose(one), ...query } });
export const compact = (one, options) =>
  call("POST", of(one, "/compact"), { query: whose(one), body: options });
export const revoke = (one, checkpoint) =>
  call("DELETE", of(one, `/generations/${encodeURIComponent(checkpoint)}`), { query: whose(one) });
export const models = () => call("GET", "models");
export const forgetLearned = (model) => call("DELETE", `models/${encodeURIComponent(model)}/learned`);
