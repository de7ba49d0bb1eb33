-- Slurm's job_submit plugin: asks memgate whether a job fits on its GPU. Set up: docs/slurm.md.
-- Settings are in memgate.conf.lua next to this file; the work is done in memgate/gate.lua.
-- If you have a job_submit.lua of your own, docs/slurm.md says what to add to it.

local here = debug.getinfo(1, "S").source:match("^@(.*/)") or "./"
package.path = here .. "?.lua;" .. package.path
require("memgate.paths")
local gate = require("memgate.gate")

-- Slurm treats an error, or a result that is not a number, as a yes. What is wrong with memgate's files
-- is a no only where the settings say so; a job that was judged keeps its guard.
local function refuses_on_error()
  local is_read, settings = pcall(function()
    return require("memgate.settings").read(here .. "memgate.conf.lua")
  end)
  if not is_read or settings.on_error ~= "reject" then return false end
  local is_known, policy = pcall(function()
    return (require("memgate.policy").read(settings.policy_path, settings.is_policy_optional))
  end)
  return is_known and (policy.mode or "enforce") == "enforce"
end

local function call(name, on_failure, ...)
  local function run(...) return gate[name](here .. "memgate.conf.lua", ...) end
  local is_done, result = pcall(run, ...)
  if is_done and type(result) == "number" then return result end
  slurm.log_error("memgate: %s: %s", name, tostring(result))
  return on_failure()
end

function slurm_job_submit(job, partitions, _)
  return call("submit", function()
    local is_ours = (job.comment or ""):find("memgate:", 1, true) == 1
      or (job.script or ""):find("\n#MEMGATE", 1, true)
    if not is_ours then return slurm.SUCCESS end
    local is_shut = refuses_on_error()
    slurm.log_user(is_shut and "memgate: failed, and no job with a description is let in; tell your administrators"
      or "memgate: failed, and this job was not checked")
    return is_shut and slurm.ERROR or slurm.SUCCESS
  end, job, partitions)
end

function slurm_job_modify(job, record, partitions, uid)
  if uid == 0 then return slurm.SUCCESS end
  local comment = record.admin_comment or ""
  return call("modify", function()
    if not comment:find('"memgate"', 1, true) then return slurm.SUCCESS end -- not a job of ours
    if comment:find('"mode":"', 1, true) then return slurm.SUCCESS end -- nothing is enforced
    return slurm.ERROR
  end, job, record, uid, partitions)
end

return slurm.SUCCESS
