-- What slurmctld asks for every job that is submitted or changed: let it in, refuse it, or hold it.
-- Slurm lets a job in when its plugin fails, and answers no other request while the plugin runs. So
-- every path through here is inside a pcall, and the time spent here is bounded, for one call and for
-- many. judging.lua says what a decision leads to; the policy's mode is applied last.

local ask = require("memgate.ask")
local audit = require("memgate.audit")
local http = require("memgate.http")
local judging = require("memgate.judging")
local moving = require("memgate.moving")
local policy = require("memgate.policy")
local question = require("memgate.question")
local settings_file = require("memgate.settings")
local words = require("memgate.words")

local gate = {}

-- with less time than this memgate is not asked
local MIN_SECONDS = 0.1
-- what decides which GPU a job gets
local GPU_FIELDS = { "gres", "tres_per_job", "tres_per_node", "tres_per_socket", "tres_per_task" }

-- The time that calls took lately; it fades at the rate at which we may keep the controller busy.
local spent = { seconds = 0, at = 0 }

local function seconds_allowed(settings, now)
  local faded = math.max(0, now - spent.at) * settings.busy_share
  spent.seconds, spent.at = math.max(0, spent.seconds - faded), now
  return settings.bound_seconds - spent.seconds
end

local function ask_in_time(settings, body, owner)
  local began = http.now()
  local seconds = seconds_allowed(settings, began)
  if seconds < MIN_SECONDS then
    return { fault = "passing", why = "memgate was too slow lately to be asked again so soon" }
  end
  local answer = ask(settings, body, settings.key_file, seconds, owner)
  spent.at = http.now()
  spent.seconds = spent.seconds + math.max(0, spent.at - began)
  return answer
end

-- Hold a job: without an answer, by a start time that is our timer, which Slurm keeps even if nothing
-- else of ours runs; otherwise until an administrator decides.
local function hold(settings, job, record)
  local seconds = { pending = settings.hold_seconds, rehearsal = settings.rehearsal_seconds }
  record.held = true
  if (seconds[record.decision] or 0) > 0 then
    local own = judging.given(job.begin_time)
    record.timer = os.time() + seconds[record.decision]
    if own then record.begin = own end
    -- a rehearsal may take until its owner wants the job to start
    if record.decision == "rehearsal" then record.timer = math.max(own or 0, record.timer) end
    job.begin_time = math.max(own or 0, record.timer)
    return
  end
  if job.priority == 0 then record.owner_held = true end -- by the owner, who releases it
  job.priority = 0
end

-- Return what memgate answers about a job, for each card that it may get, and the question about the
-- first; or what is wrong before it is asked.
local function find_answer(settings, spec, gpu, owner)
  local problem = question.find_problem(spec, settings.max_spec_bytes)
  if problem then return { fault = "caller", why = words.plain(problem) } end
  local answers = {}
  for index, name in ipairs(gpu.names or { gpu.name }) do
    answers[index] = ask_in_time(settings, question.body(spec, gpu, name), owner)
  end
  return judging.combine(answers), question.body(spec, gpu)
end

-- Fill in the smallest GPU of this cluster on which a job fits that asks for any; nil if nothing is
-- filled in: the smallest is not known, or memgate does not say in time that the job fits there.
local function right_size(settings, job, spec, gpu, answer, owner)
  local kind, name = words.smallest_kind(settings, answer.estimate and answer.estimate.fits_on or {})
  if not kind then return nil end
  local sure = name == gpu.name and answer or ask_in_time(settings, question.body(spec, gpu, name), owner)
  if not sure.estimate or sure.estimate.decision ~= "admit" or not question.fill_in(job, kind) then return nil end
  local chosen = setmetatable({ name = name }, { __index = gpu })
  local line = ("it asks for any GPU, and gets the smallest here on which it fits: --gres=gpu:%s"):format(kind)
  return { gpu = chosen, answer = sure, line = line }
end

-- Return what is known about a job: {action =, record =, lines =, why =, body =}
local function find(settings, chosen, job, spec, gpu, unknown)
  if not spec then
    local arguments = type(job.script) == "string" and question.find_arguments(job) or nil
    return judging.undescribed(settings, chosen, gpu, arguments, question.is_skipped(job))
  end
  if not gpu and not question.find_problem(spec, settings.max_spec_bytes) then
    return judging.unknown_gpu(settings, chosen, unknown)
  end
  local owner = { cluster = settings.cluster, user = judging.subject(job).user, job_name = job.name }
  local answer, body = find_answer(settings, spec, gpu, owner)
  local smaller = judging.is_right_sized(settings, chosen, gpu) and right_size(settings, job, spec, gpu, answer, owner)
  if smaller then gpu, answer = smaller.gpu, smaller.answer end
  local found = judging.about(settings, chosen, gpu, answer)
  if smaller then found.lines[#found.lines + 1] = smaller.line end
  if gpu and answer.estimate then
    found.lines[#found.lines + 1] = question.remark(spec, gpu)
    found.lines[#found.lines + 1] = question.find_doubt(job)
  end
  if found.record.decision == "pending" then
    found.record.question = body
    found.record.cluster = settings.cluster ~= "" and settings.cluster or nil
  end
  return found
end

local function note(job, record)
  job.admin_comment = words.record(record, job.admin_comment)
  if record.id and job.script then -- for a script that reports what it took; it may fail
    pcall(function() job.environment["MEMGATE_JOB"] = record.id end)
  end
end

-- Do what was found and the mode allows; returns what to return to Slurm.
local function act(settings, chosen, job, found)
  local record, action = found.record, judging.apply_mode(chosen.mode, found.action)
  for _, line in ipairs(judging.lines(chosen, found, action)) do slurm.log_user("%s", "memgate: " .. line) end
  if action == "hold" or action == "rehearse" then hold(settings, job, record) end
  if action ~= "reject" and not found.is_silent then
    if chosen.mode ~= "enforce" then record.mode = chosen.mode end
    note(job, record)
  end
  return action, action == "reject" and slurm.ERROR or slurm.SUCCESS
end

-- Judge a job that asks for a GPU; returns what to return to Slurm.
local function judge(settings, chosen, subject, job, spec, gpu, unknown, near)
  local began = http.now()
  local found = chosen.is_exempt and judging.exempt(gpu) or find(settings, chosen, job, spec, gpu, unknown)
  if near then table.insert(found.lines, 1, near) end
  local id = audit.new_id(began)
  if not found.is_silent then found.record.audit = id end
  local action, result = act(settings, chosen, job, found)
  audit.write(settings, judging.audit_record(subject, chosen, found, action, {
    id = id, name = job.name, gpu = gpu, near = near, ms = math.floor((http.now() - began) * 1000 + 0.5),
  }), found.is_silent and action == "admit")
  return result
end

local told

-- Log what is wrong with a file of ours, once.
local function log_problem(problem)
  if problem and problem ~= told then slurm.log_error("memgate: %s", words.plain(problem)) end
  told = problem
end

local OPEN = "memgate: failed, and this job was not checked"
local SHUT = "memgate: failed, and no job with a description is let in; tell your administrators"

-- Record what happens to a job although something went wrong; that may fail as well.
local function note_error(state, job, action, problem)
  local about = { record = { decision = "unanswered" }, action = action, why = "memgate failed: " .. tostring(problem) }
  local subject = state.subject or judging.subject(job)
  audit.write(state.settings, judging.audit_record(subject, state.chosen, about, action, {
    id = audit.new_id(http.now()), name = job.name,
  }))
end

-- If anything went wrong in Lua: what the settings say, where jobs are refused at all.
local function on_error(state, job, problem)
  slurm.log_error("memgate: %s", tostring(problem))
  if not state.is_ours then return slurm.SUCCESS end
  local settings, chosen = state.settings, state.chosen
  local is_shut = settings and settings.on_error == "reject" and chosen and chosen.mode == "enforce"
  if settings and chosen then pcall(note_error, state, job, is_shut and "reject" or "admit", problem) end
  if not chosen or chosen.mode ~= "audit" then slurm.log_user("%s", is_shut and SHUT or OPEN) end
  return is_shut and slurm.ERROR or slurm.SUCCESS
end

-- Say at a glance whether somebody has described a job; without anything that may fail.
local function looks_described(job)
  return (job.comment or ""):find("memgate:", 1, true) == 1 or (job.script or ""):find("#MEMGATE", 1, true) ~= nil
end

local function read_files(path, state)
  local problem
  state.settings, problem = settings_file.read_or_last(path)
  if not state.settings then error(problem, 0) end
  local document, wrong = policy.read(state.settings.policy_path, state.settings.is_policy_optional)
  state.chosen = { mode = document.mode or "enforce" } -- of the whole cluster, until the rules are read
  log_problem(problem or wrong)
  return state.settings, document
end

local function submit(path, job, partitions, state)
  judging.remember(job)
  state.is_ours = looks_described(job)
  local settings, document = read_files(path, state)
  local spec, warning = question.find_spec(job)
  state.is_ours = spec ~= nil
  local whole = question.complete(job, partitions)
  local gpu, unknown = question.find_gpu(whole, settings)
  local near = not spec and (warning or question.find_near_miss(job)) or nil
  if not spec and gpu == nil and not near then return slurm.SUCCESS end
  local subject = judging.subject(whole)
  local chosen = policy.resolve(document, subject)
  state.chosen, state.subject = chosen, subject
  if gpu ~= nil then return judge(settings, chosen, subject, job, spec, gpu, unknown, near) end
  -- nothing is asked; but a GPU that its owner adds later would not be judged
  if near and chosen.mode ~= "audit" then slurm.log_user("%s", "memgate: " .. near) end
  if spec and chosen.mode == "enforce" then
    job.admin_comment = words.record({ decision = "no_gpu" }, job.admin_comment)
  end
  return slurm.SUCCESS
end

-- Judge a job that is submitted; path is that of memgate.conf.lua, partitions are as Slurm gives them.
function gate.submit(path, job, partitions)
  local state = {}
  local is_done, result = pcall(submit, path, job, partitions, state)
  if is_done and type(result) == "number" then return result end
  return on_error(state, job, result)
end

local function may_change(job, record, partitions, settings)
  if record.mode then return true end -- nothing is enforced
  if record.held and not (record.timer and record.timer <= os.time()) then return false, "memgate holds it" end
  for _, field in ipairs(GPU_FIELDS) do
    if job[field] ~= nil then return false, "the GPU it was judged for would change" end
  end
  local after = job.partition and question.complete(job, partitions) or job
  if record.decision == "no_gpu" and after.shared == 0 then
    return false, "it would get whole nodes, and GPUs that it was not judged for"
  end
  local decides = { partition = settings.gpu_of_partition, features = settings.gpu_of_feature }
  for field, gpus in pairs(decides) do
    if job[field] ~= nil and next(gpus) then return false, "the GPU it was judged for would change" end
  end
  return true
end

-- Return the record of a job. One that cannot be read, because somebody added to it, counts as a hold.
local function record_of(job)
  local comment = job.admin_comment
  local is_ours = type(comment) == "string" and comment:find('"memgate"', 1, true)
  return words.read_record(comment) or (is_ours and { held = true }) or nil
end

-- Say whether a change gets a job past the policy, and why not; what is found goes to the audit.
local function may_move(settings, job, before, record, partitions)
  if not moving.is_change(job) then return true end
  local document, wrong = policy.read(settings.policy_path, settings.is_policy_optional)
  log_problem(wrong)
  local found = moving.judge(settings, document, job, before, record, partitions)
  if not found then return true end
  local action = found.is_refused and "reject" or "admit"
  local about = { record = { decision = found.decision }, action = action, why = found.why }
  audit.write(settings, judging.audit_record(found.subject, found.chosen, about, action, {
    id = audit.new_id(http.now()), name = before.name, gpu = found.gpu, job = tostring(before.job_id),
  }), not found.is_refused)
  return not found.is_refused, found.why
end

local function is_admin(settings, uid)
  for _, admin in ipairs(settings.admins) do
    if admin == uid then return true end
  end
  return false
end

local function modify(path, job, before, uid, partitions, record)
  local settings, problem = settings_file.read_or_last(path)
  if not settings then error(problem, 0) end
  if is_admin(settings, uid) then return slurm.SUCCESS end
  local is_allowed, why = true, nil
  if record then is_allowed, why = may_change(job, record, partitions, settings) end
  if is_allowed then is_allowed, why = may_move(settings, job, before, record, partitions) end
  if is_allowed then return slurm.SUCCESS end
  slurm.log_info("memgate: a change of job %s by uid %d was refused: %s", tostring(before.job_id), uid, why)
  return slurm.ESLURM_ACCESS_DENIED or slurm.ERROR
end

-- Guard a job: its owner may neither release what is held, nor change the GPU that it was judged for, nor
-- get it past the policy. Slurm shows the owner "Access/permission denied" and no message of ours. If our
-- own Lua fails, only a job with a record keeps its guard.
function gate.modify(path, job, before, uid, partitions)
  if uid == 0 then return slurm.SUCCESS end
  local is_known, record = pcall(record_of, before)
  local is_done, result = pcall(modify, path, job, before, uid, partitions, is_known and record or nil)
  if is_done and type(result) == "number" then return result end
  pcall(slurm.log_error, "memgate: %s", words.plain(result))
  if is_known and not record then return slurm.SUCCESS end
  return slurm.ESLURM_ACCESS_DENIED or slurm.ERROR
end

return gate
