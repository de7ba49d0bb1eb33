-- Slurm's job_submit plugin: asks memgate whether a job fits on its GPU. Set up: docs/slurm.md.
-- Settings are in memgate.conf.lua beside this file; the work is done in memgate/gate.lua.
-- If you have a job_submit.lua of your own, take the first four lines and call gate from it.

local here = debug.getinfo(1, "S").source:match("^@(.*/)") or "./"
package.path = here .. "?.lua;" .. package.path
require("memgate.paths")
local gate = require("memgate.gate")

function slurm_job_submit(job, _, _)
  return gate.submit(here .. "memgate.conf.lua", job)
end

function slurm_job_modify(job, record, _, uid)
  return gate.modify(here .. "memgate.conf.lua", job, record, uid)
end

return slurm.SUCCESS
