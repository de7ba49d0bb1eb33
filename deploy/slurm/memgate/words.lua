-- An answer -> what people read at their prompt, and the record in the job's AdminComment.

local cjson = require("cjson.safe")

local words = {}

local MAX_LINE = 300

-- Return text that a terminal shows and nothing else: no control characters, bounded.
function words.plain(text)
  local shown = tostring(text):gsub("%c+", " ")
  if #shown > MAX_LINE then shown = shown:sub(1, MAX_LINE) .. "..." end
  return shown
end

-- Return where the owner can look at an answer: its page, with the operator's public address.
local function link(settings, said, id)
  local page = type(said.page) == "string" and said.page or (id and "/ui/jobs/" .. id)
  if not page then return nil end
  if page:find("^https?://") then return words.plain(page) end
  if settings.public_url == "" then return "memgate job " .. tostring(id) end
  return words.plain(settings.public_url:gsub("/+$", "") .. page)
end

-- Return the smallest GPU of this cluster that would do, as people ask for it; nil if there is none.
local function smallest_here(settings, fits_on)
  local kinds = {}
  for kind, name in pairs(settings.gpu_of_type) do
    if not kinds[name] or kind < kinds[name] then kinds[name] = kind end
  end
  for _, name in ipairs(fits_on) do -- the smallest comes first
    if kinds[name] then return "gpu:" .. kinds[name] end
  end
end

-- What would help is memgate's to say; how to ask for a GPU here is Slurm's.
local function advice(settings, said)
  local lines = {}
  for _, text in ipairs(said.helps) do lines[#lines + 1] = words.plain(text) end
  local here = smallest_here(settings, said.fits_on)
  if here then
    lines[#lines + 1] = ("the smallest GPU here on which it fits: --gres=%s:1"):format(here)
  elseif next(settings.gpu_of_type) then
    lines[#lines + 1] = "it fits on no GPU of this cluster as it is"
  end
  return lines
end

-- Return the lines about an estimate, in memgate's own words.
function words.about(settings, gpu, said, id)
  local lines = { ("this job %s (%s)"):format(words.plain(said.headline), gpu.asked) }
  if said.decision == "admit" then return lines end
  for _, text in ipairs(said.why) do lines[#lines + 1] = words.plain(text) end
  for _, line in ipairs(advice(settings, said)) do lines[#lines + 1] = line end
  lines[#lines + 1] = link(settings, said, id)
  return lines
end

-- Return the AdminComment with the record of a decision: short JSON, under one key. What another
-- plugin has written there before stays.
function words.record(fields, before)
  local comment = before and cjson.decode(before)
  if type(comment) ~= "table" or comment[1] ~= nil then comment = { note = before } end
  comment.memgate = fields
  return cjson.encode(comment)
end

-- Return the record in an AdminComment, nil if there is none.
function words.read_record(comment)
  local said = type(comment) == "string" and cjson.decode(comment)
  local record = type(said) == "table" and said.memgate
  return type(record) == "table" and record or nil
end

return words
