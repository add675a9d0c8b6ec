// corral checks every tool call of pi before it runs. Written by `corral install pi`.
// An answer other than a clear yes blocks the call. pi also blocks a call whose handler throws.
import { spawn } from "node:child_process"
import { homedir } from "node:os"
import { resolve } from "node:path"

const COMMAND = []
const SECONDS = 10
const SPACES = /[\u00A0\u2000-\u200A\u202F\u205F\u3000]/g

const ask = (payload) =>
  new Promise((done, reject) => {
    const child = spawn(COMMAND[0], COMMAND.slice(1), { stdio: ["pipe", "pipe", "pipe"] })
    const said = { out: "", err: "" }
    const timer = setTimeout(() => {
      child.kill("SIGKILL")
      reject(new Error(`corral did not answer within ${SECONDS} seconds, so the call is refused. Run: corral doctor`))
    }, SECONDS * 1000)
    child.stdout.on("data", (data) => (said.out += data))
    child.stderr.on("data", (data) => (said.err += data))
    child.stdin.on("error", () => {}) // the hook may answer before it has read everything; its exit code counts
    child.on("error", (error) => {
      clearTimeout(timer)
      reject(new Error(`corral could not be asked (${error.message}), so the call is refused. Run: corral doctor`))
    })
    child.on("close", (code) => {
      clearTimeout(timer)
      if (code === 0) done(said.out)
      else reject(new Error(said.err.trim() || `corral failed with exit code ${code}, so the call is refused.`))
    })
    child.stdin.end(JSON.stringify(payload))
  })

// pi reads `@`, `~` and unusual spaces of a path in its own way. The path that corral judges is the one that pi opens.
const located = (path, cwd) => {
  const plain = path.replace(/^@/, "").replace(SPACES, " ")
  if (plain === "~") return homedir()
  return plain.startsWith("~/") ? homedir() + plain.slice(1) : resolve(cwd, plain)
}

export default function (pi) {
  pi.on("tool_call", async (event, ctx) => {
    try {
      if (typeof event.input.path === "string") event.input.path = located(event.input.path, ctx.cwd)
      const session = ctx.sessionManager?.getSessionId?.() ?? ""
      const said = await ask({ tool_name: event.toolName, tool_input: event.input, cwd: ctx.cwd, session_id: session })
      if (!said.trim()) return undefined
      const answer = JSON.parse(said)
      if (answer.decision !== "allow") return { block: true, reason: answer.reason || "corral refused the call." }
      if (answer.command) event.input.command = answer.command
      return undefined
    } catch (error) {
      return { block: true, reason: error.message }
    }
  })
}
