-- A decision -> one line of JSON, in slurmctld's log and at the end of a file. `memgate slurm release`
-- sends the file's lines to memgate and removes them. Writing takes microseconds and may fail: a
-- decision never depends on it.

local cjson = require("cjson.safe")

local audit = {}

local MAX_FILE_BYTES = 64 * 1024 * 1024
-- a record has less than a kilobyte
local MAX_TEXT, MAX_WHY = 64, 200

local function short(name, value)
  if type(value) ~= "string" then return value end
  local plain = value:gsub("%c+", " ")
  return plain:sub(1, name == "why" and MAX_WHY or MAX_TEXT)
end

-- Return an id for a record, which is in the job's AdminComment as well: a job has no number yet.
function audit.new_id(now)
  return ("%08x%05x%03x"):format(now, (now % 1) * 1e6, math.random(0, 4095))
end

-- Return what was wrong, nil if the line was written.
local function append(path, line)
  local file, problem = io.open(path, "ab")
  if not file then return problem end
  if file:seek("end") > MAX_FILE_BYTES then
    file:close()
    return path .. ": it is full; does `memgate slurm release` run?"
  end
  file:write(line, "\n")
  file:close()
end

local told

-- Write a record. What nobody has to read in the log, such as jobs that are only counted, is not logged.
function audit.write(settings, record, is_quiet)
  local fields = {}
  for name, value in pairs(record) do fields[name] = short(name, value) end
  local line = cjson.encode(fields)
  if not is_quiet then slurm.log_info("memgate: audit %s", line) end
  if settings.audit_file == "" then return end
  local problem = append(settings.audit_file, line)
  if problem and problem ~= told then slurm.log_error("memgate: no audit: %s", tostring(problem)) end
  told = problem
end

return audit
