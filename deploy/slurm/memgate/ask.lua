-- A question -> what memgate says about it, in one of four kinds:
--   {kind = "answered", id =, said =}    an estimate
--   {kind = "waiting", id =}             it is being worked out
--   {kind = "failed", fault =, why =}    there will be no estimate; the fault says whose it is
--   {kind = "away", why =}               no server, too slow, too busy, or not memgate

local cjson = require("cjson.safe")
local http = require("memgate.http")
local words = require("memgate.words")

-- for the way there and back, beside what the server may take
local WAY_SECONDS = 0.2
local DECISIONS = { admit = true, reject = true, uncertain = true }
-- whose a failure is (docs/errors.md); anything else is not in memgate's form
local FAULTS = { caller = true, job = true, unsupported = true, operator = true, passing = true }
-- statuses of a question that was read: others are about the key, the address or the request itself,
-- which are the operator's
local ABOUT_THE_QUESTION = { [413] = true, [422] = true }

local function read_key(path)
  if path == "" then return nil end
  local file = assert(io.open(path))
  local key = file:read("*l") or ""
  file:close()
  key = key:match("^%s*(.-)%s*$")
  if not key:find("^[%w_%-%.]+$") then error(path .. ": there is no key in it", 0) end
  return key
end

local function is_id(text)
  return type(text) == "string" and #text == 32 and text:find("^%x+$") ~= nil
end

local function texts(list)
  local found = {}
  for _, text in ipairs(type(list) == "table" and list or {}) do
    if type(text) == "string" then found[#found + 1] = text end
  end
  return found
end

local function read_estimate(document)
  if not DECISIONS[document.decision] or type(document.fits_on) ~= "table" then return nil end
  local said = { decision = document.decision, fits_on = document.fits_on, page = document.page }
  for _, name in ipairs({ "needs_bytes", "capacity_bytes" }) do
    if type(document[name]) ~= "number" then return nil end
    said[name] = document[name]
  end
  local explanation = document.explanation
  if type(explanation) ~= "table" or type(explanation.headline) ~= "string" then return nil end
  said.headline = explanation.headline
  said.why, said.helps = texts(explanation.why), texts(explanation.helps)
  return said
end

-- The GPU comes from the operator's own table, so a name that memgate does not know is theirs.
local function whose(status, document)
  if document.fault ~= "caller" then return document.fault end
  if document.code == "UNKNOWN_GPU" or not ABOUT_THE_QUESTION[status] then return "operator" end
  return "caller"
end

local function read_problem(status, document)
  local why = words.plain(document.detail or document.title or "")
  if FAULTS[document.fault] then
    return { kind = "failed", fault = whose(status, document), why = why }
  end
  return { kind = "away", why = ("HTTP %d %s"):format(status, why) }
end

-- Ask, within so many seconds; key_file names what holds the key, "" if none is needed.
return function(settings, body, key_file, seconds)
  local headers = {}
  local key = read_key(key_file)
  if key then headers["Authorization"] = "Bearer " .. key end
  headers["Prefer"] = ("wait=%.1f"):format(seconds)
  local answer, problem = http.post(settings, "/estimate", body, headers, seconds + WAY_SECONDS)
  if not answer then return { kind = "away", why = words.plain(problem) } end
  local document = cjson.decode(answer.body)
  if type(document) ~= "table" then
    return { kind = "away", why = ("HTTP %d, and not in memgate's form"):format(answer.status) }
  end
  if answer.status == 200 then
    local said = read_estimate(document)
    if said then return { kind = "answered", id = is_id(answer.job) and answer.job or nil, said = said } end
  elseif answer.status == 202 and is_id(document.id) then
    return { kind = "waiting", id = document.id }
  elseif answer.status >= 400 then
    return read_problem(answer.status, document)
  end
  return { kind = "away", why = ("HTTP %d, and not in memgate's form"):format(answer.status) }
end
