// corral checks every tool call of OpenCode before it runs. Written by `corral install opencode`.
// An answer other than a clear yes throws, and OpenCode does not run a call whose hook throws.
import { spawn } from "node:child_process"

const COMMAND = []
const SECONDS = 10

const ask = (payload) =>
  new Promise((resolve, reject) => {
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
      if (code === 0) resolve(said.out)
      else reject(new Error(said.err.trim() || `corral failed with exit code ${code}, so the call is refused.`))
    })
    child.stdin.end(JSON.stringify(payload))
  })

export const Corral = async ({ directory }) => ({
  "tool.execute.before": async (input, output) => {
    const payload = { tool_name: input.tool, tool_input: output.args, cwd: directory, session_id: input.sessionID }
    const said = await ask(payload)
    if (!said.trim()) return
    const answer = JSON.parse(said)
    if (answer.decision !== "allow") throw new Error(answer.reason || "corral refused the call.")
    if (answer.command) output.args.command = answer.command
  },
})
