-- A question -> what memgate answers, in one of two forms:
--   {estimate =, id =, page =}     an estimate
--   {fault =, why =, id =}         none, and whose fault that is; the fault alone decides what is done:
--     caller        the job's owner: the description is wrong
--     job           the job would fail on the GPU
--     unsupported   memgate cannot run this kind of job
--     operator      something is not installed or not configured, in memgate or in this plugin
--     passing       not yet, no server, too slow, too busy, or not memgate

local cjson = require("cjson.safe")
local http = require("memgate.http")
local words = require("memgate.words")

local DECISIONS = { admit = true, reject = true, uncertain = true }

-- for the way there and back, on top of the time that memgate may wait for a worker
local WAY_SECONDS = 0.1

-- Return the key in a file; or nil, and what is wrong with the file, which is the operator's to mend.
local function read_key(path)
  if path == "" then return nil end
  local file, problem = io.open(path)
  if not file then return nil, "the key cannot be read: " .. problem end
  local key = (file:read("*l") or ""):match("^%s*(.-)%s*$")
  file:close()
  if not key:find("^[%w_%-%.]+$") then return nil, path .. ": there is no key in it" end
  return key
end

local function read_id(...)
  for _, text in ipairs({ ... }) do
    if type(text) == "string" and #text == 32 and text:find("^%x+$") then return text end
  end
end

local function read_texts(list)
  local texts = {}
  for _, text in ipairs(type(list) == "table" and list or {}) do texts[#texts + 1] = tostring(text) end
  return texts
end

-- Return the parts of an estimate that are used here, nil if it is not one.
local function read_estimate(document)
  local explanation = document.explanation
  if not DECISIONS[document.decision] or type(explanation) ~= "table" then return nil end
  if type(explanation.headline) ~= "string" or type(document.fits_on) ~= "table" then return nil end
  if type(document.needs_bytes) ~= "number" or type(document.capacity_bytes) ~= "number" then return nil end
  return {
    decision = document.decision,
    needs_bytes = document.needs_bytes,
    capacity_bytes = document.capacity_bytes,
    fits_on = document.fits_on,
    headline = explanation.headline,
    why = read_texts(explanation.why),
    helps = read_texts(explanation.helps),
  }
end

-- A question has two authors: a mistake in the job is its owner's to fix, but the GPU's name,
-- the key and the address come from this plugin's settings. A request that is not even JSON, or too
-- long, is the owner's too: the rest of it is short and written here.
local function is_about_the_job(status, document)
  if read_id(document.job) or status == 413 then return true end -- it was run, or is too long
  for _, wrong in ipairs(type(document.errors) == "table" and document.errors or {}) do
    local field = type(wrong) == "table" and wrong.field
    if type(field) == "string" and (field == "" or field:match("^[^%.]+") == "job") then return true end
  end
  return false
end

local function read_problem(status, document)
  local fault = document.fault
  local why = words.plain(document.detail or document.title or "")
  if not words.FAULTS[fault] then fault, why = "passing", ("HTTP %d %s"):format(status, why) end
  if fault == "caller" and not is_about_the_job(status, document) then fault = "operator" end
  return { fault = fault, why = why, id = read_id(document.job) }
end

local function nothing(why)
  return { fault = "passing", why = words.plain(why) }
end

local OWNER_HEADERS = {
  cluster = "X-Memgate-Cluster", user = "X-Memgate-User", job_name = "X-Memgate-Job-Name",
}
local MAX_OWNER_BYTES = 256

-- Return the headers that say for whom is asked. All of it comes from users: encoded, and cut off.
local function owner_headers(owner)
  local headers = {}
  for field, header in pairs(OWNER_HEADERS) do
    local text = owner and owner[field]
    if type(text) == "string" and text ~= "" and #text <= MAX_OWNER_BYTES and not text:find("%c") then
      headers[header] = text:gsub("[^%w%-%._~]", function(byte) return ("%%%02X"):format(byte:byte()) end)
    end
  end
  return headers
end

-- Ask, within so many seconds; key_file names the file with the key, "" if none is needed; owner says
-- for whom: {cluster =, user =, job_name =}, nil for the one who asks.
return function(settings, body, key_file, seconds, owner)
  local headers = owner_headers(owner)
  local key, wrong = read_key(key_file)
  if wrong then return { fault = "operator", why = words.plain(wrong) } end
  if key then headers["Authorization"] = "Bearer " .. key end
  headers["Prefer"] = ("wait=%.1f"):format(seconds)
  local answer, problem = http.post(settings, "/estimate", body, headers, seconds + WAY_SECONDS)
  if not answer then return nothing(problem) end
  local document = cjson.decode(answer.body)
  local is_ours = type(document) == "table"
  if is_ours and answer.status == 200 then
    local estimate = read_estimate(document)
    local id = read_id(document.id, answer.job)
    local page = type(document.page) == "string" and document.page or id and "/ui/jobs/" .. id
    if estimate then return { estimate = estimate, id = id, page = page } end
  elseif is_ours and answer.status == 202 and read_id(document.id) then
    return { fault = "passing", why = "the estimate is being made", id = document.id, is_being_made = true }
  elseif is_ours and answer.status >= 400 then
    return read_problem(answer.status, document)
  end
  return nothing(("HTTP %d, and not in memgate's form"):format(answer.status))
end
