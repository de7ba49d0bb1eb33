-- A change of a job that waits -> whether it would get past the policy: a job that was let in under one
-- rule and is moved to a partition, an account or a QOS under a stricter one, or that gets a GPU only
-- after it was submitted. Nothing is asked here: what is known about the job decides.

local judging = require("memgate.judging")
local policy = require("memgate.policy")
local question = require("memgate.question")

local moving = {}

-- what decides which rule is about a job, and whether it has a GPU
local FIELDS = {
  "partition", "account", "qos", "gres", "tres_per_job", "tres_per_node", "tres_per_socket", "tres_per_task",
}

-- decisions as records have them, and as policies do; of others the fault is not known any more
local DECISIONS = {
  pending = "unanswered", rehearsal = "undescribed", reject = "reject", uncertain = "uncertain",
  bad_spec = "bad_spec", unknown_gpu = "unknown_gpu",
}

-- Say whether a change is of any interest here.
function moving.is_change(job)
  for _, field in ipairs(FIELDS) do
    if job[field] ~= nil then return true end
  end
  return false
end

-- Return a job as it will be: what changes, and the rest as it is.
local function after(job, before)
  local changed = {}
  for _, field in ipairs(FIELDS) do
    if type(job[field]) == "string" and job[field] ~= "" then changed[field] = job[field] end
  end
  -- scontrol has one word for both
  changed.tres_per_node = changed.tres_per_node or changed.gres
  return setmetatable(changed, { __index = before })
end

-- Return what is done with a job because of a decision; an exempt one is let in.
local function done(settings, chosen, decision)
  if chosen.is_exempt then return "admit" end
  return judging.apply_mode(chosen.mode, judging.action(settings, chosen, decision))
end

-- Say whether a policy has rules or exemptions by user.
local function is_by_user(document)
  for _, list in ipairs({ document.exempt or {}, document.rules or {} }) do
    for _, entry in ipairs(list) do
      if entry.user ~= nil then return true end
    end
  end
  return false
end

-- Return what to record about a change, nil if nothing: {is_refused =, subject =, chosen =, decision =, gpu =, why =}.
-- record is what is known about the job, nil if that is nothing.
function moving.judge(settings, document, job, before, record, partitions)
  if record and record.decision == "admit" then return nil end
  local changed = question.complete(after(job, before), partitions)
  local gpu = question.find_gpu(changed, settings)
  if gpu == nil then return nil end
  local subject = judging.subject(changed)
  local old, new = policy.resolve(document, judging.subject(before)), policy.resolve(document, subject)
  local has_gpu = question.find_gpu(question.complete(before, partitions), settings) ~= nil
  local decision = record and DECISIONS[record.decision] or "undescribed"
  local was = has_gpu and done(settings, old, decision) or "admit"
  local is_refused = policy.stricter(was, done(settings, new, decision)) ~= was
  -- of an exempt job nobody knows whether it is described, and whether it fits
  if has_gpu and old.is_exempt and not new.is_exempt then is_refused = is_refused or new.mode == "enforce" end
  -- a rule about a user whose name is not known may be milder
  if subject.is_nameless and is_by_user(document) then is_refused = false end
  if has_gpu and not is_refused then return nil end
  local why = has_gpu and "a stricter rule would be about it: submit it again there"
    or "it gets a GPU after it was submitted"
  return {
    is_refused = is_refused, subject = subject, chosen = new, gpu = gpu or nil, why = why,
    decision = old.is_exempt and has_gpu and "exempt" or record and record.decision or "undescribed",
  }
end

return moving
