-- Slurm's job_submit plugin: asks memgate whether a job fits on its GPU. Set up: docs/slurm.md.
-- Settings are in memgate.conf.lua next to this file; the work is done in memgate/gate.lua.
-- If you have a job_submit.lua of your own, docs/slurm.md says what to add to it.

local here = debug.getinfo(1, "S").source:match("^@(.*/)") or "./"
package.path = here .. "?.lua;" .. package.path
require("memgate.paths")
local gate = require("memgate.gate")

-- Slurm treats an error, or a result that is not a number, as a yes. So whatever is wrong with
-- memgate's files, here it is a no; jobs without a description are not affected.
local function call(name, ...)
  local function run(...) return gate[name](here .. "memgate.conf.lua", ...) end
  local is_done, result = pcall(run, ...)
  if is_done and type(result) == "number" then return result end
  slurm.log_error("memgate: %s: %s", name, tostring(result))
  slurm.log_user("memgate: failed, and no job with a description is let in; tell your administrators")
  return slurm.ERROR
end

function slurm_job_submit(job, partitions, _)
  local is_ours = (job.comment or ""):find("memgate:", 1, true) == 1
    or (job.script or ""):find("#MEMGATE", 1, true)
  return is_ours and call("submit", job, partitions) or slurm.SUCCESS
end

function slurm_job_modify(job, record, partitions, uid)
  local is_ours = uid ~= 0 and (record.admin_comment or ""):find('"memgate"', 1, true)
  return is_ours and call("modify", job, record, uid, partitions) or slurm.SUCCESS
end

return slurm.SUCCESS
