// How values are written for people.

/** words turns an enum such as POSTURE_WAITING_TASK into "waiting task". */
export function words(value: string | undefined, prefix: string): string {
  return (value ?? "").replace(prefix, "").toLowerCase().replaceAll("_", " ");
}

/** because writes the reason of a state, such as "operator_aborted: wrong release", whose second part is somebody's own text. */
export const because = (reason: string | undefined) => (reason ?? "").replace(/^[a-z_]+(?=:|$)/, (w) => w.replaceAll("_", " "));

/** ago writes how long ago a time was, or how soon it will be. */
export function ago(time: string | undefined, now = Date.now()): string {
  if (!time) return "";
  const s = Math.round((now - Date.parse(time)) / 1000);
  const a = Math.abs(s);
  const span = a < 60 ? a + " s" : a < 3600 ? Math.round(a / 60) + " min" : a < 172800 ? Math.round(a / 3600) + " h" : Math.round(a / 86400) + " d";
  if (a < 2) return "now";
  return s < 0 ? "in " + span : span + " ago";
}

/** clock writes a time of day, with its date if that is not today. */
export function clock(time: string | undefined): string {
  if (!time) return "";
  const d = new Date(time);
  const today = new Date().toDateString() === d.toDateString();
  return (today ? "" : d.toLocaleDateString(undefined, { day: "numeric", month: "short" }) + " ") + d.toLocaleTimeString(undefined, { hour12: false });
}

/** bytes writes a size. */
export function bytes(n: string | number | undefined): string {
  let v = Number(n ?? 0);
  for (const unit of ["B", "KiB", "MiB", "GiB"]) {
    if (v < 1024) return (v < 10 && unit !== "B" ? v.toFixed(1) : Math.round(v)) + " " + unit;
    v /= 1024;
  }
  return v.toFixed(1) + " TiB";
}

/** count writes a number with separators. */
export const count = (n: number | string | undefined) => Number(n ?? 0).toLocaleString("en");

/** many writes a number with its noun. */
export const many = (n: number, one: string, more = one + "s") => count(n) + " " + (n === 1 ? one : more);

/** firstLine cuts a text to one line. */
export function firstLine(s: string | undefined, most = 200): string {
  const line = (s ?? "").trim().split("\n", 1)[0]!;
  return line.length > most ? line.slice(0, most) + "…" : line;
}
