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

local function link(settings, id)
  if not id then return nil end
  if settings.public_url == "" then return "memgate job " .. id end
  return settings.public_url:gsub("/+$", "") .. "/jobs/" .. id
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

local function advice(settings, said)
  local lines = {}
  if type(said.largest_batch_size) == "number" then
    lines[#lines + 1] = ("the largest batch that fits there: %d"):format(said.largest_batch_size)
  elseif said.smaller_batch then
    lines[#lines + 1] = words.plain(said.smaller_batch)
  end
  local here = smallest_here(settings, said.fits_on)
  if here then
    lines[#lines + 1] = ("the smallest GPU here on which it fits: --gres=%s:1"):format(here)
  elseif next(settings.gpu_of_type) then
    lines[#lines + 1] = "it fits on no GPU of this cluster as it is"
  end
  return lines
end

local HEADLINES = {
  admit = "this job fits on %s (%s)",
  reject = "this job does not fit on %s (%s)",
  uncertain = "this job may not fit on %s (%s)",
}

-- Return the lines about an estimate.
function words.about(settings, gpu, said, id)
  local headline = HEADLINES[said.decision]:format(gpu.name, gpu.asked)
  local lines = { headline .. ": " .. words.plain(said.reason) }
  if said.decision == "admit" then return lines end
  for _, line in ipairs(advice(settings, said)) do lines[#lines + 1] = line end
  lines[#lines + 1] = link(settings, id)
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
