-- Slurm's cli_filter plugin: asks memgate in sbatch, salloc and srun themselves, before a job is sent.
-- It runs as the user and can be bypassed, so it never refuses. But here waiting blocks no other user:
-- a new answer is waited for, and job_submit.lua finds it at once and decides. docs/slurm.md.

-- A plugin that does not load keeps sbatch and srun from running, on any node: everything that may
-- be missing, memgate's modules and Lua's libraries, is loaded later, where failing does no harm.
local here = debug.getinfo(1, "S").source:match("^@(.*/)") or "./"
package.path = here .. "?.lua;" .. package.path

-- how far to look for directive lines
local MAX_SCRIPT_BYTES = 1048576

local function read_script(path)
  local file = path and io.open(path, "rb")
  if not file then return nil end -- a script from standard input: only the controller sees it
  local text = file:read(MAX_SCRIPT_BYTES)
  file:close()
  return text
end

local function gpus(text)
  return text and "gpu:" .. text or nil
end

-- Options of a command -> the fields of a job as the controller will see them.
local function as_job(options)
  return {
    script = options.type == "sbatch" and read_script(options.argv[1]) or nil,
    comment = options.comment,
    partition = options.partition,
    account = options.account,
    qos = options.qos,
    features = options.constraint,
    tres_per_job = gpus(options.gpus),
    tres_per_node = gpus(options["gpus-per-node"]) or options.gres,
    tres_per_task = gpus(options["gpus-per-task"]),
    tres_per_socket = gpus(options["gpus-per-socket"]),
    min_nodes = tonumber((options.nodes or ""):match("^%d+")),
    num_tasks = tonumber(options.ntasks),
    shared = options.exclusive == "exclusive" and 0 or nil,
  }
end

-- Say whether anybody wants the answer now: not where the policy only records. The account, QOS and
-- partition that nobody has named are filled in by slurmctld, after this.
local function is_waited_for(settings, job)
  local policy = require("memgate.policy")
  local subject = require("memgate.judging").subject(job)
  subject.user = os.getenv("USER") or ""
  local unknown = {}
  if not subject.account then unknown[#unknown + 1] = "account" end
  if not subject.qos then unknown[#unknown + 1] = "qos" end
  if not subject.partition[1] then unknown[#unknown + 1] = "partition" end
  local document = policy.read(settings.policy_path, settings.is_policy_optional)
  return policy.may_speak(document, subject, unknown)
end

-- Ask until there is an answer, as long as the settings say: memgate itself may wait for less.
local function wait_for(settings, body)
  local ask, now = require("memgate.ask"), require("memgate.http").now
  local began, answer = now(), nil
  repeat
    local left = settings.client_seconds - (now() - began)
    answer = ask(settings, body, settings.client_key_file, math.max(0, left))
  until not answer.is_being_made or now() - began >= settings.client_seconds
  return answer
end

local function prepare(options)
  if options.type == "srun" and os.getenv("SLURM_JOB_ID") then return end -- a step, not a job
  require("memgate.paths")
  local question = require("memgate.question")
  local job = as_job(options)
  local spec = question.find_spec(job)
  if not spec then return end
  local settings = require("memgate.settings").read(here .. "memgate.conf.lua")
  local gpu = question.find_gpu(job, settings)
  if not gpu or question.find_problem(spec, settings.max_spec_bytes) then return end
  if not is_waited_for(settings, job) then return end
  local answer
  for _, name in ipairs(gpu.names or { gpu.name }) do
    answer = wait_for(settings, question.body(spec, gpu, name))
  end
  if not settings.advise or not answer.estimate or answer.estimate.decision == "admit" then return end
  for _, line in ipairs(require("memgate.words").about(settings, answer, gpu)) do
    io.stderr:write(options.type, ": memgate's advice: ", line, "\n")
  end
end

function slurm_cli_setup_defaults(_, _)
  return slurm.SUCCESS
end

function slurm_cli_pre_submit(options, _)
  local is_done, problem = pcall(prepare, options)
  if not is_done then pcall(slurm.log_debug, "memgate: %s", tostring(problem)) end
  return slurm.SUCCESS
end

function slurm_cli_post_submit(_, _, _)
  return slurm.SUCCESS
end

return slurm.SUCCESS
