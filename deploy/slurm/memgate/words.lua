-- An answer -> what people read at their prompt, and the record in the job's AdminComment. An
-- estimate brings its own sentences, the same at every door; here they are translated to this
-- cluster.

local cjson = require("cjson.safe")

local words = {}

local MAX_LINE = 300

-- Whose fault it is that there is no estimate, as memgate/explanation.py says it; a test compares.
words.FAULTS = {
  caller = "the description of the job is wrong",
  job = "the job would fail on the GPU",
  unsupported = "memgate cannot tell whether it fits, a limit of memgate's, not the job's",
  operator = "memgate cannot tell whether it fits until its operator acts",
  passing = "no answer yet",
}

-- Return text that is safe to show in a terminal: no control characters, bounded.
function words.plain(text)
  local shown = tostring(text):gsub("%c+", " ")
  if #shown > MAX_LINE then shown = shown:sub(1, MAX_LINE) .. "..." end
  return shown
end

-- Return where a page is, for people: a path is appended to the public URL, if there is one.
local function link(settings, page)
  if page:sub(1, 1) ~= "/" then return page end
  return settings.public_url:gsub("/+$", "") .. page
end

-- Return this cluster's smallest GPU that would do: its gres type, and its name; nil if there is none.
function words.smallest_kind(settings, fits_on)
  local kinds = {}
  for kind, name in pairs(settings.gpu_of_type) do
    if not kinds[name] or kind < kinds[name] then kinds[name] = kind end
  end
  for _, name in ipairs(fits_on) do -- the smallest comes first
    if kinds[name] then return kinds[name], name end
  end
end

-- Return the part of an answer's advice that this cluster can offer, for as many GPUs as were asked for.
local function translate(settings, fits_on, count)
  local here = words.smallest_kind(settings, fits_on)
  if here then return ("the smallest GPU here on which it fits: --gres=gpu:%s:%d"):format(here, count) end
  if next(settings.gpu_of_type) then return "it fits on no GPU of this cluster as it is" end
end

-- Return the lines about an answer: what is decided, why, what would help, where to look. gpu is what
-- the job asks for.
function words.about(settings, answer, gpu)
  if not answer.estimate then return { words.FAULTS[answer.fault] .. ": " .. answer.why } end
  local estimate = answer.estimate
  local lines = { "this job " .. words.plain(estimate.headline) }
  if estimate.decision == "admit" then return lines end
  for _, list in ipairs({ estimate.why, estimate.helps }) do
    for _, line in ipairs(list) do lines[#lines + 1] = words.plain(line) end
  end
  lines[#lines + 1] = translate(settings, estimate.fits_on, gpu and (gpu.per_node or gpu.count) or 1)
  if answer.page then lines[#lines + 1] = "see " .. words.plain(link(settings, answer.page)) end
  return lines
end

-- Return the names of this cluster's cards, for programs that have not read the settings.
function words.cards(settings)
  local names, is_known = {}, {}
  for _, name in pairs(settings.gpu_of_type) do
    if not is_known[name] then names[#names + 1], is_known[name] = name, true end
  end
  table.sort(names)
  return names[1] and table.concat(names, ",") or nil
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
