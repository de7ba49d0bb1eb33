-- What memgate says about a job, and the policy -> what happens to the job, what is printed, and the
-- records of it. Nothing here asks, and nothing here changes a job: gate.lua does.

local policy = require("memgate.policy")
local words = require("memgate.words")

local judging = {}
local unpack = unpack or table.unpack -- Lua 5.1, and later

-- what Slurm has instead of a number or a time that was not given
local UNSET = { [0] = true, [4294967294] = true, [4294967295] = true }

-- Return a number that was given, otherwise nil.
function judging.given(value)
  return type(value) == "number" and not UNSET[value] and value or nil
end

local function text_of(value)
  return type(value) == "string" and value ~= "" and value or nil
end

-- users' names by their numbers: Slurm tells a name when a job is submitted, and not when it is changed
local names = {}

-- Remember who submits a job.
function judging.remember(job)
  local name = text_of(job.user_name)
  if name and job.user_id then names[job.user_id] = name end
end

-- Return who submits a job, and where to, as policies name it. A user without a name is one who has
-- submitted nothing since slurmctld started.
function judging.subject(job)
  local partitions = {}
  for name in (job.partition or ""):gmatch("[^,]+") do partitions[#partitions + 1] = name end
  local group = judging.given(job.group_id)
  return {
    user = text_of(job.user_name) or names[job.user_id] or tostring(job.user_id or ""),
    is_nameless = not text_of(job.user_name) and not names[job.user_id],
    group = group and { tostring(group) } or {},
    account = text_of(job.account) or text_of(job.default_account),
    qos = text_of(job.qos) or text_of(job.default_qos),
    partition = partitions,
    kind = "job",
  }
end

-- What each fault leads to: the decision of a policy, and the one to record.
local ON_FAULT = {
  caller = { "bad_spec", "bad_spec" },
  job = { "uncertain", "uncertain" },
  unsupported = { "uncertain", "uncertain" },
  operator = { "unanswered", "pending" },
  passing = { "unanswered", "pending" },
}

-- Return what a decision leads to where jobs are refused: by the rule, otherwise by the settings; of
-- several partitions whatever is strictest.
function judging.action(settings, chosen, decision)
  local usual = settings["on_" .. decision]
  local action = chosen.on[decision] or usual
  for _, other in ipairs(chosen.others or {}) do
    action = policy.stricter(action, other[decision] or usual)
  end
  return action
end

local on = judging.action

-- Return one answer for a job that may get one of several cards: it fits on all, on none, or on some.
function judging.combine(answers)
  local best, num_fit, not_on = answers[1], 0, {}
  for _, answer in ipairs(answers) do
    local estimate = answer.estimate
    if not estimate then return answer end
    if estimate.decision == "admit" then num_fit = num_fit + 1 else not_on[#not_on + 1] = estimate.headline end
    if estimate.capacity_bytes > best.estimate.capacity_bytes then best = answer end
  end
  if #answers == 1 or num_fit == 0 or num_fit == #answers then return best end
  local mixed = {}
  for name, value in pairs(best.estimate) do mixed[name] = value end
  mixed.decision, mixed.why = "uncertain", not_on
  mixed.helps = { "name the partition, or the kind of GPU, where it fits" }
  return { estimate = mixed, id = best.id, page = best.page }
end

-- Return what is known about a job that memgate was asked about.
function judging.about(settings, chosen, gpu, answer)
  local estimate = answer.estimate
  local found = { why = answer.why, lines = {}, gpu = gpu }
  if estimate then
    found.record = {
      decision = estimate.decision, needs = estimate.needs_bytes, capacity = estimate.capacity_bytes,
      gpu = gpu.name, id = answer.id, page = answer.page, cards = words.cards(settings),
    }
    found.why = estimate.headline
    found.action = estimate.decision == "admit" and "admit" or on(settings, chosen, estimate.decision)
  else
    local key, decision = unpack(ON_FAULT[answer.fault])
    found.record = { decision = decision, gpu = gpu and gpu.name or nil, id = answer.id }
    found.action = on(settings, chosen, key)
  end
  if found.record.decision == "pending" then
    found.record.late = on(settings, chosen, "late")
    found.record.cards = words.cards(settings)
  end
  if found.record.decision ~= "admit" or settings.tell_admitted then
    found.lines = words.about(settings, answer, gpu)
  end
  return found
end

-- Say whether the policy lets the smallest GPU be filled in for a job that asks for any.
function judging.is_right_sized(settings, chosen, gpu)
  return gpu and gpu.is_any and not gpu.is_part and chosen.mode == "enforce"
    and on(settings, chosen, "untyped") == "right_size"
end

-- The GPU that the job gets is not known.
function judging.unknown_gpu(settings, chosen, why)
  return {
    action = on(settings, chosen, "unknown_gpu"), record = { decision = "unknown_gpu" }, why = why,
    lines = { "whether this job fits was not checked: " .. words.plain(why) },
  }
end

-- Nobody has described it: it is counted, and refused where the policy says so.
local function undescribed(action, gpu)
  local lines = {}
  if action == "reject" then
    lines[1] = "jobs with a GPU need a description here: write #MEMGATE {...} before the first command"
      .. " (srun, salloc: --comment=memgate:{...}); `memgate init` makes one of a script"
  end
  return { action = action, record = { decision = "undescribed" }, lines = lines, gpu = gpu or nil, is_silent = true }
end

-- Nobody has described it, and it is to be run once without a GPU: held meanwhile.
local function rehearsal(settings, chosen, gpu, arguments)
  return {
    action = "rehearse", gpu = gpu, why = "nobody has described it",
    record = {
      decision = "rehearsal", gpu = gpu.name, gpus = gpu.count, per_node = gpu.per_node,
      arguments = arguments[1] and arguments or nil, late = on(settings, chosen, "reject"),
    },
    lines = {
      "nobody has described this job: it is run once without a GPU, to see whether it fits on " .. gpu.name
        .. "; #MEMGATE {...} describes it, --comment=memgate:skip leaves this out",
    },
  }
end

-- What happens to a job without a description; arguments are those of its script, nil if there is none.
function judging.undescribed(settings, chosen, gpu, arguments, is_skipped)
  local action = on(settings, chosen, "undescribed")
  if action ~= "rehearse" then return undescribed(action, gpu) end
  if is_skipped then
    return { action = "admit", record = { decision = "skipped" }, lines = {}, gpu = gpu or nil, is_silent = true }
  end
  local can_be = gpu and not gpu.names and arguments
  return can_be and rehearsal(settings, chosen, gpu, arguments) or undescribed("admit", gpu)
end

-- The policy exempts it: nothing is asked, and nothing is said.
function judging.exempt(gpu)
  return { action = "admit", record = { decision = "exempt" }, lines = {}, gpu = gpu or nil, is_silent = true }
end

-- Where nothing is enforced every job is let in, whatever was decided.
function judging.apply_mode(mode, action)
  return mode == "enforce" and action or "admit"
end

-- decisions whose words do not say that a job was refused
local MAY_FIT = { uncertain = true, unknown_gpu = true }
local WOULD = { reject = "refused", hold = "held", rehearse = "held meanwhile" }

-- Return the last line: what happens to the job, if the others leave that open.
local function last_line(chosen, found, action)
  local decision = found.record.decision
  if chosen.mode == "warn" then
    local would = WOULD[found.action]
    return would and ("memgate only warns here, and the job is let in; otherwise it would be %s"):format(would)
  end
  if decision == "pending" then
    if action == "reject" then return "it was not submitted; submit it again later" end
    if action == "hold" then return "it is held until that is known, or for a short time" end
    return not (found.gpu and found.gpu.is_part) and "it is let in" or nil -- another part may be refused
  end
  if action == "rehearse" then return "it is held until that is known, or for a short time" end
  if action == "hold" then return "it is held: an administrator decides" end
  if action == "reject" and MAY_FIT[decision] then return "it was not submitted: such jobs are refused here" end
end

-- Return what is printed: nothing where the policy only records.
function judging.lines(chosen, found, action)
  if chosen.mode == "audit" then return {} end
  local lines = {}
  for _, line in ipairs(found.lines) do lines[#lines + 1] = line end
  lines[#lines + 1] = last_line(chosen, found, action)
  return lines
end

local DONE = { admit = "admitted", reject = "refused", hold = "held", rehearse = "held" }

-- Return the record of a decision for the audit.
function judging.audit_record(subject, chosen, found, action, more)
  local gpu, record = more.gpu or nil, found.record
  return {
    id = more.id, at = os.time(), gate = "slurm", user = subject.user, account = subject.account,
    qos = subject.qos, partition = table.concat(subject.partition, ","), kind = "job", name = more.name,
    gpu = gpu and gpu.name or nil, num_gpus = gpu and gpu.count or nil,
    decision = record.decision == "pending" and "unanswered" or record.decision,
    mode = chosen.mode, rule = chosen.rule, done = DONE[action],
    would = action ~= found.action and DONE[found.action] or nil,
    why = found.why, estimate = record.id, near_miss = more.near, ms = more.ms, job = more.job,
  }
end

return judging
