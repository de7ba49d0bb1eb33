-- One POST over HTTP within a time limit, whatever the other side does: silence, single bytes, no
-- end. HTTP/1.0, so that a response is in one piece and has an end.

local socket = require("socket")

local http = {}

local MAX_ANSWER_BYTES = 262144
local PIECE_BYTES = 8192

-- Return a function that returns the seconds left; none once the clock was set back.
local function countdown(seconds)
  local began = socket.gettime()
  return function()
    local gone = socket.gettime() - began
    if gone < 0 then return 0 end
    return math.max(0, seconds - gone)
  end
end

-- Send all of it, or return what went wrong.
local function send(link, text, left)
  local at = 1
  while at <= #text do
    if left() <= 0 then return "timeout" end
    link:settimeout(left(), "t")
    local last, problem, partial = link:send(text, at)
    if problem and problem ~= "timeout" then return problem end
    at = (last or partial or at - 1) + 1
  end
end

-- Wait for a byte and take what came with it; return it, and why there will be no more.
local function take(link, left)
  link:settimeout(left(), "t")
  local first, problem, partial = link:receive(1)
  if not first then return partial or "", problem end
  link:settimeout(0)
  local piece, _, rest = link:receive(PIECE_BYTES)
  return first .. (piece or rest or "")
end

-- Return head and body of an answer; or nil and why there is none.
local function receive(link, left)
  local heard, is_over = "", false
  while true do
    local _, stop = heard:find("\r\n\r\n", 1, true)
    if stop then
      local head = heard:sub(1, stop)
      local length = tonumber(head:lower():match("\r\ncontent%-length:%s*(%d+)"))
      if length and #heard - stop >= length then return head, heard:sub(stop + 1, stop + length) end
      if is_over and not length then return head, heard:sub(stop + 1) end
    end
    if is_over then return nil, "the connection was closed" end
    if #heard > MAX_ANSWER_BYTES then return nil, "the answer has no end" end
    if left() <= 0 then return nil, "timeout" end
    local piece, problem = take(link, left)
    heard = heard .. piece
    if problem == "closed" then
      is_over = true
    elseif problem and problem ~= "timeout" then
      return nil, problem
    end
  end
end

-- Return the seconds since some fixed moment.
http.now = socket.gettime

-- Post JSON. Returns {status =, body =, job = id if it names one}, or nil and why there is no answer.
function http.post(settings, path, body, headers, seconds)
  local left = countdown(seconds)
  local link, problem = socket.tcp()
  if not link then return nil, problem end
  local function ended(...)
    link:close()
    return ...
  end
  link:settimeout(left(), "t")
  local is_there
  is_there, problem = link:connect(settings.host, settings.port)
  if not is_there then return ended(nil, problem) end
  local lines = {
    ("POST %s HTTP/1.0"):format(path),
    ("Host: %s:%d"):format(settings.host, settings.port),
    "Content-Type: application/json",
    ("Content-Length: %d"):format(#body),
  }
  for name, value in pairs(headers) do lines[#lines + 1] = ("%s: %s"):format(name, value) end
  problem = send(link, table.concat(lines, "\r\n") .. "\r\n\r\n" .. body, left)
  if problem then return ended(nil, problem) end
  local head, rest = receive(link, left)
  if not head then return ended(nil, rest) end
  local status = tonumber(head:match("^HTTP/1%.%d (%d%d%d)"))
  if not status then return ended(nil, "what answers there does not speak HTTP") end
  local job = head:match("\r\n[Ll]ocation:%s*/jobs/(%x+)\r\n")
  return ended({ status = status, body = rest, job = job })
end

return http
