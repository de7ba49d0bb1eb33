-- memgate.conf.lua -> settings: what is not set there has the default below, what is wrong there is
-- an error. The file is data: it runs without any Lua function. docs/slurm.md says what each
-- means.

local cjson = require("cjson.safe")

local settings = {}

-- slurmctld answers no other request while it waits for us. With the way there and back (ask.lua) a
-- call takes half a second at most; longer waits are for cli_filter.lua, where they block nobody.
local MAX_BOUND_SECONDS = 0.4

-- a timer that is longer is not one
local MAX_HOLD_SECONDS = 3600
local MAX_REHEARSAL_SECONDS = 600

local DEFAULTS = {
  url = "http://127.0.0.1:8080",
  public_url = "",
  cluster = "",
  key_file = "",
  client_key_file = "",
  policy_file = "",
  audit_file = "/var/spool/memgate/audit.jsonl",
  bound_seconds = 0.4,
  busy_share = 0.2,
  hold_seconds = 60,
  rehearsal_seconds = 180,
  client_seconds = 10,
  advise = false,
  tell_admitted = true,
  max_spec_bytes = 16384,
  default_gpu = "",
  gpu_of_type = {},
  gpu_of_feature = {},
  gpu_of_partition = {},
  admins = { 0 },
  on_reject = "reject",
  on_uncertain = "admit",
  on_unanswered = "hold",
  on_bad_spec = "reject",
  on_unknown_gpu = "admit",
  on_undescribed = "admit",
  on_untyped = "admit",
  on_late = "admit",
  on_error = "admit",
}

local ACTIONS = { admit = true, reject = true, hold = true }
-- without a question that can be asked later there is no reason to hold a job
local NEVER_HELD = { on_error = true, on_unknown_gpu = true, on_undescribed = true, on_late = true, on_untyped = true }
-- what only one setting may say
local ALSO = { on_undescribed = "rehearse", on_untyped = "right_size" }

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

-- A GPU may be given by what the API takes: {"memory_bytes": N, "compute_capability": "8.6"}
local function is_size(text)
  local said = cjson.decode(text)
  return type(said) == "table" and type(said.memory_bytes) == "number" and said.count == nil and said.per_node == nil
end

local function check(path, name, value)
  local wanted = type(DEFAULTS[name])
  if wanted == "nil" then error(("%s: there is no setting %s"):format(path, tostring(name)), 0) end
  if type(value) ~= wanted then error(("%s: %s must be a %s"):format(path, name, wanted), 0) end
  for _, item in pairs(wanted == "table" and value or {}) do
    if name == "admins" and type(item) ~= "number" then
      error(('%s: admins has "%s": they are uids, as `id -u slurm` prints'):format(path, tostring(item)), 0)
    elseif name ~= "admins" and (type(item) ~= "string" or item:find("^%s*{") and not is_size(item)) then
      error(("%s: %s has %s: it is like {a100 = \"a100-80\"}"):format(path, name, tostring(item)), 0)
    end
  end
  local is_special = ALSO[name] ~= nil and value == ALSO[name]
  if name:find("^on_") and not is_special and (not ACTIONS[value] or (value == "hold" and NEVER_HELD[name]) or (value == "reject" and name == "on_untyped")) then
    local choice = name == "on_untyped" and "admit or right_size" or ALSO[name] and "admit, reject or " .. ALSO[name]
      or NEVER_HELD[name] and "admit or reject" or "admit, reject or hold"
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

-- Where the policy is: as the settings say, otherwise next to them, if there is one.
local function policy_path(path, named)
  if named ~= "" then return named, false end
  return (path:match("^(.*/)") or "./") .. "memgate.policy.json", true
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
    error(("%s: bound_seconds must be above 0 and at most %.1f"):format(path, MAX_BOUND_SECONDS), 0)
  end
  if found.busy_share <= 0 or found.busy_share > 1 then
    error(("%s: busy_share must be above 0 and at most 1"):format(path), 0)
  end
  if found.hold_seconds < 0 or found.hold_seconds > MAX_HOLD_SECONDS then
    error(("%s: hold_seconds must be from 0 to %d"):format(path, MAX_HOLD_SECONDS), 0)
  end
  if found.rehearsal_seconds < 30 or found.rehearsal_seconds > MAX_REHEARSAL_SECONDS then
    error(("%s: rehearsal_seconds must be from 30 to %d"):format(path, MAX_REHEARSAL_SECONDS), 0)
  end
  found.host, found.port = parse_url(path, found.url)
  found.policy_path, found.is_policy_optional = policy_path(path, found.policy_file)
  return found
end

-- the last settings that could be read, by their path
local last = {}

-- Return the settings, and what is wrong with the file: broken ones leave the last good ones in force.
function settings.read_or_last(path)
  local is_right, result = pcall(settings.read, path)
  if is_right then last[path] = result end
  return last[path], not is_right and tostring(result) or nil
end

return settings
