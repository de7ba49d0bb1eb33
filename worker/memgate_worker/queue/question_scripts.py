"""What the store does atomically about jobs and the questions about them, in Lua: see ``scripts``.

A job is a run; a question is somebody's, about a run that all who ask the same share.
"""

from __future__ import annotations

#: keep questions: each is [id, text, run, timestamp, tags], and is listed under each of its tags,
#: the newest ones; the runs live as long as the newest question about them. While a run is open,
#: it does not expire, and a question about it outlasts a jump of the clock by two months
_KEEP_QUESTIONS = """
local function keep_questions(packed, ttl, now, most, most_each)
    local questions, lists = 'memgate:question:', 'memgate:asked:'
    local tags, runs = {}, {}
    for _, one in ipairs(cjson.decode(packed)) do
        local is_open = redis.call('ZSCORE', 'memgate:open', one[3])
        local seconds = tonumber(ttl) + (is_open and 60 * 86400 or 0)
        redis.call('SET', questions .. one[1], one[2], 'EX', seconds)
        if not is_open then runs[one[3]] = true end
        for _, tag in ipairs(one[5]) do
            redis.call('ZADD', lists .. tag, one[4], one[1])
            tags[tag] = true
        end
    end
    for run in pairs(runs) do redis.call('EXPIRE', 'memgate:job:' .. run, ttl) end
    local function trim(tag, keep)
        local list = lists .. tag
        redis.call('EXPIRE', list, ttl)
        redis.call('ZREMRANGEBYSCORE', list, '-inf', now - ttl)
        local excess = redis.call('ZCARD', list) - keep
        if excess <= 0 then return end
        local oldest = redis.call('ZPOPMIN', list, math.min(excess, 1000))
        for place = 1, #oldest, 2 do
            redis.call('DEL', questions .. oldest[place])
            redis.call('ZREM', lists .. 'all', oldest[place])
        end
    end
    tags['all'] = nil
    for tag in pairs(tags) do trim(tag, most_each) end
    trim('all', most)  -- last: one owner's must not push out another's
end
"""

#: keep questions about runs that have ended. ARGV: questions, ttl, timestamp, most, most each
KEEP_QUESTIONS = (
    _KEEP_QUESTIONS
    + """
keep_questions(ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5]))
return 1
"""
)

#: create unless it exists; 1 if it was created, -1 if too many are open, -2 if too many of the
#: caller's are. A job that has ended
#: starts over unless its result still counts: an answer, or a failure that would repeat, made by
#: what is available now (or by anything, if there are no workers) and under no lower limit.
#: Questions asked while it is open want it, see WITHDRAW.
#: KEYS: job, jobs, open, lease, the caller's open ones, what wants it. ARGV: id, kind, work,
#: created_at, priority, ttl, timestamp, most, asked_by, identities with commas, memory_bytes,
#: seconds, caller, most each, the id of the question, the question in a list, how many questions
#: are kept, and how many of each owner
CREATE = (
    _KEEP_QUESTIONS
    + """
local function keep_question()
    if ARGV[15] == '' then return end
    keep_questions(ARGV[16], ARGV[6], tonumber(ARGV[7]), tonumber(ARGV[17]), tonumber(ARGV[18]))
end
local wants = ARGV[15] ~= '' and ARGV[15] or ARGV[13]
local found = redis.call('HMGET', KEYS[1], 'state', 'error', 'identity',
                         'exceeded_memory_bytes', 'exceeded_seconds')
local state, identity = found[1], found[3] or ''
if state == 'queued' or state == 'running' then
    redis.call('SADD', KEYS[6], wants)
    keep_question()
    return 0
end
local counts = state == 'done'
if state == 'failed' then
    local is_read, failure = pcall(cjson.decode, found[2] or '')
    local fault = is_read and type(failure) == 'table' and failure['fault']
    counts = fault == 'caller' or fault == 'job' or fault == 'unsupported'
end
local is_served = ARGV[10] ~= ''
if is_served and not string.find(',' .. ARGV[10] .. ',', ',' .. identity .. ',', 1, true) then
    counts = false
end
for number = 1, 2 do
    local limit = found[3 + number]
    if limit and tonumber(limit) < tonumber(ARGV[10 + number]) then counts = false end
end
if counts then
    keep_question()
    return 0
end
if redis.call('ZCARD', KEYS[3]) >= tonumber(ARGV[8]) then return -1 end
if ARGV[13] ~= '' then
    if redis.call('ZCARD', KEYS[5]) >= tonumber(ARGV[14]) then
        -- some may have ended unnoticed: expired, or by a worker of an older version
        for _, id in ipairs(redis.call('ZRANGE', KEYS[5], 0, -1)) do
            if not redis.call('ZSCORE', KEYS[3], id) then redis.call('ZREM', KEYS[5], id) end
        end
        if redis.call('ZCARD', KEYS[5]) >= tonumber(ARGV[14]) then return -2 end
    end
    redis.call('ZADD', KEYS[5], ARGV[7], ARGV[1])
    redis.call('EXPIRE', KEYS[5], ARGV[6])
end
redis.call('DEL', KEYS[1], KEYS[4], KEYS[6])
redis.call('SADD', KEYS[6], wants)
redis.call('EXPIRE', KEYS[6], ARGV[6])
redis.call('HSET', KEYS[1], 'state', 'queued', 'kind', ARGV[2], 'work', ARGV[3],
           'created_at', ARGV[4], 'priority', ARGV[5], 'asked_by', ARGV[9], 'attempts', 0,
           'caller', ARGV[13], 'question', ARGV[15])
-- it expires once it has ended: a server's clock may jump by more than answers are kept
redis.call('ZADD', KEYS[2], ARGV[7], ARGV[1])
redis.call('ZADD', KEYS[3], ARGV[7], ARGV[1])
keep_question()
return 1
"""
)

#: only the first end counts; true if this is it
_END_JOB = """
local function end_job(job, open, channel, id, state, finished_at, ttl, prefix, fields)
    local found = redis.call('HMGET', job, 'state', 'caller')
    local before, caller = found[1], found[2]
    if not before or (before ~= 'queued' and before ~= 'running') then return false end
    redis.call('HSET', job, 'state', state, 'finished_at', finished_at, unpack(fields))
    if caller and caller ~= '' then redis.call('ZREM', prefix .. caller, id) end
    redis.call('EXPIRE', job, ttl)
    redis.call('ZREM', open, id)
    redis.call('PUBLISH', channel, id)
    return true
end
"""

#: 1 if this was the first end.
#: KEYS: job, open, channel. ARGV: id, state, finished_at, ttl, prefix of callers' open ones, then
#: fields and their values
END = (
    _END_JOB
    + """
local is_first = end_job(KEYS[1], KEYS[2], KEYS[3], ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5],
                         {unpack(ARGV, 6)})
return is_first and 1 or 0
"""
)

#: withdraw a question whose run is open; the run ends with the last one. 2 if it ended, 1 if others
#: want it, 0 if there was nothing to withdraw.
#: KEYS: job, open, channel, question, what wants the job, lease. ARGV: id of the job, finished_at,
#: ttl, prefix of callers' open ones, error, id of the question, the question withdrawn
WITHDRAW = (
    _END_JOB
    + """
local state = redis.call('HGET', KEYS[1], 'state')
if state ~= 'queued' and state ~= 'running' then return 0 end
if redis.call('EXISTS', KEYS[4]) == 0 then return 0 end
redis.call('SET', KEYS[4], ARGV[7], 'KEEPTTL')
redis.call('SREM', KEYS[5], ARGV[6])
if redis.call('SCARD', KEYS[5]) > 0 then
    redis.call('PUBLISH', KEYS[3], ARGV[1])
    return 1
end
end_job(KEYS[1], KEYS[2], KEYS[3], ARGV[1], 'canceled', ARGV[2], ARGV[3], ARGV[4],
        {'error', ARGV[5]})
redis.call('DEL', KEYS[6])
return 2
"""
)
