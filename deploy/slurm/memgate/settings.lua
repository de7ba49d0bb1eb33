-- memgate.conf.lua -> settings: what is not set there has the default below, what is wrong there is
-- an error. The file is data: it runs without any Lua function. docs/slurm.md says what each
-- means.

local settings = {}

-- slurmctld answers no other request while it waits for us, and reports a call that is longer than
-- MessageTimeout (10 s) as failed though the job runs: no setting may come near it.
local MAX_BOUND_SECONDS = 5

local DEFAULTS = {
  url = "http://127.0.0.1:8080",
  public_url = "",
  key_file = "",
  client_key_file = "",
  bound_seconds = 2,
  busy_share = 0.2,
  advice_seconds = 20,
  advise = true,
  tell_admitted = true,
  max_spec_bytes = 16384,
  default_gpu = "",
  gpu_of_type = {},
  gpu_of_feature = {},
  gpu_of_partition = {},
  admins = { 0 },
  on_reject = "reject",
  on_uncertain = "admit",
  on_unanswered = "admit",
  on_bad_spec = "reject",
  on_unknown_gpu = "admit",
  on_error = "admit",
}

local ACTIONS = { admit = true, reject = true, hold = true }
-- without a question that can be asked later there is no reason to hold a job
local NEVER_HELD = { on_error = true, on_unknown_gpu = true }

local function run(path)
  local chunk, problem
  if setfenv then -- Lua 5.1
    chunk, problem = loadfile(path)
    if chunk then setfenv(chunk, {}) end
  else
    chunk, problem = loadfile(path, "t", {})
  end
  if not chunk then error(problem, 0) end
  local said = chunk()
  if type(said) ~= "table" then error(path .. ": it must return a table of settings", 0) end
  return said
end

local function check(path, name, value)
  local wanted = type(DEFAULTS[name])
  if wanted == "nil" then error(("%s: there is no setting %s"):format(path, tostring(name)), 0) end
  if type(value) ~= wanted then error(("%s: %s must be a %s"):format(path, name, wanted), 0) end
  for _, item in pairs(wanted == "table" and value or {}) do
    if name == "admins" and type(item) ~= "number" then
      error(('%s: admins has "%s": they are uids, as `id -u slurm` prints'):format(path, tostring(item)), 0)
    elseif name ~= "admins" and type(item) ~= "string" then
      error(("%s: %s has %s: it is like {a100 = \"a100-80\"}"):format(path, name, tostring(item)), 0)
    end
  end
  if name:find("^on_") and (not ACTIONS[value] or (value == "hold" and NEVER_HELD[name])) then
    local choice = NEVER_HELD[name] and "admit or reject" or "admit, reject or hold"
    error(('%s: %s is "%s": it must be one of %s'):format(path, name, value, choice), 0)
  end
end

-- A name lookup cannot be bounded in time, so the server is given by its IP address.
local function parse_url(path, url)
  local host, port = url:match("^http://([%d%.]+):(%d+)/?$")
  if not host then
    local rule = "it is like http://10.0.0.5:8080, with an address, not a name"
    error(('%s: url is "%s": %s'):format(path, url, rule), 0)
  end
  return host, tonumber(port)
end

-- Read the settings, or raise an error that names the one that is wrong.
function settings.read(path)
  local found = {}
  for name, value in pairs(DEFAULTS) do found[name] = value end
  for name, value in pairs(run(path)) do
    check(path, name, value)
    found[name] = value
  end
  if found.bound_seconds <= 0 or found.bound_seconds > MAX_BOUND_SECONDS then
    error(("%s: bound_seconds must be above 0 and at most %d"):format(path, MAX_BOUND_SECONDS), 0)
  end
  if found.busy_share <= 0 or found.busy_share > 1 then
    error(("%s: busy_share must be above 0 and at most 1"):format(path), 0)
  end
  found.host, found.port = parse_url(path, found.url)
  return found
end

return settings
