-- What slurmctld asks for every job that is submitted or changed: let it in, refuse it, or hold it.
-- Slurm lets a job in when its plugin fails, and answers no other request while the plugin runs. So
-- every path through here is inside a pcall, and the time spent here is bounded, for one call and for
-- many.

local ask = require("memgate.ask")
local http = require("memgate.http")
local question = require("memgate.question")
local settings_file = require("memgate.settings")
local words = require("memgate.words")

local gate = {}
local unpack = unpack or table.unpack -- Lua 5.1, and later

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

local function ask_in_time(settings, body)
  local began = http.now()
  local seconds = seconds_allowed(settings, began)
  if seconds < MIN_SECONDS then
    return { fault = "passing", why = "memgate was too slow lately to be asked again so soon" }
  end
  local answer = ask(settings, body, settings.key_file, seconds)
  spent.at = http.now()
  spent.seconds = spent.seconds + math.max(0, spent.at - began)
  return answer
end

-- What each fault leads to: the setting that decides, and the decision to record.
local ON_FAULT = {
  caller = { "on_bad_spec", "bad_spec" },
  job = { "on_uncertain", "uncertain" },
  unsupported = { "on_uncertain", "uncertain" },
  operator = { "on_unanswered", "pending" },
  passing = { "on_unanswered", "pending" },
}

-- An answer -> what to do, and the record.
local function decide(settings, gpu, answer)
  local estimate = answer.estimate
  if not estimate then
    local setting, decision = unpack(ON_FAULT[answer.fault])
    return settings[setting], { decision = decision, gpu = gpu and gpu.name or nil, id = answer.id }
  end
  local action = estimate.decision == "admit" and "admit" or settings["on_" .. estimate.decision]
  return action, {
    decision = estimate.decision, needs = estimate.needs_bytes, capacity = estimate.capacity_bytes,
    gpu = gpu.name, id = answer.id, page = answer.page,
  }
end

local FINAL_WORDS = {
  admit = "it is let in",
  reject = "it was not submitted; submit it again later",
  hold = "it is held until that is known",
}

-- decisions whose words do not say that a job was refused
local MAY_FIT = { uncertain = true, unknown_gpu = true }

local function hold(job, record, body)
  record.held = true
  if job.priority == 0 then record.owner_held = true end -- by the owner, who releases it
  -- the question itself, for the program that releases the job: memgate may not have received it
  if record.decision == "pending" then record.question = body end
  job.priority = 0
end

-- Return what memgate answers about a job, and the question; or what is wrong before it is asked.
local function find_answer(settings, spec, gpu)
  local problem = question.find_problem(spec, settings.max_spec_bytes)
  if problem then return { fault = "caller", why = words.plain(problem) } end
  local body = question.body(spec, gpu)
  return ask_in_time(settings, body), body
end

-- Return the last line: what happens to the job, if the others leave that open.
local function last_words(record, action)
  if record.decision == "pending" then return FINAL_WORDS[action] end
  if action == "hold" then return "it is held: an administrator decides" end
  if action == "reject" and MAY_FIT[record.decision] then
    return "it was not submitted: such jobs are refused here"
  end
end

-- Judge a job that has a description; returns what to return to Slurm.
local function judge(settings, job, spec, partitions)
  local gpu, unknown = question.find_gpu(question.complete(job, partitions), settings)
  if gpu == nil then -- nothing is asked; but a GPU that its owner adds later would not be judged
    job.admin_comment = words.record({ decision = "no_gpu" }, job.admin_comment)
    return slurm.SUCCESS
  end
  local action, record, lines, body
  if gpu or question.find_problem(spec, settings.max_spec_bytes) then
    local answer
    answer, body = find_answer(settings, spec, gpu)
    action, record = decide(settings, gpu, answer)
    local is_told = record.decision ~= "admit" or settings.tell_admitted
    lines = is_told and words.about(settings, answer) or {}
  else
    action, record = settings.on_unknown_gpu, { decision = "unknown_gpu" }
    lines = { "whether this job fits was not checked: " .. words.plain(unknown) }
  end
  lines[#lines + 1] = last_words(record, action)
  for _, line in ipairs(lines) do slurm.log_user("%s", "memgate: " .. line) end
  if action == "reject" then return slurm.ERROR end
  if action == "hold" then hold(job, record, body) end
  job.admin_comment = words.record(record, job.admin_comment)
  if record.id and job.script then -- for a script that reports what it took; it may fail
    pcall(function() job.environment["MEMGATE_JOB"] = record.id end)
  end
  return slurm.SUCCESS
end

local SHUT = "memgate: failed, and no job with a description is let in; tell your administrators"

-- If anything went wrong in Lua: what the settings say; without settings, no job is let in.
local function on_error(settings, problem)
  slurm.log_error("memgate: %s", words.plain(problem))
  local is_open = settings ~= nil and settings.on_error == "admit"
  slurm.log_user("%s", is_open and "memgate: failed, and this job was not checked" or SHUT)
  return is_open and slurm.SUCCESS or slurm.ERROR
end

local function submit(path, job, partitions)
  local settings
  local is_done, result = pcall(function()
    -- a job without a description passes at once, whatever state our own files are in
    local spec, warning = question.find_spec(job)
    if warning then slurm.log_user("%s", "memgate: " .. warning) end
    if not spec then return slurm.SUCCESS end
    settings = settings_file.read(path)
    return judge(settings, job, spec, partitions)
  end)
  if is_done and type(result) == "number" then return result end
  return on_error(settings, result)
end

-- Judge a job that is submitted; path is that of memgate.conf.lua, partitions are as Slurm gives them.
function gate.submit(path, job, partitions)
  local is_done, result = pcall(submit, path, job, partitions)
  if is_done then return result end
  slurm.log_user("%s", SHUT)
  return slurm.ERROR
end

local function may_change(settings, job, record, uid, partitions)
  for _, admin in ipairs(settings.admins) do
    if admin == uid then return true end
  end
  if record.held then return false, "memgate holds it" end
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

-- Guard a job that was judged: its owner may neither release what is held nor change its GPU.
-- Slurm shows the owner "Access/permission denied" and no message of ours.
function gate.modify(path, job, before, uid, partitions)
  if uid == 0 then return slurm.SUCCESS end
  local denied = slurm.ESLURM_ACCESS_DENIED or slurm.ERROR
  local is_done, result = pcall(function()
    local record = record_of(before)
    if not record then return slurm.SUCCESS end
    local is_allowed, why = may_change(settings_file.read(path), job, record, uid, partitions)
    if is_allowed then return slurm.SUCCESS end
    slurm.log_info("memgate: a change of job %s by uid %d was refused: %s",
      tostring(before.job_id), uid, why)
    return denied
  end)
  if is_done and type(result) == "number" then return result end
  pcall(slurm.log_error, "memgate: %s", words.plain(result))
  return denied
end

return gate
