// The token of a server on this machine, which it writes to a file for the programs of its user.
import { lstatSync, readFileSync } from "node:fs";
import { homedir, tmpdir } from "node:os";
import { isAbsolute, join } from "node:path";

const uid = process.geteuid?.() ?? -1;

/** The directory of this user's token files. */
function directory(): string {
  const { XDG_STATE_HOME, HOME } = process.env;
  if (XDG_STATE_HOME && isAbsolute(XDG_STATE_HOME)) return join(XDG_STATE_HOME, "quartet");
  if (HOME && isAbsolute(HOME)) return join(homedir(), ".local", "state", "quartet");
  return join(tmpdir(), `quartet-${uid}`);
}

/** The base URL to use: localhost has two addresses, and a token is for one. */
export function oneAddress(baseUrl: string): string {
  const url = new URL(baseUrl);
  if (url.hostname === "localhost") url.hostname = "127.0.0.1";
  return url.href.replace(/\/$/, "");
}

/**
 * The header with the token of the server at a loopback address; {} if this user runs none there. It
 * throws for a file that another user could have written or read. Call it for every request: the file
 * is written when the server starts and removed when it stops.
 */
export function localCredential(baseUrl: string): Record<string, string> {
  const { hostname, host, port } = new URL(baseUrl);
  if (!/^(127\.\d+\.\d+\.\d+|\[::1\])$/.test(hostname) || !port) return {};
  const path = join(directory(), host);
  let info;
  try {
    info = lstatSync(path);
  } catch {
    return {};
  }
  if (!info.isFile() || info.uid !== uid || (info.mode & 0o077) !== 0) throw new Error(`${path} must be a file of this user with mode 600`);
  const [, token] = /^Authorization: Bearer (qlt_[\w-]+)\n$/.exec(readFileSync(path, "utf8")) ?? [];
  if (!token) throw new Error(`${path} has no token; restart the server that wrote it`);
  return { Authorization: `Bearer ${token}` };
}
