-- A question -> what memgate says about it, in one of five kinds:
--   {kind = "answered", id =, said =}    an estimate
--   {kind = "waiting", id =}             it is being worked out
--   {kind = "refused", why =}            the owner's description is wrong
--   {kind = "cannot_tell", why =}        memgate has no way to know
--   {kind = "away", why =}               no server, too slow, too busy, or not memgate

local cjson = require("cjson.safe")
local http = require("memgate.http")
local words = require("memgate.words")

local DECISIONS = { admit = true, reject = true, uncertain = true }
-- codes of mistakes in a description, and of one that is too long; service/memgate_service/admission/slurm/release.py has them
-- too. Everything else that is refused is memgate's fault, or the operator's.
local OWNERS = { BAD_INPUT = true, BAD_ALLOCATOR_CONFIG = true, TOO_LARGE = true }

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

local function read_estimate(document)
  if not DECISIONS[document.decision] or type(document.fits_on) ~= "table" then return nil end
  local said = { decision = document.decision, fits_on = document.fits_on }
  for _, name in ipairs({ "peak_bytes", "upper_bound_bytes", "capacity_bytes" }) do
    if type(document[name]) ~= "number" then return nil end
    said[name] = document[name]
  end
  said.largest_batch_size = document.largest_batch_size
  local first = type(document.reasons) == "table" and document.reasons[1]
  if type(first) ~= "table" or type(first.message) ~= "string" then return nil end
  said.reason = first.message
  for _, reason in ipairs(document.reasons) do -- one that fits, if there was no time for the largest
    if reason.code == "SMALLER_BATCH_FITS" then said.smaller_batch = reason.message end
  end
  return said
end

local function read_problem(status, document)
  local why = words.plain(document.detail or document.title or "")
  if status == 413 or status == 422 then
    local kind = OWNERS[document.code] and "refused" or "cannot_tell"
    return { kind = kind, why = why }
  end
  return { kind = "away", why = ("HTTP %d %s"):format(status, why) }
end

-- Ask, within so many seconds; key_file names what holds the key, "" if none is needed.
return function(settings, body, key_file, seconds)
  local headers = {}
  local key = read_key(key_file)
  if key then headers["Authorization"] = "Bearer " .. key end
  -- whole seconds only, and time for the way there and back
  local wait = math.ceil(seconds) - 1
  if wait > 0 then headers["Prefer"] = ("wait=%d"):format(wait) end
  local answer, problem = http.post(settings, "/estimate", body, headers, seconds)
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
